"""The PTX of kernels avoids what NVIDIA's assembler gets wrong; `tests/gpu/test_card.py` tests the values."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import weft.core as mx
from tests.codegen.planned import plans_of
from weft.compiler.codegen import nvptx
from weft.compiler.codegen.ptx_remedies import as_assemblers_respect_it
from weft.compiler.cuda import loops, scheduling


def ptx_of(function: Callable[..., mx.array], *arrays: mx.array) -> str:
    with mx.stream(mx.gpu):
        ((record,),) = [plan.describe().records for plan in plans_of(function, *arrays)]
    assert record.launch is not None
    return nvptx.ptx(loops.generate(record.launch.kernel, scheduling.schedule_of(record.launch), "kernel"), "sm_90")


@pytest.mark.parametrize("dtype", [mx.int16, mx.int32, mx.int64], ids=str)
def test_negated_integers(dtype: mx.Dtype) -> None:
    x = mx.array([[1, 0, -2], [3, 4, 5]], dtype=dtype)
    for function in (lambda x: mx.max(-x, axis=1), lambda x: mx.sign(mx.abs(x))):
        text = ptx_of(function, x)
        assert "max.s" in text
        assert "not.b" in text
        assert not re.search(r"\b(neg|abs)\.s", text)


def test_extrema_of_16_bits() -> None:
    x = mx.array([[1, 0, -2], [3, 4, 5]], dtype=mx.int8)
    for function, name in ((mx.max, "max"), (mx.min, "min")):
        text = ptx_of(lambda x, function=function: function(x, axis=1), x)
        assert f"{name}.s32" in text
        assert f"{name}.s16" not in text


def test_masks_of_predicates() -> None:
    """A masked result of a shift, which is zero for large amounts."""
    x = mx.array([[1, 2, 3], [3, 4, 5]], dtype=mx.uint32)
    text = ptx_of(lambda x: mx.bitwise_and(mx.right_shift(x, 1), x * 5), x)
    assert re.search(r"selp\.b32 %r\d+, %zero32, %r\d+, %p\d+;", text)
    assert text.count("%ctaid.y") == 1


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("\tneg.s32 \t%r6, %r5;", "\tnot.b32 %r6, %r5; add.s32 %r6, %r6, 1;"),
        ("\tabs.s64 \t%rd6, %rd5;", "\tnot.b64 %rd6, %rd5; add.s64 %rd6, %rd6, 1; max.s64 %rd6, %rd6, %rd5;"),
        ("\tneg.f32 \t%f6, %f5;", "\tneg.f32 \t%f6, %f5;"),
        ("\tmax.s32 \t%r6, %r5, 0;", "\tmax.s32 \t%r6, %r5, 0;"),
        ("\tselp.b32 \t%r6, 0, %r5, %p1;", "\tselp.b32 \t%r6, 0, %r5, %p1;"),
    ],
)
def test_a_line(line: str, wanted: str) -> None:
    assert as_assemblers_respect_it(line) == wanted
