"""A program for MLX: writes what models of mlx-lm compute, one file of arrays per model. ``run_models.py FOLDER [name
...]``

Weights and tokens are made from fixed seeds, so that the files of two frameworks can be compared.
"""

from __future__ import annotations

import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step

from tests.clients import model_configs

TOKENS = np.array([[5, 17, 3, 99, 120, 64, 7, 31, 2, 11, 77, 45, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]])

Model = Any
Arrays = dict[str, Any]


def changed(name: str, value: mx.array) -> mx.array:
    """A weight plus noise, because its first value may be all 0 or all 1. Other dtypes than those of floating point are
    unchanged."""
    if not mx.issubdtype(value.dtype, mx.floating):
        return value
    noise = np.random.RandomState(zlib.crc32(name.encode())).normal(0, 0.05, value.shape)
    return value + mx.array(noise.astype(np.float32)).astype(value.dtype)


def make(name: str) -> Model:
    """A model for inference, with weights from fixed seeds."""
    module = model_configs.module(name)
    mx.random.seed(1)
    model = module.Model(module.ModelArgs.from_dict(model_configs.config(name)))
    model.load_weights([(path, changed(path, value)) for path, value in tree_flatten(model.parameters())])
    model.eval()
    return model


def logits(model: Model) -> Arrays:
    return {"": model(mx.array(TOKENS[:, :-1]))}


def gradients(model: Model) -> Arrays:
    def loss(model: Model) -> mx.array:
        found = model(mx.array(TOKENS[:, :-1])).astype(mx.float32)
        return nn.losses.cross_entropy(found, mx.array(TOKENS[:, 1:])).mean()

    model.train()
    value, gradient = nn.value_and_grad(model, loss)(model)
    model.eval()
    return {"loss": value, **dict(tree_flatten(gradient))}


def generated(model: Model) -> Arrays:
    """Ten tokens that the model generates with a cache, after a prompt that it reads in two parts."""
    steps = list(generate_step(mx.array(TOKENS[0]), model, max_tokens=10, prefill_step_size=8))
    tokens = mx.array([int(token) for token, _ in steps])
    return {"tokens": tokens, "probabilities": mx.stack([probabilities for _, probabilities in steps])}


def quantised(model: Model) -> Arrays:
    def fits(path: str, layer: nn.Module) -> bool:
        return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0

    nn.quantize(model, group_size=32, bits=4, class_predicate=fits)
    codes = {f"codes of {path}": value for path, value in tree_flatten(model.parameters()) if value.dtype == mx.uint32}
    return {**logits(model), **codes}


PARTS: dict[str, Callable[[Model], Arrays]] = {
    "logits": logits,
    "gradients": gradients,
    "generated": generated,
    "quantised": quantised,
}


def results(name: str) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """The results of a model, part by part. A part that raises an error is replaced by the error."""
    model = make(name)
    for part, function in PARTS.items():
        try:
            for key, value in function(model).items():
                yield f"{part}/{key}", np.array(value)
        except Exception as error:
            traceback.print_exc()
            yield f"{part}/error", np.array(f"{type(error).__name__}: {error}")


def main(folder: Path, names: list[str]) -> None:
    mx.set_default_device(mx.cpu)
    for name in names or model_configs.names():
        np.savez(folder / f"{name}.npz", **dict(results(name)))
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
