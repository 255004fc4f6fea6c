"""`Optimizer`, which walks the trees of parameters, gradients and state; subclasses do the arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

import weft.core as mx
from weft.nn import Module

Schedule = Callable[[mx.array], Any]

NO_PARAMETER = "`{path}` has a gradient but no parameter; give a tree of gradients like that of the parameters."
TAKEN_NAME = (
    "The parameters have an entry named {key!r}, which the optimizer keeps for itself in its state; "
    "rename it, or nest it one level deeper."
)
OTHER_SHAPE = "The gradient of `{path}` has shape {gradient}, the parameter {parameter}."


class Optimizer:
    """The base class of optimizers.

    A subclass writes `init_single` and `apply_single`, which deal with one parameter. All that changes is
    in `state`, a dict that keeps its identity: `step` (a count), `learning_rate`, what schedules give, and for
    each parameter a dict, in a tree like that of the parameters. So an optimizer works inside
    `mx.compile(step, inputs=state, outputs=state)` with `state = [model.state, optimizer.state]`.

    schedulers: functions of the step, by the names of the entries of `state` that they set.

    >>> class SignDescent(optim.Optimizer):
    ...     def init_single(self, parameter, state):
    ...         pass
    ...     def apply_single(self, gradient, parameter, state):
    ...         return parameter - 0.25 * mx.sign(gradient)
    >>> SignDescent().apply_gradients({"w": mx.array([3.0, -4.0])}, {"w": mx.array([1.0, 1.0])})
    {'w': array([0.75, 1.25], dtype=float32)}
    """

    def __init__(self, schedulers: Mapping[str, Schedule] | None = None) -> None:
        self._schedulers: dict[str, Schedule] = dict(schedulers or {})
        self._state: dict[str, Any] = {"step": mx.array(0, mx.uint64)}

    # For subclasses.

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """Put into `state`, an empty dict, what the method keeps about one parameter."""
        raise NotImplementedError(f"{type(self).__name__} has to define init_single(parameter, state).")

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """The new value of one parameter; `state` is what `init_single` filled, and may be changed."""
        raise NotImplementedError(f"{type(self).__name__} has to define apply_single(gradient, parameter, state).")

    def _maybe_schedule(self, name: str, param: float | mx.array | Schedule) -> None:
        """Make `state[name]` an array: a fixed one, or the value of a function of the step."""
        if callable(param):
            self._schedulers[name] = param
            self._state[name] = _as_array(param(self.step))
        else:
            self._state[name] = _as_array(param)

    # For users.

    def init(self, parameters: dict[str, Any]) -> None:
        """Prepare the state for a tree of parameters; what is already there stays.

        An update does the same for parameters that it meets for the first time. But call it before a compiled
        training step that has the state among its inputs: the step is traced again when the state has grown.

        parameters: a dict of arrays (and containers of them), such as `model.trainable_parameters()`. An entry with
            the name of something that the optimizer keeps, such as `step`, raises `ValueError`.

        >>> optimizer = optim.SGD(learning_rate=0.5, momentum=0.9)
        >>> optimizer.init({"w": mx.array([1.0, 2.0])})
        >>> optimizer.state["w"]
        {'v': array([0, 0], dtype=float32)}
        """
        for key, value in parameters.items():
            existing = self._state.get(key)
            if isinstance(existing, mx.array):
                raise ValueError(TAKEN_NAME.format(key=key))
            self._state[key] = self._fill(value, existing)

    def update(self, model: Module, gradients: dict[str, Any]) -> None:
        """Apply gradients to the parameters of a model, in place.

        model: the model whose parameters change.
        gradients: a tree like that of its parameters, or a part of it, as `nn.value_and_grad` returns it.

        Raises `ValueError` where the trees or shapes do not fit, and then changes nothing.

        >>> model = nn.LayerNorm(2)
        >>> optim.SGD(learning_rate=0.5).update(model, {"bias": mx.array([1.0, 2.0])})
        >>> model.bias
        array([-0.5, -1], dtype=float32)
        """
        model.update(self.apply_gradients(gradients, model))

    def apply_gradients(self, gradients: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
        """The parameters after one step, and nothing else: they are returned, not replaced.

        gradients: a tree like that of the parameters, or a part of it.
        parameters: a tree of arrays; a module, too.

        Returns a tree like `gradients`, with lists for tuples. Raises `ValueError` where the trees or shapes do not
        fit, and then the state stays as it was.

        >>> optim.SGD(learning_rate=0.5).apply_gradients({"w": mx.array([2.0])}, {"w": mx.array([1.0])})
        {'w': array([0], dtype=float32)}
        """
        if not isinstance(gradients, dict):
            raise ValueError(f"An optimizer takes a dict of gradients, got {type(gradients).__name__}.")
        _check_gradients(gradients, parameters, "")
        self.init(gradients)
        for name, schedule in self._schedulers.items():
            self._state[name] = _as_array(schedule(self.step))
        self._state["step"] = self.step + 1
        updated: dict[str, Any] = self._apply(gradients, parameters, self._state)
        return updated

    @property
    def state(self) -> dict[str, Any]:
        """All arrays that change from step to step: give it to `mx.compile`, save it, restore it.

        Assigning a dict (one that was the state of such an optimizer) makes it the state.

        >>> optim.SGD(learning_rate=0.5).state
        {'step': array(0, dtype=uint64), 'learning_rate': array(0.5, dtype=float32)}
        """
        return self._state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._state = state

    @property
    def step(self) -> mx.array:
        """The number of steps so far, a scalar array."""
        step: mx.array = self._state["step"]
        return step

    @property
    def learning_rate(self) -> mx.array:
        """The learning rate, a scalar array; assign a number or a scalar array to change it.

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
        self._state["learning_rate"] = _as_array(learning_rate)

    def _apply(self, gradients: Any, parameters: Any, state: Any) -> Any:
        if isinstance(gradients, dict):
            return {
                key: self._apply(gradient, _entry(parameters, key), _entry(state, key))
                for key, gradient in gradients.items()
            }
        if isinstance(gradients, (list, tuple)):
            return [
                self._apply(gradient, _entry(parameters, index), _entry(state, index))
                for index, gradient in enumerate(gradients)
            ]
        return self.apply_single(gradients, parameters, state)

    def _fill(self, parameters: Any, existing: Any) -> Any:
        """A tree of per-parameter dicts for a tree of parameters: `existing`, with what it lacks added in place."""
        if isinstance(parameters, dict):
            entries = existing if isinstance(existing, dict) else {}
            for key, parameter in parameters.items():
                entries[key] = self._fill(parameter, entries.get(key))
            return entries
        if isinstance(parameters, (list, tuple)):
            known = existing if isinstance(existing, (list, tuple)) else []
            filled = [self._fill(*pair) for pair in zip_longest(parameters, known[: len(parameters)])]
            return [*filled, *known[len(filled) :]]
        if existing:
            return existing
        state: dict[str, Any] = {}
        self.init_single(parameters, state)
        return state


def _as_array(value: float | mx.array) -> mx.array:
    return value if isinstance(value, mx.array) else mx.array(value, mx.float32)


def _entry(container: Any, key: str | int) -> Any:
    """The entry of a dict, list or tuple, or None."""
    if isinstance(container, dict):
        return container.get(key)
    if isinstance(container, (list, tuple)) and isinstance(key, int) and key < len(container):
        return container[key]
    return None


def _check_gradients(gradients: Any, parameters: Any, path: str) -> None:
    """Raise `ValueError` unless each gradient belongs to a parameter of its shape."""
    if isinstance(gradients, (dict, list, tuple)):
        for key, gradient in gradients.items() if isinstance(gradients, dict) else enumerate(gradients):
            _check_gradients(gradient, _entry(parameters, key), f"{path}.{key}" if path else str(key))
        return
    if not isinstance(parameters, mx.array):
        raise ValueError(NO_PARAMETER.format(path=path))
    if gradients.shape != parameters.shape:
        raise ValueError(OTHER_SHAPE.format(path=path, gradient=gradients.shape, parameter=parameters.shape))
