"""Named arrays for a model: reading, writing, and checking that they are exactly the model's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import weft.core as mx
from weft.errors import ArgumentTypeError
from weft.tree import CONTAINERS


def save_named(file: str | os.PathLike[str], weights: dict[str, mx.array]) -> None:
    """Write arrays by path to a file whose name ends in .npz or .safetensors.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_named(f"{folder}/w.npz", {"bias": mx.ones((2,))})
    ...     weights_of(f"{folder}/w.npz")
    {'bias': array([1, 1], dtype=float32)}
    """
    name = os.fspath(file) if isinstance(file, (str, os.PathLike)) else file
    if not isinstance(name, str):
        raise ArgumentTypeError(f"[save_weights] file must be a name; got {file!r} of type {type(file).__name__}.")
    if name.endswith(".npz"):
        mx.savez(name, **weights)
    elif name.endswith(".safetensors"):
        mx.save_safetensors(name, weights)
    else:
        raise ValueError(f"[save_weights] {name!r} ends neither in .npz nor in .safetensors.")


def weights_of(file_or_weights: Any) -> dict[str, mx.array]:
    """The arrays of a file, by path; or those of `named_weights`.

    >>> weights_of({"bias": mx.ones((2,))})
    {'bias': array([1, 1], dtype=float32)}
    """
    if not isinstance(file_or_weights, (str, os.PathLike)):
        return named_weights(file_or_weights)
    weights = mx.load(os.fspath(file_or_weights))
    if not isinstance(weights, dict):
        raise ValueError(f"[load_weights] {file_or_weights} holds a single array, no named parameters.")
    return weights


def named_weights(weights: Any) -> dict[str, mx.array]:
    """A dict of arrays by path, from such a dict or from pairs.

    >>> named_weights([("bias", mx.ones((2,)))])
    {'bias': array([1, 1], dtype=float32)}
    """
    try:
        found = dict(weights)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            "[load_weights] takes the name of a file, or pairs of a path and an array, "
            f"got a value of type {type(weights).__name__} that holds something else."
        ) from None
    for path, value in found.items():
        if not isinstance(path, str):
            raise ArgumentTypeError(f"[load_weights] paths are strings; got {path!r} of type {type(path).__name__}.")
        if not isinstance(value, mx.array):
            raise ValueError(f"[load_weights] `{path}` must be an array; got {type(value).__name__}: {_remedy(value)}.")
    return found


def _remedy(value: Any) -> str:
    if isinstance(value, CONTAINERS):
        return "give each array under its path, as `tree_flatten` does"
    return "make one with mx.array"


def check_weights(parameters: Mapping[str, mx.array], weights: Mapping[str, mx.array]) -> None:
    """Raise `ValueError` unless ``weights`` has arrays of the same names and shapes as ``parameters``.

    >>> check_weights({"bias": mx.zeros((2,))}, {"bias": mx.ones((2,))})
    """
    if unknown := weights.keys() - parameters.keys():
        raise ValueError(f"[load_weights] Parameters not in model: {_list(unknown)}; strict=False skips them.")
    if missing := parameters.keys() - weights.keys():
        raise ValueError(f"[load_weights] Missing parameters: {_list(missing)}; strict=False leaves them as they are.")
    for path, parameter in parameters.items():
        new = weights[path]
        if new.shape != parameter.shape:
            raise ValueError(f"[load_weights] `{path}` has shape {parameter.shape} in the model; got {new.shape}.")


def _list(paths: Iterable[str]) -> str:
    return ", ".join(sorted(paths))
