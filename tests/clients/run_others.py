"""A program for MLX: writes what other packages compute with it, a file for each. ``run_others.py FOLDER package
...``"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

Arrays = dict[str, Any]


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.RandomState(seed).normal(size=shape).astype(np.float32))


def einops() -> Arrays:
    from einops import asnumpy, einsum, pack, rearrange, reduce, unpack

    x = normal(2, 3, 4, 8)
    packed, shapes = pack([x, normal(2, 5, 8)], "b * c")

    def loss(x: mx.array) -> mx.array:
        return einsum(rearrange(x, "b c h w -> b (c h) w"), x[:, 0, 0], "b n w, b w -> b n").square().sum()

    return {
        "rearrange": rearrange(x, "b c (h1 h2) w -> (b h1) c (h2 w)", h1=2),
        "maximum": reduce(x, "b c (h 2) w -> b c w", "max"),
        "mean": reduce(x, "b ... -> b", "mean"),
        "packed": packed,
        "unpacked": unpack(packed, shapes, "b * c")[1],
        "gradient": mx.grad(loss)(x),
        "numpy": asnumpy(x),
    }


def safetensors() -> Arrays:
    import safetensors.mlx
    from safetensors import safe_open

    file = str(Path(sys.argv[1]) / "weights.safetensors")
    weights = {"a": normal(3, 4), "b": mx.array([1, 2], mx.int64), "c": normal(2).astype(mx.float16)}
    safetensors.mlx.save_file(weights, file, metadata={"made": "here"})
    with safe_open(file, framework="mlx") as opened:
        part = opened.get_slice("a")[1:, :2]
        assert isinstance(opened.get_tensor("a"), mx.array)
    return {
        "part": part,
        **safetensors.mlx.load_file(file),
        "again": safetensors.mlx.load(safetensors.mlx.save(weights))["c"],
    }


def mlx_data() -> Arrays:
    import mlx.data

    samples = [{"x": np.arange(length, dtype=np.float32)} for length in range(1, 7)]
    stream = mlx.data.buffer_from_vector(samples).to_stream().batch(3, pad={"x": -1.0})
    return {str(number): mx.array(batch["x"]) for number, batch in enumerate(stream)}


def mlx_optimizers() -> Arrays:
    import mlx_optimizers

    losses = {}
    names = [name for name in mlx_optimizers.__all__ if name[0] != "_"]
    for name in names:
        mx.random.seed(2)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = getattr(mlx_optimizers, name)(learning_rate=1e-2)
        step = nn.value_and_grad(model, lambda model: nn.losses.mse_loss(model(normal(10, 6)), normal(10, 3, seed=1)))
        values = []
        for _ in range(4):
            loss, gradient = step(model)
            optimizer.update(model, gradient)
            values.append(loss)
        losses[name] = mx.stack(values)
    return losses


def mlx_graphs() -> Arrays:
    from mlx_graphs.nn.conv.gat_conv import GATConv
    from mlx_graphs.nn.conv.gcn_conv import GCNConv
    from mlx_graphs.nn.conv.sage_conv import SAGEConv

    edges = mx.array([[0, 1, 2, 3, 0, 4], [1, 2, 3, 4, 4, 0]])
    found = {}
    for kind in (GCNConv, GATConv, SAGEConv):
        mx.random.seed(4)
        model = kind(6, 4)
        value, gradient = nn.value_and_grad(model, lambda model: model(edges, normal(5, 6)).square().sum())(model)
        found[kind.__name__] = value
        found.update({f"{kind.__name__} {path}": slope for path, slope in tree_flatten(gradient)})
    return found


def mlx_stft() -> Arrays:
    from mlx_stft import ISTFT, STFT

    x = normal(2, 1024)
    spectrum = STFT(n_fft=128, win_length=128, hop_length=32)(x)
    signal = ISTFT(n_fft=128, win_length=128, hop_length=32)(spectrum)
    return {"spectrum": spectrum, "back": signal[:, : x.shape[1]]}  # later elements are divided by nearly 0


def mlx_expm() -> Arrays:
    import mlx_expm

    a = 0.3 * normal(4, 4)
    positive = a @ a.T + mx.eye(4)
    return {"exponential": mlx_expm.expm(a), "root": mlx_expm.sqrtm(positive), "logarithm": mlx_expm.logm(positive)}


PACKAGES: dict[str, Callable[[], Arrays]] = {
    "einops": einops,
    "safetensors": safetensors,
    "mlx.data": mlx_data,
    "mlx_optimizers": mlx_optimizers,
    "mlx_graphs": mlx_graphs,
    "mlx_stft": mlx_stft,
    "mlx_expm": mlx_expm,
}

if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    for package in sys.argv[2:]:
        np.savez(
            Path(sys.argv[1]) / f"{package}.npz", **{key: np.array(value) for key, value in PACKAGES[package]().items()}
        )
