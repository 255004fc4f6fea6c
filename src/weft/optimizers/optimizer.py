"""`Optimizer`, which goes through the trees of parameters, gradients and state; subclasses do the arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import weft.core as mx
from weft.checks import shown
from weft.errors import ArgumentTypeError
from weft.nn import Module
from weft.optimizers.settings import check_learning_rate, scalar_setting
from weft.optimizers.trees import (
    OTHER_STATE,
    check_gradients,
    check_model,
    check_nesting,
    check_state,
    misfit,
    restored_after_errors,
)
from weft.tree import MISSING, Structure, dotted, flatten
from weft.utils import tree_merge

__all__ = ["Optimizer"]

AnySchedule = Callable[[mx.array], Any]

TAKEN_NAME = (
    "[{name}] The parameters have an entry named {key!r}, which the optimizer keeps for itself in its state; "
    "rename it, or nest it one level deeper."
)
NOT_IN_STATE = (
    "[{name}] The state of `{path}` has no {key!r}: it is that of another kind of optimizer. "
    "Assign a state that this kind had, or make a new optimizer."
)


class Optimizer:
    """The base class of optimizers.

    A subclass defines `init_single` and `apply_single`, which handle one parameter. It may extend `init`, which is
    called by the first update, and by the first update after `state` was assigned. Everything that changes is in
    `state`, a dict that stays the same object: `step` (a count), `learning_rate`, other scheduled settings, and for
    each parameter a dict, in a tree like that of the parameters. So an optimizer works inside ``mx.compile(step,
    inputs=state, outputs=state)`` with ``state = [model.state, optimizer.state]``.

    Args:
        schedulers: functions of the step, by the name of the entry of `state` that each sets.

    >>> class SignDescent(optim.Optimizer):
    ...     def init_single(self, parameter, state):
    ...         pass
    ...     def apply_single(self, gradient, parameter, state):
    ...         return parameter - 0.25 * mx.sign(gradient)
    >>> SignDescent().apply_gradients({"w": mx.array([3.0, -4.0])}, {"w": mx.array([1.0, 1.0])})
    {'w': array([0.75, 1.25], dtype=float32)}
    """

    def __init__(self, schedulers: Mapping[str, AnySchedule] | None = None) -> None:
        if schedulers is not None and not isinstance(schedulers, Mapping):
            raise ArgumentTypeError(f"[{_name(self)}] schedulers must be a dict of functions; got {shown(schedulers)}.")
        self._schedulers: dict[str, AnySchedule] = dict(schedulers or {})
        for name, schedule in self._schedulers.items():
            if not callable(schedule):
                raise ArgumentTypeError(
                    f"[{_name(self)}] the schedule of {name} must be a function of the step; got {shown(schedule)}."
                )
        self._state: dict[str, Any] = {"step": mx.array(0, mx.uint64)}
        self._initialized = False  # whether `init` was called for this state; subclasses read and set it

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """Fill ``state``, an empty dict, with the arrays that the method needs for one parameter."""
        raise NotImplementedError(f"{_name(self)} must define init_single(parameter, state).")

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """The new value of one parameter. ``state`` was filled by `init_single`, and may be changed."""
        raise NotImplementedError(f"{_name(self)} must define apply_single(gradient, parameter, state).")

    def _maybe_schedule(self, name: str, param: float | mx.array | AnySchedule) -> None:
        """Set ``state[name]`` to an array: a constant, or the value of a function of the step."""
        if callable(param):
            self._schedulers[name] = param
            param = param(self.step)
        self._state[name] = self._setting(name, param)

    def _setting(self, name: str, value: Any) -> mx.array:
        """The array in ``state[name]``. Settings other than the learning rate may have axes."""
        if isinstance(value, mx.array) and name != "learning_rate":
            return value
        return scalar_setting(_name(self), name, value)

    def init(self, parameters: dict[str, Any]) -> None:
        """Prepare the state for a tree of parameters; existing entries are not changed.

        An update does the same for parameters that are new to it. Call this before a compiled training step that has
        the state among its inputs: otherwise the step is traced again because the state has grown.

        Args:
            parameters: a dict of arrays (and containers of them), such as ``model.trainable_parameters()``. An entry
                with the name of an entry of the state, such as `step`, raises ``ValueError``.

        >>> optimizer = optim.SGD(learning_rate=0.5, momentum=0.9)
        >>> optimizer.init({"w": mx.array([1.0, 2.0])})
        >>> optimizer.state["w"]
        {'v': array([0, 0], dtype=float32)}
        """
        if not isinstance(parameters, dict):
            raise ValueError(f"[{_name(self)}] init takes a dict of parameters; got {type(parameters).__name__}.")
        self._states(parameters, *flatten(parameters))
        self._initialized = True

    def update(self, model: Module, gradients: dict[str, Any]) -> None:
        """Apply gradients to the parameters of a model, in place.

        Args:
            model: the model whose parameters change.
            gradients: a tree like that of its parameters, or a part of it, as `nn.value_and_grad` returns it.

        Raises:
            ValueError: the trees or shapes do not fit. Then nothing is changed.

        >>> model = nn.LayerNorm(2)
        >>> optim.SGD(learning_rate=0.5).update(model, {"bias": mx.array([1.0, 2.0])})
        >>> model.bias
        array([-0.5, -1], dtype=float32)
        """
        check_model(_name(self), model, gradients)
        model.update(self.apply_gradients(gradients, model))

    def apply_gradients(self, gradients: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
        """The parameters after one step. They are returned; those of ``parameters`` are not replaced.

        Args:
            gradients: a tree like that of the parameters, or a part of it.
            parameters: a tree of arrays, or a module.

        Returns:
            A tree like ``gradients``.

        Raises:
            ValueError: the trees or shapes do not fit, or the state belongs to other parameters.
            TypeError: a leaf is no array.

        After an error the state is unchanged, except for what `init` has added for new parameters.

        >>> optim.SGD(learning_rate=0.5).apply_gradients({"w": mx.array([2.0])}, {"w": mx.array([1.0])})
        {'w': array([0], dtype=float32)}
        """
        if not isinstance(gradients, dict):
            raise ValueError(f"[{_name(self)}] takes a dict of gradients; got {type(gradients).__name__}.")
        leaves, structure = flatten(gradients)
        current = structure.leaves_beside(parameters)
        check_gradients(_name(self), structure, leaves, current)
        if not self._initialized:
            self.init(gradients)  # which a subclass may have extended
        states = self._states(gradients, leaves, structure)
        with restored_after_errors([self._state, *states]) as (_, *before):
            for name, schedule in self._schedulers.items():
                self._state[name] = self._setting(name, schedule(self.step))
            self._state["step"] = self.step + 1
            updated: dict[str, Any] = structure.unflatten(
                [
                    self._applied(structure, number, *one)
                    for number, one in enumerate(zip(leaves, current, states, before, strict=True))
                ]
            )
        return updated

    @property
    def state(self) -> dict[str, Any]:
        """All arrays that change from step to step: give it to `mx.compile`, save it, restore it.

        Assigning a dict (one that was the state of such an optimizer) makes it the state. One that lacks `step` or a
        setting such as `learning_rate` raises ``ValueError``: to start again, make a new optimizer.

        >>> optim.SGD(learning_rate=0.5).state
        {'step': array(0, dtype=uint64), 'learning_rate': array(0.5, dtype=float32)}
        """
        return self._state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        settings = [name for name, value in self._state.items() if isinstance(value, mx.array)]
        check_state(_name(self), state, settings)
        self._state = state
        self._initialized = False

    @property
    def step(self) -> mx.array:
        """The number of steps so far, a scalar array."""
        step: mx.array = self._state["step"]
        return step

    @property
    def learning_rate(self) -> mx.array:
        """The learning rate, a scalar array; assign a number, at least 0, or a scalar array to change it.

        What a schedule sets is set again by the schedule at the next step.

        >>> optimizer = optim.SGD(learning_rate=0.5)
        >>> optimizer.learning_rate = 0.25
        >>> optimizer.learning_rate
        array(0.25, dtype=float32)
        """
        learning_rate: mx.array = self._state["learning_rate"]
        return learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: float | mx.array) -> None:
        check_learning_rate(_name(self), learning_rate)
        self._state["learning_rate"] = scalar_setting(_name(self), "learning_rate", learning_rate)

    def _applied(
        self,
        structure: Structure,
        number: int,
        gradient: mx.array,
        parameter: mx.array,
        state: dict[str, Any],
        before: dict[str, Any],
    ) -> mx.array:
        """What `apply_single` makes of a parameter, the leaf with this number in the structure of the gradients."""
        try:
            updated = self.apply_single(gradient, parameter, state)
        except Exception as error:
            path = dotted(structure.key_paths()[number])
            if reason := self._misfit(path, parameter, before, isinstance(error, KeyError)):
                raise ValueError(reason) from error
            error.add_note(f"This happened in the step of {_name(self)} for the parameter `{path}`.")
            raise
        if _was_broadcast(parameter.shape, updated, before, state):
            reason = self._misfit(dotted(structure.key_paths()[number]), parameter, before, False)
            if reason:
                raise ValueError(reason)
        return updated

    def _misfit(self, path: str, parameter: mx.array, state: dict[str, Any], is_key_error: bool) -> str | None:
        """What is wrong with the state of a parameter: it is that of another kind of optimizer, or of other
        parameters."""
        fresh = self._initial(parameter)
        missing = [key for key in fresh if key not in state]
        if is_key_error and missing:
            return NOT_IN_STATE.format(name=_name(self), path=path, key=missing[0])
        found = misfit(parameter.shape, fresh, state)
        return None if found is None else OTHER_STATE.format(name=_name(self), path=path, found=found)

    def _states(self, parameters: dict[str, Any], leaves: list[Any], structure: Structure) -> list[dict[str, Any]]:
        """The states of parameters, the leaves of a tree with this structure; what the state lacks is added to it."""
        for key in parameters:
            if isinstance(self._state.get(key), mx.array):
                raise ValueError(TAKEN_NAME.format(name=_name(self), key=key))
        states = structure.leaves_beside(self._state)
        if all(isinstance(state, dict) and state for state in states):
            return states
        if not all(isinstance(state, dict) for state in states):
            for keys in structure.key_paths():
                check_nesting(_name(self), parameters, keys, self._state)
        full = [state or self._initial(leaf) for leaf, state in zip(leaves, states, strict=True)]
        if any(state is not new and (state is MISSING or new) for state, new in zip(states, full, strict=True)):
            # Where both have something, it is the same.
            merged = tree_merge(self._state, structure.unflatten(full), lambda old, new: new)
            values, whole = flatten(merged)
            whole.unflatten_into(self._state, values)
        return structure.leaves_beside(self._state)

    def _initial(self, parameter: Any) -> dict[str, Any]:
        if not isinstance(parameter, mx.array):
            raise ArgumentTypeError(
                f"[{_name(self)}] parameters must be arrays; got a value of type {type(parameter).__name__}."
            )
        state: dict[str, Any] = {}
        self.init_single(parameter, state)
        return state


def _was_broadcast(shape: tuple[int, ...], updated: Any, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether a parameter lost its shape, or an array in its state had another one and got that of the parameter."""
    if _shape_of(updated) != shape:
        return True
    for key, value in before.items():
        if _shape_of(value) not in (None, shape) and _shape_of(after.get(key)) == shape:
            return True
    return False


def _shape_of(value: Any) -> tuple[int, ...] | None:
    return value.shape if isinstance(value, mx.array) else None


def _name(optimizer: Optimizer) -> str:
    return type(optimizer).__name__
