"""Machine code belongs to a primitive, not to the name of one."""

from __future__ import annotations

from typing import Any

import weft.core as mx
from tests.checks import run_python
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
        return Elementwise("scaled", lambda L, x: x * factor, (factor,))  # type: ignore[arg-type]

    assert [defined(factor)(x).item() for factor in (2.0, 5.0, 7.0)] == [6.0, 15.0, 21.0]


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
    from weft.compiler.codegen import kernels

    names = [primitive.name for primitive in kernels.own_primitives()]
    assert sorted(names) == sorted(set(names))
