"""The plans behind a result, for tests of what is written into kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft.core as mx
from weft.compiler import evaluate
from weft.compiler.plan import Plan
from weft.runtime import recording


def plans_of(function: Callable[..., Any], *arguments: mx.array) -> list[Plan]:
    """What is planned for a function of arrays, in the order in which it runs. Nothing planned before is used."""
    mx.eval(*arguments)
    evaluate.forget_plans()
    with recording.recorded() as recorder:
        mx.eval(function(*arguments))
    return [run.plan for run in recorder.runs]
