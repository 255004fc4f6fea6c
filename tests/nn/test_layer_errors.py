"""The errors of layers for wrong settings and inputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx
import weft.nn

nn: Any = weft.nn  # so that the type checker lets wrong arguments pass

SETTINGS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "channels": (lambda: nn.Conv2d(0, 3, 2), ValueError, "[Conv2d] in_channels must be at least 1; got 0"),
    "a kernel of three numbers": (
        lambda: nn.Conv2d(3, 4, (1, 2, 3)),
        ValueError,
        "[Conv2d] kernel_size must be an int or a tuple of 2, one for each axis; got (1, 2, 3)",
    ),
    "a kernel of text": (lambda: nn.Conv1d(3, 4, "3"), TypeError, "[Conv1d] kernel_size must be an int; got '3'"),
    "a stride of zero": (lambda: nn.Conv3d(3, 4, 2, (1, 0, 1)), ValueError, "[Conv3d] stride must be at least 1"),
    "groups": (
        lambda: nn.Conv1d(4, 6, 3, groups=3),
        ValueError,
        "[Conv1d] in_channels and out_channels must be multiples of groups; got 4, 6 and 3",
    ),
    "output padding": (
        lambda: nn.ConvTranspose1d(4, 6, 3, output_padding=-1),
        ValueError,
        "[ConvTranspose1d] output_padding must be at least 0",
    ),
    "a window of nothing": (lambda: nn.MaxPool1d(0), ValueError, "[MaxPool1d] kernel_size must be at least 1"),
    "a window of a half": (lambda: nn.AvgPool2d(2.5), TypeError, "[AvgPool2d] kernel_size must be an int; got 2.5"),
    "no padding": (lambda: nn.MaxPool2d(2, None, None), TypeError, "[MaxPool2d] padding must be an int; got None"),
    "several paddings": (lambda: nn.MaxPool1d(2, 1, (1, 1)), ValueError, "[MaxPool1d] padding must be an int or a"),
    "text as momentum": (lambda: nn.BatchNorm(3, momentum="x"), TypeError, "[BatchNorm] momentum must be a"),
    "no divisor": (
        lambda: nn.GroupNorm(3, 4),
        ValueError,
        "[GroupNorm] dims must be a multiple of num_groups; got 4 and 3",
    ),
    "certain dropout": (lambda: nn.Dropout2d(1.0), ValueError, "[Dropout2d] the probability p must be at least 0"),
    "scale zero": (lambda: nn.Upsample(0), ValueError, "[Upsample] scale_factor must be above 0; got 0"),
    "text as scale": (
        lambda: nn.Upsample((2, "2")),
        TypeError,
        "[Upsample] scale_factor must be",
    ),
    "unknown mode": (lambda: nn.Upsample(2, "area"), ValueError, "[Upsample] mode must be one of 'nearest', 'linear'"),
    "antialias of corners": (
        lambda: nn.Upsample(2, "linear", align_corners=True, antialias=True),
        ValueError,
        "[Upsample] antialias goes neither with align_corners nor with nearest; got align_corners",
    ),
    "odd rotations": (lambda: nn.RoPE(3), ValueError, "[RoPE] dims must be even; got 3"),
    "odd waves": (
        lambda: nn.SinusoidalPositionalEncoding(5),
        ValueError,
        "[SinusoidalPositionalEncoding] dims must be even; got 5",
    ),
    "frequency zero": (
        lambda: nn.SinusoidalPositionalEncoding(4, 0),
        ValueError,
        "[SinusoidalPositionalEncoding] min_freq must be above 0",
    ),
    "no heads": (lambda: nn.ALiBi.create_alibi_slope(0), ValueError, "[create_alibi_slope] num_heads must be at"),
    "sparser than empty": (lambda: nn.init.sparse(1.5), ValueError, "[sparse] sparsity must be from 0 to 1; got 1.5"),
    "orthogonal volumes": (
        lambda: nn.init.orthogonal()(mx.zeros((2, 2, 2))),
        ValueError,
        "[orthogonal] The array must have two axes; got shape (2, 2, 2)",
    ),
    "sparse vectors": (
        lambda: nn.init.sparse(0.5)(mx.zeros((2,))),
        ValueError,
        "[sparse] The array must have two axes; got shape (2,)",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str) -> None:
    make, kind, message = SETTINGS[name]
    with pytest.raises(kind, match=re.escape(message)):
        make()


INPUTS: dict[str, tuple[Callable[[], Any], list[tuple[int, ...]], str]] = {
    "channels of sequences": (lambda: nn.Conv1d(3, 4, 2), [(1, 5, 2)], "the axes NLC with 3 channels; got shape (1"),
    "an image of no batch": (lambda: nn.Conv2d(3, 4, 2), [(5, 5, 3)], "the axes NHWC with 3 channels; got shape (5"),
    "channels in groups": (lambda: nn.Conv2d(4, 4, 2, groups=2), [(1, 5, 5, 2)], "the axes NHWC with 4 channels"),
    "an image as a volume": (lambda: nn.ConvTranspose3d(3, 4, 2), [(1, 5, 5, 3)], "the axes NDHWC with 3 channels"),
    "pooling rows": (lambda: nn.MaxPool1d(2), [(5, 3)], "the axes NLC; got shape (5, 3)"),
    "a short axis": (lambda: nn.AvgPool1d(4, padding=1), [(1, 1, 3)], "a window is longer than its axis"),
    "channels of a batch": (lambda: nn.BatchNorm(3), [(2, 4)], "at least two axes and 3 channels; got shape (2, 4)"),
    "a batch of one": (lambda: nn.BatchNorm(3), [(1, 3)], "more than one value per channel while training"),
    "channels of groups": (lambda: nn.GroupNorm(2, 4), [(4,)], "at least two axes and 4 channels; got shape (4,)"),
    "an instance of a row": (lambda: nn.InstanceNorm(3), [(2, 3)], "at least three axes and 3 channels"),
    "channels of rows": (lambda: nn.Dropout2d(), [(2, 3)], "must have 3 or 4 axes; got shape (2, 3)"),
    "no axes to upsample": (lambda: nn.Upsample(2), [(2, 3)], "axes between the first and the last"),
    "another number of scales": (lambda: nn.Upsample((2, 2)), [(2, 3, 4)], "one for each factor"),
    "nothing left": (lambda: nn.Upsample(0.1), [(2, 3, 4)], "no element is left of axis 1 of an input of shape (2"),
    "another second input": (lambda: nn.Bilinear(2, 3, 4), [(5, 2), (5, 2)], "must be 2 and 3; got shapes (5, 2)"),
    "scores without batch": (lambda: nn.ALiBi(), [(2, 3, 4)], "the shape (B, heads, queries, keys); got (2, 3, 4)"),
}  # fmt: skip


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name: str) -> None:
    make, shapes, message = INPUTS[name]
    layer = make()
    with pytest.raises(ValueError, match=re.escape(f"[{type(layer).__name__}(") + ".*" + re.escape(message)):
        layer(*[mx.zeros(shape) for shape in shapes])


@pytest.mark.parametrize("make", [make for make, shapes, _ in INPUTS.values() if len(shapes) == 1])
def test_layers_take_arrays_alone(make: Callable[[], Any]) -> None:
    for unfit in (None, "x", [1.0]):
        with pytest.raises(TypeError, match=r"^\[\w+\(.*\] the input must be an array"):
            make()(unfit)
