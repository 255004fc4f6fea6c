"""Checks that gradients, parameters and state, which are trees, belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import weft.core as mx
from weft.errors import ArgumentTypeError
from weft.nn import Module
from weft.tree import CONTAINERS, MISSING, Structure, dotted

NO_PARAMETER = (
    "[{name}] `{path}` has a gradient but no parameter: give a tree of gradients like that of the parameters."
)
NO_ARRAY = "[{name}] the {what} of `{path}` must be an array; got a value of type {kind}: make one with mx.array."
OTHER_STATE = (
    "[{name}] The state of `{path}` {found}: it is that of other parameters. "
    "Assign a state that these parameters had, or make a new optimizer."
)
OTHER_SHAPE = "[{name}] The gradient of `{path}` has shape {gradient}, the parameter {parameter}."


def check_gradients(name: str, structure: Structure, gradients: list[Any], parameters: list[Any]) -> None:
    """Raise unless each gradient is an array and belongs to a parameter of its shape.

    structure: the tree of the gradients.
    parameters: the leaves of the tree of parameters at the positions of ``gradients``.

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
    if parameter is None or parameter is MISSING or isinstance(parameter, CONTAINERS):
        return ValueError(NO_PARAMETER.format(name=name, path=path))
    what, value = ("parameter", parameter) if isinstance(gradient, mx.array) else ("gradient", gradient)
    return TypeError(NO_ARRAY.format(name=name, what=what, path=path, kind=type(value).__name__))


def check_model(name: str, model: Any, gradients: Any) -> None:
    """Raise unless ``model`` is a module or a dict; the error says if the arguments seem to be exchanged.

    >>> check_model("SGD", nn.ReLU(), {})
    """
    if not isinstance(model, dict) or (isinstance(gradients, Module) and not isinstance(model, Module)):
        raise ArgumentTypeError(
            f"[{name}] update takes the model first, then the gradients; got a {type(model).__name__} and "
            f"a {type(gradients).__name__}."
        )


def check_state(name: str, state: Any, settings: Iterable[str]) -> None:
    """Raise unless ``state`` is a dict with an array for each of the settings.

    >>> check_state("SGD", {"step": mx.array(0)}, ["step"])
    """
    if not isinstance(state, dict):
        raise ArgumentTypeError(f"[{name}] state must be a dict; got a value of type {type(state).__name__}.")
    for key in settings:
        if not isinstance(state.get(key), mx.array):
            raise ValueError(
                f"[{name}] state needs an array {key!r}: it must be what `state` of such an optimizer was; got the "
                f"keys {sorted(map(str, state))}. To start again, make a new optimizer."
            )


def check_nesting(name: str, parameters: Any, keys: Sequence[Any], state: dict[str, Any]) -> None:
    """Raise if ``state`` is nested differently from ``parameters`` above the parameter at ``keys``, or has something
    other than a dict for it. It may have no entry.

    >>> check_nesting("SGD", {"layers": [mx.ones((2,))]}, ("layers", 0), {"step": mx.array(0)})
    """
    mine, beside = parameters, state
    for depth, key in enumerate(keys):
        is_other = not isinstance(beside, CONTAINERS) or isinstance(beside, dict) != isinstance(mine, dict)
        if is_other or (depth and isinstance(beside, dict) and _has_arrays(beside)):
            raise _other_state(name, keys[:depth], beside)
        if key not in beside if isinstance(beside, dict) else key >= len(beside):
            return
        mine, beside = mine[key], beside[key]
        if beside is None or (isinstance(beside, CONTAINERS) and not beside):
            return
    if not isinstance(beside, dict):
        raise _other_state(name, keys, beside)


def _has_arrays(state: dict[str, Any]) -> bool:
    return any(isinstance(value, mx.array) for value in state.values())


def _other_state(name: str, keys: Sequence[Any], found: Any) -> ValueError:
    is_of_one = isinstance(found, dict) and _has_arrays(found)
    what = "is a dict of arrays" if is_of_one else f"is of type {type(found).__name__}"
    return ValueError(OTHER_STATE.format(name=name, path=dotted(keys), found=what))


def misfit(shape: tuple[int, ...], fresh: dict[str, Any], state: dict[str, Any]) -> str | None:
    """What is wrong with the arrays in the state of a parameter of this shape, whose state at the start is ``fresh``.

    >>> misfit((2,), {"v": mx.zeros((2,))}, {"v": mx.zeros((3,))})
    "has a 'v' of shape (3,), but the parameter has shape (2,)"
    """
    for key, expected in fresh.items():
        found = state.get(key, MISSING)
        if found is MISSING or not isinstance(expected, mx.array):
            continue
        if not isinstance(found, mx.array):
            return f"has in {key!r} no array but something of type {type(found).__name__}"
        if expected.shape == shape != found.shape:
            return f"has a {key!r} of shape {found.shape}, but the parameter has shape {shape}"
    return None


@contextmanager
def restored_after_errors(dicts: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """If the block raises anything, the dicts get their former contents back; the block receives copies of these.

    >>> state = {"step": 1}
    >>> try:
    ...     with restored_after_errors([state]):
    ...         state["step"] = 2 / 0
    ... except ZeroDivisionError:
    ...     print(state)
    {'step': 1}
    """
    before = [dict(one) for one in dicts]
    try:
        yield before
    except BaseException:
        for one, content in zip(dicts, before, strict=True):
            one.clear()
            one.update(content)
        raise
