"""``import weft.as_mlx`` as the first import of a program: from then on, MLX's modules are Weft's.

This holds for the program and for every library that it imports, in this process. An installed MLX is not changed and
not imported.

>>> import weft.as_mlx
>>> import mlx.core as mx
>>> mx.array([1, 2, 3])
array([1, 2, 3], dtype=int32)
"""

from weft.mlx.finder import activate

__all__: list[str] = []

activate()
