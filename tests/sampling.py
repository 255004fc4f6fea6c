"""Which cases a test runs: a sample of a grid in the gate, drawn by the seed, and all of them in the slow tests.

Also how many examples hypothesis draws.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

T = TypeVar("T")


@dataclass(frozen=True)
class Cases:
    """What the fixture `cases` returns. It draws by the run's seed and the test's name."""

    seed: int
    name: str
    complete: bool

    def some(self, count: int, of: Sequence[T]) -> Iterator[T]:
        """``count`` different cases, in their order."""
        return map(said, self._drawn(self.name, count, of))

    def one_of_each(self, first: T, groups: Iterable[Sequence[T]]) -> Iterator[T]:
        """The ``first`` case, and one of each group that has any."""
        drawn = [self._drawn(f"{self.name} {number}", 1, group) for number, group in enumerate(groups)]
        return map(said, dict.fromkeys([first, *chain(*drawn)]))

    def _drawn(self, name: str, count: int, of: Sequence[T]) -> list[T]:
        return list(of) if self.complete else drawn_cases(self.seed, name, count, of)


def drawn_cases(seed: int, name: str, count: int, of: Sequence[T]) -> list[T]:
    """``count`` different cases, in their order; all of them if there are fewer."""
    if count >= len(of):
        return list(of)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return [of[number] for number in sorted(rng.choice(len(of), count, replace=False))]


def said(case: T) -> T:
    """The case, after it was printed: the last printed case is the one that failed."""
    print(f"case: {case}")
    return case


def leave_variants(items: Sequence[pytest.Item], seed: int, complete: bool) -> None:
    """Move most rows of an operation that has several, in tests with the mark `some_variants`, to the slow tests.

    Each check keeps the row of each operation that the seed draws for it, so that every row is in some checks;
    ``complete`` keeps all.
    """
    groups: defaultdict[tuple[Any, ...], list[pytest.Function]] = defaultdict(list)
    for item in _marked(items, "some_variants", complete):
        row: Any = item.callspec.params["row"]
        groups[item.parent, item.originalname, row.name].append(item)
    for (_, test, name), variants in groups.items():
        _leave(variants, drawn_cases(seed, f"{test} {name}", 1, variants), complete)


def leave_checks(items: Sequence[pytest.Item], seed: int, complete: bool) -> None:
    """Move half of the tests with the mark `some_checks` that a file has for the same parameters, or for rows of the
    same name, to the slow tests.

    The seed draws which, so that all parameters are in some checks; ``complete`` keeps all.
    """
    groups: defaultdict[tuple[Any, ...], list[pytest.Function]] = defaultdict(list)
    for item in _marked(items, "some_checks", complete):
        parameters = [getattr(value, "name", value) for name, value in item.callspec.params.items() if name != "cases"]
        groups[item.parent, str(parameters)].append(item)
    for (_, parameters), checks in groups.items():
        _leave(checks, drawn_cases(seed, parameters, -(-len(checks) // 2), checks), complete)


def leave_rows(items: Sequence[pytest.Item], seed: int, complete: bool) -> None:
    """Move all rows of a test with the mark `some_rows(count)`, but the ``count`` that the seed draws, to the slow
    tests; ``complete`` keeps all."""
    groups: defaultdict[tuple[Any, ...], list[pytest.Function]] = defaultdict(list)
    for item in _marked(items, "some_rows", complete):
        (mark,) = item.iter_markers("some_rows")
        groups[item.parent, item.originalname, mark.args].append(item)
    for (_, test, (count,)), rows in groups.items():
        _leave(rows, drawn_cases(seed, test, count, rows), complete)


def _marked(items: Iterable[pytest.Item], mark: str, complete: bool) -> Iterator[pytest.Function]:
    """Tests with a mark, but those that are slow anyway, and those that exist in a complete form: with the fixture
    `cases`."""
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker(mark) is None:
            continue
        if item.get_closest_marker("slow") is None and not (complete and "cases" in item.fixturenames):
            yield item


def _leave(tests: Sequence[pytest.Function], drawn: Sequence[pytest.Function], complete: bool) -> None:
    for item in tests:
        if item not in drawn or (complete and len(tests) > 1):
            item.add_marker("slow")


def examples(count: int) -> settings:
    """Settings for ``count`` random programs. Explaining failures and storing examples is off, because it takes too
    long."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=True,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
    )
