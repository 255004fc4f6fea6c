"""How each framework does the tasks.

A method of a peer prepares its data and returns the work: a callable that computes the result (on a GPU it may only be
queued) and returns it. All peers get the same data. A task for which a peer has no method is not measured for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

DEVICE = os.environ.get("BENCH_DEVICE", "cpu")
"""The device of the peers: cpu or gpu. On a GPU work may not be finished when a call returns; `synchronize` waits for
it."""

Work = Callable[[], Any]
Floats = npt.NDArray[np.float32]
Heads = tuple[int, int, int]
"""Sizes of attention: batches, heads, features of a head."""

# The layers of the perceptron in the training tasks, which use Adam.
LAYERS = (64, 256, 256, 10)
LEARNING_RATE = 1e-3
ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
NORM_EPSILON = 1e-5
LARGEST = 10  # how many elements `topk` selects
ROPE_BASE = 10000.0


@dataclass(frozen=True)
class PeerEntry:
    """Where a peer's methods are, which packages importing it means, and whether its results can be compared."""

    module: str
    constructor: str
    imports: str
    computes: bool = True


PEERS = {
    "weft": PeerEntry("benchmarks.peers.weft_peer", "WeftPeer", "weft.core"),
    "mlx": PeerEntry("benchmarks.peers.mlx_style", "MlxPeer", "mlx.core"),
    "jax": PeerEntry("benchmarks.peers.jax_peer", "JaxPeer", "jax.numpy"),
    "torch": PeerEntry("benchmarks.peers.torch_peer", "TorchPeer", "torch"),
    "torch-eager": PeerEntry("benchmarks.peers.torch_peer", "TorchPeer", "torch"),
    "cupy": PeerEntry("benchmarks.peers.cupy_peer", "CupyPeer", "cupy"),
    "numpy": PeerEntry("benchmarks.peers.numpy_peer", "NumpyPeer", "numpy"),
    "copy": PeerEntry(
        f"benchmarks.peers.{'cupy' if DEVICE == 'gpu' else 'numpy'}_peer", "CopyPeer", "", computes=False
    ),
}
PEERS_OF = {
    "cpu": ("weft", "mlx", "jax", "torch", "torch-eager", "numpy", "copy"),
    "gpu": ("weft", "mlx", "jax", "torch", "torch-eager", "cupy", "copy"),
}
"""The peers on each kind of device."""


def make_peer(name: str, threads: int) -> Any:
    """Imports a framework and returns its peer, which may use ``threads`` threads."""
    entry = PEERS[name]
    return getattr(import_module(entry.module), entry.constructor)(threads)


def floats(*shape: int, seed: int = 0) -> Floats:
    """Numbers from -4 to 4."""
    return np.random.default_rng(seed).random(shape, dtype=np.float32) * np.float32(8) - np.float32(4)


def attention_data(heads: Heads, queries: int, keys: int) -> list[Floats]:
    """Queries, keys and values."""
    batch, count, width = heads
    return [
        floats(batch, count, length, width, seed=seed) * np.float32(0.25)
        for seed, length in enumerate((queries, keys, keys))
    ]


def complex_floats(*shape: int) -> npt.NDArray[np.complex64]:
    """Complex numbers whose real and imaginary parts are from -4 to 4."""
    return floats(*shape) + np.complex64(1j) * floats(*shape, seed=1)


def fourier_data(transform: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The input of a Fourier transform: real numbers if its name begins with an r."""
    return floats(*shape) if transform.startswith("r") else complex_floats(*shape)


def classes(count: int, end: int) -> npt.NDArray[np.int32]:
    """``count`` classes below `end`."""
    return np.random.default_rng(2).integers(end, size=count, dtype=np.int32)


def training_data(batch: int) -> tuple[Floats, npt.NDArray[np.int32]]:
    """A batch of images (between 0 and 1) and labels."""
    images = np.random.default_rng(1).random((batch, LAYERS[0]), dtype=np.float32)
    return images, classes(batch, LAYERS[-1])


def initial_parameters() -> list[tuple[Floats, Floats]]:
    """Weights of shape `(outputs, inputs)` and biases of each layer."""
    random = np.random.default_rng(3)
    return [
        (
            random.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32),
            np.zeros(outputs, dtype=np.float32),
        )
        for inputs, outputs in pairwise(LAYERS)
    ]


def matrices(*shape: int) -> Floats:
    """Symmetric, positive definite matrices with eigenvalues of about 1, 2, 3, ..., so that all peers compute the same
    eigenvectors up to signs."""
    count = shape[-1]
    noise = floats(*shape) * np.float32(1 / (40 * count**0.5))
    diagonal = np.diag(np.arange(1, count + 1, dtype=np.float32))
    return noise + np.swapaxes(noise, -1, -2) + diagonal


def right_sides(*shape: int) -> Floats:
    """A column for each matrix of a stack of this shape."""
    return floats(*shape[:-1], 1, seed=1)


def row_pairs(rows: int, columns: int) -> Sequence[Floats]:
    """Two matrices: the rows of the first are to be added to the columns of the second."""
    return floats(rows, columns), floats(columns, rows, seed=1)
