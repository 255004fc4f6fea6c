"""The picture that the demo saves: the loss over time, and predictions for held-out digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from weft.demo.digits import DigitImages

SUFFIXES = (".png", ".svg", ".pdf")
GRID_ROWS, GRID_COLUMNS = 4, 8
SMOOTHING = 20  # steps


def smooth(losses: list[float]) -> npt.NDArray[np.float64]:
    """Running means over ``SMOOTHING`` steps."""
    window = min(SMOOTHING, len(losses))
    return np.convolve(losses, np.ones(window) / window, mode="valid")


def to_show(held_out: DigitImages, predictions: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """The indices of the digits to show: misclassified ones first."""
    return np.argsort(predictions == held_out.labels, kind="stable")[: GRID_ROWS * GRID_COLUMNS]


def save(path: Path, losses: list[float], held_out: DigitImages, predictions: npt.NDArray[np.int64]) -> None:
    """Draw the picture without a display, and write it to ``path`` in the format of its suffix."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes half a second
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    ((left, right),) = figure.subfigures(1, 2, squeeze=False, width_ratios=(5, 7))

    curve = left.subplots()
    smoothed = smooth(losses)
    curve.plot(losses, color="tab:blue", alpha=0.25, linewidth=0.8, label="batch")
    curve.plot(np.arange(len(losses) - len(smoothed), len(losses)), smoothed, color="tab:blue", label="running mean")
    curve.set(xlabel="training step", ylabel="cross entropy", yscale="log", title="Loss")
    curve.legend()

    accuracy = np.mean(predictions == held_out.labels)
    right.suptitle(f"Held-out digits, read as (in red: wrong); {accuracy:.1%} of {len(held_out)} right")
    cells = right.subplots(GRID_ROWS, GRID_COLUMNS)
    for cell in cells.flat:
        cell.axis("off")
    for cell, index in zip(cells.flat, to_show(held_out, predictions), strict=False):
        wrong = predictions[index] != held_out.labels[index]
        cell.imshow(held_out.images[index].reshape(8, 8), cmap="gray_r")
        cell.set_title(str(predictions[index]), fontsize=10, color="tab:red" if wrong else "black", pad=2)
    figure.savefig(path, dpi=120)
