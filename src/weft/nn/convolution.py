"""Convolutions and transposed convolutions over one to three axes; channels are last."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import weft.core as mx
from weft.nn.checks import CHANNELS_LAST, array_input, axis_numbers_of, size_of
from weft.nn.module import Module

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]


class _Convolution(Module):
    """The base of convolution layers. A subclass names its function and number of axes in its class statement."""

    _function: ClassVar[Callable[..., mx.array]]
    _rank: ClassVar[int]
    _settings: ClassVar[tuple[str, ...]]
    """The settings that are passed to the function and printed."""

    def __init_subclass__(
        cls,
        function: Callable[..., mx.array] | None = None,
        rank: int = 0,
        settings: tuple[str, ...] = (),
        **arguments: Any,
    ) -> None:
        super().__init_subclass__(**arguments)
        if function is not None:
            cls._function, cls._rank, cls._settings = staticmethod(function), rank, settings

    def _set(
        self,
        in_channels: int,
        out_channels: int,
        bias: bool,
        numbers: dict[str, Any],
        kernel_size: Any,
        groups: int = 1,
    ) -> None:
        name = type(self).__name__
        channels, outputs = [
            size_of(name, word, value, least=1)
            for word, value in (("in_channels", in_channels), ("out_channels", out_channels))
        ]
        groups = size_of(name, "groups", groups, least=1)
        if channels % groups or outputs % groups:
            raise ValueError(
                f"[{name}] in_channels and out_channels must be multiples of groups; got {channels}, {outputs} and "
                f"{groups}."
            )
        sizes = axis_numbers_of(name, "kernel_size", kernel_size, self._rank, least=1)
        for word, value in numbers.items():
            least = 0 if word in ("padding", "output_padding") else 1
            found = axis_numbers_of(name, word, value, self._rank, least)
            several = isinstance(value, (list, tuple)) or (self._rank > 1 and word != "dilation")
            setattr(self, word, found if several else found[0])
        if "groups" in self._settings:
            self.groups = groups
        channels //= groups
        bound = 1 / math.sqrt(channels * math.prod(sizes))
        self.weight = mx.random.uniform(-bound, bound, (outputs, *sizes, channels))
        if bias:
            self.bias = mx.zeros((outputs,))

    def _extra_repr(self) -> str:
        outputs, *sizes, channels = self["weight"].shape
        size = tuple(sizes) if self._rank > 1 else sizes[0]
        settings = ", ".join(f"{word}={getattr(self, word)}" for word in self._settings)
        channels *= getattr(self, "groups", 1)
        return f"{channels}, {outputs}, kernel_size={size}, {settings}, bias={'bias' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        weight: mx.array = self["weight"]
        x = array_input(self, x)
        channels = weight.shape[-1] * getattr(self, "groups", 1)
        if x.ndim != self._rank + 2 or x.shape[-1] != channels:
            axes = CHANNELS_LAST[self._rank]
            raise ValueError(
                f"[{self!r}] the input must have the axes {axes} with {channels} channels; got shape {x.shape}."
            )
        settings = {word: getattr(self, word) for word in self._settings}
        result = self._function(x, weight, **settings)
        return result + self["bias"] if "bias" in self else result


_CONVOLUTION = ("stride", "padding", "dilation", "groups")
_WITHOUT_GROUPS = ("stride", "padding", "dilation")
_TRANSPOSED = ("stride", "padding", "dilation", "output_padding")


class Conv1d(_Convolution, function=mx.conv1d, rank=1, settings=_CONVOLUTION):
    """The convolution of sequences with learned filters; see `mx.conv1d`.

    Initial weights are uniform between plus and minus ``1 / sqrt(elements of a filter)``, the bias at zero.

    Args:
        in_channels: number of input channels.
        out_channels: number of output channels, which is the number of filters.
        kernel_size: size of a filter.
        stride: the distance between the windows to which a filter is applied.
        padding: how many zeros are put at both ends.
        dilation: the distance between the elements that a filter multiplies.
        groups: the number of groups of channels, each with filters of its own.
        bias: whether there is a bias.

    Called with ``(N, L, in_channels)``.

    >>> layer = nn.Conv1d(3, 8, kernel_size=5, padding=2)
    >>> layer(mx.zeros((2, 10, 3))).shape, layer.weight.shape
    ((2, 10, 8), (8, 5, 3))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        numbers = {"stride": stride, "padding": padding, "dilation": dilation}
        self._set(in_channels, out_channels, bias, numbers, kernel_size, groups)


