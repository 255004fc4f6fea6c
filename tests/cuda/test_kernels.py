"""Kernels of the CUDA target, run thread by thread: they have the bits of the CPU, in every order of threads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
from tests.codegen.planned import plans_of
from tests.cuda.device import BlocksEngine
from tests.cuda.machine import Order
from tests.ops.row import Row, bits, to_numpy
from tests.ops.table import ROWS
from tests.reference.test_operations import FOLDS, SCANS, check
from tests.sampling import Cases
from weft.compiler.codegen import nvptx
from weft.compiler.cuda import loops, nests, schedule, scheduling
from weft.compiler.running import evaluate
from weft.primitives import reductions, scans


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take several lanes also for small arrays."""
    monkeypatch.setattr(scheduling, "ENOUGH_THREADS", 1)
    monkeypatch.setattr(scheduling, "TILED_FROM", 1)
    evaluate.forget_plans()


def same_bits(function: Callable[..., mx.array], *arguments: mx.array) -> bool:
    """Whether a function gives the same bits on both devices."""
    wanted = function(*arguments)
    mx.eval(wanted)
    with mx.stream(mx.gpu):
        return bits(to_numpy(function(*arguments))) == bits(to_numpy(wanted))


def computed_here(seed: int) -> list[tuple[Row, str]]:
    """Rows, each with one of its dtypes, except linear algebra, Fourier transforms, and attention in half precision,
    which has other bits on GPUs."""
    kernels = [row for row in ROWS if row.dtypes and not row.name.startswith(("linalg.", "fft."))]
    drawn = [(row, row.dtypes[seed % len(row.dtypes)]) for row in kernels]
    halves = ("float16", "bfloat16")
    return [(row, dtype) for row, dtype in drawn if not (row.name.endswith("product_attention") and dtype in halves)]


def test_operations(cases: Cases, seed: int) -> None:
    for row, dtype in cases.some(5, computed_here(seed)):
        check(row, dtype, seed)


def test_operations_on_several_lanes(cases: Cases, seed: int, few_threads: None) -> None:
    for row, dtype in cases.some(5, computed_here(seed)):
        check(row, dtype, seed)


def test_the_order_of_folds(cases: Cases, rng: np.random.Generator) -> None:
    shapes = [(3, 500), (40, 70), (5, 9, 33), (2, 1500), (530, 3)]
    for name, shape in cases.some(2, list(product(FOLDS, shapes))):
        x = mx.array(rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, size=shape), dtype=mx.float64)
        for axis in range(len(shape)):
            assert same_bits(lambda x, name=name, axis=axis: FOLDS[name](x, axis), x), (name, shape, axis)


def test_long_sweeps_of_few_threads(cases: Cases, rng: np.random.Generator) -> None:
    """Many terms are read together, then fewer, and the last ones one by one."""
    x = mx.array((rng.normal(size=(107, 9)) * 10.0 ** rng.integers(-3, 4, size=(107, 9))).astype(np.float32))
    with mx.stream(mx.gpu):
        ((record,),) = [plan.describe().records for plan in plans_of(lambda x: mx.sum(x * 2, axis=0), x)]
    assert record.launch is not None
    assert scheduling.schedule_of(record.launch).few_threads
    for name in cases.some(4, list(FOLDS)):
        assert same_bits(lambda x, name=name: FOLDS[name](x * 2, 0), x)


SHARED: dict[str, tuple[Callable[[mx.array], mx.array], tuple[int, ...]]] = {
    "sums of columns": (lambda x: mx.sum(x * 2, axis=0), (131, 5)),
    "several tiles": (lambda x: mx.sum(x, axis=0), (1500, 3)),
    "several passes": (lambda x: mx.softmax(x, axis=0), (130, 3)),
    "elements and what they come to": (
        lambda x: mx.concatenate([mx.exp(x), mx.sum(mx.exp(x), axis=0)[None]]),
        (140, 9),
    ),
    "of a stack": (lambda x: mx.argmax(x, axis=1), (3, 150, 6)),
    "in place": (lambda x: x[0] - mx.sum(mx.sin(x), axis=0), (129, 4)),
    "a row": (lambda x: mx.mean(mx.log(mx.abs(x)) * mx.exp(x)), (600,)),
    "softmax of few rows": (lambda x: mx.softmax(x * 2, axis=1), (2, 700)),
    "rows with something of each": (lambda x: mx.max(mx.sin(x) / mx.exp(x), axis=1) + x[:, 0], (3, 1000)),
}


