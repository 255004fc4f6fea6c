"""Initialisers, under the names of MLX's ``nn.init``: functions that make an array with the shape of another."""

from weft.nn.initializers import (
    constant,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    identity,
    normal,
    uniform,
)

__all__ = [
    "constant",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "normal",
    "uniform",
]
