"""Containers of users that hold placeholders, because a thread traces a function that uses them.

Calls of compiled functions on other threads neither read such containers nor write to them: what they would read has no
value, and the function would take what they write for a constant.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from weft.runtime.atomic import Action, do_all
from weft.runtime.locks import fork_safe_lock, new_lock
from weft.tree import refilling_anew

T = TypeVar("T")


class _Filling(NamedTuple):
    """The identities of containers that a thread fills. It holds ``lock`` until they are restored, as ``restoring``
    does."""

    containers: frozenset[int]
    thread: int
    lock: threading.RLock
    restoring: list[Action]


_under_way: list[_Filling] = []
_begun = 0
"""How many have begun."""
_writing = fork_safe_lock()
"""Held while a thread begins to fill containers, and while one writes to containers that no other thread has filled."""


def restoring(containers: Sequence[Any]) -> list[Action]:
    """Actions that give lists and dicts the content that they have now."""
    actions: list[Action] = []
    for container in containers:
        content = dict(container) if isinstance(container, dict) else list(container)
        actions += refilling_anew(container, content)
    return actions


@contextmanager
def filled(containers: Sequence[Any]) -> Iterator[None]:
    """A block that fills containers and restores them. It begins when no other thread has filled one of them."""
    own = _Filling(frozenset(map(id, containers)), threading.get_ident(), new_lock(), [])
    with own.lock:
        try:
            write(containers, _begin, own, containers)
            yield
        finally:
            if own in _under_way:
                _under_way.remove(own)


def _begin(own: _Filling, containers: Sequence[Any]) -> None:
    global _begun
    own.restoring.extend(restoring(containers))
    _begun += 1
    _under_way.append(own)


def write(containers: Sequence[Any], change: Callable[..., T], *args: Any) -> T:
    """The result of ``change``, which writes to containers, called when no other thread has filled one of them."""
    while True:
        with _writing:
            other = _filled_by_another(containers) if _under_way else None
            if other is None:
                return change(*args)
        _wait_for(other)


def consistent(read: Callable[[], T], containers: Callable[[], Sequence[Any]]) -> T:
    """What ``read`` returns when no other thread has filled one of the containers. It may be called several times."""
    while True:
        begun = _begun
        other = _filled_by_another(containers()) if _under_way else None
        if other is not None:
            _wait_for(other)
        found = read()
        if begun == _begun:
            return found


def _filled_by_another(containers: Sequence[Any]) -> _Filling | None:
    """The first filling of another thread that has one of these containers. A nested one ends before it."""
    own, thread = set(map(id, containers)), threading.get_ident()
    found = [one for one in _under_way.copy() if one.thread != thread and not own.isdisjoint(one.containers)]
    return found[0] if found else None


def _wait_for(other: _Filling) -> None:
    with other.lock:
        pass


def _after_fork() -> None:
    """Restore what other threads have filled, which do not exist in a child."""
    thread = threading.get_ident()
    others = [one for one in _under_way if one.thread != thread]
    for one in reversed(others):
        do_all(one.restoring)
        _under_way.remove(one)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
