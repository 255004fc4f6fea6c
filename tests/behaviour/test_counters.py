"""`weft.counters()`: each number counts one kind of work, and caches save it."""

from __future__ import annotations

from pathlib import Path

import weft
import weft.core as mx
from tests.checks import run_python
from weft.compiler.running import evaluate
from weft.runtime.counters import Counts


def test_each_cache_saves_its_work() -> None:
    def function(x: mx.array) -> mx.array:
        return mx.tan(mx.cosh(x) * 3) - mx.sinh(x)

    compiled = mx.compile(function)

    def done(x: mx.array) -> Counts:
        mx.eval(x)
        before = weft.counters()
        mx.eval(compiled(x))
        return weft.counters() - before

    assert done(mx.ones((3, 41))) == Counts(traces=1, plans=1, kernels=1, generated=1)
    assert done(mx.zeros((3, 41))) == Counts()
    assert done(mx.ones((4, 41))) == Counts(traces=1, plans=1), "another shape"
    before = weft.counters()
    mx.eval(function(mx.ones((4, 41)) * 1))
    assert (weft.counters() - before).traces == 0, "eager code"
    evaluate.forget_plans()
    before = weft.counters()
    mx.eval(function(mx.array([[1.0] * 41] * 4)))
    assert weft.counters() - before == Counts(plans=1)


PROGRAM = """
    import weft, weft.core as mx
    mx.eval(mx.compile(lambda x: mx.sin(x) + 1)(mx.array([1.0, 2.0])))
    print(tuple(weft.counters()))
"""


def test_what_is_on_disk_is_not_generated(tmp_path: Path) -> None:
    def run() -> str:
        return run_python(PROGRAM, WEFT_DISK_CACHE="1", WEFT_CACHE_DIR=str(tmp_path))

    assert run() == "(1, 1, 1, 1)\n"
    assert run() == "(1, 1, 1, 0)\n"
