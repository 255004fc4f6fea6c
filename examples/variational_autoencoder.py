"""A variational autoencoder that maps handwritten digits to a plane and draws new digits.

Kingma, Welling, arXiv:1312.6114. An encoder maps an image not to a point of the plane but to a normal distribution: a
mean and a variance for each of the two axes. A decoder maps a point drawn from this distribution to an image. Both are
trained to reproduce the image; a penalty keeps all distributions near the middle of the plane, so that no part of it
stays empty. The labels of the digits are not used, and yet equal digits end up close together.

The loss is a negative lower bound of the log-likelihood: the reconstruction error of the image, plus the
Kullback-Leibler divergence between its distribution and the standard normal distribution. Gradients pass through the
random draw because it is written as ``mean + deviation * noise``.

    python examples/variational_autoencoder.py           # a map of the digits, in about two minutes
    python examples/variational_autoencoder.py --short   # two epochs, in some seconds

It saves its state after each epoch. After it was stopped it continues from there, with the same bits as without a stop.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.utils import tree_flatten, tree_unflatten

BATCH = 64


class Encoder(nn.Module):
    """Means and logarithms of variances, each of shape (N, 2), for images of shape (N, 8, 8, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = [nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, stride=2, padding=1)]
        self.norm = nn.GroupNorm(8, 64)
        self.hidden = nn.Linear(4 * 4 * 64, 128)
        self.mean, self.log_variance = nn.Linear(128, 2), nn.Linear(128, 2)

    def __call__(self, images: mx.array) -> tuple[mx.array, mx.array]:
        x = images
        for convolution in self.convolutions:
            x = nn.silu(convolution(x))
        x = nn.silu(self.hidden(self.norm(x).flatten(1)))
        return self.mean(x), self.log_variance(x)


class Decoder(nn.Module):
    """Scores of pixels, of shape (N, 8, 8, 1), for points of shape (N, 2); their sigmoid is an image."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(2, 128), nn.Linear(128, 4 * 4 * 64)]
        self.norm = nn.GroupNorm(8, 64)
        self.larger = nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1)
        self.pixels = nn.Conv2d(32, 1, 3, padding=1)

    def __call__(self, points: mx.array) -> mx.array:
        x = points
        for layer in self.hidden:
            x = nn.silu(layer(x))
        x = nn.silu(self.larger(self.norm(x.reshape(-1, 4, 4, 64))))
        return self.pixels(x)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()

    def losses(self, images: mx.array) -> tuple[mx.array, mx.array]:
        """Reconstruction errors, and divergences from the standard normal distribution: means over the images."""
        mean, log_variance = self.encoder(images)
        points = mean + mx.exp(0.5 * log_variance) * mx.random.normal(mean.shape)
        lacking = nn.losses.binary_cross_entropy(self.decoder(points), images, reduction="none")
        divergence = 0.5 * (mean**2 + mx.exp(log_variance) - log_variance - 1)
        return lacking.sum(axis=(1, 2, 3)).mean(), divergence.sum(axis=1).mean()


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images with pixels from 0 to 1, and their labels, which only the picture uses."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.images / 16).astype(np.float32)[..., None], found.target


def draw(model: Autoencoder, images: np.ndarray, labels: np.ndarray, file: Path) -> None:
    """Draw the digits at their places in the plane, and the decoder's images for points all over it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    means = np.array(model.encoder(mx.array(images))[0])
    dots = left.scatter(*means.T, c=labels, cmap="tab10", s=8, vmin=-0.5, vmax=9.5)
    figure.colorbar(dots, ticks=range(10))
    left.set(title="Where the digits are", aspect="equal", adjustable="datalim")
    # Quantiles of the normal distribution: all cells of the grid are equally likely.
    count = 16
    across = mx.sqrt(mx.array(2.0)) * mx.erfinv((2 * mx.arange(count) + 1) / count - 1)
    points = mx.stack(mx.meshgrid(across, across[::-1], indexing="xy"), axis=-1).reshape(-1, 2)
    drawn = mx.pad(mx.sigmoid(model.decoder(points))[..., 0], [(0, 0), (1, 1), (1, 1)])
    side = count * drawn.shape[1]
    together = drawn.reshape(count, count, *drawn.shape[1:]).transpose(0, 2, 1, 3).reshape(side, side)
    right.imshow(np.array(together), cmap="gray_r")
    right.set(title="What is drawn there", xticks=[], yticks=[])
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("variational-autoencoder"), help="where results go")
    parser.add_argument("--short", action="store_true", help="two epochs only")
    parser.add_argument("--epochs", type=int, help="how often all images are seen")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    epochs = options.epochs or (2 if options.short else 100)
    images, labels = digits()

    mx.random.seed(0)
    model = Autoencoder()
    print(nn.summary(model))
    optimizer = optim.Adam(1e-3)
    optimizer.init(model.trainable_parameters())
    state = [model.state, optimizer.state, mx.random.state]

    def loss(batch: mx.array) -> tuple[mx.array, mx.array]:
        lacking, divergence = model.losses(batch)
        return lacking + divergence, divergence

    def plain_step(batch: mx.array) -> tuple[mx.array, mx.array]:
        values, gradients = nn.value_and_grad(model, loss)(batch)
        optimizer.update(model, gradients)
        return values

    step = mx.compile(plain_step, inputs=state, outputs=state)
    checkpoint, done = options.folder / "checkpoint.safetensors", 0
    if checkpoint.exists():
        saved = mx.load(str(checkpoint))
        done = saved.pop("epochs").item()
        tree = tree_unflatten(list(saved.items()))
        model.update(tree["model"])
        optimizer.state.update(tree["optimizer"])  # in place, because the compiled step refers to this dict
        mx.random.state[:] = tree["random"]
    for epoch in range(done, epochs):
        began = time.perf_counter()
        order = np.random.default_rng(epoch).permutation(len(images))
        parts = [order[start : start + BATCH] for start in range(0, len(order) - BATCH + 1, BATCH)]
        values = [step(mx.array(images[part])) for part in parts]
        total, divergence = [mx.mean(mx.stack(column)).item() for column in zip(*values, strict=True)]
        seconds = time.perf_counter() - began
        print(f"epoch {epoch + 1}: loss {total:.2f}, of which divergence {divergence:.2f}, {seconds:.2f} s")
        tree = {"model": model.parameters(), "optimizer": optimizer.state, "random": mx.random.state}
        mx.save_safetensors(str(checkpoint), dict(tree_flatten(tree)) | {"epochs": mx.array(epoch + 1)})
    draw(model, images, labels, options.folder / "map.png")
    print("saved", options.folder / "map.png")


if __name__ == "__main__":
    main()
