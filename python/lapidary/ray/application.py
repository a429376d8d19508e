"""The Serve application: replicas of one or more models, and the gateway before them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from . import parse_range
from .gateway import Gateway
from .replica import Replica

# Open requests of the gateway; it waits for sockets and does little else.
_MAX_GATEWAY_REQUESTS = 100_000


@dataclass
class Settings:
    """What ``python -m lapidary.ray`` is told, and ``serve run lapidary.ray:app NAME=VALUE`` likewise."""

    models: dict[str, str | None] = field(default_factory=dict)  # by name; None: the bundled toy model
    replicas: str = "1"  # of each model: a number, MIN:MAX, or auto
    target_requests: int = 16  # of each replica, which autoscaling aims at
    max_requests: int = 256  # of each replica; more wait in the router
    max_lead: int = 8  # see PrefixRouter
    num_gpus: float | None = None  # of each replica; None: 1 where the cluster has any
    num_cpus: float = 1
    drain_seconds: float = 600.0  # that a replica has to complete its answers
    downscale_delay: float = 600.0  # seconds of less load before a replica goes
    port: int | None = None  # of the gateway itself; None: Ray's proxy has the port
    host: str = "127.0.0.1"
    replica_host: str | None = None  # where replicas listen; None: the address of their node
    options: dict[str, Any] = field(default_factory=dict)  # of lapidary.Server


class Ingress:
    """The gateway as a deployment: asked by Ray's proxy, or at a port of its own, where bytes do not pass through
    Ray."""

    def __init__(self, handles: Mapping[str, Any], host: str, port: int | None) -> None:
        self._gateway = Gateway(handles)
        self._failure: BaseException | None = None
        if port is not None:
            # Here, so that a port that is taken is a reason not to start.
            listener = socket.create_server((host, port))
            threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    async def __call__(self, request: Any) -> Any:
        return await self._gateway.handle(request)

    def _serve(self, listener: socket.socket) -> None:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Route

        methods = ["GET", "POST", "DELETE"]
        app = Starlette(routes=[Route("/{path:path}", self._gateway.handle, methods=methods)])
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        try:
            asyncio.run(server.serve(sockets=[listener]))
            self._failure = RuntimeError("the gateway has ended")
        except BaseException as error:
            self._failure = error

    async def check_health(self) -> None:
        """Raises where the port is not served any more: Ray starts another then."""
        if self._failure is not None:
            raise RuntimeError(f"the gateway does not serve: {self._failure!r}")


def build(settings: Settings) -> Any:
    """The application of these models; needs no cluster unless replicas are ``auto`` or GPUs are looked for."""
    handles = {name: _replicas(name, model, settings) for name, model in settings.models.items()}
    ingress = serve.deployment(
        Ingress, name="gateway", num_replicas=1, max_ongoing_requests=_MAX_GATEWAY_REQUESTS,
        ray_actor_options={"num_cpus": 0},
    )
    return ingress.bind(handles, settings.host, settings.port)


def _replicas(name: str, model: str | None, settings: Settings) -> Any:
    num_gpus = settings.num_gpus
    if num_gpus is None:
        is_cpu = settings.options.get("device") == "cpu"
        num_gpus = 0 if is_cpu or _cluster().get("GPU", 0) == 0 else 1
    low, high = _range(settings.replicas, num_gpus, settings.num_cpus)
    options: dict[str, Any] = {"num_replicas": low}
    if high > low:
        scaling = AutoscalingConfig(min_replicas=low, max_replicas=high, initial_replicas=low,
                                    target_ongoing_requests=settings.target_requests,
                                    downscale_delay_s=settings.downscale_delay)
        options = {"autoscaling_config": scaling}
    router = RequestRouterConfig(request_router_class="lapidary.ray.router:PrefixRouter",
                                 request_router_kwargs={"max_lead": settings.max_lead})
    deployment = serve.deployment(
        Replica, name=_deployment_name(name), max_ongoing_requests=settings.max_requests, request_router_config=router,
        graceful_shutdown_timeout_s=settings.drain_seconds, health_check_period_s=2, health_check_timeout_s=30,
        ray_actor_options={"num_cpus": settings.num_cpus, "num_gpus": num_gpus}, **options,
    )
    return deployment.bind(name, model, settings.replica_host, dict(settings.options))


def _deployment_name(name: str) -> str:
    return "replica-" + "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def _cluster() -> dict[str, float]:
    return dict(ray.cluster_resources()) if ray.is_initialized() else {}


def _range(replicas: str, num_gpus: float, num_cpus: float) -> tuple[int, int]:
    """Least and most replicas."""
    if replicas == "auto":
        resources = _cluster()
        room = resources.get("GPU", 0) / num_gpus if num_gpus > 0 else resources.get("CPU", 1) / max(num_cpus, 1)
        return 1, max(1, int(room))
    return parse_range(replicas)
