"""Named arrays for a model: whether they are some, and whether they are exactly what it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import weft.core as mx


def named_weights(weights: Any) -> dict[str, mx.array]:
    """A dict of arrays by path, from such a dict or from pairs.

    >>> named_weights([("bias", mx.ones((2,)))])
    {'bias': array([1, 1], dtype=float32)}
    """
    try:
        found = dict(weights)
    except (TypeError, ValueError):
        raise TypeError(
            "[load_weights] takes the name of a file, or pairs of a path and an array, "
            f"got a value of type {type(weights).__name__} that holds something else."
        ) from None
    for path, value in found.items():
        if not isinstance(path, str):
            raise TypeError(f"[load_weights] paths are strings, got {path!r} of type {type(path).__name__}.")
        if not isinstance(value, mx.array):
            raise ValueError(
                f"[load_weights] `{path}` has to be an array, got {type(value).__name__}; {_remedy(value)}."
            )
    return found


def _remedy(value: Any) -> str:
    if isinstance(value, (dict, list, tuple)):
        return "give each array under its path, as `tree_flatten` does"
    return "make one with mx.array"


def check_weights(parameters: Mapping[str, mx.array], weights: Mapping[str, mx.array]) -> None:
    """Raise `ValueError` unless `weights` has arrays of the same names and shapes as `parameters`.

    >>> check_weights({"bias": mx.zeros((2,))}, {"bias": mx.ones((2,))})
    """
    if unknown := weights.keys() - parameters.keys():
        raise ValueError(f"[load_weights] {_list(unknown)} not in the model; strict=False skips them.")
    if missing := parameters.keys() - weights.keys():
        raise ValueError(f"[load_weights] {_list(missing)} missing; strict=False leaves them as they are.")
    for path, parameter in parameters.items():
        new = weights[path]
        if new.shape != parameter.shape:
            raise ValueError(f"[load_weights] `{path}` has shape {parameter.shape} in the model, got {new.shape}.")


def _list(paths: Iterable[str]) -> str:
    names = sorted(paths)
    return f"{len(names)} parameter{'s' if len(names) > 1 else ''} ({', '.join(names)})"
