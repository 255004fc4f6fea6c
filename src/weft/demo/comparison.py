"""How much time ``compile`` and ``vmap`` save, measured on the machine that runs the demo."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

import weft.core as mx
from weft.demo.digits import DigitImages, Trainer
from weft.inspection.text import duration_text

GELU_SHAPE = (32, 1000, 1024)
ROWS, COLUMNS = 4096, 100


@dataclass(frozen=True)
class TimedWork:
    """A computation done in two ways, with the median seconds of each."""

    work: str
    slow_way: str
    slow: float
    fast_way: str
    fast: float


def seconds(work: Callable[[], object], budget: float, at_least: int = 3) -> float:
    """The median time of a call, of those that fit into ``budget`` seconds; a first call is not counted."""
    work()
    times: list[float] = []
    gc.disable()
    while len(times) < at_least or sum(times) < budget:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    gc.enable()
    return median(times)


def gelu(x: mx.array) -> mx.array:
    """``x * (1 + erf(x / sqrt 2)) / 2``."""
    activated: mx.array = x * (1 + mx.erf(x / math.sqrt(2))) / 2
    return activated


def compare_steps(trainer: Trainer, digits: DigitImages, batch: int) -> TimedWork:
    """Training steps on one batch, eager against compiled."""
    images, labels = next(digits.batches(batch, np.random.default_rng(0)))
    eager = seconds(lambda: trainer.run(trainer.eager, images, labels), budget=0.5)
    compiled = seconds(lambda: trainer.run(trainer.compiled, images, labels), budget=0.5)
    return TimedWork(f"training step, batch of {batch}", "eager", eager, "compiled", compiled)


def compare_gelu(shape: tuple[int, ...]) -> TimedWork:
    """The activation on a large array, eager against compiled."""
    x = mx.random.normal(shape)
    mx.eval(x)
    compiled_gelu = mx.compile(gelu)
    eager = seconds(lambda: mx.eval(gelu(x)), budget=0.5)
    compiled = seconds(lambda: mx.eval(compiled_gelu(x)), budget=0.5)
    return TimedWork(f"gelu of {'x'.join(map(str, shape))}", "eager", eager, "compiled", compiled)


def compare_vmap(rows: int, columns: int) -> TimedWork:
    """Adding the rows of one matrix to the columns of another, in a loop against ``vmap``."""
    x = mx.random.normal((rows, columns))
    y = mx.random.normal((columns, rows))
    mx.eval(x, y)

    def loop() -> None:
        mx.eval([x[row] + y[:, row] for row in range(rows)])

    add_rows = mx.vmap(lambda a, b: a + b, in_axes=(0, 1))
    return TimedWork(
        f"adding {rows} rows to columns",
        "loop",
        seconds(loop, budget=0.5),
        "vmap",
        seconds(lambda: mx.eval(add_rows(x, y)), budget=0.2),
    )


def table(rows: list[TimedWork]) -> str:
    """The rows as text: the slower way, the faster way and their ratio."""
    width = max(len(row.work) for row in rows)
    return "\n".join(
        f"  {row.work:<{width}}  {row.slow_way:>5} {duration_text(row.slow):>8}"
        f"  {row.fast_way:>8} {duration_text(row.fast):>8}  {row.slow / row.fast:6.1f} times faster"
        for row in rows
    )
