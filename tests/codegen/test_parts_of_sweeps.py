"""Long sums along an axis that is not the last one: sums of parts of 256 elements, which are then added in order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

import weft.core as mx
from tests.codegen.planned import plans_of
from weft.compiler.cpu.schedule import CpuSchedule, Walk

Floats = npt.NDArray[np.float64]


def in_order(terms: Floats) -> Floats:
    """The sum over the first axis, one term after the other."""
    total = np.zeros(terms.shape[1:])
    for term in terms:
        total = total + term
    return total


def by_parts(terms: Floats) -> Floats:
    return in_order(np.stack([in_order(terms[first : first + 256]) for first in range(0, len(terms), 256)]))


SUMS: dict[str, tuple[Callable[[mx.array], mx.array], Callable[[Floats], Floats]]] = {
    "elements": (lambda x: mx.sum(x, axis=0), lambda x: x),
    "what is made of them": (lambda x: mx.sum(x * x - x, axis=0), lambda x: x * x - x),
    "with an index": (lambda x: mx.sum(x, axis=0) + 0 * mx.argmin(x, axis=0), lambda x: x),
    "of values that lanes share": (
        lambda x: mx.sum(x * mx.exp(mx.abs(x[:, :1]) * 0), axis=0),
        lambda x: x * np.ones_like(x[:, :1]),
    ),
    "two sums": (lambda x: mx.sum(x, axis=0) + mx.sum(x - x, axis=0), lambda x: x),
    "of transposed elements": (lambda x: mx.sum(mx.contiguous(x.T).T, axis=0), lambda x: x),
}


@pytest.mark.parametrize("shape", [(511, 3), (512, 3), (513, 17), (1030, 5), (700, 40), (600, 1500), (1000, 2, 18)])
@pytest.mark.parametrize("name", SUMS)
def test_the_order(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    function, terms = SUMS[name]
    x = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, size=shape)
    wanted = (by_parts if len(x) >= 512 else in_order)(terms(x))
    for f in (function, mx.compile(function)):
        assert np.array(f(mx.array(x, dtype=mx.float64))).tobytes() == wanted.tobytes()


def test_other_orders_have_other_sums(rng: np.random.Generator) -> None:
    x = rng.normal(size=(1030, 5)) * 10.0 ** rng.integers(-3, 4, size=(1030, 5))
    assert in_order(x).tobytes() != by_parts(x).tobytes()


def test_products_and_complex_numbers(rng: np.random.Generator) -> None:
    x = 1 + rng.normal(size=(600, 4)) * 0.01
    parts = [np.multiply.accumulate(x[first : first + 256])[-1] for first in range(0, 600, 256)]
    found = np.array(mx.prod(mx.array(x, dtype=mx.float64), axis=0))
    assert found.tobytes() == np.multiply.accumulate(parts)[-1].tobytes()
    z = (x + 1j * rng.normal(size=x.shape)).astype(np.complex64)
    wanted = by_parts(z.real.astype(np.float64)) + 1j * by_parts(z.imag.astype(np.float64))
    assert np.array(mx.sum(mx.array(z), axis=0)).tobytes() == wanted.astype(np.complex64).tobytes()


@pytest.mark.parametrize(
    ("shape", "walk"), [((600, 3), Walk.PLAIN), ((600, 40), Walk.SWEEP_OUTER), ((600, 3000, 7), Walk.ROW_BY_ROW)]
)
def test_the_walks_that_do_it(shape: tuple[int, ...], walk: Walk) -> None:
    for rows, in_parts in ((511, False), (600, True)):
        plans = plans_of(lambda x: mx.sum(x, axis=0), mx.zeros((rows, *shape[1:])))
        (record,) = [record for plan in plans for record in plan.describe().records]
        assert isinstance(record.schedule, CpuSchedule)
        assert (record.schedule.walk, record.schedule.in_parts) == (walk, in_parts)


def test_folds_of_several_axes(rng: np.random.Generator) -> None:
    """Three axes become two, which are not folded in parts, however long they are; transposed ones stay as they are."""
    x = rng.normal(size=(3, 17, 19, 5)) * 10.0 ** rng.integers(-3, 4, size=(3, 17, 19, 5))
    for axes, sweeps in (((0, 1, 2, 3), (3, 323)), ((0, 2, 1, 3), (3, 19, 17))):
        array = mx.array(x, dtype=mx.float64).transpose(*axes)
        (plan,) = plans_of(lambda x: mx.sum(x, axis=(0, 1, 2)), array)
        (record,) = plan.describe().records
        assert record.launch is not None
        assert record.launch.sweep_extents == sweeps
        wanted = in_order(x.transpose(axes).reshape(-1, 5))
        assert np.array(mx.sum(array, axis=(0, 1, 2))).tobytes() == wanted.tobytes()
