"""Programs whose results have the same bits on every processor: each operation in each dtype, each kind of kernel."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from tests.bits.numbers import Numbers
from tests.ops import elementwise_rows, standard_rows
from tests.ops.row import BOOLEAN, FLOATS, INTEGERS, Row, bits, flat, numpy_dtype, to_array, to_numpy
from tests.ops.table import ROWS
from tests.ops.test_table import from_library
from weft.utils import tree_flatten

DIGESTS = Path(__file__).with_name("digests.txt")

Program = Callable[[], Sequence[mx.array]]


def row_program(row: Row, dtype: str) -> list[mx.array]:
    numbers = Numbers(f"{row.id} {dtype}")
    arguments = [domain.sample(numbers, row.shape, dtype) for domain in row.domains]  # type: ignore[arg-type]
    return flat(row.function(mx, *[to_array(x) for x in arguments]))


def edges_of(dtype: str) -> np.ndarray:
    """Numbers for which instructions of processors differ: too large for integers, divisors of zero, NaN."""
    target = numpy_dtype(dtype)
    if target.kind == "b":
        return np.array([False, True])
    if target.kind in "iu":
        limits = np.iinfo(target)
        return np.array([0, 1, 2, 7, limits.bits, limits.min, limits.max, -1 if limits.min else 3], target)
    values = [0.0, 0.5, 1.0, 1.5, 2.5, 300.0, 3e9, 1e19, 3e38, 1e300, 1e-7, 1e-40, 5e-324, np.inf, np.nan]
    with np.errstate(over="ignore", under="ignore"):
        return np.array([*values, *[-x for x in values]]).astype(target)


def edges(row: Row, dtype: str) -> list[mx.array]:
    """The results of an elementwise operation for all combinations of the numbers of `edges_of`."""
    combinations = list(itertools.product(*[edges_of(domain.dtype or dtype) for domain in row.domains]))
    columns = [np.array([x[n] for x in combinations]) for n in range(len(row.domains))]
    return flat(row.function(mx, *[to_array(x) for x in columns]))


def converted(dtype: str) -> list[mx.array]:
    """The numbers of `edges_of`, converted to every dtype."""
    x = to_array(edges_of(dtype))
    return [x.astype(getattr(mx, name)) for name in (*FLOATS, *INTEGERS, *BOOLEAN)]


def drawn(seed: str, *shape: int, dtype: str = "float32", spread: float = 4.0) -> mx.array:
    """Numbers of both signs and many magnitudes."""
    numbers = Numbers(seed)
    values = numbers.uniform(-1, 1, shape) * 2.0 ** np.floor(numbers.uniform(-spread, spread, shape))
    return mx.array(values.astype(np.float32)).astype(getattr(mx, dtype))


def folds(shape: tuple[int, ...], axis: int | None, dtype: str) -> list[mx.array]:
    x = drawn(f"folds {shape}", *shape, dtype=dtype)
    rows = [mx.sum(x, axis=axis), mx.mean(x, axis=axis), mx.max(x, axis=axis), mx.logsumexp(x, axis=axis)]
    return [*rows, mx.argmin(x, axis=axis), mx.softmax(x, axis=-1), mx.var(x, axis=axis)]


def product(left: tuple[int, ...], right: tuple[int, ...], dtype: str, transposed: bool) -> list[mx.array]:
    x, y = drawn("left", *left, dtype=dtype), drawn("right", *right, dtype=dtype)
    if dtype == "complex64":
        x, y = x + 1j * drawn("left imaginary parts", *left), y + 1j * drawn("right imaginary parts", *right)
    return [mx.swapaxes(mx.swapaxes(y, -1, -2) @ mx.swapaxes(x, -1, -2), -1, -2) if transposed else x @ y]


def recurrent(rows: int, width: int, dtype: str) -> list[mx.array]:
    """Some steps of a recurrent net, and the gradients of its weights: products of a matrix with many others, and sums
    of products."""
    w, x = drawn("weights", 2 * width, width, dtype=dtype, spread=1) / width, drawn("x", 9, rows, width, dtype=dtype)

    def states(w: mx.array, x: mx.array) -> mx.array:
        found = [x[0]]
        for step in range(1, 9):
            here, there = mx.split(found[-1] @ w.T + 1, 2, axis=1)
            found.append(mx.tanh(here + x[step]) * there)
        return mx.stack(found)

    return [states(w, x), *mx.grad(lambda w, x: states(w, x).sum(), argnums=(0, 1))(w, x)]


def normalised(rows: int, columns: int, dtype: str) -> list[mx.array]:
    """A layer norm, its activation, and the gradients of both."""
    x, w = drawn("x", rows, columns, dtype=dtype, spread=1), drawn("w", columns, dtype=dtype, spread=1)

    def run(x: mx.array, w: mx.array) -> mx.array:
        centred = x - mx.mean(x, axis=-1, keepdims=True)
        y = centred * mx.rsqrt(mx.mean(centred * centred, axis=-1, keepdims=True) + 1e-5) * w
        return (nn.gelu(y) * mx.sigmoid(y)).sum()

    return [run(x, w), *mx.grad(run, argnums=(0, 1))(x, w)]


def scans(shape: tuple[int, ...], axis: int | None, dtype: str) -> list[mx.array]:
    x = drawn("scans", *shape, dtype=dtype)
    gradient = mx.grad(lambda x: mx.sum(mx.cumprod(mx.cos(x), axis=axis)))
    sums = [mx.cumsum(x, axis=axis, reverse=reverse, inclusive=not reverse) for reverse in (False, True)]
    return [*sums, mx.cummax(x * 2, axis=axis), mx.logcumsumexp(x, axis=axis), gradient(x)]


def transposed(dtype: str) -> list[mx.array]:
    x = drawn("transposed", 67, 130, dtype=dtype)
    return [x.T + x[:, ::-1].T, mx.sum(x.T * 2, axis=0), mx.concatenate([x.T, x.T], axis=1)[::3]]


def scattered(dtype: str) -> list[mx.array]:
    x, values = drawn("scattered", 50, 7, dtype=dtype), drawn("values", 30, 7, dtype=dtype)
    where = mx.array(Numbers("where").choice(range(50), (30,)).astype(np.int32))
    return [x.at[where].add(values), x.at[where].maximum(values), x[where] * values]


def repeated(rows: int, columns: int, dtype: str) -> mx.array:
    """Numbers many of which are equal, among them zeros of both signs."""
    return mx.round(drawn(f"ordered {rows} {columns}", rows, columns, spread=3) * 40).astype(getattr(mx, dtype)) / 40


def ordered(rows: int, columns: int, dtype: str) -> list[mx.array]:
    x = repeated(rows, columns, dtype)
    largest = mx.topk(x, 5)
    return [mx.sort(x), mx.argsort(x), largest, mx.median(x, axis=-1), mx.searchsorted(mx.sort(x[0]), x)]


def parted(rows: int, columns: int, dtype: str) -> list[mx.array]:
    x = repeated(rows, columns, dtype)
    return [mx.partition(x, columns // 3), mx.argpartition(x, columns // 3)]


def small_matrices(count: int, rows: int, dtype: str) -> list[mx.array]:
    """Linear algebra of single matrices and of stacks; some rows are exchanged, and one matrix is singular."""
    a, b = drawn(f"matrices {rows}", count, rows, rows, dtype=dtype), drawn("right sides", count, rows, 3, dtype=dtype)
    a = mx.where(mx.arange(count)[:, None, None] == 7, mx.ones_like(a), a)
    square = a @ mx.swapaxes(a, -1, -2) + 32 * mx.eye(rows, dtype=a.dtype)
    gradient = mx.grad(lambda b: mx.sum(mx.square(mx.linalg.solve(square, b))))(b)
    solutions = [mx.linalg.solve(a, b), mx.linalg.solve_triangular(square, b, upper=True), gradient]
    factors = [mx.linalg.cholesky(square), *mx.linalg.lu_factor(a[:, 1:]), *mx.linalg.qr(a)]
    return [*solutions, *factors, mx.linalg.inv(a), mx.linalg.tri_inv(square), mx.linalg.det(a)]


def stepped(shape: tuple[int, ...], dtype: str) -> list[mx.array]:
    """Many steps of a reaction; the code of the kernel is cut into several functions."""
    u, v = drawn("u", *shape, dtype=dtype, spread=1) * 0.1, drawn("v", shape[-1], dtype=dtype, spread=1) * 0.1
    feed = mx.exp(v)
    for _ in range(20):
        change = u * v * v
        u, v = u + 0.5 * (feed * (1 - u) - change), v + 0.5 * (change - mx.sqrt(abs(v)) * 0.06)
    return [u, v, u < v]


def random_numbers() -> list[mx.array]:
    keys = mx.random.split(mx.random.key(7), 9)
    return [
        mx.random.uniform(shape=(1000,), key=keys[0]),
        mx.random.normal((33, 31), key=keys[1]),
        mx.random.randint(-5, 1000, (77,), key=keys[2]),
        mx.random.truncated_normal(-1.0, 2.0, (500,), key=keys[3]),
        mx.random.gumbel((500,), key=keys[4]),
        mx.random.permutation(100, key=keys[5]),
        mx.random.laplace((500,), key=keys[6]),
        mx.random.categorical(mx.arange(700) * 0.01, num_samples=300, key=keys[7]),
        mx.random.categorical(mx.arange(700).reshape(7, 100) * 0.01, key=keys[8]),
    ]


def training(steps: int) -> list[mx.array]:
    """The parameters of a perceptron after some steps of Adam."""
    sizes = (20, 33, 5)
    model = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.GELU(), nn.Linear(sizes[1], sizes[2]))
    model.load_weights([(name, drawn(name, *x.shape, spread=1) * 0.3) for name, x in tree_flatten(model.parameters())])
    optimizer = optim.Adam(1e-2)
    x, y = drawn("batch", 64, sizes[0], spread=1), mx.arange(64) % sizes[2]
    loss_and_grad = nn.value_and_grad(model, lambda model: nn.losses.cross_entropy(model(x), y, reduction="mean"))
    for _ in range(steps):
        optimizer.update(model, loss_and_grad(model)[1])
    return [x for _, x in tree_flatten(model.parameters())]


def transforms(length: int, axis: int) -> list[mx.array]:
    """Fourier transforms of rows of a length, or of columns."""
    rows = 1 if length > 50_000 else 3 if length > 100 else 21
    shape = (length, rows) if axis == 0 else (rows, length)
    x = drawn("real parts", *shape) + 1j * drawn("imaginary parts", *shape)
    half = mx.fft.rfft(mx.real(x), axis=axis)
    return [mx.fft.fft(x, axis=axis), mx.fft.ifft(x, axis=axis), half, mx.fft.irfft(half, n=length, axis=axis)]


def kernels() -> dict[str, Program]:
    """Long and short rows, folded along every axis; and operations of whole models."""
    found: dict[str, Program] = {"random": random_numbers, "training": partial(training, 3)}
    for dtype in FLOATS:
        for shape, axis in [((300_001,), None), ((3, 70_000), 1), ((70_000, 3), 0), ((40, 70), 0), ((5, 9, 33), 1)]:
            found[f"folds {shape} {axis} {dtype}"] = partial(folds, shape, axis, dtype)
            found[f"scans {shape} {axis} {dtype}"] = partial(scans, shape, axis, dtype)
        for rows, width in [(7, 90), (33, 130)]:
            found[f"recurrent {rows} {width} {dtype}"] = partial(recurrent, rows, width, dtype)
        found[f"normalised {dtype}"] = partial(normalised, 37, 257, dtype)
        found[f"transposed {dtype}"] = partial(transposed, dtype)
        found[f"stepped (1000,) {dtype}"] = partial(stepped, (1000,), dtype)
        found[f"stepped (41, 25) {dtype}"] = partial(stepped, (41, 25), dtype)
        found[f"scattered {dtype}"] = partial(scattered, dtype)
        if dtype in ("float32", "float64"):
            for count, rows in [(1, 3), (37, 4), (2, 17), (20, 16), (9, 32)]:
                found[f"small matrices {count} {rows} {dtype}"] = partial(small_matrices, count, rows, dtype)
        for rows, columns in [(40, 16), (20, 100), (3, 1000), (2, 40_000)]:
            found[f"ordered {rows} {columns} {dtype}"] = partial(ordered, rows, columns, dtype)
        for rows, columns in [(3, 1000), (2, 40_000)]:
            found[f"parted {rows} {columns} {dtype}"] = partial(parted, rows, columns, dtype)
    short = [(64, 1), (512, 0), (2048, 1), (3 * 343, 1), (1021, 1), (4099, 0), (8192, 1)]
    for length, axis in [*short, (360 * 375, 1), (1 << 18, 1)]:
        found[f"transforms {length} {axis}"] = partial(transforms, length, axis)
    return found


def products() -> dict[str, Program]:
    """Products of all layouts."""
    shapes = [((1, 300), (300, 65)), ((130, 517), (517, 67)), ((3, 17, 40), (3, 40, 16))]
    return {
        f"product {left} {right} {'transposed ' * turned}{dtype}": partial(product, left, right, dtype, turned)
        for dtype, (left, right), turned in itertools.product((*FLOATS, "complex64"), shapes, (False, True))
    }


def processors_differ() -> dict[str, Program]:
    """Conversions and elementwise operations at numbers for which the instructions of processors differ."""
    found: dict[str, Program] = {}
    for dtype in (*FLOATS, *INTEGERS, *BOOLEAN):
        found[f"edges converted {dtype}"] = partial(converted, dtype)
    for row in [*elementwise_rows.ROWS, *standard_rows.ROWS]:
        if row.elementwise and row.shape == (2, 3, 4) and row.domains:
            real = [dtype for dtype in row.dtypes if dtype != "complex64"]
            found |= {f"edges {row.id} {dtype}": partial(edges, row, dtype) for dtype in real}
    return found


PROGRAMS: dict[str, Program] = (
    {
        f"{row.id} {dtype}": partial(row_program, row, dtype)
        for row in ROWS
        for dtype in row.dtypes
        if not from_library(row, dtype)
    }
    | kernels()
    | products()
    | processors_differ()
)


def digest_of(name: str) -> str:
    """A digest of the dtypes, shapes and elements of the results of a program; all NaN are alike."""
    digest = hashlib.sha256()
    for x in PROGRAMS[name]():
        array = to_numpy(x)
        digest.update(f"{x.dtype} {array.shape} ".encode() + bits(array))
    return digest.hexdigest()[:12]


def digests_on_file() -> dict[str, str]:
    lines = DIGESTS.read_text().splitlines()
    return {name: digest for digest, name in (line.split(" ", 1) for line in lines)}
