"""The tasks that are measured on a GPU: `make bench ARGS="--device gpu"`."""

from __future__ import annotations

from typing import Any

from .tasks import LARGE_CUBE, LARGE_MLP, TINY, Kind, Limit, Task, attention, on_array, scan

FASTEST = (Limit(peer="torch"), Limit(peer="jax"), Limit(peer="mlx"))
SORTED_FASTEST = (Limit(peer="cupy"), Limit(peer="torch"))
ELEMENTS = 1 << 26
WIDTHS = (1024, 131_072)
LONG, SQUARE = (100_000_000,), (10_000, 10_000)
GPT = {"layers": 12, "width": 768, "heads": 12, "context": 1024, "batch": 8, "half": True, "fused": True}
TOKENS = {"layers": 12, "width": 768, "heads": 12, "context": 1024, "batch": 1, "half": True}
ROW_BUDGET, GRADIENT_BUDGET = Limit(1.15, "copy"), Limit(1.15 * 3 / 2, "copy")  # a gradient reads two arrays
READ_BUDGET = Limit(1.15 / 2, "copy")  # a sum writes very little


def of_rows(name: str, title: str, method: str, budget: Limit) -> list[Task]:
    """An operation on rows of several widths, with a quarter of a gigabyte in total."""
    return [
        on_array(f"{name}-{width}", f"{title} of rows", method, (ELEMENTS // width, width), budget, *FASTEST)
        for width in WIDTHS
    ]


def product(name: str, title: str, method: str, size: int) -> Task:
    """A product of square bfloat16 matrices."""
    is_converted = method == "converted_matmul"
    arguments: dict[str, Any] = {"shape": (size, size), "dtype": "bfloat16"} if is_converted else {"size": size}
    return Task(name, f"{title}, {size}x{size} bfloat16", method, arguments, budget=(Limit(1 / 0.95, "torch-eager"),))


def decoding(bits: int) -> Task:
    """Generating one token with a GPT of 12 layers."""
    kind = f"{bits} bits" if bits else "bfloat16"
    return Task(f"decode-{bits or 16}", f"decoding a token, 12x768, {kind}", "decode", TOKENS | {"bits": bits})


GPU_TASKS = (
    on_array("gelu", "gelu", "gelu", LARGE_CUBE, Limit(1.05, "copy"), *FASTEST),
    *of_rows("softmax", "softmax", "softmax", ROW_BUDGET),
    *of_rows("softmax-gradient", "gradient of softmax", "softmax_gradient", GRADIENT_BUDGET),
    *of_rows("layer-norm", "layer norm", "layer_norm", ROW_BUDGET),
    *of_rows("layer-norm-gradient", "gradient of layer norm", "layer_norm_gradient", GRADIENT_BUDGET),
    *of_rows("cross-entropy", "cross entropy", "cross_entropy", READ_BUDGET),
    on_array("sum", "sum", "sum_all", LONG, READ_BUDGET),
    on_array("sum-columns", "sum over axis 0", "sum_first_axis", SQUARE, READ_BUDGET),
    on_array("sum-rows", "sum over axis 1", "sum_last_axis", SQUARE, READ_BUDGET),
    on_array("transpose", "transpose", "transpose", SQUARE, Limit(1.15, "copy")),
    scan("cumsum", LONG, 0, SORTED_FASTEST),
    on_array("sort", "sort", "sort", LONG, *SORTED_FASTEST),
    Task("call", "compiled call, gelu of 16 elements", "gelu", TINY, budget=(Limit(10e-6), *FASTEST)),
    Task("small-value", "np.array(x + x), 16 elements", "add_value", TINY, budget=(Limit(30e-6),)),
    product("matmul", "matmul", "converted_matmul", 8192),
    product("dense", "gelu(matmul + bias)", "dense", 8192),
    *[task for task in attention("4096", "8x16x4096x128", 4096, 4096, (8, 16, 128)) if "bfloat16" in task.name],
    Task("step-1024", "training step of an MLP, batch 1024", "train", LARGE_MLP, budget=FASTEST),
    Task("gpt", "training step of a GPT, 12x768, 8x1024 tokens, bfloat16", "train_gpt", GPT, budget=FASTEST),
    *[decoding(bits) for bits in (0, 4)],
    Task("compile-gpt", "first call of its step, cold", "train_gpt", GPT, Kind.FIRST_CALL, budget=(Limit(2.0),)),
    Task("compile-gpt-again", "the same, second process", "train_gpt", GPT, Kind.SECOND_PROCESS, budget=(Limit(0.3),)),
)
