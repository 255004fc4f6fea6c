"""Whether the trees that an optimizer is given belong together: gradients, parameters and state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import weft.core as mx
from weft.nn import Module
from weft.nn.module_tree import entries, join_path

NO_PARAMETER = (
    "[{name}] `{path}` has a gradient but no parameter; give a tree of gradients like that of the parameters."
)
NO_ARRAY = "[{name}] the {what} of `{path}` has to be an array, got a value of type {kind}; make one with mx.array."
OTHER_SHAPE = "[{name}] The gradient of `{path}` has shape {gradient}, the parameter {parameter}."


def entry_of(container: Any, key: str | int) -> Any:
    """The entry of a dict, list or tuple, or None.

    >>> entry_of({"a": 1}, "a"), entry_of([1], 5)
    (1, None)
    """
    if isinstance(container, dict):
        return container.get(key)
    if isinstance(container, (list, tuple)) and isinstance(key, int) and key < len(container):
        return container[key]
    return None


def check_gradients(name: str, gradients: Any, parameters: Any, path: str = "") -> None:
    """Raise unless each gradient is an array and belongs to a parameter of its shape.

    >>> check_gradients("SGD", {"w": mx.ones((2,))}, {"w": mx.zeros((2,)), "b": mx.zeros((1,))})
    """
    # Walked by hand: each update does this, and making the paths of a `Structure` takes three times as long.
    if isinstance(gradients, (dict, list, tuple)):
        for key, gradient in entries(gradients):
            check_gradients(name, gradient, entry_of(parameters, key), join_path(path, key))
        return
    if parameters is None or isinstance(parameters, (dict, list, tuple)):
        raise ValueError(NO_PARAMETER.format(name=name, path=path))
    for what, value in (("gradient", gradients), ("parameter", parameters)):
        if not isinstance(value, mx.array):
            raise TypeError(NO_ARRAY.format(name=name, what=what, path=path, kind=type(value).__name__))
    if gradients.shape != parameters.shape:
        shapes = {"gradient": gradients.shape, "parameter": parameters.shape}
        raise ValueError(OTHER_SHAPE.format(name=name, path=path, **shapes))


def check_model(name: str, model: Any, gradients: Any) -> None:
    """Raise unless `model` is a module or a dict, and the arguments are not exchanged.

    >>> check_model("SGD", nn.ReLU(), {})
    """
    if not isinstance(model, dict) or (isinstance(gradients, Module) and not isinstance(model, Module)):
        raise TypeError(
            f"[{name}] update takes the model first, then the gradients; got a {type(model).__name__} and "
            f"a {type(gradients).__name__}."
        )


def check_state(name: str, state: Any, settings: Iterable[str]) -> None:
    """Raise unless `state` is a dict that has an array for each of the settings.

    >>> check_state("SGD", {"step": mx.array(0)}, ["step"])
    """
    if not isinstance(state, dict):
        raise TypeError(f"[{name}] state has to be a dict, got a value of type {type(state).__name__}.")
    for key in settings:
        if not isinstance(state.get(key), mx.array):
            raise ValueError(
                f"[{name}] state needs an array {key!r}: it has to be what `state` of such an optimizer was, got the "
                f"keys {sorted(map(str, state))}. To start again, make a new optimizer."
            )
