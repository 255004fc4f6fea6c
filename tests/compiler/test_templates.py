"""Plans that are made from templates are equal to plans that are made without them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests import programs, shapeless_programs
from tests.checks import bits
from tests.sampling import Cases
from weft.compiler.bounded import BoundedCache
from weft.compiler.compared_keys import ComparedKeys
from weft.compiler.kernel import Kernel
from weft.compiler.open_numbers import Formulas, OpenNumberError, as_a_whole
from weft.compiler.planning import cached_plans, templates
from weft.compiler.planning.forms import entries_of, form_of
from weft.compiler.planning.plan import comparable, parts_of
from weft.compiler.planning.templates import Template, Templates
from weft.compiler.program import Program
from weft.compiler.running import evaluate
from weft.compiler.target import Schedule
from weft.runtime.host import host
from weft.utils import tree_flatten

Numbers = st.integers(-20, 20)

OPERATIONS: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.and_,
    lambda x, y: x // y if y else x,
    lambda x, y: x % y if y > 0 else -x,
    lambda x, y: divmod(x, abs(y) + 1)[1],
    lambda x, y: max(x, 3) if x < y else min(x, y),
    lambda x, y: x.bit_length() if x == y else y * 2,
    lambda x, y: len([*range(x % 5)]) + y,
    lambda x, y: 7 - x if y != 4 else y << 2,
    lambda x, y: int(x * 0.5) + y,
    lambda x, y: (1 if x > y or x >= 6 or y <= -3 else 0) + x,
    as_a_whole(lambda x, y: x * x if x < y else y),
]


@given(st.lists(Numbers, min_size=2, max_size=3), st.data())
def test_a_formula_gives_what_is_computed_or_nothing(values: list[int], data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(0, 9))))

    def computed(numbers: Sequence[Any]) -> list[Any]:
        found: list[Any] = [*numbers, 5]
        for function, left, right in steps:
            found.append(function(found[left % len(found)], found[right % len(found)]))
        return found

    formulas = Formulas(values)
    function = formulas.function(computed(formulas.parameters))
    assert function(*values) == computed(values)
    others = data.draw(st.lists(Numbers, min_size=len(values), max_size=len(values)))
    assert function(*others) in (None, computed(others))


def test_what_is_decided_by_a_number_is_a_condition() -> None:
    formulas = Formulas([6, 3])
    first, second = formulas.parameters
    assert first > second
    assert [0] * second == [0, 0, 0]
    function = formulas.function((first + second, [first // 2]))
    assert function(6, 3) == (9, [3])
    assert function(8, 3) == (11, [4])
    assert function(2, 3) is None
    assert function(6, 4) is None
    with pytest.raises(OpenNumberError):
        hash(first)


@dataclass(frozen=True)
class Tile:
    rows: Any


def test_what_is_no_tuple_has_no_open_numbers() -> None:
    formulas = Formulas([6])
    assert formulas.function([Tile(6), formulas.parameters[0]])(7) == [Tile(6), 7]
    with pytest.raises(OpenNumberError, match="Tile is no tuple"):
        formulas.function([Tile(formulas.parameters[0])])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), Numbers, Numbers), max_size=12))
def test_keys_with_open_numbers_are_found_as_others(keys: list[tuple[str, bool, int, int]]) -> None:
    formulas = Formulas([number for *_, number, _ in keys])
    plain: dict[Any, int] = {}
    compared = ComparedKeys()
    for place, (name, is_open, number, last) in enumerate(keys):
        assert compared.get((name, formulas.parameters[place] if is_open else number, last)) == plain.get(
            (name, number, last)
        )
        plain[name, number, last] = place
        compared[name, formulas.parameters[place] if is_open else number, last] = place
    assert list(compared.values()) == list(plain.values())


def without_code() -> Any:
    """A context in which kernels are planned, but no machine code is made of them."""

    def number_of(kernel: Kernel, schedule: Schedule) -> int:
        return crc32(kernel.described(schedule.text).encode())

    return mock.patch.object(host.target, "code", number_of)


def entries_and_outputs(results: Sequence[mx.array]) -> tuple[list[Any], list[int]]:
    """The graph and the results for the plan of some arrays."""
    program = Program()
    program.add([result.node for result in results])
    return program.entries, [program.position(result.node) for result in results]


@given(programs.programs())
def test_a_template_of_all_numbers_gives_the_same_plan(program: programs.Program) -> None:
    entries, outputs = entries_and_outputs(program(*program.arrays()))
    form, numbers = form_of(entries)
    assert entries_of(form, numbers) == entries
    others = [tuple([number + 1000 for number in one]) for one in numbers]
    with without_code():
        try:
            template = Template(form, outputs, numbers, others, host.target, host)
        except OpenNumberError:
            return
        found = template.parts(numbers)
        assert found is not None
        assert comparable(found) == comparable(parts_of(entries, outputs, host.target, host))


def test_templates_give_the_plans_of_programs_with_other_shapes(cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "CHECKS", True)
    for program in cases.some(12, shapeless_programs.PROGRAMS):
        known = Templates()
        for shapes in program.shapes:
            arrays = [mx.array(np.ones(shape, np.float32)) for shape in shapes]
            try:
                found = program.function(*arrays)
            except (ValueError, IndexError):
                continue
            results = [x for _, x in tree_flatten(found) if isinstance(x, mx.array) and x.node.value is None]
            with without_code():
                if results:
                    known.plan(*entries_and_outputs(results), host.target, host)


def decoded(lengths: Iterable[int], heads: int = 2, size: int = 16) -> Iterator[mx.array]:
    """The results of decoding steps with a cache for 64 tokens, for each of the ``lengths`` that the cache is filled
    to."""
    keys, values = mx.zeros((1, heads, 64, size)), mx.zeros((1, heads, 64, size))
    weights = mx.full((heads * size, heads * size), 0.1)
    x = mx.ones((1, 1, heads * size))
    mx.eval(keys, values, weights, x)
    for length in lengths:
        q = (x @ weights).reshape(1, 1, heads, size).transpose(0, 2, 1, 3)
        q = mx.fast.rope(q, size, traditional=False, base=10000.0, scale=1.0, offset=length)
        keys[..., length : length + 1, :] = q
        values[..., length : length + 1, :] = mx.sin(q)
        seen = keys[..., : length + 1, :], values[..., : length + 1, :]
        found = mx.fast.scaled_dot_product_attention(q, *seen, scale=0.25)
        x = x + found.transpose(0, 2, 1, 3).reshape(1, 1, heads * size)
        mx.eval(x, keys, values)
        yield x


def convolved(extents: Iterable[int]) -> Iterator[mx.array]:
    """Convolutions of images of other sizes."""
    weights = mx.zeros((32, 3, 3, 16))
    mx.eval(weights)
    for extent in extents:
        x = mx.zeros((8, extent, extent, 16))
        mx.eval(x)
        found = mx.conv2d(x, weights, padding=1)
        mx.eval(found)
        yield found


@pytest.mark.parametrize(
    "steps",
    [
        lambda: decoded(range(33, 44)),  # between two multiples of a vector's elements
        lambda: convolved(range(100, 111)),
    ],
    ids=["a growing cache", "images"],
)
def test_other_numbers_are_not_planned_each_time(
    steps: Callable[[], Iterator[mx.array]], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate.forget_plans()
    made: list[int] = []

    def counted(*arguments: Any) -> Any:
        made.append(len(arguments[0]))
        return parts_of(*arguments)

    monkeypatch.setattr(templates, "CHECKS", False)
    monkeypatch.setattr(templates, "parts_of", counted)
    counts = [len(made) for _ in steps()]
    assert counts[1] == counts[-1] > 0


def test_results_are_those_of_plans_that_are_made() -> None:
    evaluate.forget_plans()
    with_templates = [bits(x) for x in decoded(range(8, 24))]
    found = []
    for x in decoded(range(8, 24)):
        found.append(bits(x))
        evaluate.forget_plans()
    assert found == with_templates


@pytest.mark.parametrize(("error", "expected"), [(None, [3, 4, 5, 6, 7, 8, 11, 16, 25, 42]), (OpenNumberError, [3, 6])])
def test_fewer_and_fewer_templates_are_made_if_nothing_uses_them(
    error: type[Exception] | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0
    made: list[int] = []

    class Useless:
        first = None

        def __init__(self, *arguments: Any) -> None:
            made.append(count)
            if error is not None:
                raise error

        def parts(self, numbers: Any) -> None:
            return None

    monkeypatch.setattr(templates, "Template", Useless)
    known = Templates()
    for count in range(2, 48):
        result = mx.sin(mx.array(np.ones(count, np.float32)))
        with without_code():
            plan = known.plan(*entries_and_outputs([result]), host.target, host)
        assert plan.sizes == [4 * count]
    assert made == expected


def test_plans_on_disk_are_read_before_templates_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    made: list[int] = []

    class Counted(Template):
        def __init__(self, *arguments: Any) -> None:
            made.append(count)
            super().__init__(*arguments)

    def found(entries: Any, outputs: Any, target: Any) -> Any:
        return parts_of(entries, outputs, target, host) if count in on_disk else None

    on_disk = {3, 5, 6, 8}
    kept: list[int] = []
    monkeypatch.setattr(templates, "CHECKS", False)
    monkeypatch.setattr(templates, "Template", Counted)
    monkeypatch.setattr(cached_plans, "found", found)
    monkeypatch.setattr(cached_plans, "keep", lambda *_: kept.append(count))
    known = Templates()
    for count in range(2, 13):
        result = mx.sin(mx.array(np.ones(count, np.float32)))
        with without_code():
            assert known.plan(*entries_and_outputs([result]), host.target, host).sizes == [4 * count]
    assert made == [10]
    assert kept == [2, 4, 7, 9, 10]


def test_a_cache_forgets_what_is_oldest() -> None:
    cache: BoundedCache[str] = BoundedCache(most=3, heaviest=10)
    for key, weight in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        cache.add(key, key.upper(), weight)
    assert [cache.get(key) for key in "abcd"] == [None, "B", "C", "D"]
    cache.add("b", "B", 4)
    assert [cache.get(key) for key in "bcd"] == [None, "C", "D"]
    cache.add("e", "E", 30)
    assert [cache.get(key) for key in "cde"] == [None, None, "E"]
    cache.add("f", "F", 1)
    assert len(cache) == 1
    cache.clear()
    assert cache.get("f") is None
