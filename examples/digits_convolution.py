"""A convolutional net that classifies handwritten digits.

The 1,797 digits that come with scikit-learn are images of 8x8 pixels. A small net is trained on four fifths of them and
tested on the others. The parts of a training program are:

- a model, `Reader`: convolutions, batch normalisation, pooling, dropout,
- a training step that `mx.compile` makes one program of: forward pass, gradients, optimizer, and the other state that a
  step changes (running statistics of the normalisation, the state of the random generator),
- augmentation of the data by shifting images at random,
- checkpoints: after it was stopped, training continues with the same bits as without a stop.

    python examples/digits_convolution.py           # about 99 % of the test digits are right, in a minute or two
    python examples/digits_convolution.py --short   # two epochs, in some seconds
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.utils import tree_flatten, tree_unflatten

BATCH = 64
HELD_OUT = 360


class Reader(nn.Module):
    """Scores of the ten digits for images of shape (N, 8, 8, 1); channels are last."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = [nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)]
        self.norms = [nn.BatchNorm(32), nn.BatchNorm(64)]
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(0.3)
        self.scores = nn.Linear(2 * 2 * 64, 10)

    def __call__(self, images: mx.array) -> mx.array:
        x = images
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = self.pool(nn.relu(norm(convolution(x))))
        return self.scores(self.dropout(x.flatten(1)))


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Images and labels for training, and those for testing; the split is always the same."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images, labels = (found.images / 16).astype(np.float32)[..., None], found.target.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(labels))
    held_out, learned = order[:HELD_OUT], order[HELD_OUT:]
    return (images[learned], labels[learned]), (images[held_out], labels[held_out])


def batches(images: np.ndarray, labels: np.ndarray, epoch: int) -> Iterator[tuple[mx.array, mx.array]]:
    """All images in a new order, which depends only on the number of the epoch and so can be repeated."""
    order = np.random.default_rng(epoch).permutation(len(labels))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[start : start + BATCH]
        yield mx.array(images[chosen]), mx.array(labels[chosen])


def shifted(images: mx.array) -> mx.array:
    """Each image moved by up to one pixel horizontally and vertically; new pixels are empty."""
    count, height, width, _ = images.shape
    padded = mx.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)])
    down, right = mx.random.randint(0, 3, (2, count, 1, 1))
    rows, columns = mx.arange(height)[:, None] + down, mx.arange(width) + right
    return padded[mx.arange(count)[:, None, None], rows, columns]


class Training:
    """A model, its optimizer, and the progress of training."""

    def __init__(self, model: Reader, learning_rate: float) -> None:
        self.model = model
        self.optimizer = optim.AdamW(learning_rate)
        self.optimizer.init(model.trainable_parameters())
        self.history: list[list[float]] = []  # for each epoch the mean loss and the accuracy on test digits

        def loss(images: mx.array, labels: mx.array) -> mx.array:
            return nn.losses.cross_entropy(model(shifted(images)), labels, reduction="mean")

        loss_and_gradients = nn.value_and_grad(model, loss)

        def step(images: mx.array, labels: mx.array) -> mx.array:
            value, gradients = loss_and_gradients(images, labels)
            self.optimizer.update(model, gradients)
            return value

        # Everything that a step changes.
        state = [model.state, self.optimizer.state, mx.random.state]
        self.step = mx.compile(step, inputs=state, outputs=state)

    def save(self, file: Path) -> None:
        tree = {"model": self.model.parameters(), "optimizer": self.optimizer.state, "random": mx.random.state}
        arrays = dict(tree_flatten(tree)) | {"history": mx.array(self.history)}
        mx.save_safetensors(str(file), arrays)

    def restore(self, file: Path) -> None:
        arrays = mx.load(str(file))
        self.history = arrays.pop("history").tolist()
        tree = tree_unflatten(list(arrays.items()))
        self.model.update(tree["model"])
        self.optimizer.state.update(tree["optimizer"])  # in place, because the compiled step refers to this dict
        mx.random.state[:] = tree["random"]


def read(model: Reader, images: np.ndarray) -> np.ndarray:
    """The digits that a model predicts."""
    model.eval()
    found = np.array(mx.argmax(model(mx.array(images)), axis=1))
    model.train()
    return found


def draw(history: list[list[float]], images: np.ndarray, labels: np.ndarray, found: np.ndarray, file: Path) -> None:
    """Draw the loss over time, and test digits, misclassified ones first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False)[0]
    axes = left.subplots()
    losses, shares = zip(*history, strict=True)
    axes.semilogy(losses, label="loss")
    axes.semilogy([max(1 - share, 1e-3) for share in shares], label="share of unseen digits misread")
    axes.set_xlabel("epoch")
    axes.legend()
    grid = right.subplots(4, 8)
    for cell, number in zip(grid.flat, np.argsort(found == labels, kind="stable"), strict=False):
        cell.imshow(images[number, :, :, 0], cmap="gray_r")
        cell.set_title(str(found[number]), fontsize=9, color="black" if found[number] == labels[number] else "red")
        cell.set_axis_off()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("digits-convolution"), help="where results go")
    parser.add_argument("--short", action="store_true", help="two epochs only")
    parser.add_argument("--epochs", type=int, help="how often all images are seen")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    epochs = options.epochs or (2 if options.short else 40)
    learned, held_out = digits()

    mx.random.seed(0)
    model = Reader()
    print(nn.summary(model))
    training = Training(model, learning_rate=2e-3)
    checkpoint = options.folder / "checkpoint.safetensors"
    if checkpoint.exists():
        training.restore(checkpoint)
    for epoch in range(len(training.history), epochs):
        began = time.perf_counter()
        losses = [training.step(images, labels) for images, labels in batches(*learned, epoch)]
        loss = mx.mean(mx.stack(losses)).item()
        share = float(np.mean(read(model, held_out[0]) == held_out[1]))
        training.history.append([loss, share])
        training.save(checkpoint)
        seconds = time.perf_counter() - began
        print(f"epoch {epoch + 1}: loss {loss:.4f}, {share:.1%} of unseen digits read, {seconds:.2f} s")
    draw(training.history, *held_out, read(model, held_out[0]), options.folder / "digits.png")
    print("saved", options.folder / "digits.png")


if __name__ == "__main__":
    main()
