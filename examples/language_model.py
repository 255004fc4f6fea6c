"""A language model that learns to write Python, byte by byte, from Python's standard library.

A transformer of four layers reads some 9 MB of source code, 256 bytes at a time, and learns which byte comes next. Then
it writes some. What is to be seen here:

- a model, `Writer`: attention with rotary positions, and layers with gates between,
- a compiled training step, with a learning rate that rises and falls,
- checkpoints: started again after it was stopped, training goes on, with the same bits as without a stop,
- writing with a cache: keys and values of what was read stay, so that each new byte costs one row of each product,
- sampling: which of the likely bytes is next is drawn at random.

    python examples/language_model.py           # some ten minutes on two cores
    python examples/language_model.py --short   # a small model and eight steps, in some seconds
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.utils import tree_flatten, tree_unflatten

CONTEXT = 256
BATCH = 8
Cache = dict[str, mx.array]


class Sizes(NamedTuple):
    layers: int
    width: int
    heads: int
    steps: int


FULL, SHORT = Sizes(4, 256, 4, 1000), Sizes(2, 64, 2, 8)


class Attention(nn.Module):
    """Each place looks at itself and those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.mixed = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.rope = nn.RoPE(width // heads)

    def __call__(self, x: mx.array, cache: Cache | None, place: mx.array | int) -> mx.array:
        parts = mx.split(self.mixed(x), 3, axis=-1)
        queries, keys, values = [mx.unflatten(part, -1, (self.heads, -1)).swapaxes(1, 2) for part in parts]
        queries, keys = self.rope(queries, offset=place), self.rope(keys, offset=place)
        mask: str | mx.array = "causal"
        if cache is not None:
            keys = cache["keys"] = mx.slice_update(cache["keys"], keys, place, axes=(2,))
            values = cache["values"] = mx.slice_update(cache["values"], values, place, axes=(2,))
            mask = mx.arange(keys.shape[2]) <= place  # behind it, the cache is empty
        found = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.scale, mask=mask)
        return self.out(found.swapaxes(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, and two layers of which one decides how much of the other goes on."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width), Attention(width, heads)
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def __call__(self, x: mx.array, cache: Cache | None, place: mx.array | int) -> mx.array:
        x = x + self.attention(self.attention_norm(x), cache, place)
        y = self.norm(x)
        return x + self.down(nn.silu(self.gate(y)) * self.up(y))


class Writer(nn.Module):
    """For each byte of texts of shape (N, length), the scores of the 256 bytes that may follow."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, sizes.width)
        self.blocks = [Block(sizes.width, sizes.heads) for _ in range(sizes.layers)]
        self.norm = nn.RMSNorm(sizes.width)

    def __call__(self, text: mx.array, caches: list[Cache] | None = None, place: mx.array | int = 0) -> mx.array:
        x = self.bytes(text)
        for number, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[number], place)
        return self.bytes.as_linear(self.norm(x))

    def loss(self, text: mx.array) -> mx.array:
        """How many nats a byte surprises the model, on average."""
        return nn.losses.cross_entropy(self(text[:, :-1]), text[:, 1:], reduction="mean")


def library() -> tuple[np.ndarray, np.ndarray]:
    """The bytes of Python's standard library to learn from, and those of some files that are held out."""
    folder = Path(os.__file__).parent
    left_out = {"site-packages", "test", "tests", "idlelib", "encodings", "pydoc_data"}
    files = [file for file in sorted(folder.rglob("*.py")) if not left_out & set(file.relative_to(folder).parts)]
    texts = [file.read_bytes() for file in files]
    held = texts[::20]
    del texts[::20]
    return np.frombuffer(b"\n".join(texts), np.uint8), np.frombuffer(b"\n".join(held), np.uint8)


def batch(text: np.ndarray, number: int) -> mx.array:
    """Pieces of a text. Where they begin follows from the number, so that it can be repeated."""
    starts = np.random.default_rng(number).integers(0, len(text) - CONTEXT, BATCH)
    return mx.array(text[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int32))


class Training:
    """What a model learns, its optimizer and how far they are; kept in a file."""

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
        self.optimizer.state.update(tree["optimizer"])  # in place: the compiled step knows this dict

    def run(self, text: np.ndarray, steps: int, pause: int) -> None:
        """Go on until there were so many steps; now and then, say how it goes and save."""
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
    """A learning rate that rises for some steps, and then falls."""
    rising = max(1, steps // 20)
    rates = [optim.linear_schedule(1e-5, 2e-3, rising), optim.cosine_decay(2e-3, steps - rising, 1e-4)]
    return optim.join_schedules(rates, [rising])


def surprise(model: Writer, text: np.ndarray) -> float:
    """The loss on the same pieces of a text each time."""
    return mx.mean(mx.stack([model.loss(batch(text, number)) for number in range(8)])).item()


def write(model: Writer, sizes: Sizes, beginning: bytes, temperature: float = 0.7, likely: int = 20) -> bytes:
    """A text of 256 bytes: one byte after the other is drawn, from the ``likely`` ones with the highest scores."""
    shape = (1, sizes.heads, CONTEXT, sizes.width // sizes.heads)
    caches: list[Cache] = [{"keys": mx.zeros(shape), "values": mx.zeros(shape)} for _ in model.blocks]

    def following(byte: mx.array, place: mx.array) -> mx.array:
        scores = model(byte[None], caches, place)[0, -1]
        scores = mx.where(scores < mx.min(mx.topk(scores, likely)), -mx.inf, scores)
        return mx.random.categorical(scores[None] / temperature)

    state = [caches, mx.random.state]
    following = mx.compile(following, inputs=[model.state, *state], outputs=state)
    text = list(beginning)
    for place in range(CONTEXT - 1):
        byte = following(mx.array([text[place]]), mx.array([place]))
        if place + 1 == len(text):
            text.append(byte.item())
    return bytes(text)


def draw(losses: list[float], file: Path, title: str) -> None:
    """How the loss fell, in means of neighbouring steps."""
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
