"""The layers that are compared with those of MLX, one row each: how they are made, and the arguments of their calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """A layer, made by a function of the package, `weft.nn` or `mlx.nn`; shapes of its inputs; keyword arguments of
    calls."""

    make: Callable[[Any], Any]
    inputs: tuple[Shape, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)
    """Checks that are left out, with the reason."""


IMAGE = (2, 7, 6, 4)
VOLUME = (2, 5, 4, 6, 2)

CONVOLUTIONS = {
    "Conv1d": Row(lambda nn: nn.Conv1d(3, 5, 3), ((2, 8, 3),)),
    "Conv1d all": Row(lambda nn: nn.Conv1d(4, 6, 3, 2, 1, 2, 2, False), ((2, 11, 4),)),
    "Conv2d": Row(lambda nn: nn.Conv2d(4, 3, 3, padding=1), (IMAGE,)),
    "Conv2d all": Row(lambda nn: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2, False), (IMAGE,)),
    "Conv2d depthwise": Row(lambda nn: nn.Conv2d(4, 8, 3, groups=4), (IMAGE,)),
    "Conv3d": Row(lambda nn: nn.Conv3d(2, 3, (2, 1, 3), (1, 2, 1), 1, 1), (VOLUME,)),
    "ConvTranspose1d": Row(lambda nn: nn.ConvTranspose1d(3, 5, 4, 2, 1, 1, 1), ((2, 5, 3),)),
    "ConvTranspose2d": Row(lambda nn: nn.ConvTranspose2d(4, 3, 3), (IMAGE,)),
    "ConvTranspose2d all": Row(
        lambda nn: nn.ConvTranspose2d(4, 3, (3, 2), (2, 3), (1, 0), (1, 1), (1, 2), False),
        (IMAGE,),
        without={"gradients": "MLX's gradient of the input has another shape than the input."},
    ),
    "ConvTranspose3d": Row(lambda nn: nn.ConvTranspose3d(2, 3, 2, 2), ((1, 3, 2, 3, 2),)),
}

OVERLAPPING = {"shapeless": "What `mx.as_strided` is told of a shape is fixed by the first call."}

POOLS = {
    "MaxPool1d": Row(lambda nn: nn.MaxPool1d(2), ((2, 7, 3),)),
    "MaxPool1d overlapping": Row(lambda nn: nn.MaxPool1d(3, 1, 2), ((2, 6, 3),), without=OVERLAPPING),
    "MaxPool2d": Row(lambda nn: nn.MaxPool2d(2), (IMAGE,)),
    "MaxPool2d overlapping": Row(lambda nn: nn.MaxPool2d((3, 2), (2, 1), (1, 0)), (IMAGE,), without=OVERLAPPING),
    "MaxPool2d apart": Row(lambda nn: nn.MaxPool2d((2, 2), (3, 2)), (IMAGE,), without=OVERLAPPING),
    "MaxPool3d": Row(lambda nn: nn.MaxPool3d((2, 2, 3), 2, (0, 1, 1)), (VOLUME,), without=OVERLAPPING),
    "AvgPool1d": Row(lambda nn: nn.AvgPool1d(3, 2, 1), ((2, 8, 3),), without=OVERLAPPING),
    "AvgPool2d": Row(lambda nn: nn.AvgPool2d((2, 3)), (IMAGE,)),
    "AvgPool2d overlapping": Row(lambda nn: nn.AvgPool2d(3, 2, 1), (IMAGE,), without=OVERLAPPING),
    "AvgPool3d": Row(lambda nn: nn.AvgPool3d(2, (1, 2, 2)), (VOLUME,), without=OVERLAPPING),
}

NORMS = {
    "BatchNorm": Row(lambda nn: nn.BatchNorm(4), (IMAGE,)),
    "BatchNorm of rows": Row(lambda nn: nn.BatchNorm(5, eps=0.1, momentum=0.3), ((6, 5),)),
    "BatchNorm plain": Row(lambda nn: nn.BatchNorm(3, affine=False, track_running_stats=False), ((2, 4, 3),)),
    "BatchNorm without weights": Row(lambda nn: nn.BatchNorm(3, affine=False), ((2, 4, 3),)),
    "GroupNorm": Row(lambda nn: nn.GroupNorm(2, 4), (IMAGE,)),
    "GroupNorm of rows": Row(lambda nn: nn.GroupNorm(3, 6, eps=0.1, affine=False), ((2, 6),)),
    "GroupNorm of neighbours": Row(lambda nn: nn.GroupNorm(2, 4, pytorch_compatible=True), (IMAGE,)),
    "InstanceNorm": Row(lambda nn: nn.InstanceNorm(4), (IMAGE,)),
    "InstanceNorm affine": Row(lambda nn: nn.InstanceNorm(3, 0.01, affine=True), ((2, 5, 3),)),
    "LayerNorm": Row(lambda nn: nn.LayerNorm(4), (IMAGE,)),
    "RMSNorm": Row(lambda nn: nn.RMSNorm(4), (IMAGE,)),
}

OTHERS = {
    "Dropout": Row(lambda nn: nn.Dropout(0.25), (IMAGE,)),
    "Dropout2d": Row(lambda nn: nn.Dropout2d(0.25), (IMAGE,)),
    "Dropout2d of one": Row(lambda nn: nn.Dropout2d(0.5), ((3, 2, 8),)),
    "Dropout3d": Row(lambda nn: nn.Dropout3d(0.5), ((2, 2, 2, 3, 8),)),
    "Linear": Row(lambda nn: nn.Linear(3, 4), ((2, 3),)),
    "Bilinear": Row(lambda nn: nn.Bilinear(2, 3, 4), ((5, 2), (5, 3))),
    "Bilinear without bias": Row(lambda nn: nn.Bilinear(3, 2, 1, bias=False), ((5, 3), (5, 2))),
    "RoPE": Row(lambda nn: nn.RoPE(4, base=100.0, scale=0.5), ((2, 3, 5, 6),), {"offset": 3}),
    "RoPE traditional": Row(lambda nn: nn.RoPE(6, True), ((2, 5, 6),)),
    "ALiBi": Row(lambda nn: nn.ALiBi(), ((2, 6, 3, 5),), {"offset": 2}),
    "SinusoidalPositionalEncoding": Row(lambda nn: nn.SinusoidalPositionalEncoding(6), ((2, 5),)),
    "SinusoidalPositionalEncoding all": Row(
        lambda nn: nn.SinusoidalPositionalEncoding(8, 0.01, 0.5, 2.0, True, True), ((5,),)
    ),
    "SinusoidalPositionalEncoding of two": Row(lambda nn: nn.SinusoidalPositionalEncoding(2), ((5,),)),
}


def upsample(mode: str, settings: dict[str, bool], scale: Any, shape: Shape) -> Row:
    return Row(lambda nn: nn.Upsample(scale, mode, **settings), (shape,))


UPSAMPLED: tuple[tuple[str, dict[str, bool], Any, Shape], ...] = (
    ("nearest", {}, 3, (2, 4, 2)),
    ("nearest", {}, (1.5, 0.6), IMAGE),
    ("nearest", {}, (3.7, 1.0, 0.5), VOLUME),
    ("linear", {}, 2, IMAGE),
    ("linear", {}, (0.7, 1.3), IMAGE),
    ("linear", {"align_corners": True}, 1.5, VOLUME),
    ("linear", {"antialias": True}, (0.4, 2), IMAGE),
    ("linear", {"antialias": True}, 0.34, (1, 9, 2)),
    ("cubic", {}, 2.5, IMAGE),
    ("cubic", {"align_corners": True}, (2, 0.2), IMAGE),
    ("cubic", {"antialias": True}, (0.5, 1.5), IMAGE),
)

UPSAMPLES = {
    f"Upsample {mode} {scale} {settings}": upsample(mode, settings, scale, shape)
    for mode, settings, scale, shape in UPSAMPLED
}

ROWS: dict[str, Row] = CONVOLUTIONS | POOLS | NORMS | OTHERS | UPSAMPLES
