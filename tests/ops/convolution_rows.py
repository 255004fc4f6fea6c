"""Rows of convolutions of arrays with channels."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.ops.row import FLOATS, Domain, Row

_SINGLE = ("float32", "float16", "bfloat16")


def convolved(
    x: np.ndarray,
    w: np.ndarray,
    stride: Any = 1,
    padding: Any = 0,
    spacing: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    flip: bool = False,
) -> np.ndarray:
    """A convolution by its definition: for each element of the result, the sum of products of a window and weights."""
    rank = x.ndim - 2
    strides, spacings, dilations = (np.broadcast_to(n, rank) for n in (stride, spacing, dilation))
    each_end = padding if np.ndim(padding) == 2 else (padding, padding)
    before, behind = (np.broadcast_to(n, rank) for n in each_end)
    extents = (np.array(x.shape[1:-1]) - 1) * dilations + 1
    spread = np.zeros((x.shape[0], *extents, x.shape[-1]))
    spread[_inner(*[slice(None, None, d) for d in dilations])] = x
    zeros = [(max(low, 0), max(high, 0)) for low, high in zip(before, behind, strict=True)]
    padded = np.pad(spread, [(0, 0), *zeros, (0, 0)])
    inside = [slice(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(before, behind, padded.shape[1:-1], strict=True)]
    padded = padded[_inner(*inside)]
    sizes = w.shape[1:-1]
    counts = [
        (extent - (size - 1) * apart - 1) // step + 1
        for extent, size, apart, step in zip(padded.shape[1:-1], sizes, spacings, strides, strict=True)
    ]
    weights = np.flip(w, tuple(range(1, rank + 1))) if flip else w
    result = np.zeros((x.shape[0], *counts, w.shape[0]))
    for position in itertools.product(*map(range, sizes)):
        places = zip(position, spacings, counts, strides, strict=True)
        reads = [slice(k * apart, k * apart + (count - 1) * step + 1, step) for k, apart, count, step in places]
        window = padded[_inner(*reads)]
        by_group = window.reshape(*window.shape[:-1], groups, -1)
        factors = weights[_inner(*position)].reshape(groups, -1, w.shape[-1])
        result += np.einsum("...gc,goc->...go", by_group, factors).reshape(result.shape)
    return result


def _inner(*places: Any) -> Any:
    """An index for the axes between the first and the last."""
    return (slice(None), *places, slice(None))


def transposed(
    x: np.ndarray, w: np.ndarray, stride: int = 1, padding: int = 0, spacing: int = 1, more: int = 0, groups: int = 1
) -> np.ndarray:
    before = np.array([spacing * (size - 1) - padding for size in w.shape[1:-1]])
    return convolved(x, w, 1, (before, before + more), spacing, stride, groups, True)


def _row(name: str, x: tuple[int, ...], w: tuple[int, ...], variant: str = "", **arguments: Any) -> Row:
    oracle = transposed if "transpose" in name else convolved
    words = {
        "kernel_dilation": "spacing",
        "dilation": "spacing",
        "input_dilation": "dilation",
        "output_padding": "more",
    }
    known = {words.get(word, word): value for word, value in arguments.items()}
    return Row(
        name,
        lambda mx, x, w: getattr(mx, name)(x, w, **arguments),
        lambda x, w: oracle(x, w, **known),
        (Domain(shape=x), Domain(shape=w)),
        dtypes=FLOATS,
        ulp=8,
        variant=variant,
        mlx_dtypes=_SINGLE,
        grows=((1,) * (len(x) - 1) + (0,), (arguments.get("groups", 1), *(0 for _ in w[1:]))),
        without={
            "special": "whether zeros that pad are multiplied with infinities is open",
        },
    )


ROWS = [
    _row("conv1d", (2, 7, 3), (4, 3, 3), stride=2, padding=1),
    _row("conv2d", (2, 5, 4, 3), (4, 3, 2, 3), "spaced", padding=(2, 1), dilation=(2, 1)),
    _row("conv2d", (1, 5, 6, 4), (6, 3, 2, 2), "groups", groups=2, stride=(1, 2)),
    _row("conv2d", (2, 4, 5, 3), (6, 3, 3, 1), "each channel", groups=3, padding=1),
    _row("conv2d", (2, 3, 4, 5), (4, 1, 1, 5), "of one element"),
    _row("conv3d", (1, 4, 3, 5, 2), (3, 2, 3, 2, 2), padding=1, stride=(1, 2, 3)),
    _row(
        "conv_general",
        (2, 4, 5, 2),
        (3, 2, 3, 2),
        "dilated",
        stride=(2, 1),
        padding=([1, 0], [0, 3]),
        input_dilation=(2, 3),
        kernel_dilation=2,
        flip=True,
    ),
    _row("conv_general", (2, 6, 4), (2, 3, 2), "cropped", padding=([-1], [2]), groups=2),
    _row("conv_transpose1d", (2, 4, 3), (2, 3, 3), stride=2, padding=1, output_padding=1),
    _row("conv_transpose2d", (1, 3, 4, 2), (3, 2, 3, 2), dilation=2, stride=3),
    _row("conv_transpose3d", (1, 2, 3, 2, 2), (2, 2, 1, 2, 2), stride=2),
]
