"""Cached machine code is found by the primitive and its parameters, not only by the primitive's name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import weft
import weft.core as mx
from tests.checks import run_python
from weft.primitives import OWN
from weft.primitives.base import Elementwise


def twice(name: str) -> Elementwise:
    return Elementwise(name, lambda L, x: x + x, (2,))


def test_a_primitive_with_the_name_of_another_has_code_of_its_own() -> None:
    x = mx.array([1.0, 2.0])
    mx.eval(mx.exp(x))
    assert twice("exp")(x).tolist() == [2.0, 4.0]
    assert mx.compile(twice("exp"))(x).tolist() == [2.0, 4.0]
    assert mx.exp(x).tolist() != [2.0, 4.0]


def test_a_primitive_that_is_defined_again_has_new_code() -> None:
    x = mx.array([3.0])

    def defined(factor: float) -> Any:
        return Elementwise("scaled", lambda L, x: x * factor, (factor,))

    assert [defined(factor)(x).item() for factor in (2.0, 5.0, 7.0)] == [6.0, 15.0, 21.0]


def test_a_partial_may_be_any_number() -> None:
    x = mx.array([1.0, 2.0])
    for factor in (2, -1, 0.5):
        scaled = Elementwise("scaled", lambda L, x, factor=factor: x * factor, (factor,))
        assert mx.grad(lambda x, scaled=scaled: scaled(x).sum())(x).tolist() == [factor, factor]
        assert mx.jvp(scaled, [x], [x])[1][0].tolist() == [factor, 2 * factor]


def test_a_reduction_with_the_name_of_another_has_code_of_its_own() -> None:
    from weft.primitives.reductions import Reduction, arithmetic

    x = mx.array([1.0, 2.0, 3.0])
    mx.eval(mx.sum(x))
    product = Reduction("sum", arithmetic(1, lambda a, b: a * b * 2), None)
    assert product(x, axes=(0,)).item() != 6.0


def test_no_other_process_finds_the_code_of_a_users_primitive(tmp_path: Any) -> None:
    program = """
        import weft.core as mx
        from weft.primitives.base import Elementwise
        own = Elementwise("exp", lambda L, x: x * FACTOR, (1,))
        print(own(mx.array([3.0])).item(), mx.exp(mx.array([0.0])).item())
    """
    found = [
        run_python(program.replace("FACTOR", factor), WEFT_DISK_CACHE="1", WEFT_CACHE_DIR=str(tmp_path))
        for factor in ("2.0", "5.0")
    ]
    assert [text.split() for text in found] == [["6.0", "1.0"], ["15.0", "1.0"]]


def test_weft_has_no_two_primitives_of_one_name() -> None:
    names = [primitive.name for primitive in OWN]
    assert sorted(names) == sorted(set(names))


def test_what_is_put_in_place_of_a_primitive_is_not_kept_on_disk(tmp_path: Any) -> None:
    replacing = """
        import weft.core as mx
        import weft.primitives as p
        from weft.primitives.base import Elementwise
        p.unary.tan = p.tan = Elementwise("tan", lambda L, x: x + x, (2,))
        print(p.tan(mx.array([1.0])).item())
    """
    cache = {"WEFT_DISK_CACHE": "1", "WEFT_CACHE_DIR": str(tmp_path)}
    assert run_python(replacing, timeout=60, **cache) == "2.0\n"
    assert (
        run_python("import weft.core as mx; print(mx.tan(mx.array([1.0])).item() < 1.6)", timeout=60, **cache)
        == "True\n"
    )


class Told(Elementwise):
    """An operation whose result depends on the type and the sign of its parameter."""

    parameters = ("k",)

    def __init__(self) -> None:
        super().__init__("told", self._number, (None,))

    @staticmethod
    def _number(L: Any, x: Any, k: Any) -> Any:
        k = k[0] if isinstance(k, tuple) else k
        if isinstance(k, str):
            return x * 0 + 7
        number = math.copysign([bool, int, float].index(type(k)) + 1, k)
        return x * 0 + (number if k == k else 5)


KINDS: list[tuple[Any, float]] = [
    (1, 2.0),
    (True, 1.0),
    (1.0, 3.0),
    ("1", 7.0),
    (0.0, 3.0),
    (-0.0, -3.0),
    (math.nan, 5.0),
]


@pytest.mark.parametrize("wrapped", [lambda k: k, lambda k: (k,)], ids=["plain", "in a tuple"])
def test_parameters_of_users_are_told_apart_by_type_and_sign(wrapped: Callable[[Any], Any]) -> None:
    told, x = Told(), mx.array([1.0, 2.0])
    assert [told(x, k=wrapped(k)).tolist()[0] for k, _ in KINDS] == [number for _, number in KINDS]
    assert [y.tolist()[0] for y in mx.compile(lambda x: [told(x, k=wrapped(k)) for k, _ in KINDS])(x)] == [
        number for _, number in KINDS
    ]


def test_parameters_that_are_the_same_share_a_plan() -> None:
    told, x = Told(), mx.array([1.0, 2.0])
    for k, _ in KINDS:
        mx.eval(told(x, k=k))
    before = weft.counters()
    for k, _ in KINDS:
        mx.eval(told(x, k=float("nan") if k != k else k))
    assert weft.counters() == before
