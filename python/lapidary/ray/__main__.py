"""``python -m lapidary.ray MODEL [MODEL ...] [--replicas auto] [OPTIONS OF lapidary serve]``."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from typing import Any

from . import model_name, parse_range


def main() -> None:
    """Joins the cluster that there is (or starts one on this machine) and serves until it is told to end."""
    parser = argparse.ArgumentParser(
        prog="python -m lapidary.ray", allow_abbrev=False,
        usage="%(prog)s [MODEL ...] [OPTIONS]",
        description="Serves models by many replicas on a Ray cluster, under one address. MODEL: a path on every node "
                    "or a name on the Hub; NAME=MODEL says what requests call it (default: the bundled toy model).",
        epilog="Every other option is one of `lapidary serve`, and all replicas get it: --max-model-len 8192")
    parser.add_argument("--replicas", default="1", help="of each model: a number, MIN:MAX, or auto (default: 1)")
    parser.add_argument("--port", type=int, default=8000, help="where clients find it (default: 8000)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all")
    parser.add_argument("--target-requests", type=int, default=16, help="open requests of each replica that autoscaling aims at")
    parser.add_argument("--max-requests", type=int, default=256, help="most open requests of a replica; others wait")
    parser.add_argument("--max-lead", type=int, default=8,
                        help="requests by which a replica may be ahead of the least busy one and still get a prompt "
                             "whose beginning it has")
    parser.add_argument("--num-cpus", type=float, default=1, help="that Ray sets aside for a replica")
    parser.add_argument("--num-gpus", type=float, help="the same (default: 1 where the cluster has any)")
    parser.add_argument("--drain-seconds", type=float, default=600, help="that a replica has to complete its answers")
    parser.add_argument("--downscale-delay", type=float, default=600, help="seconds of less load before a replica goes")
    parser.add_argument("--replica-host", help="address that replicas listen on (default: their node's, which every "
                                               "machine may reach: give them an --api-key; 127.0.0.1 on one machine)")
    parser.add_argument("--ray-address", help="of the cluster (default: the one of this machine, or a new one)")
    words = sys.argv[1:]
    num_models = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    arguments, others = parser.parse_known_args(words[num_models:])
    try:
        import ray
        from ray import serve

        from .application import Settings, build
    except ImportError as error:
        sys.exit(f"lapidary.ray: {error}: pip install 'lapidary[ray]'")
    models: dict[str, str | None] = {}
    try:
        options = _options(others)
        if arguments.replicas != "auto":
            parse_range(arguments.replicas)
        for word in words[:num_models] or [""]:
            name, has_name, model = word.rpartition("=")
            name = name if has_name else model_name(model or None)
            if name in models:
                raise ValueError(f"two models are called '{name}': NAME=MODEL gives one another name")
            models[name] = model or None
        address = arguments.ray_address
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=True) if address else _init(ray)
        names = ("replicas", "port", "host", "target_requests", "max_requests", "max_lead", "num_cpus", "num_gpus",
                 "drain_seconds", "downscale_delay", "replica_host")
        settings = Settings(models=models, options=options, **{name: getattr(arguments, name) for name in names})
        application = build(settings)
    except (ValueError, ConnectionError) as error:
        sys.exit(f"lapidary.ray: {error}")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    serve.start(proxy_location="Disabled")
    try:
        serve.run(application, name="lapidary", route_prefix=None)
    except RuntimeError as error:  # a model that cannot be loaded, a port that is taken
        reason = _reason(serve)
        serve.shutdown()
        sys.exit(f"lapidary.ray: {reason or error}")
    print(f"serving {', '.join(models)} on http://{arguments.host}:{arguments.port}", file=sys.stderr, flush=True)
    ended.wait()
    serve.shutdown()


def _init(ray: Any) -> None:
    try:
        ray.init(address="auto", log_to_driver=True)
    except ConnectionError:
        ray.init(log_to_driver=True)


def _reason(serve: Any) -> str:
    """The message of the exception that kept a deployment from starting, out of what Ray tells of it."""
    deployments = serve.status().applications["lapidary"].deployments.values()
    told = [line.strip() for deployment in deployments for line in deployment.message.splitlines() if "Error" in line]
    return told[-1].partition(": ")[2] if told else ""


def _options(words: list[str]) -> dict[str, Any]:
    """``--max-model-len 8192 --strict-tools`` as the arguments of lapidary.Server."""
    options: dict[str, Any] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--") or word == "--":
            raise ValueError(f"'{word}' is neither an option nor one's value; models come before the options")
        name, has_value, value = word[2:].partition("=")
        if not has_value and waiting and not waiting[0].startswith("--"):
            has_value, value = "=", waiting.pop(0)
        name = name.replace("-", "_")
        given: Any = value if has_value else True
        options[name] = [*_as_list(options[name]), given] if name in options else given
    return options


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


if __name__ == "__main__":
    main()
