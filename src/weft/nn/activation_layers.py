"""Layers that apply activation functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import weft.core as mx
from weft.checks import integer_of, shortened
from weft.nn import activations
from weft.nn.checks import number_of, size_of
from weft.nn.module import Module

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "HardShrink",
    "HardTanh",
    "Hardswish",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "ReLU",
    "ReLU2",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Step",
    "Tanh",
]


class _Activation(Module):
    """A layer that applies a function of one array.

    A subclass names the function in its class statement; if it has settings, its constructor replaces the function by a
    partial one.
    """

    _function: ClassVar[Callable[..., mx.array]]

    def __init_subclass__(cls, function: Callable[..., mx.array] | None = None, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if function is not None:
            cls._function = staticmethod(function)

    def _set(self, **settings: Any) -> None:
        object.__setattr__(self, "_function", partial(type(self)._function, **settings))

    def __call__(self, x: mx.array) -> mx.array:
        return self._function(x)


class ReLU(_Activation, function=activations.relu):
    """The layer of `relu`.

    >>> nn.ReLU()(mx.array([-1.0, 2.0]))
    array([0, 2], dtype=float32)
    """


class LeakyReLU(_Activation, function=activations.leaky_relu):
    """The layer of `leaky_relu`.

    >>> nn.LeakyReLU(negative_slope=0.5)(mx.array([-1.0, 2.0]))
    array([-0.5, 2], dtype=float32)
    """

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self._set(negative_slope=number_of("LeakyReLU", "negative_slope", negative_slope))


class ELU(_Activation, function=activations.elu):
    """The layer of `elu`.

    >>> nn.ELU(alpha=2.0)(mx.array([-1.0, 2.0]))
    array([-1.26424, 2], dtype=float32)
    """

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self._set(alpha=number_of("ELU", "alpha", alpha))


_GELU_FUNCTIONS = {
    "none": activations.gelu,
    "precise": activations.gelu_approx,
    "tanh": activations.gelu_approx,
    "fast": activations.gelu_fast_approx,
}


class GELU(Module):
    """The layer of `gelu` and its approximations.

    Args:
        approx: "none" for `gelu`, "precise" or "tanh" for `gelu_approx`, "fast" for `gelu_fast_approx`; something else
            raises ``ValueError``.

    >>> nn.GELU(approx="fast")(mx.array([-1.0, 2.0]))
    array([-0.154204, 1.93566], dtype=float32)
    """

    def __init__(self, approx: str = "none") -> None:
        super().__init__()
        if not isinstance(approx, str) or approx not in _GELU_FUNCTIONS:
            raise ValueError(f"[GELU] approx must be one of {list(_GELU_FUNCTIONS)}; got {shortened(approx)}.")
        self._function = _GELU_FUNCTIONS[approx]

    def __call__(self, x: mx.array) -> mx.array:
        return self._function(x)


class SiLU(_Activation, function=activations.silu):
    """The layer of `silu`.

    >>> nn.SiLU()(mx.array([-1.0, 2.0]))
    array([-0.268941, 1.76159], dtype=float32)
    """


class Sigmoid(_Activation, function=activations.sigmoid):
    """The layer of `sigmoid`.

    >>> nn.Sigmoid()(mx.array([0.0, 2.0]))
    array([0.5, 0.880797], dtype=float32)
    """


class Tanh(_Activation, function=activations.tanh):
    """The layer of `tanh`.

    >>> nn.Tanh()(mx.array([0.0, 1.0]))
    array([0, 0.761594], dtype=float32)
    """


class Softplus(_Activation, function=activations.softplus):
    """The layer of `softplus`.

    >>> nn.Softplus()(mx.array([0.0, 100.0]))
    array([0.693147, 100], dtype=float32)
    """


class Softmax(_Activation, function=activations.softmax):
    """The layer of `softmax` along the last axis.

    >>> nn.Softmax()(mx.array([1.0, 1.0]))
    array([0.5, 0.5], dtype=float32)
    """


class LogSoftmax(_Activation, function=activations.log_softmax):
    """The layer of `log_softmax` along the last axis.

    >>> nn.LogSoftmax()(mx.array([1.0, 1.0]))
    array([-0.693147, -0.693147], dtype=float32)
    """


class CELU(_Activation, function=activations.celu):
    """The layer of `celu`.

    >>> nn.CELU(alpha=2.0)(mx.array([-1.0, 2.0]))
    array([-0.786939, 2], dtype=float32)
    """

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self._set(alpha=number_of("CELU", "alpha", alpha))


class SELU(_Activation, function=activations.selu):
    """The layer of `selu`.

    >>> nn.SELU()(mx.array([-1.0, 2.0]))
    array([-1.11133, 2.1014], dtype=float32)
    """


class PReLU(Module):
    """The layer of `prelu`. The factors are its parameter ``weight``.

    Args:
        num_parameters: how many factors there are: 1, or as many as the last axis of the input has elements.
        init: the initial value of the factors.

    >>> nn.PReLU(init=0.5)(mx.array([-1.0, 2.0]))
    array([-0.5, 2], dtype=float32)
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        count = size_of("PReLU", "num_parameters", num_parameters, least=1)
        self.weight = mx.full((count,), number_of("PReLU", "init", init), mx.float32)

    def __call__(self, x: mx.array) -> mx.array:
        return activations.prelu(x, self.weight)


