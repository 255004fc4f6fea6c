"""Operations that are computed by one kernel or few: ``mx.fast``."""

from __future__ import annotations

from weft.ops.foreign_kernels import cuda_kernel, metal_kernel, precompiled_cuda_kernel

__all__ = ["cuda_kernel", "metal_kernel", "precompiled_cuda_kernel"]
