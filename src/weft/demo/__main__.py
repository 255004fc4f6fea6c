"""Trains a classifier of handwritten digits, and shows how much time compiling saves."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

import weft.core as mx
from weft.demo import comparison, digits, picture

BATCH = 64
WANTED_ACCURACY = 0.97


def train(trainer: digits.Trainer, learned: digits.DigitImages, epochs: int, seed: int) -> list[float]:
    """The loss of each step, after the compiled one has run over all batches of all epochs."""
    random = np.random.default_rng(seed)
    losses: list[float] = []
    steps = epochs * (len(learned) // BATCH)
    with tqdm(total=steps, unit="step", desc="training", file=sys.stdout, mininterval=0.5) as bar:
        for _ in range(epochs):
            for images, labels in learned.batches(BATCH, random):
                losses.append(trainer.run(trainer.compiled, images, labels).item())
                bar.update()
            bar.set_postfix(loss=f"{np.mean(losses[-20:]):.4f}", refresh=False)
    return losses


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="weft demo", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("weft-demo.png"), help="where the picture goes")
    parser.add_argument("--epochs", type=int, default=40, help="passes over the training digits")
    parser.add_argument("--seed", type=int, default=0, help="seed of parameters, dropout and shuffling")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1, not {options.epochs}")
    if not options.output.absolute().parent.is_dir():
        parser.error(f"--output: there is no folder {options.output.absolute().parent}")
    if options.output.suffix not in picture.SUFFIXES:
        parser.error(f"--output: {options.output}: a picture can be {', '.join(picture.SUFFIXES)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. The result is 0 if the model classifies at least 97 % of the held-out digits correctly."""
    options = parse(arguments)
    learned, held_out = digits.load()
    print(f"{len(learned)} handwritten digits to learn from, {len(held_out)} held out")

    mx.random.seed(options.seed)
    trainer = digits.make_trainer()
    start = time.perf_counter()
    losses = train(trainer, learned, options.epochs, options.seed)
    duration = time.perf_counter() - start
    predictions = digits.predict(trainer.model, held_out.images)
    accuracy = float(np.mean(predictions == held_out.labels))
    print(f"trained in {duration:.1f} s; {accuracy:.1%} of the held-out digits are read right\n")

    print("measured here (medians):")
    rows = [
        comparison.compare_steps(digits.make_trainer(), learned, BATCH),
        comparison.compare_gelu(comparison.GELU_SHAPE),
        comparison.compare_vmap(comparison.ROWS, comparison.COLUMNS),
    ]
    print(comparison.table(rows))

    picture.save(options.output, losses, held_out, predictions)
    print(f"\nloss curve and predictions: {options.output}")
    if accuracy < WANTED_ACCURACY:
        print(f"{accuracy:.1%} is less than the {WANTED_ACCURACY:.0%} that this demo should reach", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
