"""Containers of users that hold placeholders, because a thread traces a function that uses them.

Calls of compiled functions on other threads neither read such containers nor write to them: what they would read has no
value, and the function would take what they write for a constant.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from weft.runtime.locks import fork_safe_lock

T = TypeVar("T")

_filling = fork_safe_lock()
"""Held by a thread that traces a function with such containers, and by one that writes to containers."""
_filled: list[frozenset[int]] = []
"""The identities of the containers of each such trace that is under way. All of these are on one thread."""
_begun = 0
"""How many of them have begun."""


def while_no_other_fills(work: Callable[[], T]) -> T:
    """The result of ``work``, during which no other thread fills containers."""
    with _filling:
        return work()


@contextmanager
def filled(containers: Sequence[Any]) -> Iterator[None]:
    """A block, within `while_no_other_fills`, that fills containers and restores them."""
    global _begun
    depth = len(_filled)
    try:
        _begun += 1
        _filled.append(frozenset(map(id, containers)))
        yield
    finally:
        del _filled[depth:]


def consistent(read: Callable[[], T], containers: Callable[[], Sequence[Any]]) -> T:
    """What ``read`` returns, called again if another thread began to fill containers meanwhile."""
    while True:
        begun = _begun
        if _filled and _are_filled(containers()):
            while_no_other_fills(_nothing)
        found = read()
        if begun == _begun:
            return found


def write(containers: Sequence[Any], change: Callable[..., T], *args: Any) -> T:
    """The result of ``change``, which writes to containers, as soon as no other thread has filled them."""
    if _filled and not _are_filled(containers):
        return change(*args)  # do not wait for a trace that has nothing to do with it
    with _filling:
        return change(*args)


def _are_filled(containers: Sequence[Any]) -> bool:
    """Whether another thread has filled one of these containers."""
    if _filling._is_owned():  # type: ignore[attr-defined]
        return False
    own = set(map(id, containers))
    return not all(map(own.isdisjoint, _filled.copy()))


def _nothing() -> None:
    return


def _after_fork() -> None:
    """Forget the traces of another thread, which does not exist in a child."""
    if not _filling._is_owned():  # type: ignore[attr-defined]
        _filled.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
