"""Operations that are computed by one kernel or few: ``mx.fast``."""

from weft.ops.fast import cross_entropy, layer_norm, rms_norm, rope
from weft.ops.foreign_kernels import cuda_kernel, metal_kernel, precompiled_cuda_kernel
from weft.ops.gated_delta import gated_delta_update

__all__ = [
    "cross_entropy",
    "cuda_kernel",
    "gated_delta_update",
    "layer_norm",
    "metal_kernel",
    "precompiled_cuda_kernel",
    "rms_norm",
    "rope",
]