@pytest.mark.some_rows(4)
@pytest.mark.parametrize("name", SHARED)
def test_threads_share_what_is_folded(name: str, engine: BlocksEngine, rng: np.random.Generator) -> None:
    function, shape = SHARED[name]
    x = mx.array((rng.normal(size=shape) * 10.0 ** rng.integers(-3, 2, size=shape)).astype(np.float32))
    with mx.stream(mx.gpu):
        plans = plans_of(function, x)
    launches = [record.launch for plan in plans for record in plan.describe().records]
    assert schedule.Walk.SHARED_FOLDS in [scheduling.schedule_of(one).walk for one in launches if one is not None]
    assert same_bits(function, x)
    with engine.in_order(in_stretches(rng)):
        assert same_bits(function, x)


def test_what_threads_share_is_stored_in_place(engine: BlocksEngine, rng: np.random.Generator) -> None:
    """The memory is written after all threads of a lane have read it."""
    x = mx.array(rng.normal(size=(129, 4)).astype(np.float32))

    def trained(device: mx.Device | mx.DeviceType) -> mx.array:
        state = [mx.array([1.0, 2.0, 3.0, 4.0])]

        def step(x: mx.array) -> None:
            state[0] = state[0] * 0.9 - mx.sum(mx.sin(x * state[0]), axis=0)

        compiled = mx.compile(step, inputs=state, outputs=state)
        with mx.stream(device):
            for _ in range(3):
                compiled(x)
                mx.eval(state)
        return state[0]

    wanted = bits(to_numpy(trained(mx.cpu)))
    with engine.in_order(in_stretches(rng)):
        assert bits(to_numpy(trained(mx.gpu))) == wanted


def test_all_reductions_that_threads_share(cases: Cases, rng: np.random.Generator) -> None:
    of_every_dtype = product(FOLDS, (mx.float32, mx.float16, mx.int64, mx.bool_))
    for name, dtype in cases.some(4, [one for one in of_every_dtype if one != ("product", mx.bool_)]):
        x = mx.array(rng.integers(-3, 4, size=(260, 4))).astype(dtype)
        assert same_bits(lambda x, name=name: FOLDS[name](x, 0), x), (name, dtype)


