"""Many replicas of a model on a Ray cluster, as an application of Ray Serve. ``pip install 'lapidary[ray]'``.

    python -m lapidary.ray /models/gemma-4-E2B-it --replicas auto
    serve run lapidary.ray:app model=/models/gemma-4-E2B-it replicas=4

Ray starts, watches, scales and drains the replicas, each a ``lapidary.Server`` with a GPU where there is one, and
chooses one for each request: the one that has the prompt's beginning, unless it is much busier than the others. Bytes go
from the gateway to the replica by HTTP. A stream whose replica dies goes on at another, token for token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def app(arguments: Mapping[str, Any]) -> Any:
    """For ``serve run`` and Serve's config files: ``model`` (or ``models``: a dict of them by name) and the fields of
    ``Settings``; every other argument is an option of ``lapidary.Server``. Requests come through Ray's proxy."""
    from .application import Settings, build

    named = dict(arguments)
    models = named.pop("models", None)
    if models is None:
        model = named.pop("model", None)
        models = {model_name(model): model}
    known = {field.name: field.type for field in fields(Settings)} if named else {}
    options = dict(named.pop("options", {}))
    settings = {}
    for name, value in named.items():
        if name not in known:
            options[name] = value
        else:
            settings[name] = _of_type(name, value, str(known[name]))
    return build(Settings(models=dict(models), options=options, **settings))


def model_name(model: str | None) -> str:
    """What requests call a model: the last part of its path, or its name on the Hub."""
    return "pebble-e" if model is None else model.rstrip("/").rsplit("/", 1)[-1]


def parse_range(replicas: str) -> tuple[int, int]:
    """Least and most replicas, of a number or MIN:MAX."""
    low, _, high = replicas.partition(":")
    if not low.isdigit() or (high and not high.isdigit()) or int(low) < 1 or int(high or low) < int(low):
        raise ValueError(f"replicas '{replicas}' must be a number, MIN:MAX or auto")
    return int(low), int(high or low)


def _of_type(name: str, value: Any, wanted: str) -> Any:
    """``serve run`` gives words."""
    kind = str if "str" in wanted else int if "int" in wanted else float
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be of type {kind.__name__}") from None
