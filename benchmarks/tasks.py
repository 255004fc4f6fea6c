"""The tasks that are measured, independently of any framework, and Weft's budgets for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any

FLOAT32_BYTES = 4


class Kind(Enum):
    """The kinds of samples."""

    STEADY = "calls in a warm process"
    FIRST_CALL = "the first call in a fresh process, with empty caches on disk"
    SECOND_PROCESS = "the first call in a fresh process, after another process has filled the caches on disk"
    IMPORT = "importing the framework in a fresh process"
    MEMORY = "the most resident memory that data and warm calls add to a process in which something was compiled before"


@dataclass(frozen=True)
class Limit:
    """The most that Weft may take: seconds, or a multiple of a peer's time in the same run."""

    most: float = 1.0
    peer: str = ""


@dataclass(frozen=True)
class Task:
    """One row of the table.

    Attributes:
        name: Its name on the command line.
        title: Its name in the table.
        method: The method of the peers that does it.
        arguments: Keyword arguments of that method.
        kind: The kind of its samples.
        repeats: How many times one call of the work does what the title says.
        memory: Bytes of the largest array, for tasks that do not fit every machine.
        budget: All limits that Weft has to keep.
    """

    name: str
    title: str
    method: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    kind: Kind = Kind.STEADY
    repeats: int = 1
    memory: int = 0
    budget: tuple[Limit, ...] = ()

    @property
    def fresh(self) -> bool:
        """Whether each sample needs a new process."""
        return self.kind is not Kind.STEADY

    @property
    def unit(self) -> str:
        """The unit of a sample."""
        return "bytes" if self.kind is Kind.MEMORY else "seconds"


OF_COMPILERS = (Limit(peer="jax"), Limit(peer="torch"))
OF_EAGER = (Limit(peer="torch"), Limit(peer="mlx"))
FASTEST = (*OF_COMPILERS, Limit(peer="mlx"))


NEAR_COPY = Limit(1.5, "copy")


def on_array(name: str, title: str, method: str, shape: tuple[int, ...], *budget: Limit) -> Task:
    """A task on one large array of that shape."""
    title = f"{title}, {'x'.join(map(str, shape))}"
    return Task(name, title, method, {"shape": shape}, memory=prod(shape) * FLOAT32_BYTES, budget=budget)


def scan(method: str, shape: tuple[int, ...], axis: int, budget: tuple[Limit, ...] = ()) -> Task:
    """A scan of one array along an axis."""
    extents = "x".join(map(str, shape))
    title = f"{method} over axis {axis}, {extents}"
    return Task(f"{method}-{extents}-{axis}", title, method, {"shape": shape, "axis": axis}, budget=budget)


def indexed(method: str, shape: tuple[int, ...], count: int) -> Task:
    """Rows of one array (elements, if it has one axis) at random indices that are read or added to."""
    extents = "x".join(map(str, shape))
    title = f"{method}, {count} of {extents}"
    return Task(f"{method}-{extents}", title, method, {"shape": shape, "count": count})


def formula(name: str, title: str) -> Task:
    """A long elementwise formula."""
    return Task(f"formula-{name}", title, "formula", {"name": name}, budget=FASTEST)


def ordering(method: str, *shape: int) -> Task:
    """Sorting, or selecting from, the rows of an array."""
    extents = "x".join(map(str, shape))
    return Task(
        f"{method}-{extents}",
        f"{method} of rows, {extents}",
        method,
        {"shape": shape},
        memory=prod(shape) * FLOAT32_BYTES,
    )


def fourier(name: str, transform: str, *shape: int, **keywords: int) -> Task:
    """A Fourier transform of an array of that shape, with the time of the fastest peer as its limit."""
    title = f"{transform}{' of axis 0' if keywords else ''}, {'x'.join(map(str, shape))}"
    arguments = {"transform": transform, "shape": shape, **keywords}
    return Task(name, title, "fourier", arguments, budget=(*FASTEST, Limit(peer="numpy")))


