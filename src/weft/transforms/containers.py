"""Containers of arrays that a compiled function reads and updates: ``inputs=state``, ``outputs=state``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft import tree


def containers_of(state: Any) -> list[Any]:
    """All dicts and lists in ``state``, from the outside in; each once."""
    found: dict[int, Any] = {}
    pending = [state]
    while pending:
        item = pending.pop()
        if isinstance(item, (dict, list)):
            if id(item) in found:
                continue
            found[id(item)] = item
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
    return list(found.values())


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, dict):
        dict.clear(container)
        dict.update(container, content)
    else:
        container[:] = content


@contextmanager
def restored(*states: Any) -> Iterator[None]:
    """Whatever the block does to the containers in ``states`` is undone at its end."""
    saved = [
        (container, dict(container) if isinstance(container, dict) else list(container))
        for container in containers_of(list(states))
    ]
    try:
        yield
    finally:
        for container, content in saved:
            _refill(container, content)


def fill(state: Any, structure: tree.Structure, leaves: Sequence[Any]) -> None:
    """Make ``state`` hold ``leaves`` in ``structure``; existing containers stay the same objects."""
    structure.unflatten_into(state, leaves)
