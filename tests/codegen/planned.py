"""The plans that compute a result, for tests of the kernels in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft.core as mx
from weft.compiler.planning.plan import Plan
from weft.compiler.running import evaluate
from weft.runtime import recording


def plans_of(function: Callable[..., Any], *arguments: mx.array) -> list[Plan]:
    """The plans that are made when a function of arrays is called, in the order in which they run. Cached plans are not
    used."""
    mx.eval(*arguments)
    evaluate.forget_plans()
    with recording.recorded() as recorder:
        mx.eval(function(*arguments))
    return [run.plan for run in recorder.runs]
