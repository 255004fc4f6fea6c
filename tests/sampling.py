"""Which cases a test looks at: of a grid some in the gate, others for each seed, and all in the slow tests.

And how many examples hypothesis draws.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from hypothesis import HealthCheck, Phase, settings

T = TypeVar("T")


@dataclass(frozen=True)
class Cases:
    """What the fixture `cases` gives to a test: it draws by the run's seed and the test's name."""

    seed: int
    name: str
    complete: bool

    def some(self, count: int, of: Sequence[T]) -> Iterator[T]:
        """``count`` different cases, in their order. The last one that is printed is the one that failed."""
        chosen = list(range(len(of)))
        if not self.complete and count < len(of):
            rng = np.random.default_rng([self.seed, zlib.crc32(self.name.encode())])
            chosen = sorted(rng.choice(len(of), count, replace=False).tolist())
        for number in chosen:
            print(f"case: {of[number]}")
            yield of[number]

    def one_of_each(self, groups: Iterable[Sequence[T]]) -> Iterator[T]:
        """One case of each group that has any."""
        for number, group in enumerate(groups):
            yield from Cases(self.seed, f"{self.name} {number}", self.complete).some(1, group)


def examples(count: int) -> settings:
    """So many random programs. They are too long to be explained, and keeping them would take long."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=True,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
    )