def test_folds_in_parts(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PARTED_SIZE", 256), ("ROW_PART", 40), ("LANES_PART", 20)):
        monkeypatch.setattr(reductions, name, value)
    evaluate.forget_plans()
    x = mx.array(rng.integers(-9, 9, size=(2, 333)).astype(np.float32))
    for axis in (0, 1):
        for folded in (mx.argmax, mx.argmin, mx.max, lambda x, axis: mx.sum(x / 3 + 1j * x, axis=axis)):
            assert same_bits(lambda x, axis=axis, folded=folded: folded(x.T if axis else x, axis=1 - axis), x)
    evaluate.forget_plans()


@pytest.mark.parametrize("few_results", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_parts_of_sweeps(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, few_results: bool) -> None:
    """If there are few sums, one kernel makes sums of parts, and another one adds them; many sums are made by one
    kernel, in the same order."""
    monkeypatch.setattr(reductions, "FEW_LANES", 1 << 14 if few_results else 1)
    evaluate.forget_plans()
    x = mx.array(rng.normal(size=(1030, 3)) * 10.0 ** rng.integers(-3, 4, size=(1030, 3)), dtype=mx.float64)
    with mx.stream(mx.gpu):
        plans = plans_of(lambda x: mx.sum(x * 2, axis=0), x)
    launches = [record.launch for plan in plans for record in plan.describe().records]
    assert [one is not None and one.in_parts for one in launches] == ([False, False] if few_results else [True])
    for folded in (mx.sum, mx.prod, mx.mean, mx.max, lambda x, axis: mx.sum(x.astype(mx.complex64) * 1j, axis=axis)):
        assert same_bits(lambda x, folded=folded: folded(x * 2, axis=0), x)
    evaluate.forget_plans()


def test_long_rows_that_are_only_folded(
    engine: BlocksEngine, cases: Cases, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "ENOUGH_FOLDS", 1)
    evaluate.forget_plans()
    x = mx.array((rng.normal(size=(3, 9001)) * 10.0 ** rng.integers(-3, 4, size=(3, 9001))).astype(np.float32))
    rows = [x[:, :9000], x[:, 1:], x.astype(mx.float16)[:, :8704], x.astype(mx.int64)]
    with mx.stream(mx.gpu):
        ((record,),) = [plan.describe().records for plan in plans_of(lambda x: mx.sum(x * 2, axis=1), rows[0])]
    assert record.launch is not None
    assert scheduling.schedule_of(record.launch).walk is schedule.Walk.FOLDS
    with engine.in_order(in_stretches(rng)):
        for number in cases.some(2, range(len(rows))):
            assert same_bits(lambda x: mx.sum(x / 3, axis=1), rows[number])
            assert same_bits(lambda x: mx.argmax(x, axis=1), rows[number])
    assert same_bits(lambda x: mx.stack([mx.max(x, axis=1), mx.sum(mx.sin(x), axis=1)]), rows[0])
    assert same_bits(lambda x: mx.sum(x + 1j * x, axis=1), rows[1])
    evaluate.forget_plans()


def test_the_order_of_scans(cases: Cases, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CHUNKED_SIZE", 64), ("CHUNK", 32), ("ROW_CHUNK", 32), ("SHORTEST_CHUNK", 20)):
        monkeypatch.setattr(scans, name, value)
    evaluate.forget_plans()
    ways = list(product(SCANS, [((3, 131), 1), ((70, 5), 0)], (False, True), (False, True)))
    for name, (shape, axis), reverse, inclusive in cases.some(2, ways):
        x = mx.array(rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, size=shape), dtype=mx.float32)
        manner = {"axis": axis, "reverse": reverse, "inclusive": inclusive}
        assert same_bits(lambda x, name=name, manner=manner: SCANS[name](x, **manner), x), (name, shape, manner)
    evaluate.forget_plans()


def test_the_order_of_scans_of_long_rows(
    engine: BlocksEngine, cases: Cases, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "SCAN_THREADS", 64)
    evaluate.forget_plans()
    ways = list(product(SCANS, (False, True), (False, True)))
    for name, reverse, inclusive in cases.some(2, ways):
        x = mx.array(rng.normal(size=(4, 1100)).astype(np.float32))
        manner = {"axis": 1, "reverse": reverse, "inclusive": inclusive}
        with engine.in_order(in_stretches(rng)):
            assert same_bits(lambda x, name=name, manner=manner: SCANS[name](x, **manner), x), (name, manner)
    assert same_bits(MEETING["both directions"], mx.array(rng.normal(size=(2, 600)).astype(np.float32)))
    evaluate.forget_plans()


def in_stretches(rng: np.random.Generator) -> Order:
    """An order in which threads at one place go on for a while, even if others wait for them."""
    favoured = 0.0

    def order(places: np.ndarray) -> int:
        nonlocal favoured
        if rng.random() < 0.05:
            favoured = rng.random()
        return int(places[int(favoured * len(places))])

    return order


MEETING: dict[str, Callable[[mx.array], mx.array]] = {
    "softmax": lambda x: mx.softmax(x, axis=-1),
    "in place": lambda x: mx.softmax(x * 2, axis=-1) + mx.max(x, axis=-1, keepdims=True),
    "both directions": lambda x: mx.cumsum(x, axis=-1) * mx.cumsum(x, axis=-1, reverse=True),
    "row by row": lambda x: mx.sum(x, axis=-1) + x[:, 0],
    "gradient": lambda x: mx.vjp(lambda x: mx.softmax(x, axis=-1), [x], [mx.sin(x[::-1])])[1][0],
    "norm": lambda x: mx.fast.layer_norm(x, x[0], x[1], 1e-5),
    "two axes": lambda x: mx.sum(mx.stack([x, x * 2]), axis=(0, 2)),
    "folded once": lambda x: x - mx.max(x, axis=-1, keepdims=True),
    "cross entropy": lambda x: nn.losses.cross_entropy(x, mx.arange(x.shape[0]) * 5),
    "small totals": lambda x: (x > -mx.inf) & mx.all(x < mx.inf, axis=-1, keepdims=True),
}


LONG, LONGER = (4, 1100), (2, 8200)
"""Shapes with rows that are done by one block each, one block doing two; and with rows that two blocks do together."""

EVEN, LONG_EVEN, LONGER_EVEN = (26, 128), (7, 2048), (4, 8192)
"""Shapes with rows that teams, blocks and clusters do, in which each thread keeps all its elements in registers."""

LONGEST_EVEN = (1, 32768)
"""A shape of which each thread joins several totals of chunks, whose number is known."""


@pytest.mark.some_rows(8)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *[(name, (9, 77)) for name in MEETING],
        *product(("in place", "gradient", "two axes"), (LONG,)),
        ("softmax", LONGER),
        *product(("in place", "gradient"), (EVEN, LONG_EVEN)),
        *product(("row by row", "folded once", "small totals"), (LONG, LONGER)),
        *product(("softmax", "norm", "gradient", "folded once"), (LONGER_EVEN,)),
        *product(("softmax", "cross entropy", "folded once"), (LONGEST_EVEN,)),
    ],
    ids=str,
)
def test_no_order_of_threads_changes_results(
    name: str, shape: tuple[int, ...], engine: BlocksEngine, rng: np.random.Generator
) -> None:
    x = mx.array(rng.normal(size=shape).astype(np.float32))
    with engine.in_order(in_stretches(rng)):
        assert same_bits(MEETING[name], x)