class ReLU2(_Activation, function=activations.relu2):
    """The layer of `relu2`.

    >>> nn.ReLU2()(mx.array([-1.0, 2.0]))
    array([0, 4], dtype=float32)
    """


class ReLU6(_Activation, function=activations.relu6):
    """The layer of `relu6`.

    >>> nn.ReLU6()(mx.array([-1.0, 7.0]))
    array([0, 6], dtype=float32)
    """


class HardTanh(_Activation, function=activations.hard_tanh):
    """The layer of `hard_tanh` from -1 to 1.

    >>> nn.HardTanh()(mx.array([-2.0, 0.5]))
    array([-1, 0.5], dtype=float32)
    """


class Hardswish(_Activation, function=activations.hardswish):
    """The layer of `hardswish`.

    >>> nn.Hardswish()(mx.array([-1.0, 3.0]))
    array([-0.333333, 3], dtype=float32)
    """


class HardShrink(_Activation, function=activations.hard_shrink):
    """The layer of `hard_shrink`.

    >>> nn.HardShrink(lambd=0.25)(mx.array([-1.0, 0.2]))
    array([-1, 0], dtype=float32)
    """

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self._set(lambd=number_of("HardShrink", "lambd", lambd))


class Softshrink(_Activation, function=activations.softshrink):
    """The layer of `softshrink`.

    >>> nn.Softshrink(lambd=0.25)(mx.array([-1.0, 0.2]))
    array([-0.75, 0], dtype=float32)
    """

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self._set(lambd=number_of("Softshrink", "lambd", lambd))


class Softsign(_Activation, function=activations.softsign):
    """The layer of `softsign`.

    >>> nn.Softsign()(mx.array([-1.0, 3.0]))
    array([-0.5, 0.75], dtype=float32)
    """


class LogSigmoid(_Activation, function=activations.log_sigmoid):
    """The layer of `log_sigmoid`.

    >>> nn.LogSigmoid()(mx.array([0.0, -100.0]))
    array([-0.693147, -100], dtype=float32)
    """


class Mish(_Activation, function=activations.mish):
    """The layer of `mish`.

    >>> nn.Mish()(mx.array([-1.0, 2.0]))
    array([-0.303401, 1.94396], dtype=float32)
    """


class Softmin(_Activation, function=activations.softmin):
    """The layer of `softmin` along the last axis.

    >>> nn.Softmin()(mx.array([1.0, 1.0]))
    array([0.5, 0.5], dtype=float32)
    """


class GLU(Module):
    """The layer of `glu`.

    >>> nn.GLU(axis=0)(mx.array([3.0, 4.0, 0.0, 100.0]))
    array([1.5, 4], dtype=float32)
    """

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = integer_of("GLU", "axis", axis)

    def __call__(self, x: mx.array) -> mx.array:
        return activations.gated("GLU", x, self.axis)


class Step(_Activation, function=activations.step):
    """The layer of `step`.

    >>> nn.Step(threshold=0.5)(mx.array([0.0, 1.0]))
    array([0, 1], dtype=int32)
    """

    def __init__(self, threshold: float = 0.0) -> None:
        super().__init__()
        self._set(threshold=number_of("Step", "threshold", threshold))
