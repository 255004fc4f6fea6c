"""The layout of graphs: boxes in layers, so that all arrows lead down.

The steps are those of Sugiyama, Tagawa and Toda (Methods for visual understanding of hierarchical system structures,
IEEE Transactions on Systems, Man, and Cybernetics 11, 1981): layers, an order within each that crosses few arrows, and
positions near those of the neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SWEEPS = 6
GAP, LAYER_GAP = 18, 34
"""The distances between neighbours and between layers, in pixels."""


class Corner(NamedTuple):
    """The top left corner of a box."""

    x: float
    y: float


def layered(sizes: Sequence[tuple[float, float]], arrows: Sequence[tuple[int, int]]) -> list[Corner]:
    """The positions of boxes with these widths and heights. Arrows lead from a box to one with a greater number."""
    above: list[list[int]] = [[] for _ in sizes]
    below: list[list[int]] = [[] for _ in sizes]
    for source, target in dict.fromkeys(arrows):
        above[target].append(source)
        below[source].append(target)
    layers = _ordered(_layers(above, below), above, below)
    centers = _centers(layers, [width for width, _ in sizes], above, below)
    left = min([center - width / 2 for center, (width, _) in zip(centers, sizes, strict=True)], default=0.0)
    boxes = [Corner(0.0, 0.0)] * len(sizes)
    y = 0.0
    for layer in layers:
        for box in layer:
            boxes[box] = Corner(centers[box] - sizes[box][0] / 2 - left, y)
        y += max(sizes[box][1] for box in layer) + LAYER_GAP
    return boxes


def _layers(above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> list[list[int]]:
    """Each box is in the layer above the highest box that it leads to; boxes that lead to none are in the layer below
    the lowest box that leads to them."""
    depth = [0] * len(above)
    for box, sources in enumerate(above):
        depth[box] = max([depth[source] + 1 for source in sources], default=0)
    for box in reversed(range(len(above))):
        if below[box]:
            depth[box] = min([depth[target] for target in below[box]]) - 1
    layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for box, layer in enumerate(depth):
        layers[layer].append(box)
    return [layer for layer in layers if layer]


def _ordered(
    layers: list[list[int]], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]
) -> list[list[int]]:
    """The layers, each ordered by the mean positions of neighbours in adjacent layers."""
    position = [0.0] * len(above)

    def arrange(layer: Sequence[int]) -> None:
        for number, box in enumerate(layer):
            position[box] = (number + 0.5) / len(layer)

    for layer in layers:
        arrange(layer)
    for sweep in range(SWEEPS):
        neighbours, order = (below, reversed(layers)) if sweep % 2 else (above, iter(layers))
        for layer in order:
            layer.sort(key=lambda box, neighbours=neighbours: _mean(position, neighbours[box], position[box]))  # type: ignore[misc]
            arrange(layer)
    return layers


def _centers(
    layers: Sequence[Sequence[int]],
    widths: Sequence[float],
    above: Sequence[Sequence[int]],
    below: Sequence[Sequence[int]],
) -> list[float]:
    """The centre of each box: near those of its neighbours, as far as the other boxes of its layer allow."""
    centers = [0.0] * len(widths)
    for layer in layers:
        _spread(layer, centers, widths)
    for sweep in range(SWEEPS):
        neighbours, order = (below, reversed(layers)) if sweep % 2 else (above, iter(layers))
        for layer in order:
            for box in layer:
                centers[box] = _mean(centers, neighbours[box], centers[box])
            _spread(layer, centers, widths)
    return centers


def _spread(layer: Sequence[int], centers: list[float], widths: Sequence[float]) -> None:
    """Move the boxes of a layer apart, without changing their order and the mean of their centres."""
    wanted = sum([centers[box] for box in layer])
    right = float("-inf")
    for box in layer:
        centers[box] = max(centers[box], right + GAP + widths[box] / 2)
        right = centers[box] + widths[box] / 2
    shift = (wanted - sum([centers[box] for box in layer])) / len(layer)
    for box in layer:
        centers[box] += shift


def _mean(values: Sequence[float], numbers: Sequence[int], otherwise: float) -> float:
    return sum([values[number] for number in numbers]) / len(numbers) if numbers else otherwise
