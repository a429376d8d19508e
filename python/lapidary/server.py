"""The HTTP server of ``lapidary serve`` within this process."""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _core
from .engine import default_model

if TYPE_CHECKING:
    from typing_extensions import Self

_open_servers: weakref.WeakSet[Server] = weakref.WeakSet()
# Python runs its handlers of signals between two of these, in seconds.
_POLL = 0.1


class Server:
    """A server, which runs beside Python on threads of its own. Every method may be called from many threads.

    It leaves signals to the program: ``drain()`` is what SIGTERM is to ``lapidary serve``."""

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        log_level: str = "warning",
        access_log: str = "off",
        **options: Any,
    ) -> None:
        """Loads a model and serves it; returns when clients can connect.

        Args:
            model: What ``lapidary serve`` takes: a directory, a GGUF file, a name on the Hugging Face Hub; None: the one
                that the environment variable LAPIDARY_MODEL names, or the bundled toy model.
            port: 0: any free one.
            host: The address to listen on; "0.0.0.0": all of this machine's.
            log_level: "debug", "info", "warning" or "error".
            access_log: A line for each request: "off", "text" or "json".
            options: Every other option of ``lapidary serve``, with ``_`` for ``-``: ``max_model_len=4096``. True gives
                it without a value, False its ``--no-`` form, None leaves it out; a list repeats it, a dict is JSON.
        """
        arguments = [os.fspath(model) if model is not None else default_model()]
        named = {"port": port, "host": host, "log_level": log_level, "access_log": access_log, **options}
        for name, value in named.items():
            arguments += _arguments("--" + name.replace("_", "-"), value)
        self._server = _start(arguments)
        _open_servers.add(self)

    @property
    def url(self) -> str:
        """Where this machine reaches it: "http://127.0.0.1:40123"."""
        return self._server.url

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    @property
    def model_names(self) -> list[str]:
        """What requests may call the model, the first is in answers."""
        return self._server.model_names

    def stats(self) -> dict[str, float]:
        """What it does and how large it is, for routers: sequences that run and wait (``num_running``,
        ``num_waiting``), ``kv_cache_usage`` from 0 to 1, counts of requests and tokens, ``block_size`` and
        ``num_blocks`` of the KV cache, ``max_num_seqs``, ``max_num_batched_tokens``, ``max_model_len``."""
        return self._server.stats()

    def drain(self, timeout: float | None = None) -> bool:
        """Says no at /ready, serves newcomers for ``drain_delay`` seconds longer, completes what is open within
        ``shutdown_timeout``, and ends. Waits for that, but no longer than ``timeout`` seconds; whether it has ended."""
        self._server.drain()
        return self.wait(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has ended, but no longer than ``timeout`` seconds; whether it has."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _POLL if deadline is None else max(0.0, min(_POLL, deadline - time.monotonic()))
            if self._server.wait_for(left):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def close(self) -> None:
        """Ends what is open and frees the model's memory."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _arguments(flag: str, value: Any) -> list[str]:
    if value is None:
        return []
    if value is True:
        return [flag]
    if value is False:
        return ["--no-" + flag.removeprefix("--")]
    if isinstance(value, Mapping):
        return [f"{flag}={json.dumps(value)}"]
    if isinstance(value, (list, tuple)):
        return [f"{flag}={each}" for each in value]
    return [f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}"]


def _start(arguments: list[str]) -> _core.Server:
    """On a thread, so that Ctrl-C ends the wait; what is started then is closed once it has started."""
    started: list[_core.Server] = []
    failures: list[BaseException] = []
    lock = threading.Lock()
    is_wanted = True

    def run() -> None:
        try:
            server = _core.Server(arguments)
        except BaseException as error:
            failures.append(error)
            return
        with lock:
            if is_wanted:
                started.append(server)
                return
        server.close()

    thread = threading.Thread(target=run, name="lapidary-start", daemon=True)
    try:
        thread.start()
        while thread.is_alive():
            thread.join(_POLL)
    except BaseException:
        with lock:
            is_wanted = False
        for server in started:
            server.close()
        raise
    if failures:
        raise failures[0]
    return started[0]


@atexit.register
def _close_all() -> None:
    """Servers have threads of their own, which must end before the interpreter does."""
    for server in list(_open_servers):
        server.close()