def converted_matmul(dtype: str, *shape: int) -> Task:
    """A product of square matrices, or of stacks of them, of a dtype."""
    extents = "x".join(map(str, shape))
    name = f"matmul-{dtype}" if len(shape) == 2 else f"matmul-{dtype}-{extents}"
    arguments = {"shape": shape, "dtype": dtype}
    return Task(name, f"matmul of {dtype}, {extents}", "converted_matmul", arguments, budget=OF_COMPILERS)


def product(left: tuple[int, ...], right: tuple[int, ...], transposed: bool = False) -> Task:
    """A product of few rows or columns, or of many small matrices; if ``transposed``, the right operand is
    transposed."""
    extents = "-".join("x".join(map(str, shape)) for shape in (left, right)) + ("t" if transposed else "")
    title = f"matmul, {'x'.join(map(str, left))} times {'x'.join(map(str, right))}{' transposed' if transposed else ''}"
    arguments = {"left": left, "right": right, "transposed": transposed}
    return Task(f"product-{extents}", title, "product", arguments, budget=(*FASTEST, Limit(peer="numpy")))


def layer(array: tuple[int, ...], weights: tuple[int, ...], **geometry: int) -> dict[str, Any]:
    """The arguments that describe a convolution: see `peers/convolutions.py`."""
    return {"array": array, "weights": weights, **geometry}


def convolution(name: str, layer: dict[str, Any]) -> tuple[Task, Task]:
    """A convolution, and its gradients with respect to both operands."""
    array, weights = ("x".join(map(str, layer[operand])) for operand in ("array", "weights"))
    title = f"convolution of {array}, weights {weights}"
    return (
        Task(f"conv-{name}", title, "convolution", layer, budget=OF_COMPILERS),
        Task(f"conv-{name}-gradients", f"gradients, {title}", "convolution_gradients", layer, budget=OF_COMPILERS),
    )


def quantized(rows: int, size: int, mode: str, bits: int) -> Task:
    """Rows of bfloat16 times the transpose of a quantised square matrix; for one row, reading the matrix takes most
    time."""
    kind = mode if mode != "affine" else f"{bits} bits"
    arguments = {"rows": rows, "size": size, "mode": mode, "bits": bits}
    budget = (Limit(peer="mlx"), *([NEAR_COPY] if rows == 1 else []))
    title = f"{rows}x{size} times {size}x{size} of {kind}"
    return Task(f"quantized-{mode}{bits}-{rows}", title, "quantized_product", arguments, budget=budget)


def decoding(layers: int, width: int, heads: int, kind: str) -> Task:
    """Generating one token with a GPT, with a cache of keys and values that is updated in place. A model of 4 bits is
    one of bfloat16 whose layers are quantised."""
    half, bits = kind != "float32", 4 if kind == "4 bits" else 0
    sizes = {"layers": layers, "width": width, "heads": heads, "context": 256, "batch": 1}
    budget = (Limit(peer="mlx"),) if bits else FASTEST
    title = f"decoding a token, {layers} layers of width {width}, {kind}"
    return Task(
        f"decode-{width}-{kind.replace(' ', '-')}",
        title,
        "decode",
        sizes | {"half": half, "bits": bits},
        budget=budget,
    )


def attention(
    name: str, title: str, queries: int, keys: int, heads: tuple[int, int, int], mask: str = ""
) -> list[Task]:
    """Attention in float32 and bfloat16, for ``heads``: batches, heads, features; with more than one query also
    gradients."""
    found = []
    for dtype in ("float32", "bfloat16"):
        for gradients in (False, True) if queries > 1 else (False,):
            arguments = {"queries": queries, "keys": keys, "heads": heads, "mask": mask, "dtype": dtype}
            kind = f"{dtype}, with gradients" if gradients else dtype
            method = "attention_gradients" if gradients else "attention"
            row = f"attention-{name}-{dtype}" + ("-gradients" if gradients else "")
            found.append(Task(row, f"attention, {title}, {kind}", method, arguments, budget=OF_EAGER))
    return found


def seconds(most: float | None) -> tuple[Limit, ...]:
    """A budget of ``most`` seconds, or none."""
    return () if most is None else (Limit(most),)


