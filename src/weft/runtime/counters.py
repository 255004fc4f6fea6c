"""Counts of the traces, plans and kernels that this process made, which is the work that caches avoid. They only
grow."""

from __future__ import annotations

from typing import NamedTuple

# Incremented where the work is done, as `counters.plans += 1`.
traces = 0
plans = 0
kernels = 0
generated = 0


class Counts(NamedTuple):
    """What was done since the process began, or, as the difference of two, between two moments.

    ``traces`` counts functions that `compile` ran on placeholders, ``plans`` the graphs that were planned, ``kernels``
    the kernels loaded into this process for the first time, and ``generated`` those of them that were not found on
    disk.
    """

    traces: int = 0
    plans: int = 0
    kernels: int = 0
    generated: int = 0

    def __sub__(self, earlier: Counts) -> Counts:
        return Counts(*[now - before for now, before in zip(self, earlier, strict=True)])


def counters() -> Counts:
    """How often this process has traced, planned and generated code so far.

    Returns:
        the numbers of ``traces``, ``plans``, ``kernels`` loaded and kernels ``generated``; the difference of two
        tells what was done between them.

    >>> import weft
    >>> f = mx.compile(lambda x: x + 1)
    >>> before = weft.counters()
    >>> for _ in range(3):
    ...     mx.eval(f(mx.ones((7,))))
    >>> (weft.counters() - before).traces
    1
    """
    return Counts(traces, plans, kernels, generated)
