"""Which modules of Weft have the names of MLX's modules."""

from __future__ import annotations

__all__ = ["ALSO_LOADED", "GATHERED", "OF_MLX_ALONE", "SAME"]

SAME = {
    "mlx.core": "weft.core",
    "mlx.core.cuda": "weft.core.cuda",
    "mlx.core.distributed": "weft.core.distributed",
    "mlx.core.fast": "weft.core.fast",
    "mlx.core.fft": "weft.core.fft",
    "mlx.core.linalg": "weft.core.linalg",
    "mlx.core.metal": "weft.core.metal",
    "mlx.core.random": "weft.core.random",
    "mlx.nn": "weft.nn",
    "mlx.nn.init": "weft.nn.init",
    "mlx.nn.losses": "weft.nn.losses",
    "mlx.optimizers": "weft.optimizers",
    "mlx.utils": "weft.utils",
}
"""MLX's modules that are modules of Weft, under other names."""

_LAYERS = (
    "activations",
    "base",
    "containers",
    "convolution",
    "convolution_transpose",
    "dropout",
    "embedding",
    "linear",
    "normalization",
    "pooling",
    "positional_encoding",
    "quantized",
    "recurrent",
    "transformer",
    "upsample",
)

GATHERED: dict[str, tuple[str, ...]] = {
    "mlx.nn.layers": ("weft.nn",),
    **{f"mlx.nn.layers.{name}": ("weft.nn", "weft.utils") for name in _LAYERS},
    "mlx.nn.layers.distributed": ("weft.nn.sharded", "weft.nn", "weft.utils"),
    "mlx.nn.utils": ("weft.nn", "weft.optimizers.clipping", "weft.utils"),
    "mlx.optimizers.optimizers": ("weft.optimizers", "weft.utils"),
    "mlx.optimizers.schedulers": ("weft.optimizers",),
}
"""MLX's modules that are collections of names; each name is that of the first of these Weft modules that has it.

Some of MLX's modules also contain the functions on trees that they use, and programs import them from there.
"""

ALSO_LOADED = {"mlx.nn": ("mlx.core", "mlx.utils"), "mlx.optimizers": ("mlx.nn",)}
"""MLX's modules that its other modules import, so that programs find them as attributes of ``mlx``."""

OF_MLX_ALONE = frozenset({"__array_api_info", "__main__", "_distributed_utils", "_reprlib_fix", "extension"})
"""Other parts of MLX's package, which Weft does not have. Other packages, such as `mlx.data`, are installed there,
too."""
