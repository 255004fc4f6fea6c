"""Values that are computed again where they are used, from arrays that are in memory in any case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import weft.core as mx
import weft.nn as nn
from tests.checks import bits
from tests.codegen.planned import plans_of
from weft.compiler.cpu.products import matmul
from weft.compiler.fusion.remaking import saves_memory
from weft.compiler.target import FusionLimits

ROWS, COLUMNS = 512, 512  # too large for caches
X = mx.random.normal((ROWS, COLUMNS), key=mx.random.key(1))
W = mx.random.normal((COLUMNS, COLUMNS), key=mx.random.key(2)) / 32


def stored_by(layer: Callable[[mx.array], mx.array], rows: int = ROWS) -> list[str]:
    """The arrays that a training step of two products stores between them, forwards and backwards."""

    def loss(x: mx.array, w: mx.array) -> mx.array:
        return (layer(x @ w) @ w).square().mean()

    arrays = X[:rows], W
    step = mx.compile(mx.grad(loss, argnums=(0, 1)))
    for found, expected in zip(step(*arrays), mx.grad(loss, argnums=(0, 1))(*arrays), strict=True):
        assert bits(found) == bits(expected)
    temporary = f"temporary float32[{rows},{COLUMNS}]"
    return [write for one in step.explain(*arrays).steps for write in one.writes if write == temporary]


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many threads there are decides whether a product computes whole rows with the folds that follow it."""
    monkeypatch.setattr(matmul, "thread_count", lambda: 2)


BETWEEN: dict[str, Callable[[mx.array], mx.array]] = {
    "a cheap chain": lambda x: mx.square((x + 1) * 0.5 - x),
    "an activation": nn.gelu,
    "made of rows": lambda x: mx.square(x - x.mean(axis=-1, keepdims=True)),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_a_gradient_needs_is_made_of_what_is_stored(name: str) -> None:
    """Only operands of products are stored: the result of the layer, and a cotangent on each of two ways back; and
    those products that two other values are computed from."""
    assert len(stored_by(BETWEEN[name])) == 5


def test_what_costs_more_than_memory_is_stored() -> None:
    assert len(stored_by(lambda x: mx.square(mx.power(mx.abs(x) + 1, 1.5)))) > 5
    assert len(stored_by(nn.gelu_approx, rows=16)) > 5


LIMITS = FusionLimits(
    members=64, uncut_members=48, group_rows=16, group_size=1024, repeated_operations=8, fewer=4, uncached_size=1 << 20
)
ELEMENTS = 64
LARGE = LIMITS.uncached_size // 4


def after(count: int, x: mx.array) -> mx.array:
    """``x`` after ``count`` cheap operations."""
    for _ in range(count):
        x = mx.abs(x)
    return x


def scanned(size: int = ELEMENTS) -> mx.array:
    """A value that is not computed element by element, and is not in memory."""
    return mx.cumsum(mx.zeros(size))


def is_remade(
    x: mx.array, uses: Mapping[mx.array, str] | None = None, stored: Sequence[mx.array] = (), users: str = "ab"
) -> bool:
    """Whether the groups ``users`` compute ``x`` again. ``uses`` names the groups that use other nodes."""
    groups = {array.node: list(used) for array, used in (uses or {}).items()}
    found: Any = lambda node: [(group, None) for group in groups.get(node, [])]  # noqa: E731 - a table
    nodes = [array.node for array in stored]
    users_: Any = set(users)
    return saves_memory(x.node, users_, found, lambda node: node.value is not None or node in nodes, LIMITS)


@pytest.mark.parametrize("size", [ELEMENTS, LARGE - 1, LARGE])
def test_how_much_is_computed_again(size: int) -> None:
    """For arrays too large for caches, the limit of operations is multiplied by the bytes of an element."""
    most = 8 if size < LARGE else 8 * 4
    x = mx.zeros(size)
    mx.eval(x)
    assert is_remade(after(most, x), {x: "ab"})
    assert not is_remade(after(most + 1, x), {x: "ab"})
    assert not is_remade(after(1, scanned(size)))


def test_what_is_used_twice_counts_once() -> None:
    x = mx.zeros(ELEMENTS)
    mx.eval(x)
    half = after(7, x)
    assert is_remade(half * half, {x: "ab"})
    assert is_remade(half * x, {x: "c"})


def test_uses_of_numbers_are_not_looked_at() -> None:
    """A number may have as many uses as a graph has operations."""
    x = mx.zeros(ELEMENTS)
    mx.eval(x)
    asked: list[Any] = []

    def uses_of(node: Any) -> list[Any]:
        asked.append(node)
        return []

    assert saves_memory((x * 2.0 + 3.0).node, set(), uses_of, lambda node: node.value is not None, LIMITS)
    assert x.node in asked
    assert not [node for node in asked if node.shape == ()]


def test_constants_and_much_smaller_arrays_are_as_good_as_in_memory() -> None:
    assert is_remade(mx.broadcast_to(mx.array(2.0), 2) * after(1, mx.array([1.0, 2.0])) + 1, users="a")
    for rows, expected in ((16, True), (32, False)):
        small = mx.expand_dims(scanned(rows), 1)
        x = mx.zeros((rows, ELEMENTS // rows))
        mx.eval(x)
        assert is_remade(x + small, {x: "ab"}) is expected


def test_what_is_in_memory_in_any_case() -> None:
    """Arrays that are stored, that several groups use, or that another group uses."""
    x = scanned()
    view = x[::-1]
    assert not is_remade(after(1, x), {x: ""})
    assert is_remade(after(1, x), {x: ""}, stored=[x])
    assert is_remade(after(1, x), {x: "ab"})
    assert is_remade(after(1, x), {x: "c"})
    assert is_remade(after(1, view), {x: "a", view: "b"})
    assert not is_remade(after(1, x), {x: "a"})


def test_no_more_is_read_than_what_is_saved() -> None:
    """Reading arrays that all users read in any case costs nothing."""
    x, y, z = scanned(), scanned(), scanned()
    assert is_remade(x + y, {x: "ab", y: "ab"})
    assert is_remade(x + y, {x: "abc", y: "ac"})
    assert not is_remade(x + y, {x: "bc", y: "ac"})
    assert not is_remade(x + y + z, {x: "abc", y: "ac", z: "c"})


def test_expensive_values_of_a_sweep_are_computed_in_lanes() -> None:
    """Inside of the sweep over the second axis they would be computed one by one, and again in each pass."""

    def forward(x: mx.array, w: mx.array) -> mx.array:
        return mx.logsumexp(mx.exp(x)[:, :, None] + w, axis=1)

    plans = plans_of(forward, mx.ones((32, 40)), mx.ones((40, 50)))
    found = [line for plan in plans for line in str(plan).splitlines() if "apply exp " in line]
    assert len(found) == 2
    assert all(" lanes" in line for line in found), found
