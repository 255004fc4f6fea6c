"""The classifier of handwritten digits: data, model, and a compiled training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim

PIXELS = 8 * 8
CLASSES = 10
HELD_OUT = 360
SPLIT_SEED = 0  # constant, so that accuracies of different runs can be compared

Step = Callable[[mx.array, mx.array], mx.array]


@dataclass(frozen=True)
class DigitImages:
    """Images as rows of 64 brightnesses between 0 and 1 (float32), and which digit each shows (int32)."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, size: int, random: np.random.Generator) -> Iterator[tuple[mx.array, mx.array]]:
        """Shuffled batches of exactly ``size`` images; the remaining images are not used in this epoch."""
        order = random.permutation(len(self))
        for start in range(0, len(self) - size + 1, size):
            chosen = order[start : start + size]
            yield mx.array(self.images[chosen]), mx.array(self.labels[chosen])


def load() -> tuple[DigitImages, DigitImages]:
    """The 1,797 digits of scikit-learn, split into 1,437 to learn from and 360 to be tested on."""
    from sklearn.datasets import load_digits  # takes a second, which --help should not wait for

    bunch = load_digits()
    images = (bunch.data / 16).astype(np.float32)
    labels = bunch.target.astype(np.int32)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    held_out, learned = order[:HELD_OUT], order[HELD_OUT:]
    return DigitImages(images[learned], labels[learned]), DigitImages(images[held_out], labels[held_out])


class Classifier(nn.Module):
    """Two hidden layers with dropout; gives one score per digit.

    Args:
        hidden: how many units each hidden layer has.
        dropout: the probability that a hidden unit is zero during training.
    """

    def __init__(self, hidden: int = 256, dropout: float = 0.2) -> None:
        super().__init__()
        self.layers = [nn.Linear(PIXELS, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, CLASSES)]
        self.dropout = nn.Dropout(dropout)

    def __call__(self, images: mx.array) -> mx.array:
        """Scores of shape ``(batch, 10)`` for images of shape ``(batch, 64)``."""
        hidden = images
        for layer in self.layers[:-1]:
            hidden = self.dropout(nn.relu(layer(hidden)))
        return self.layers[-1](hidden)


@dataclass(frozen=True)
class Trainer:
    """A model with its optimizer, and a training step, compiled and not.

    The step changes the arrays in ``state``: parameters, the optimizer's moments, and the state of the random generator
    that dropout uses. For a step with side effects it is enough to name that state as inputs and outputs of
    ``compile``.
    """

    model: Classifier
    state: list[Any]
    eager: Step
    compiled: Step

    def run(self, step: Step, images: mx.array, labels: mx.array) -> mx.array:
        """The mean loss of a batch, after a step and everything that it changes are evaluated."""
        loss = step(images, labels)
        mx.eval(loss, self.state)
        return loss


def make_trainer(learning_rate: float = 1e-3) -> Trainer:
    """A fresh classifier with Adam; its parameters come from ``mx.random``."""
    model = Classifier()
    optimizer = optim.Adam(learning_rate=learning_rate)
    optimizer.init(model.trainable_parameters())
    state = [model.state, optimizer.state, mx.random.state]
    mx.eval(state)

    def mean_loss(images: mx.array, labels: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(images), labels, reduction="mean")

    loss_and_gradients = nn.value_and_grad(model, mean_loss)

    def step(images: mx.array, labels: mx.array) -> mx.array:
        loss: mx.array
        loss, gradients = loss_and_gradients(images, labels)
        optimizer.update(model, gradients)
        return loss

    return Trainer(model, state, step, mx.compile(step, inputs=state, outputs=state))


def predict(model: Classifier, images: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The most likely digit for each row of ``images``, with dropout off."""
    model.eval()
    digits = np.array(mx.argmax(model(mx.array(images)), axis=1)).astype(np.int64)
    model.train()
    return digits
