"""The operation table: one row per public operation and way of calling it, and what stands outside with its reason."""

from __future__ import annotations

from tests.ops import elementwise_rows, fft_rows, fold_rows, shape_rows
from tests.ops.row import Row

ROWS: list[Row] = [*elementwise_rows.ROWS, *shape_rows.ROWS, *fold_rows.ROWS, *fft_rows.ROWS]

NAMESPACES = ("fft",)
"""Modules in `mx` whose functions have rows, under names such as ``fft.rfft``."""

SAME_FUNCTION = {
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atan2": "arctan2",
    "atanh": "arctanh",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "concat": "concatenate",
    "conj": "conjugate",
    "permute_dims": "transpose",
    "pow": "power",
}

NO_ROW = {
    "broadcast_shapes": "is about shapes, not arrays: see test_arguments.py",
    "can_cast": "is about dtypes, not arrays: see test_arguments.py",
    "result_type": "is about dtypes, not arrays: see test_arguments.py",
}

INTERNAL = {
    "barrier": "Keeps recomputation apart in checkpoint; a user's program cannot ask for it.",
    "clamp_index": "Scalar code inside gather, never a node that a user's program makes.",
    "copy": "Put in by the planner where two results would share memory.",
    "from_front": "Scalar code inside gather, never a node that a user's program makes.",
    "identity": "Renames an array inside transformations.",
    "marked_call": "A call of a custom function, which the tests of custom_function cover.",
    "products_before": "Part of the derivative of prod; see test_scans.py.",
    "project": "An output of such a call.",
    "random_bits": "Reached through mx.random, whose tests compare with the published generator.",
    "split_axis": "Cuts long reductions into parts when they are planned.",
    "recurrence": "The derivative of products_before, and its own; see test_scans.py.",
    "running_sum": "Used in assignments through a mask and by mx.random.categorical; see test_scans.py.",
    "sum_to": "The transpose of broadcast, which the derivatives of all rows with broadcasting reach.",
}
"""Primitives that no row reaches."""
