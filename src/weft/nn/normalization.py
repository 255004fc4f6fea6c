"""Layers that normalise: the last axis, batches, groups of channels, instances."""

from __future__ import annotations

import weft.core as mx
from weft.nn.checks import array_input, check_last_size, number_of, size_of
from weft.nn.module import Module

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm"]


class LayerNorm(Module):
    """Normalises the last axis to mean zero and variance one: ``(x - mean) / sqrt(variance + eps) * weight + bias``.

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
            check_last_size(self, x, self["weight"].shape[0])
        return mx.fast.layer_norm(_floating(x), self.get("weight"), self.get("bias"), self.eps)


class RMSNorm(Module):
    """Scales the last axis to a mean square of one: ``x / sqrt(mean(x**2) + eps) * weight``.

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
        check_last_size(self, x, self["weight"].shape[0])
        return mx.fast.rms_norm(_floating(x), self["weight"], self.eps)


class BatchNorm(Module):
    """Normalises each channel of a batch to mean 0 and variance 1: ``(x - mean) / sqrt(variance + eps) * weight +
    bias``.

    Ioffe, Szegedy, arXiv:1502.03167. Statistics of half-precision inputs are computed in float32. While training,
    ``running_mean`` and ``running_var`` are updated with the share ``momentum`` of the batch's statistics; evaluation
    mode (``model.eval()``) uses them instead of the batch's. Both are saved with the weights, and never trained.

    Args:
        num_features: number of channels, which is the last size of the input.
        eps: added to the variance.
        momentum: the share of a new batch in the running statistics.
        affine: whether there are a weight and a bias.
        track_running_stats: whether there are running statistics. Without them, the batch's are always used.

    Called with ``(N, C)`` or ``(N, ..., C)``.

    Raises:
        ValueError: when called, if the input has another shape or, while training, only one value per channel.

    >>> layer = nn.BatchNorm(2, eps=0)
    >>> layer(mx.array([[1.0, 0.0], [3.0, 8.0]]))
    array([[-1, -1],
           [1, 1]], dtype=float32)
    >>> layer.running_mean
    array([0.2, 0.4], dtype=float32)
    """

    _never_trained = frozenset({"running_mean", "running_var"})

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        number_of("BatchNorm", "eps", eps)
        number_of("BatchNorm", "momentum", momentum)
        self.num_features = size_of("BatchNorm", "num_features", num_features, least=0)
        self.eps = eps
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        if affine:
            self.weight = mx.ones((self.num_features,))
            self.bias = mx.zeros((self.num_features,))
        if track_running_stats:
            self.running_mean = mx.zeros((self.num_features,))
            self.running_var = mx.ones((self.num_features,))
            self.freeze(keys=self._never_trained, recurse=False)

    def _extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={'weight' in self}, "
            f"track_running_stats={self.track_running_stats}"
        )

    def __call__(self, x: mx.array) -> mx.array:
        x = _floating(array_input(self, x))
        if x.ndim < 2 or x.shape[-1] != self.num_features:
            raise ValueError(
                f"[{self!r}] the input must have at least two axes and {self.num_features} channels; got shape "
                f"{x.shape}."
            )
        wide = _widened(x)
        if self.track_running_stats and not self.training:
            mean, variance = self["running_mean"], self["running_var"]
            result = (wide - mean) * mx.rsqrt(variance + self.eps)
            return _affine(self, result, mx.result_type(x.dtype, mean.dtype, variance.dtype))
        axes = tuple(range(x.ndim - 1))
        mean, variance = mx.mean(wide, axis=axes), mx.var(wide, axis=axes)
        if self.training:
            self._check_and_track(x, mean, variance)
        return _affine(self, (wide - mean) * mx.rsqrt(variance + self.eps), x.dtype)

    def _check_and_track(self, x: mx.array, mean: mx.array, variance: mx.array) -> None:
        """Update the running statistics. The variance is the unbiased estimate from the batch as a sample."""
        count = x.size // x.shape[-1] if x.shape[-1] else 2
        if count < 2:
            raise ValueError(
                f"[{self!r}] must have more than one value per channel while training; got shape {x.shape}. "
                "Use larger batches, or `eval()` to normalise with the running statistics."
            )
        if not self.track_running_stats:
            return
        for name, found in (("running_mean", mean), ("running_var", variance * (count / (count - 1)))):
            before = self[name]
            moved = (1 - self.momentum) * before + self.momentum * mx.stop_gradient(found)
            self[name] = moved.astype(mx.result_type(before.dtype, x.dtype))