class Conv2d(_Convolution, function=mx.conv2d, rank=2, settings=_CONVOLUTION):
    """The convolution of images with learned filters; see `mx.conv2d`.

    Initial weights are uniform between plus and minus ``1 / sqrt(elements of a filter)``, the bias at zero.

    Args:
        in_channels: number of input channels.
        out_channels: number of output channels, which is the number of filters.
        kernel_size: size of a filter; this and the next three are one number, or one for height and one for width.
        stride: the distance between the windows to which a filter is applied.
        padding: how many zeros are put at both ends of an axis.
        dilation: the distance between the elements that a filter multiplies.
        groups: the number of groups of channels, each with filters of its own.
        bias: whether there is a bias.

    Called with ``(N, H, W, in_channels)``.

    >>> layer = nn.Conv2d(3, 8, kernel_size=(3, 5), stride=2)
    >>> layer(mx.zeros((2, 9, 9, 3))).shape, layer.weight.shape
    ((2, 4, 3, 8), (8, 3, 5, 3))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        numbers = {"stride": stride, "padding": padding, "dilation": dilation}
        self._set(in_channels, out_channels, bias, numbers, kernel_size, groups)


class Conv3d(_Convolution, function=mx.conv3d, rank=3, settings=_WITHOUT_GROUPS):
    """The convolution of volumes with learned filters; see `mx.conv3d`.

    Initial weights are uniform between plus and minus ``1 / sqrt(elements of a filter)``, the bias at zero.

    Args:
        in_channels: number of input channels.
        out_channels: number of output channels, which is the number of filters.
        kernel_size: size of a filter; this and the next three are one number, or one for each of the three axes.
        stride: the distance between the windows to which a filter is applied.
        padding: how many zeros are put at both ends of an axis.
        dilation: the distance between the elements that a filter multiplies.
        bias: whether there is a bias.

    Called with ``(N, D, H, W, in_channels)``.

    >>> layer = nn.Conv3d(1, 4, kernel_size=3, padding=1)
    >>> layer(mx.zeros((2, 4, 5, 6, 1))).shape
    (2, 4, 5, 6, 4)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        padding: int | tuple[int, int, int] = 0,
        dilation: int | tuple[int, int, int] = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        numbers = {"stride": stride, "padding": padding, "dilation": dilation}
        self._set(in_channels, out_channels, bias, numbers, kernel_size)


class ConvTranspose1d(_Convolution, function=mx.conv_transpose1d, rank=1, settings=_TRANSPOSED):
    """The transposed convolution of sequences with learned filters; see `mx.conv_transpose1d`.

    Initial weights are uniform between plus and minus ``1 / sqrt(elements of a filter)``, the bias at zero.

    Args:
        in_channels: number of input channels.
        out_channels: number of output channels, which is the number of filters.
        kernel_size: size of a filter.
        stride: the distance in the result between the windows of neighbouring elements.
        padding: how many elements are taken from both ends of the result.
        dilation: the distance between the elements of a window in the result.
        output_padding: how many elements are added after the result.
        bias: whether there is a bias.

    Called with ``(N, L, in_channels)``.

    >>> layer = nn.ConvTranspose1d(3, 8, kernel_size=4, stride=2, padding=1)
    >>> layer(mx.zeros((2, 10, 3))).shape
    (2, 20, 8)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        output_padding: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        numbers = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": output_padding}
        self._set(in_channels, out_channels, bias, numbers, kernel_size)


class ConvTranspose2d(_Convolution, function=mx.conv_transpose2d, rank=2, settings=_TRANSPOSED):
    """The transposed convolution of images with learned filters; see `mx.conv_transpose2d`.

    Initial weights are uniform between plus and minus ``1 / sqrt(elements of a filter)``, the bias at zero.

    Args:
        in_channels: number of input channels.
        out_channels: number of output channels, which is the number of filters.
        kernel_size: size of a filter; this and the next four are one number, or one for height and one for width.
        stride: the distance in the result between the windows of neighbouring elements.
        padding: how many elements are taken from both ends of an axis of the result.
        dilation: the distance between the elements of a window in the result.
        output_padding: how many elements are added after an axis of the result.
        bias: whether there is a bias.

    Called with ``(N, H, W, in_channels)``.

    >>> layer = nn.ConvTranspose2d(3, 8, kernel_size=3, stride=2, padding=1, output_padding=1)
    >>> layer(mx.zeros((2, 5, 6, 3))).shape
    (2, 10, 12, 8)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        output_padding: int | tuple[int, int] = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        numbers = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": output_padding}
        self._set(in_channels, out_channels, bias, numbers, kernel_size)


class ConvTranspose3d(_Convolution, function=mx.conv_transpose3d, rank=3, settings=_TRANSPOSED):
    """The transposed convolution of volumes with learned filters; see `mx.conv_transpose3d`.

    Initial weights are uniform between plus and minus ``1 / sqrt(elements of a filter)``, the bias at zero.

    Args:
        in_channels: number of input channels.
        out_channels: number of output channels, which is the number of filters.
        kernel_size: size of a filter; this and the next four are one number, or one for each of the three axes.
        stride: the distance in the result between the windows of neighbouring elements.
        padding: how many elements are taken from both ends of an axis of the result.
        dilation: the distance between the elements of a window in the result.
        output_padding: how many elements are added after an axis of the result.
        bias: whether there is a bias.

    Called with ``(N, D, H, W, in_channels)``.

    >>> layer = nn.ConvTranspose3d(1, 4, kernel_size=2, stride=2)
    >>> layer(mx.zeros((2, 2, 3, 4, 1))).shape
    (2, 4, 6, 8, 4)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        padding: int | tuple[int, int, int] = 0,
        dilation: int | tuple[int, int, int] = 1,
        output_padding: int | tuple[int, int, int] = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        numbers = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": output_padding}
        self._set(in_channels, out_channels, bias, numbers, kernel_size)
