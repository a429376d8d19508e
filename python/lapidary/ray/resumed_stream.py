"""A streamed answer that outlives its server: what was sent is asked of the next one as ``resume``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# Where a stream that was cut can be gone on with.
RESUMABLE = ("/v1/chat/completions", "/v1/completions", "/inference/v1/generate")

# In JSON no text holds these: its quotation marks are escaped.
_TOKEN_IDS = re.compile(rb',"(?:prompt_)?token_ids":\[[0-9,]*\]')
# Errors that say something of the server and nothing of the request.
_OF_THE_SERVER = ("shutting_down", "engine_failed", "queue_full", "out_of_memory", "too_many_connections",
                  "media_queue_full")


class Cut(Exception):
    """The server will not complete its answer; another may."""


def is_of_the_server(error: Any) -> bool:
    """Whether an error is one that another server need not have."""
    return isinstance(error, Mapping) and error.get("code") in _OF_THE_SERVER


class ResumedStream:
    """The events of one answer, from as many servers as it takes. ``body()`` is the request of the next one, ``feed()``
    takes its events and gives what the client shall see of each."""

    def __init__(self, path: str, request: dict[str, Any]) -> None:
        self._path = path
        self._request = request
        self._shows_ids = bool(request.get("return_token_ids")) or path == "/inference/v1/generate"
        self._tokens = _tokens_of(request.get("resume"))
        self._num_given = len(self._tokens)
        self._first: dict[str, Any] | None = None  # id and created of the answer
        self._is_later = False  # what comes is of a second server, or a third
        self._has_finished = False  # its finish_reason was sent
        self._has_usage = False  # and the chunk without choices that follows it
        self._is_blind = False  # text came without its tokens: something on the way has dropped return_token_ids
        self.is_done = False

    @property
    def can_go_on(self) -> bool:
        """False: another server could only begin again, after what the client has seen."""
        request = self._request
        sampling = request.get("sampling_params") or request
        single = all(isinstance(where, Mapping) and where.get("n") in (None, 1) and not where.get("echo")
                     and where.get("prompt_logprobs") is None for where in (request, sampling))
        prompts = request.get("prompt")
        several = isinstance(prompts, list) and len(prompts) > 1 and not isinstance(prompts[0], int)
        is_known = single and not several and not self._is_blind and self._path in RESUMABLE
        return self._first is None or is_known

    def body(self) -> bytes:
        """The request for the next server."""
        request = self._request
        if self._path in RESUMABLE and "/inference/" not in self._path:
            request = {**request, "return_token_ids": True}
        tokens = self._tokens
        if self._first is not None:
            self._is_later = True
            # The end was sent, but not all that follows it: its last token brings that once more.
            tokens = tokens[:-1] if self._has_finished else tokens
        if len(tokens) > 0:
            request = {**request, "resume": {"token_ids": tokens}}
        return json.dumps(request).encode()

    def feed(self, event: bytes) -> bytes:
        """What the client sees of an event, which ends with its empty line; nothing: b"". Raises Cut."""
        if not event.startswith(b"data: "):
            return event  # a comment, which keeps connections open
        if event.startswith(b"data: [DONE]"):
            self.is_done = True
            return event
        chunk = json.loads(event[6:])
        if "error" in chunk and is_of_the_server(chunk["error"]) and self.can_go_on:
            raise Cut(chunk["error"].get("message", ""))
        if self._first is None:
            self._begin(chunk)
        choices = chunk.get("choices") or []
        if self._is_later and self._has_finished and (choices or self._has_usage):
            return b""
        self._has_usage = self._has_usage or not choices
        says_something = not choices
        for choice in choices:
            self._tokens += choice.get("token_ids") or []
            self._has_finished = self._has_finished or choice.get("finish_reason") is not None
            says_something = says_something or _says_something(choice)
            self._is_blind = self._is_blind or (not self._tokens and _has_text(choice))
        if self._is_later:
            if not says_something:
                return b""
            chunk.update(self._first or {})
            chunk.pop("seed", None)
            event = b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
        return event if self._shows_ids else _TOKEN_IDS.sub(b"", event)

    @property
    def num_tokens(self) -> int:
        """Tokens that servers gave so far."""
        return len(self._tokens) - self._num_given

    def _begin(self, chunk: Mapping[str, Any]) -> None:
        self._first = {name: chunk[name] for name in ("id", "created", "request_id") if name in chunk}
        seed = chunk.get("seed")
        if seed is None:
            return
        if "/inference/" in self._path:
            self._request = {**self._request, "sampling_params": {**(self._request.get("sampling_params") or {}), "seed": seed}}
        else:
            self._request = {**self._request, "seed": seed}


def _tokens_of(resume: Any) -> list[int]:
    ids = resume.get("token_ids") if isinstance(resume, Mapping) else None
    return list(ids) if isinstance(ids, list) else []


def _has_text(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning") or delta.get("tool_calls"))


def _says_something(choice: Mapping[str, Any]) -> bool:
    """More than that an answer begins."""
    delta = choice.get("delta")
    if delta is None or choice.get("finish_reason") is not None or choice.get("token_ids"):
        return True
    return any(value for name, value in delta.items() if name != "role")
