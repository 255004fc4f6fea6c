"""A language model that learns to write Python, byte by byte, from Python's standard library.

A transformer of four layers, defined in `writer.py`, reads about 9 MB of source code, 256 bytes at a time, and learns
to predict the next byte. Then it generates some code. The example shows

- a compiled training step, with a learning rate that rises and falls,
- checkpoints: after it was stopped, training continues with the same bits as without a stop,
- the loss on files that are not used for training.

    python examples/language_model.py           # about ten minutes on two cores
    python examples/language_model.py --short   # a small model and eight steps, in some seconds
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from writer import (  # type: ignore[import-not-found]  # for mypy it is in a package, "examples"
    CONTEXT,
    Sizes,
    Writer,
    write,
)

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.utils import tree_flatten, tree_unflatten

BATCH = 8
FULL, SHORT = Sizes(4, 256, 4, 1000), Sizes(2, 64, 2, 8)


def library() -> tuple[np.ndarray, np.ndarray]:
    """The bytes of Python's standard library for training, and those of some files for testing."""
    folder = Path(os.__file__).parent
    left_out = {"site-packages", "test", "tests", "idlelib", "encodings", "pydoc_data"}
    files = [file for file in sorted(folder.rglob("*.py")) if not left_out & set(file.relative_to(folder).parts)]
    texts = [file.read_bytes() for file in files]
    held = texts[::20]
    del texts[::20]
    return np.frombuffer(b"\n".join(texts), np.uint8), np.frombuffer(b"\n".join(held), np.uint8)


def batch(text: np.ndarray, number: int) -> mx.array:
    """Pieces of a text. Their positions depend only on the number, so that the batch can be repeated."""
    starts = np.random.default_rng(number).integers(0, len(text) - CONTEXT, BATCH)
    return mx.array(text[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int32))


class Training:
    """A model, its optimizer and the progress of training, which is stored in a file."""

    def __init__(self, model: Writer, optimizer: optim.Optimizer, file: Path) -> None:
        self.model, self.optimizer, self.file = model, optimizer, file
        self.losses: list[float] = []
        optimizer.init(model.trainable_parameters())
        loss_and_gradients = nn.value_and_grad(model, model.loss)

        def step(text: mx.array) -> mx.array:
            loss, gradients = loss_and_gradients(text)
            gradients, _ = optim.clip_grad_norm(gradients, 1.0)
            optimizer.update(model, gradients)
            return loss

        state = [model.state, optimizer.state]
        self.step = mx.compile(step, inputs=state, outputs=state)
        if file.exists():
            self.restore()

    def save(self) -> None:
        tree = {"model": self.model.trainable_parameters(), "optimizer": self.optimizer.state}
        mx.save_safetensors(str(self.file), dict(tree_flatten(tree)) | {"losses": mx.array(self.losses)})

    def restore(self) -> None:
        arrays = mx.load(str(self.file))
        self.losses = arrays.pop("losses").tolist()
        tree = tree_unflatten(list(arrays.items()))
        self.model.update(tree["model"])
        self.optimizer.state.update(tree["optimizer"])  # in place, because the compiled step refers to this dict

    def run(self, text: np.ndarray, steps: int, pause: int) -> None:
        """Train until ``steps`` steps were made; report and save every ``pause`` steps."""
        began = time.perf_counter()
        for number in range(len(self.losses), steps):
            self.losses.append(self.step(batch(text, number)).item())
            if (number + 1) % pause == 0:
                self.save()
                rate = pause * BATCH * CONTEXT / (time.perf_counter() - began)
                print(f"step {number + 1}: loss {np.mean(self.losses[-pause:]):.3f}, {rate:,.0f} bytes/s", flush=True)
                began = time.perf_counter()
        self.save()


def schedule(steps: int) -> Callable[[mx.array], mx.array]:
    """A learning rate that rises for some steps and then falls."""
    rising = max(1, steps // 20)
    rates = [optim.linear_schedule(1e-5, 2e-3, rising), optim.cosine_decay(2e-3, steps - rising, 1e-4)]
    return optim.join_schedules(rates, [rising])


def surprise(model: Writer, text: np.ndarray) -> float:
    """The loss on pieces of a text that are the same each time."""
    return mx.mean(mx.stack([model.loss(batch(text, number)) for number in range(8)])).item()


def draw(losses: list[float], file: Path, title: str) -> None:
    """Draw the loss over time, as means of neighbouring steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    count = max(1, len(losses) // 100)
    whole = len(losses) // count * count
    axes.plot(np.arange(0, whole, count), np.reshape(losses[:whole], (-1, count)).mean(axis=1))
    axes.set(xlabel="step", ylabel="loss, nats a byte", title=title)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("language-model"), help="where results go")
    parser.add_argument("--short", action="store_true", help="a small model and few steps")
    parser.add_argument("--steps", type=int, help="stop after so many")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    sizes = SHORT if options.short else FULL
    learned, held_out = library()

    mx.random.seed(0)
    model = Writer(sizes)
    print(
        f"{nn.summary(model).trainable:,} parameters, {len(learned):,} bytes to learn from, {len(held_out):,} held out"
    )
    optimizer = optim.AdamW(schedule(sizes.steps), weight_decay=0.05)
    training = Training(model, optimizer, options.folder / "checkpoint.safetensors")
    training.run(learned, options.steps or sizes.steps, max(1, sizes.steps // 60))
    print(f"on files that were held out: {surprise(model, held_out):.3f} nats a byte")
    draw(training.losses, options.folder / "loss.png", "A model learns to write Python")
    print("saved", options.folder / "loss.png")
    mx.random.seed(1)
    print(write(model, sizes, b"def read_lines(self, file):\n").decode(errors="replace"))


if __name__ == "__main__":
    main()
