"""Whether the trees that an optimizer is given belong together: gradients, parameters and state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import weft.core as mx
from weft.nn import Module
from weft.nn.module_tree import dotted
from weft.tree import MISSING, Structure

NO_PARAMETER = (
    "[{name}] `{path}` has a gradient but no parameter; give a tree of gradients like that of the parameters."
)
NO_ARRAY = "[{name}] the {what} of `{path}` has to be an array, got a value of type {kind}; make one with mx.array."
OTHER_SHAPE = "[{name}] The gradient of `{path}` has shape {gradient}, the parameter {parameter}."


def check_gradients(name: str, structure: Structure, gradients: list[Any], parameters: list[Any]) -> None:
    """Raise unless each gradient is an array and belongs to a parameter of its shape.

    structure: the tree of the gradients.
    parameters: what the tree of parameters has in the positions of `gradients`.

    >>> from weft.tree import flatten
    >>> gradients, structure = flatten({"w": mx.ones((2,))})
    >>> check_gradients("SGD", structure, gradients, [mx.zeros((2,))])
    """
    for number, (gradient, parameter) in enumerate(zip(gradients, parameters, strict=True)):
        if not (isinstance(gradient, mx.array) and isinstance(parameter, mx.array)):
            raise _no_arrays(name, dotted(structure.key_paths()[number]), gradient, parameter)
        if gradient.shape != parameter.shape:
            path = dotted(structure.key_paths()[number])
            raise ValueError(
                OTHER_SHAPE.format(name=name, path=path, gradient=gradient.shape, parameter=parameter.shape)
            )


def _no_arrays(name: str, path: str, gradient: Any, parameter: Any) -> Exception:
    if parameter is None or parameter is MISSING or isinstance(parameter, (dict, list, tuple)):
        return ValueError(NO_PARAMETER.format(name=name, path=path))
    what, value = ("parameter", parameter) if isinstance(gradient, mx.array) else ("gradient", gradient)
    return TypeError(NO_ARRAY.format(name=name, what=what, path=path, kind=type(value).__name__))


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
