"""Whether a set of named arrays is exactly what a model needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import weft.core as mx


def check_weights(parameters: Mapping[str, mx.array], weights: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless `weights` has arrays of the same names and shapes as `parameters`.

    >>> check_weights({"bias": mx.zeros((2,))}, {"bias": mx.ones((2,))})
    """
    if unknown := weights.keys() - parameters.keys():
        raise ValueError(f"load_weights: {_list(unknown)} not in the model; strict=False skips them.")
    if missing := parameters.keys() - weights.keys():
        raise ValueError(f"load_weights: {_list(missing)} missing; strict=False leaves them as they are.")
    for path, parameter in parameters.items():
        new = weights[path]
        if not isinstance(new, mx.array):
            raise ValueError(f"load_weights: `{path}` has to be an array, got {type(new).__name__}.")
        if new.shape != parameter.shape:
            raise ValueError(f"load_weights: `{path}` has shape {parameter.shape} in the model, got {new.shape}.")


def _list(paths: Iterable[str]) -> str:
    names = sorted(paths)
    return f"{len(names)} parameter{'s' if len(names) > 1 else ''} ({', '.join(names)})"