def first_calls(
    name: str, title: str, method: str, arguments: dict[str, Any], cold: float | None = None, again: float | None = None
) -> tuple[Task, Task]:
    """The first call with empty caches on disk, and in a second process, each with its budget in seconds."""
    return (
        Task(name, f"{title}, cold", method, arguments, Kind.FIRST_CALL, budget=seconds(cold)),
        Task(
            f"{name}-again",
            f"{title}, second process",
            method,
            arguments,
            Kind.SECOND_PROCESS,
            budget=seconds(again),
        ),
    )


def linear_algebra(function: str, size: int, count: int = 0) -> Task:
    """A function of `mx.linalg` for one matrix, or for a stack of `count`; where Weft generates the code, which it does
    for small ones, the limit is the time of the fastest peer."""
    shape = (count, size, size) if count else (size, size)
    title = f"{function}, {'x'.join(map(str, shape))}"
    name = f"{function}-{size}" + ("-stack" if count else "")
    arguments = {"function": function, "shape": shape}
    budget = (*FASTEST, Limit(peer="numpy")) if count and function in GENERATED else ()
    return Task(name, title, "linear_algebra", arguments, memory=prod(shape) * FLOAT32_BYTES, budget=budget)


GENERATED = ("cholesky", "solve", "inv")
STACKED = (*GENERATED, "qr", "eigh", "svd")
CUBE = (32, 1000, 1024)
LARGE_CUBE = (32, 1000, 4096)
ROWS = (32000, 1024)
HEADS = (1, 32, 2048, 128)
LONG_ROW, SQUARE, SHORT_ROWS = (10_000_000,), (1000, 1000), (100_000, 16)
TABLE, MILLION = (50_000, 256), (1_000_000,)
BUILDS = 100  # operations built in one call of that task
ORDERED = ((10**5, 16), (1000, 1000), (10,), (1000,), (10**4,), (10**5,), (10**6,), (10**7,))
PAIRS, PAIR_COLUMNS = 4096, 100
POINTS, DIMENSIONS = 2000, 16
TINY = {"shape": (16,)}
MLP = {"batch": 64}
LARGE_MLP = {"batch": 1024}
LSTM = {"batch": 32, "steps": 128, "width": 256}
GPT = {"layers": 4, "width": 256, "heads": 4, "context": 128, "batch": 8}

FRUGAL = (Limit(peer="jax"),)

LAYERS = {
    "stem": layer((8, 224, 224, 3), (64, 7, 7, 3), stride=2, padding=3),
    "56x64": layer((8, 56, 56, 64), (64, 3, 3, 64), padding=1),
    "28x128": layer((8, 28, 28, 128), (128, 3, 3, 128), padding=1),
    "14x256": layer((8, 14, 14, 256), (256, 3, 3, 256), padding=1),
    "7x512": layer((8, 7, 7, 512), (512, 3, 3, 512), padding=1),
    "stride": layer((8, 56, 56, 128), (128, 3, 3, 128), stride=2, padding=1),
    "1x1": layer((8, 56, 56, 64), (256, 1, 1, 64)),
    "depthwise": layer((8, 28, 28, 192), (192, 3, 3, 1), padding=1, groups=192),
    "groups": layer((8, 28, 28, 128), (128, 3, 3, 32), padding=1, groups=4),
    "1d": layer((8, 1000, 64), (64, 5, 64), padding=2),
    "transposed": layer((8, 28, 28, 128), (64, 4, 4, 128), stride=2, padding=1, transposed=True),
}

