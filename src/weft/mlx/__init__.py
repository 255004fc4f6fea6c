"""Programs written for MLX: MLX's module names in Python's import system, and a way to start programs with them.

Nothing here has an effect before `weft.mlx.finder.activate` is called, which ``import weft.as_mlx`` and
``python -m weft run`` do.
"""