class GroupNorm(Module):
    """Normalises each group of channels of an example to mean 0 and variance 1: ``(x - mean) / sqrt(variance + eps)``.

    Wu, He, arXiv:1803.08494. Statistics are computed over the channels of a group and all axes between the first and
    the last, in float32 for half precision. The result is multiplied by ``weight``, and ``bias`` is added.

    Args:
        num_groups: number of groups, a divisor of ``dims``.
        dims: number of channels, which is the last size of the input.
        eps: added to the variance.
        affine: whether there are a weight and a bias.
        pytorch_compatible: whether a group consists of neighbouring channels, as in PyTorch; otherwise of channels that
            are ``num_groups`` apart.

    Called with ``(N, C)`` or ``(N, ..., C)``.

    >>> x = mx.array([[1.0, 5.0, 3.0, 5.0]])
    >>> nn.GroupNorm(2, 4)(x)
    array([[-0.999995, 0, 0.999995, 0]], dtype=float32)
    >>> nn.GroupNorm(2, 4, pytorch_compatible=True)(x)
    array([[-0.999999, 0.999999, -0.999995, 0.999995]], dtype=float32)
    """

    def __init__(
        self,
        num_groups: int,
        dims: int,
        eps: float = 1e-5,
        affine: bool = True,
        pytorch_compatible: bool = False,
    ) -> None:
        super().__init__()
        number_of("GroupNorm", "eps", eps)
        self.num_groups = size_of("GroupNorm", "num_groups", num_groups, least=1)
        self.dims = size_of("GroupNorm", "dims", dims, least=1)
        if self.dims % self.num_groups:
            raise ValueError(f"[GroupNorm] dims must be a multiple of num_groups; got {dims} and {num_groups}.")
        self.eps = eps
        self.pytorch_compatible = pytorch_compatible
        if affine:
            self.bias = mx.zeros((dims,))
            self.weight = mx.ones((dims,))

    def _extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.dims}, eps={self.eps}, affine={'weight' in self}, "
            f"pytorch_compatible={self.pytorch_compatible}"
        )

    def __call__(self, x: mx.array) -> mx.array:
        x = _floating(array_input(self, x))
        if x.ndim < 2 or x.shape[-1] != self.dims:
            raise ValueError(
                f"[{self!r}] the input must have at least two axes and {self.dims} channels; got shape {x.shape}."
            )
        wide, inner = _widened(x), tuple(range(1, x.ndim - 1))
        centred = wide - self._of_groups(mx.mean(wide, axis=inner, keepdims=True))
        variance = self._of_groups(mx.mean(mx.square(centred), axis=inner, keepdims=True))
        return _affine(self, centred * mx.rsqrt(variance + self.eps), x.dtype)

    def _of_groups(self, means: mx.array) -> mx.array:
        """For each channel the mean, over its group, of ``means``, which has one number for each channel."""
        groups, each = self.num_groups, self.dims // self.num_groups
        apart, axis = ((groups, each), -1) if self.pytorch_compatible else ((each, groups), -2)
        split = mx.unflatten(means, -1, apart)
        joint = mx.mean(split, axis=axis, keepdims=True)
        return mx.flatten(mx.broadcast_arrays(joint, split)[0], -2)


class InstanceNorm(Module):
    """Normalises each channel of an example to mean zero and variance one: ``(x - mean) / sqrt(variance + eps)``.

    Ulyanov, Vedaldi, Lempitsky, arXiv:1607.08022. Statistics are computed over all axes between the first and the last,
    in float32 for half precision.

    Args:
        dims: number of channels, which is the last size of the input.
        eps: added to the variance.
        affine: whether the result is multiplied by a weight, and a bias is added.

    Called with ``(N, ..., C)``, at least three axes.

    >>> nn.InstanceNorm(1, eps=0)(mx.array([1.0, 3.0]).reshape(1, 2, 1)).flatten()
    array([-1, 1], dtype=float32)
    """

    def __init__(self, dims: int, eps: float = 1e-5, affine: bool = False) -> None:
        super().__init__()
        number_of("InstanceNorm", "eps", eps)
        self.dims = size_of("InstanceNorm", "dims", dims, least=0)
        self.eps = eps
        if affine:
            self.weight = mx.ones((dims,))
            self.bias = mx.zeros((dims,))

    def _extra_repr(self) -> str:
        return f"{self.dims}, eps={self.eps}, affine={'weight' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        x = _floating(array_input(self, x))
        if x.ndim < 3 or x.shape[-1] != self.dims:
            raise ValueError(
                f"[{self!r}] the input must have at least three axes and {self.dims} channels; got shape {x.shape}."
            )
        wide, inner = _widened(x), tuple(range(1, x.ndim - 1))
        centred = wide - mx.mean(wide, axis=inner, keepdims=True)
        variance = mx.mean(mx.square(centred), axis=inner, keepdims=True)
        return _affine(self, centred * mx.rsqrt(variance + self.eps), x.dtype)


def _widened(x: mx.array) -> mx.array:
    """Half precision converted to float32."""
    return x.astype(mx.float32) if x.dtype in (mx.float16, mx.bfloat16) else x


def _affine(layer: Module, x: mx.array, dtype: mx.Dtype) -> mx.array:
    """A normalised input times the layer's weight, plus its bias, rounded once: to the common dtype of weight, bias and
    ``dtype``, or to ``dtype`` if there is no weight."""
    if "weight" in layer:
        dtype = mx.result_type(dtype, layer["weight"].dtype, layer["bias"].dtype)
        x = x * layer["weight"] + layer["bias"]
    return x.astype(dtype)


def _floating(x: mx.array) -> mx.array:
    """Integers and booleans converted to float32."""
    return x if mx.issubdtype(x.dtype, mx.inexact) else x.astype(mx.float32)