TASKS = (
    on_array("gelu-1024", "gelu", "gelu", CUBE),
    on_array("gelu-4096", "gelu", "gelu", LARGE_CUBE, Limit(1.2, "copy"), Limit(peer="jax"), Limit(peer="torch")),
    on_array("softmax", "softmax of rows", "softmax", CUBE, NEAR_COPY),
    on_array("layer-norm", "layer norm of rows", "layer_norm", CUBE, NEAR_COPY),
    on_array("logsumexp", "log-sum-exp of rows", "logsumexp", CUBE, NEAR_COPY),
    on_array("variance", "variance of rows", "variance", CUBE),
    on_array("rms-norm", "RMS norm of rows", "rms_norm", CUBE),
    on_array("rope", "rotary positions, 32 heads of 128", "rope", HEADS),
    on_array("cross-entropy", "cross entropy of rows", "cross_entropy", ROWS),
    on_array("softmax-gradient", "gradient of softmax of rows", "softmax_gradient", CUBE),
    on_array("layer-norm-gradient", "gradient of layer norm of rows", "layer_norm_gradient", CUBE),
    on_array("sum", "sum", "sum_all", CUBE),
    on_array("sum-columns", "sum over axis 0", "sum_first_axis", ROWS),
    on_array("sum-slices", "sum over axis 0", "sum_first_axis", CUBE),
    *[ordering("sort", *shape) for shape in ORDERED],
    *[ordering("argsort", *shape) for shape in ORDERED[:-1]],
    *[ordering(method, *shape) for method in ("topk", "median") for shape in ((10**7,), (1000, 1000))],
    scan("cumsum", LONG_ROW, 0),
    scan("cumsum", SQUARE, 0),
    scan("cumsum", SQUARE, 1),
    scan("cumsum", SHORT_ROWS, 1),
    scan("logcumsumexp", SQUARE, 0),
    scan("logcumsumexp", SQUARE, 1),
    indexed("gather", TABLE, 20_000),
    indexed("gather", MILLION, 1_000_000),
    indexed("scatter_add", TABLE, 20_000),
    indexed("scatter_add", MILLION, 1_000_000),
    Task(
        "distances",
        f"squared distances of all pairs, {POINTS}x{POINTS}x{DIMENSIONS}",
        "distances",
        {"count": POINTS, "dimensions": DIMENSIONS},
        memory=POINTS**2 * DIMENSIONS * FLOAT32_BYTES,
    ),
    formula("seawater", "density of seawater, 80 operations, 200x200x25"),
    formula("polynomials", "polynomials of 3 variables, 430 operations, 200x200x25"),
    formula("options", "Black-Scholes, 6 results of 10^6"),
    formula("orbit", "10 Runge-Kutta steps, 10^6 pairs"),
    formula("reaction", "40 steps of a reaction, 10^6"),
    formula("water", "20 steps of shallow water, 500x500"),
    formula("rings", "20 steps of heat on 4000 rings of 256 cells"),
    formula("lattice", "binomial trees of 100 steps, 2000 options"),
    formula("patterns", "10 steps of two substances on a periodic grid, 500x500"),
    Task(
        "formula-gradient",
        "mean of the polynomials, and its gradient",
        "formula_gradient",
        {"name": "polynomials"},
        budget=FASTEST,
    ),
    fourier("fft-64", "fft", 64),
    fourier("fft-1024", "fft", 1024),
    fourier("fft-prime", "fft", 10007),
    fourier("fft-million", "fft", 1 << 20),
    fourier("fft-short-rows", "fft", 4096, 64),
    fourier("fft-rows", "fft", 256, 1024),
    fourier("fft-prime-rows", "fft", 256, 1021),
    fourier("fft-columns", "fft", 1024, 1024, axis=0),
    fourier("fft2", "fft2", 1024, 1024),
    fourier("rfft-million", "rfft", 1 << 20),
    fourier("rfft-rows", "rfft", 256, 1024),
    fourier("rfft2", "rfft2", 1024, 1024),
    Task("matmul", "matmul, 1024x1024", "matmul", {"size": 1024}),
    converted_matmul("bfloat16", 1536, 1536),
    Task(
        "matmul-fast", "matmul of bfloat16 in any order, 1536x1536", "fast_matmul", {"size": 1536}, budget=OF_COMPILERS
    ),
    converted_matmul("complex64", 512, 512),
    converted_matmul("bfloat16", 1000, 8, 8),
    converted_matmul("bfloat16", 1000, 32, 32),
    converted_matmul("bfloat16", 100, 64, 64),
    converted_matmul("float16", 100, 64, 64),
    product((1, 1024), (1024, 256)),
    product((1, 1024), (256, 1024), transposed=True),
    product((8, 768), (3072, 768), transposed=True),
    product((4096, 1024), (1024, 16)),
    product((1000, 8, 8), (1000, 8, 8)),
    product((100, 64, 64), (100, 64, 64)),
    product((32, 1, 64), (32, 512, 64), transposed=True),
    product((32, 512, 64), (32, 512, 64), transposed=True),
    *[task for name, layer in LAYERS.items() for task in convolution(name, layer)],
    quantized(1, 4096, "affine", 4),
    quantized(8, 4096, "affine", 4),
    quantized(512, 1024, "affine", 4),
    quantized(1, 4096, "affine", 8),
    quantized(1, 4096, "mxfp4", 4),
    Task(
        "experts",
        "1x2048 times 4 of 32 experts, 2048x1024 of 4 bits",
        "experts",
        {"experts": 32, "chosen": 4, "shape": (1024, 2048)},
        budget=(Limit(peer="mlx"),),
    ),
    *[linear_algebra(function, 1024) for function in ("cholesky", "solve", "inv", "qr")],
    *[linear_algebra(function, 512) for function in ("eigh", "svd")],
    *[linear_algebra(function, 4, 4096) for function in STACKED],
    *[linear_algebra(function, 8, 4096) for function in GENERATED],
    *[linear_algebra(function, 32, 512) for function in STACKED],
    Task("call", "compiled call, gelu of 16 elements", "gelu", TINY, budget=(Limit(5e-6), Limit(peer="jax"))),
    Task("build", "building an operation", "build", {"count": BUILDS}, repeats=BUILDS, budget=seconds(1.5e-6)),
    Task("small", "evaluating x + x, 16 elements", "add", TINY, budget=seconds(12e-6)),
    Task("small-value", "np.array(x + x), 16 elements", "add_value", TINY, budget=seconds(8e-6)),
    Task("vmap", f"vmap of an addition, {PAIRS} rows", "vmap_add", {"rows": PAIRS, "columns": PAIR_COLUMNS}),
    Task("loop", f"the same in a Python loop, {PAIRS} rows", "loop_add", {"rows": PAIRS, "columns": PAIR_COLUMNS}),
    Task("step-64", "training step of an MLP, batch 64", "train", MLP, budget=FASTEST),
    Task("eager-step-64", "the same, not compiled", "train", {**MLP, "compiled": False}, budget=(Limit(peer="mlx"),)),
    Task("step-1024", "training step of an MLP, batch 1024", "train", LARGE_MLP, budget=FASTEST),
    *[decoding(*sizes, kind) for sizes in ((4, 256, 4), (12, 768, 12)) for kind in ("float32", "bfloat16", "4 bits")],
    *attention("512", "4x8x512x64", 512, 512, (4, 8, 64)),
    *attention("512-causal", "4x8x512x64, causal", 512, 512, (4, 8, 64), "causal"),
    *attention("cache", "1x32x1x128 with a cache of 8192", 1, 8192, (1, 32, 128)),
    Task("cnn", "training step of a CNN, 64x32x32x3", "train_cnn", {"batch": 64}, budget=FASTEST),
    Task("lstm", "training step of an LSTM, 32x128x256", "train_lstm", LSTM, budget=FASTEST),
    Task("gpt", "training step of a small GPT", "train_gpt", GPT, budget=FASTEST),
    *first_calls("compile-kernel", "code generation of the kernel of gelu", "generate_kernel", TINY, 12e-3, 0.5e-3),
    *first_calls("compile-gelu", "first call of compiled gelu", "gelu", TINY),
    *first_calls("compile-step", "first call of the MLP's step", "train", MLP, 0.3, 0.1),
    *first_calls("compile-gpt", "first call of the GPT's step", "train_gpt", GPT, 1.5, 0.5),
    Task("memory-step", "memory of training the MLP, batch 1024", "train", LARGE_MLP, Kind.MEMORY, budget=FRUGAL),
    Task("memory-gpt", "memory of training the GPT", "train_gpt", GPT, Kind.MEMORY, budget=FRUGAL),
    Task("import", "import", kind=Kind.IMPORT, budget=seconds(0.25)),
)