@pytest.mark.parametrize("shape", [EVEN, (2, 2048), (9, 77)], ids=str)
def test_extremes_of_zeros_infinities_and_nan(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """For 0 and -0, which are equal, the defined order decides which one is the extreme."""
    for numbers in ([0.0, -0.0], [0.0, -0.0, -1.0], [-np.inf, -0.0], [-np.inf], [1.0, 2.0, np.nan]):
        x = mx.array(rng.choice(numbers, size=shape).astype(np.float32))
        for extreme in (mx.max, mx.min):
            assert same_bits(lambda x, extreme=extreme: extreme(x, axis=1), x), numbers
            assert same_bits(lambda x, extreme=extreme: mx.maximum(x, 3) * extreme(x, axis=1, keepdims=True), x), (
                numbers
            )


def test_views_that_are_not_aligned(rng: np.random.Generator, few_threads: None) -> None:
    x = mx.array(rng.normal(size=(6, 75)).astype(np.float32))
    assert same_bits(lambda x: x[:, 1:] + x[:, :-1], x)
    assert same_bits(lambda x: mx.sum(x[1:, 3:], axis=0), x)


@pytest.mark.parametrize("count", [4096, 4099, 4100, 8191])
def test_random_words_are_made_in_pairs(count: int, few_threads: None) -> None:
    key = mx.random.key(count)
    with mx.stream(mx.gpu):
        plans = plans_of(lambda key: mx.random.uniform(shape=(count,), key=key), key)
    launches = [record.launch for plan in plans for record in plan.describe().records]
    assert schedule.Walk.PAIRS in [scheduling.schedule_of(launch).walk for launch in launches if launch is not None]
    assert same_bits(lambda key: mx.random.uniform(shape=(count,), key=key), key)
    assert same_bits(lambda key: mx.random.uniform(shape=(count,), key=key)[3:] * 2, key)
    assert same_bits(lambda key: mx.random.uniform(shape=(count,), key=key, dtype=mx.float16), key)
    assert same_bits(lambda key: mx.random.normal((2, count // 2), key=key) + mx.arange(count // 2), key)


TILES: dict[str, tuple[Callable[[mx.array], mx.array], tuple[int, ...]]] = {
    "beside others": (lambda x: x + x.T * x[0] + x[:, :1], (64, 64)),
    "of a stack": (lambda x: mx.swapaxes(x, 1, 2) * 2, (3, 127, 64)),
    "with a rest": (lambda x: x.T + x.T[0], (63, 61)),
}


@pytest.mark.parametrize("name", TILES)
def test_tiles_are_turned(name: str, engine: BlocksEngine, rng: np.random.Generator, few_threads: None) -> None:
    function, shape = TILES[name]
    x = mx.array(rng.integers(-99, 99, size=shape))
    for dtype in (mx.float32, mx.float16, mx.int64, mx.uint8, mx.complex64):
        assert same_bits(function, x.astype(dtype)), dtype
    with engine.in_order(in_stretches(rng)):
        assert same_bits(function, x.astype(mx.float32))


def test_transposed_operands_are_read_in_tiles(engine: BlocksEngine, few_threads: None) -> None:
    with mx.stream(mx.gpu):
        ((record,),) = [plan.describe().records for plan in plans_of(lambda x: x.T * 2, mx.zeros((128, 64)))]
    assert record.launch is not None
    assert scheduling.schedule_of(record.launch).walk is schedule.Walk.TILES


def test_threads_load_several_pieces_before_they_compute(rng: np.random.Generator, few_threads: None) -> None:
    x = mx.array(rng.normal(size=2 * scheduling.WASTED * 4 * schedule.THREADS + 1030).astype(np.float32))
    assert same_bits(lambda x: mx.sqrt(x * x + 1), x)
    assert same_bits(lambda x: x[1:-1] * x[2:], x)


@pytest.mark.parametrize(("columns", "pieces", "bits"), [(1024, 4, 6), (768, 2, 5), (8200, 4, 6)])
def test_threads_have_several_pieces_of_rows(
    engine: BlocksEngine, rng: np.random.Generator, few_threads: None, columns: int, pieces: int, bits: int
) -> None:
    """As many threads are neighbours in a row as leave few of them without lanes."""
    x, y = [mx.array(rng.normal(size=shape).astype(np.float32)) for shape in ((3, columns), (columns,))]
    with mx.stream(mx.gpu):
        ((record,),) = [plan.describe().records for plan in plans_of(lambda x, y: x * y + 1, x, y)]
    assert record.launch is not None
    found = scheduling.schedule_of(record.launch)
    assert (found.pieces, found.bits) == (pieces, bits)
    assert same_bits(lambda x, y: x * y + 1, x, y)
    assert same_bits(lambda x, y: x[1:, 1:] * y[1:] + 1, x, y)


def test_what_is_rounded_to_half_precision_is_rounded_once(engine: BlocksEngine, few_threads: None) -> None:
    """A store writes the bits that rounding gave. Two bfloat16 numbers that share a register become float32 numbers
    without being taken apart."""
    for dtype, rounding in ((mx.bfloat16, "cvt.rn.bf16x2.f32"), (mx.float16, "cvt.rn.f16x2.f32")):
        x = mx.zeros((1 << 14,), dtype)
        with mx.stream(mx.gpu):
            ((record,),) = [plan.describe().records for plan in plans_of(lambda x: x * x, x)]
        assert record.launch is not None
        chosen = scheduling.schedule_of(record.launch)
        text = nvptx.ptx(loops.generate(record.launch.kernel, chosen, "kernel"), "sm_90")
        lanes = chosen.lanes * chosen.pieces
        assert text.count(rounding) == lanes // 2
        if dtype is mx.bfloat16:
            assert text.count("and.b32") >= lanes // 2


def test_blocks_that_sweep_have_one_unit_each(engine: BlocksEngine) -> None:
    """Such units take long, and there may be few of them."""
    for function in (lambda x: mx.sum(x, axis=0), lambda x: mx.sum(x.reshape(20, 15, 20), axis=(0, 2))):
        with mx.stream(mx.gpu):
            ((record,),) = [plan.describe().records for plan in plans_of(function, mx.ones((20, 300)))]
        assert record.launch is not None
        assert record.launch.kernel.sweeps
        assert scheduling.schedule_of(record.launch).grain == 1


def test_light_kernels_say_for_how_many_blocks_registers_have_to_suffice(engine: BlocksEngine) -> None:
    def text(function: Callable[[mx.array], mx.array]) -> str:
        with mx.stream(mx.gpu):
            ((record,),) = [plan.describe().records for plan in plans_of(function, mx.ones((4, 300)))]
        assert record.launch is not None
        return loops.generate(record.launch.kernel, scheduling.schedule_of(record.launch), "kernel")

    assert '"nvvm.minctasm"="4"' in text(lambda x: x * 2 + 1)
    assert "minctasm" not in text(lambda x: sum([mx.sin(x + i) for i in range(30)], x))


def test_many_numbers_are_read_through_their_address() -> None:
    """Parameters of a kernel have 4 KB."""
    assert "byval([500 x i64])" in nests.entry_of(500)
    assert nests.entry_of(501) == nests.entry_of(0) == "ptr noalias readonly %numbers, ptr noalias readonly %table"


def test_ptx_is_made_of_every_kind_of_kernel(rng: np.random.Generator) -> None:
    """LLVM accepts the code, in which each kernel waits once for the kernel before it."""
    x = mx.array(rng.normal(size=(5, 300)).astype(np.float32))
    functions: list[Callable[[mx.array], mx.array]] = [
        lambda x: mx.softmax(mx.sin(x).astype(mx.float16), axis=-1),
        lambda x: mx.cumsum(x, axis=1, reverse=True) / 3,
        lambda x: x.at[mx.array([1, 3])].add(x[:2] * 1j),
    ]
    for function in functions:
        for plan in plans_of(function, x):
            for record in plan.describe().records:
                if record.launch is not None:
                    chosen = scheduling.schedule_of(record.launch)
                    text = nvptx.ptx(loops.generate(record.launch.kernel, chosen, "kernel"), "sm_90")
                    assert ".entry kernel(" in text
                    assert text.count("griddepcontrol.wait") == 1
                    assert ".param .align 8 .b8" in text  # the numbers
                    assert ".local" not in text
