"""Ray's request router for replicas that keep prefixes: the one that has a prompt's beginning, while it is not much
busier than the others; else the shorter queue of two."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from .prefixes import PrefixIndex


class PrefixRouter(RequestRouter):
    """Calls have the keys of the prompt (``prefix_keys``) and the ids of replicas to avoid as their first arguments."""

    def initialize_state(self, max_lead: int = 8) -> None:
        """``max_lead``: requests by which a replica may be ahead of the least busy one and still get a prompt for its
        prefix."""
        self._max_lead = max_lead
        self._index = PrefixIndex()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        keys, avoided = _arguments(pending_request)
        if pending_request is not None:
            # After a choice that all refused: wait before the next.
            pending_request.routing_context.should_backoff = True
        candidates = [each for each in candidate_replicas if each.replica_id.unique_id not in avoided]
        candidates = candidates or list(candidate_replicas)
        pairs = random.sample(candidates, min(2, len(candidates)))
        owner, _ = self._index.longest(keys, {each.replica_id for each in candidates})
        if owner is None:
            return [pairs]
        lengths = {each.replica_id: self._length(each) for each in candidates}
        if lengths[owner] > min(lengths.values()) + self._max_lead:
            return [pairs]
        return [[each for each in candidates if each.replica_id == owner], pairs]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        keys, _ = _arguments(pending_request)
        self._index.add(keys, replica_id)

    def _length(self, replica: RunningReplica) -> int:
        """Requests that it has, as far as is known here."""
        return self.replica_queue_len_cache.get(replica.replica_id) or 0


def _arguments(request: PendingRequest | None) -> tuple[list[int], list[str]]:
    if request is None or len(request.args) < 2:
        return [], []
    keys, avoided = request.args[:2]
    return list(keys), list(avoided)
