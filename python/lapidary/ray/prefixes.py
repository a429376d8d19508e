"""What prompts have in common, as short lists of numbers: routers send a prompt to where its beginning was computed."""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

# Characters of a prompt under one key, and the most keys of one prompt: beyond, it is as good as found.
_PIECE = 256
_MAX_PIECES = 256


def prefix_keys(body: Any) -> list[int]:
    """Of a request: a key for each longer beginning of its prompt. Prompts that begin alike have keys that begin
    alike; texts that end differently share those of the whole pieces before."""
    if not isinstance(body, Mapping):
        return []
    # Tools and system texts come first in a prompt.
    parts: list[str] = [_text(body[name]) for name in ("tools", "system", "instructions") if body.get(name)]
    for name in ("messages", "input", "prompt", "token_ids"):
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            parts += [_text(message) for message in value]
        else:
            parts.append(_text(value))
    keys: list[int] = []
    crc = zlib.crc32(str(body.get("cache_salt", "")).encode())
    for part in parts:
        for begin in range(0, len(part), _PIECE):
            piece = part[begin : begin + _PIECE]
            crc = zlib.crc32(piece.encode("utf-8", "surrogatepass"), crc)
            keys.append(crc << 16 | len(keys))
            if len(keys) == _MAX_PIECES:
                return keys
    return keys


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


class PrefixIndex:
    """Which replica has computed which beginning, as far as was routed from here; those unused longest are forgotten."""

    def __init__(self, max_keys: int = 1 << 18) -> None:
        self._max_keys = max_keys
        self._owners: OrderedDict[int, Hashable] = OrderedDict()

    def longest(self, keys: Sequence[int], among: set[Any]) -> tuple[Hashable | None, int]:
        """The replica with the longest beginning, and how many keys long that is; (None, 0): none of them has any."""
        for index in range(len(keys), 0, -1):
            owner = self._owners.get(keys[index - 1])
            if owner in among:
                return owner, index
        return None, 0

    def add(self, keys: Sequence[int], owner: Hashable) -> None:
        """A prompt was sent there."""
        for key in keys:
            self._owners[key] = owner
            self._owners.move_to_end(key)
        while len(self._owners) > self._max_keys:
            self._owners.popitem(last=False)

    def __len__(self) -> int:
        return len(self._owners)
