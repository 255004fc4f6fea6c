"""The model of `language_model.py` learns English with few additional parameters, and is then stored in 4 bits.

The example shows

- LoRA (Hu et al., arXiv:2106.09685): the weights are not changed. For some of them, two narrow matrices learn what to
  add, so that training needs little memory, and the result is a file of a few hundred kilobytes,
- freezing: gradients are computed only with respect to parameters that are not frozen,
- merging: afterwards the product of the matrices is added to the weights, and the model is as fast as before,
- `nn.quantize`: how much worse the model is with weights of 4 bits.

    python examples/language_model.py        # trains the model, in some ten minutes
    python examples/fine_tuning.py           # some minutes
    python examples/fine_tuning.py --short   # a small untrained model, and eight steps
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from language_model import (  # type: ignore[import-not-found]  # for mypy it is in a package, "examples"
    FULL,
    SHORT,
    Training,
    draw,
    surprise,
)
from writer import Writer, write  # type: ignore[import-not-found]  # likewise

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.utils import tree_unflatten

RANK = 8
STEPS, SHORT_STEPS = 400, 8


class LowRank(nn.Module):
    """A linear layer that is not changed, plus the product of two narrow matrices, which is zero at first."""

    def __init__(self, linear: nn.Linear, scale: float = 2.0) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape
        self.linear = linear
        self.scale = scale
        self.narrowing = mx.random.normal((inputs, RANK), scale=inputs**-0.5)
        self.widening = mx.zeros((RANK, outputs))

    def __call__(self, x: mx.array) -> mx.array:
        return self.linear(x) + self.scale * ((x @ self.narrowing) @ self.widening)

    def merged(self) -> nn.Linear:
        """A linear layer with the same result."""
        self.linear.weight = self.linear.weight + self.scale * (self.narrowing @ self.widening).T
        return self.linear


def documentation() -> tuple[np.ndarray, np.ndarray]:
    """English from Python's own documentation, which the model has not seen: for training and for testing."""
    from pydoc_data import topics

    text = np.frombuffer("\n".join(topics.topics.values()).encode(), np.uint8)
    end = len(text) * 9 // 10
    return text[:end], text[end:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("language-model"), help="the folder of language_model.py")
    parser.add_argument("--folder", type=Path, default=Path("fine-tuning"), help="where results go")
    parser.add_argument("--short", action="store_true", help="a small model that need not be trained, and few steps")
    parser.add_argument("--steps", type=int, help="stop after so many")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    sizes, steps = (SHORT, SHORT_STEPS) if options.short else (FULL, STEPS)
    learned, held_out = documentation()

    mx.random.seed(0)
    model = Writer(sizes)
    if not options.short:
        arrays = mx.load(str(options.model / "checkpoint.safetensors"))
        model.update(tree_unflatten([(name, array) for name, array in arrays.items() if name != "losses"])["model"])
    print(f"before: {surprise(model, held_out):.3f} nats a byte")

    model.freeze()
    for block in model.blocks:
        block.attention.mixed, block.attention.out = LowRank(block.attention.mixed), LowRank(block.attention.out)
    print(f"{nn.summary(model).trainable:,} of {nn.summary(model).parameters:,} parameters learn")
    training = Training(model, optim.Adam(2e-3), options.folder / "adapters.safetensors")
    training.run(learned, options.steps or steps, max(1, steps // 20))
    draw(training.losses, options.folder / "loss.png", "A model learns English with LoRA")
    print("saved", options.folder / "loss.png")

    for block in model.blocks:
        block.attention.mixed, block.attention.out = block.attention.mixed.merged(), block.attention.out.merged()
    print(f"after: {surprise(model, held_out):.3f} nats a byte, {nn.summary(model).bytes / 1e6:.1f} MB")
    nn.quantize(model, group_size=32, bits=4)
    print(f"in 4 bits: {surprise(model, held_out):.3f} nats a byte, {nn.summary(model).bytes / 1e6:.1f} MB")
    mx.random.seed(1)
    print(write(model, sizes, b"The expression list ").decode(errors="replace"))


if __name__ == "__main__":
    main()
