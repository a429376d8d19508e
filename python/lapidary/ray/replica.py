"""A replica of a model: a ``lapidary.Server`` in one of Ray Serve's actors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import ray

from .. import Server


class Replica:
    """Requests reach the server by HTTP. What Ray sees of each is a call of ``lease``, open until the answer is
    complete: so its queue lengths, autoscaling and draining are right, and no token takes its way through Ray."""

    def __init__(self, name: str, model: str | None, host: str | None, options: Mapping[str, Any]) -> None:
        # The address of this node is what other nodes reach it by.
        address = host or ray.util.get_node_ip_address()
        self._server = Server(model, **{"host": address, "served_model_name": name, **options})
        self._id = ray.serve.get_replica_context().replica_id.unique_id

    async def lease(self, keys: list[int], avoided: list[str]) -> AsyncIterator[tuple[str, str]]:
        """Where to send a request; ends when the caller cancels it. The arguments are for the router (PrefixRouter)."""
        yield self._id, self._server.url
        await asyncio.Event().wait()

    async def url(self) -> str:
        """Where to ask for what every replica answers alike."""
        return self._server.url

    def record_routing_stats(self) -> dict[str, float]:
        """For routers, as Ray polls them."""
        return self._server.stats()

    async def check_health(self) -> None:
        """Raises where a new replica would be better."""
        self._server.stats()  # raises when the server has ended
        async with aiohttp.ClientSession() as client:
            async with client.get(f"{self._server.url}/health", ssl=False) as reply:
                if reply.status != 200:
                    raise RuntimeError(f"the engine does not run: {await reply.text()}")

    def __del__(self) -> None:
        # Ray deletes it once its calls are done, or their time is over.
        server = getattr(self, "_server", None)
        if server is not None:
            server.close()
