"""The operation table: a row for each public operation and way to call it; and the operations without a row, with the
reason."""

from __future__ import annotations

from tests.ops import (
    attention_rows,
    convolution_rows,
    elementwise_rows,
    fast_rows,
    fft_rows,
    fold_rows,
    indexing_rows,
    linalg_rows,
    quantized_rows,
    scan_rows,
    shape_rows,
    sorting_rows,
    standard_rows,
)
from tests.ops.row import Row

FAMILIES = [
    elementwise_rows,
    shape_rows,
    fold_rows,
    indexing_rows,
    linalg_rows,
    sorting_rows,
    scan_rows,
    fast_rows,
    fft_rows,
    standard_rows,
    quantized_rows,
    convolution_rows,
    attention_rows,
]
ROWS: list[Row] = [row for family in FAMILIES for row in family.ROWS]

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
    "cumulative_prod": "cumprod",
    "cumulative_sum": "cumsum",
    "linalg.matmul": "matmul",
    "linalg.matrix_transpose": "matrix_transpose",
    "linalg.outer": "outer",
    "linalg.tensordot": "tensordot",
    "linalg.vecdot": "vecdot",
    "matrix_norm": "linalg.norm",
    "permute_dims": "transpose",
    "pow": "power",
}

NO_ROW = {
    "fast.cuda_kernel": "says what is missing: see test_device_names.py",
    "fast.metal_kernel": "says what is missing: see test_device_names.py",
    "fast.precompiled_cuda_kernel": "says what is missing: see test_device_names.py",
    "broadcast_shapes": "is about shapes, not arrays: see test_arguments.py",
    "einsum_path": "gives no array: see test_einsum.py",
    "can_cast": "is about dtypes, not arrays: see test_arguments.py",
    **dict.fromkeys(
        ("nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"),
        "shapes of results depend on values: see test_array_standard.py",
    ),
    "result_type": "is about dtypes, not arrays: see test_arguments.py",
}

INTERNAL = {
    "assembled": "Made of rotated arrays when they are planned; see test_rotations.py.",
    "adjugate_of": "The derivative of det; its values are compared with cofactors in test_linalg.py.",
    "attention_gradients": "The derivative of attention, which is compared with that of plain operations.",
    "causal_mask": "Made of attention when it is planned, and in its derivatives, which test_attention.py compares.",
    "quick_bfloat16": "Made of attention when it is planned for tile registers; see test_fast_attention.py.",
    "quick_max": "Made of attention when it is planned for tile registers; see test_fast_attention.py.",
    "quick_sum": "Made of attention when it is planned for tile registers; see test_fast_attention.py.",
    "bounded_score": "Made of attention when it is planned for a GPU; see test_cudnn.py.",
    "clamp_index": "Scalar code inside gather, never a node that a user's program makes.",
    "copy": "Put in by the planner where two results would share memory.",
    "from_front": "Scalar code inside gather, never a node that a user's program makes.",
    "convolution_weights": "The derivative of a convolution, and of its own; see test_convolution.py.",
    "depthwise": "Made of a convolution when it is planned.",
    "depthwise_rows": "Made of a convolution when it is planned.",
    "interleaved": "Made of a convolution when it is planned.",
    "with_derivative_of": "Puts the derivatives of plain operations to the gradients of attention.",
    "windowed_matmul": "Made of a convolution when it is planned.",
    "windowed_sums": "Made of a convolution when it is planned.",
    "windows": "Made of a convolution when it is planned.",
    "multiply_add": "Made of a convolution when it is planned.",
    "identity": "Renames an array inside transformations.",
    "marked_call": "A call of a custom function, which the tests of custom_function cover.",
    "random_bits": "Reached through mx.random, whose tests compare with the published generator.",
    "random_erf": "Reached through mx.random.truncated_normal, which is compared with MLX.",
    "random_erfinv": "Reached through mx.random.normal, which is compared with MLX.",
    "random_exp": "Reached through mx.random.categorical, which is compared with MLX.",
    "random_log": "Reached through mx.random.gumbel, which is compared with MLX.",
    "long_cumprod": "Made of a scan when it is planned for a GPU; see tests/cuda/test_long_scans.py.",
    "long_cumsum": "Made of a scan when it is planned for a GPU; see tests/cuda/test_long_scans.py.",
    "random_log1p": "Reached through mx.random.laplace, which is compared with MLX.",
    "row_numbers": "Made of a scatter when it is planned for a GPU; see tests/cuda/test_scattering.py.",
    "row_updates": "Made of a scatter when it is planned for a GPU; see tests/cuda/test_scattering.py.",
    "settled": "Stands for a node with several results once these have values.",
    "single_update": "Made of a scatter when it is planned.",
    "split_axis": "Cuts long reductions into parts when they are planned.",
    "stored": "Put in by the planner where something small is read again and again.",
    "sequential_cumsum": "Reached through mx.random.categorical; test_scan_kernels.py tests its order.",
    "recurrence": "The derivative of cumprod and other scans, and its own; see test_scans.py.",
    "sum_to": "The transpose of broadcast, which the derivatives of all rows with broadcasting reach.",
}
"""Primitives that no row uses."""
