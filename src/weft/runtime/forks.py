"""What a fork waits for, so that a forked child finds work that other threads share finished, or not begun.

A child has one thread. Work that another thread of the parent had under way is done again in the child, from the step
that was not finished. A step may write where it reads, so a fork never happens in the middle of one.
"""

from __future__ import annotations

import time
from threading import get_ident
from typing import Protocol

_PATIENCE = 1000
"""How many works of other threads a fork waits for: they may start more of it all the time."""
_LONGEST_FORK = 10.0
"""For how many seconds steps wait for a fork. A function that another library calls before forks may wait for them."""
_PAUSE = 1e-4
"""Seconds between two looks."""


class Shared(Protocol):
    """Work of a thread for which other threads may wait."""

    def wait(self) -> None: ...

    def begin_again(self) -> None:
        """Forget, in a forked child, that a thread of the parent does this."""
        ...


under_way: set[tuple[Shared, int]] = set()
"""Work that is not finished, with the threads that do it or wait to do it."""
_in_steps: set[tuple[Shared, int]] = set()
"""Work whose steps run, with the threads that run them."""
_forking: set[int] = set()
"""Threads that fork, and have waited for what is under way."""


def begin_steps(work: Shared) -> None:
    """Called by a thread before it runs steps of shared work: waits while another thread forks. `end_steps` must be
    called afterwards, also if this raises."""
    thread = get_ident()
    own = work, thread
    _in_steps.add(own)
    if _forking and thread not in _forking and _threads_in_steps().count(thread) == 1:
        # Otherwise a signal handler interrupted this thread between these functions, and the fork waits for it.
        end = time.monotonic() + _LONGEST_FORK
        while _forking and time.monotonic() < end:
            _in_steps.discard(own)
            time.sleep(_PAUSE)
            _in_steps.add(own)  # before the next look, because a fork looks here after it announced itself


def end_steps(work: Shared) -> None:
    _in_steps.discard((work, get_ident()))


def _threads_in_steps() -> list[int]:
    return [thread for _, thread in _in_steps.copy()]


def before_fork() -> None:
    """Wait for shared work of other threads, and let them begin no steps until the fork is over."""
    own = get_ident()  # if a signal handler forks, the child continues what the handler interrupted
    for _ in range(_PATIENCE):
        others = [work for work, thread in under_way.copy() if thread != own]
        if not others:
            break
        try:
            others[0].wait()
        except Exception:  # it is raised on the thread that asked
            time.sleep(_PAUSE)
    _forking.add(own)
    while not {own}.issuperset(_threads_in_steps()):
        time.sleep(_PAUSE)


def after_fork_in_parent() -> None:
    _forking.discard(get_ident())


def after_fork_in_child() -> None:
    _forking.clear()
    own = get_ident()
    _in_steps.difference_update([shared for shared in _in_steps if shared[1] != own])
    for shared in under_way.copy():
        work, thread = shared
        if thread != own:
            work.begin_again()
            under_way.discard(shared)
