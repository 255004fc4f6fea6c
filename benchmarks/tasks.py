"""What is measured, in no framework's terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any

FLOAT32_BYTES = 4


class Kind(Enum):
    """What one sample is."""

    STEADY = "calls in a warm process"
    FIRST_CALL = "the first call in a fresh process, with empty caches on disk"
    SECOND_PROCESS = "the first call in a fresh process, after another process has filled the caches on disk"
    IMPORT = "importing the framework in a fresh process"


@dataclass(frozen=True)
class Task:
    """One row of the table.

    Attributes:
        name: By which the command line chooses it.
        title: How the table calls it.
        method: The method of the peers that does it.
        arguments: Keyword arguments of that method.
        kind: What one sample is.
        repeats: How many times one call of the work does what the title says.
        memory: Bytes of the largest array, for tasks that not every machine can hold.
    """

    name: str
    title: str
    method: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    kind: Kind = Kind.STEADY
    repeats: int = 1
    memory: int = 0

    @property
    def fresh(self) -> bool:
        """Whether each sample needs a process of its own."""
        return self.kind is not Kind.STEADY


def by_rows(name: str, title: str, method: str, shape: tuple[int, ...]) -> Task:
    """A task on one large array of that shape."""
    title = f"{title}, {'x'.join(map(str, shape))}"
    return Task(name, title, method, {"shape": shape}, memory=prod(shape) * FLOAT32_BYTES)


BUILDS = 100  # operations built in one call of that task
ROWS, COLUMNS = 4096, 100

TASKS = (
    by_rows("gelu-1024", "gelu", "gelu", (32, 1000, 1024)),
    by_rows("gelu-4096", "gelu", "gelu", (32, 1000, 4096)),
    by_rows("softmax", "softmax of rows", "softmax", (32, 1000, 1024)),
    by_rows("layer-norm", "layer norm of rows", "layer_norm", (32, 1000, 1024)),
    by_rows("logsumexp", "log-sum-exp of rows", "logsumexp", (32, 1000, 1024)),
    Task("matmul", "matmul, 1024x1024", "matmul", {"size": 1024}),
    Task("call", "compiled call, gelu of 16 elements", "gelu", {"shape": (16,)}),
    Task("build", "building an operation", "build", {"count": BUILDS}, repeats=BUILDS),
    Task("small", "evaluating x + x, 16 elements", "add", {"shape": (16,)}),
    Task("vmap", f"vmap of an addition, {ROWS} rows", "vmap_add", {"rows": ROWS, "columns": COLUMNS}),
    Task("loop", f"the same in a Python loop, {ROWS} rows", "loop_add", {"rows": ROWS, "columns": COLUMNS}),
    Task("step-64", "training step of an MLP, batch 64", "train", {"batch": 64}),
    Task("step-1024", "training step of an MLP, batch 1024", "train", {"batch": 1024}),
    Task("compile-gelu", "first call of compiled gelu, cold", "gelu", {"shape": (16,)}, Kind.FIRST_CALL),
    Task("compile-gelu-again", "the same in a second process", "gelu", {"shape": (16,)}, Kind.SECOND_PROCESS),
    Task("compile-step", "first call of that training step, cold", "train", {"batch": 64}, Kind.FIRST_CALL),
    Task("compile-step-again", "the same in a second process", "train", {"batch": 64}, Kind.SECOND_PROCESS),
    Task("import", "import", kind=Kind.IMPORT),
)
