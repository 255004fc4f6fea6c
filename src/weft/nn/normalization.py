"""Layers that normalise the last axis."""

from __future__ import annotations

import weft.core as mx
from weft.nn.checks import array_input, number_of, size_of
from weft.nn.module import Module

__all__ = ["LayerNorm", "RMSNorm"]


class LayerNorm(Module):
    """Gives the last axis mean zero and variance one: ``(x - mean) / sqrt(variance + eps) * weight + bias``.

    Ba, Kiros, Hinton, arXiv:1607.06450. Statistics of half-precision inputs are computed in float32.

    Args:
        dims: size of the last axis.
        eps: added to the variance.
        affine: whether there is a weight (and a bias).
        bias: whether there is a bias.

    >>> nn.LayerNorm(3, eps=0)(mx.array([1.0, 2.0, 3.0]))
    array([-1.22474, 0, 1.22474], dtype=float32)
    """

    def __init__(self, dims: int, eps: float = 1e-5, affine: bool = True, bias: bool = True) -> None:
        super().__init__()
        number_of("LayerNorm", "eps", eps)
        dims = size_of("LayerNorm", "dims", dims, least=0)
        if affine:
            self.weight = mx.ones((dims,))
            if bias:
                self.bias = mx.zeros((dims,))
        self.eps = eps
        self.dims = dims

    def _extra_repr(self) -> str:
        return f"{self.dims}, eps={self.eps}, affine={'weight' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        x = array_input(self, x)
        if "weight" in self:
            _check_last_size(self, x)
        return mx.fast.layer_norm(_floating(x), self.get("weight"), self.get("bias"), self.eps)


class RMSNorm(Module):
    """Scales the last axis to mean square one: ``x / sqrt(mean(x**2) + eps) * weight``.

    Zhang, Sennrich, arXiv:1910.07467. The mean square of half-precision inputs is computed in float32.

    Args:
        dims: size of the last axis.
        eps: added to the mean square.

    >>> nn.RMSNorm(2, eps=0)(mx.array([1.0, 7.0]))
    array([0.2, 1.4], dtype=float32)
    """

    def __init__(self, dims: int, eps: float = 1e-5) -> None:
        super().__init__()
        number_of("RMSNorm", "eps", eps)
        self.weight = mx.ones((size_of("RMSNorm", "dims", dims, least=0),))
        self.eps = eps

    def _extra_repr(self) -> str:
        return f"{self['weight'].shape[0]}, eps={self.eps}"

    def __call__(self, x: mx.array) -> mx.array:
        x = array_input(self, x)
        _check_last_size(self, x)
        return mx.fast.rms_norm(_floating(x), self["weight"], self.eps)


def _floating(x: mx.array) -> mx.array:
    """Integers and booleans as float32."""
    return x if mx.issubdtype(x.dtype, mx.inexact) else x.astype(mx.float32)


def _check_last_size(layer: Module, x: mx.array) -> None:
    size = layer["weight"].shape[0]
    if x.ndim == 0 or x.shape[-1] != size:
        raise ValueError(f"[{layer!r}] the last size of the input has to be {size}, got shape {x.shape}.")
