"""Several optimizers for one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weft.core as mx
from weft.checks import function_of, shown
from weft.errors import ArgumentTypeError
from weft.optimizers.optimizer import Optimizer
from weft.optimizers.settings import listed
from weft.tree import dotted, flatten
from weft.utils import tree_merge, tree_unflatten

__all__ = ["MultiOptimizer"]

Filter = Callable[[str, mx.array], bool]


class MultiOptimizer(Optimizer):
    """An optimizer that passes each parameter to one of several other optimizers.

    Args:
        optimizers: the other optimizers.
        filters: functions of the path of a parameter (``"layers.0.weight"``) and the parameter, one for each optimizer
            except the last. The first that returns True selects its optimizer; if none does, the last optimizer is
            used.

    Raises:
        ValueError: the number of filters is not one less than that of optimizers.

    >>> optimizer = optim.MultiOptimizer(
    ...     [optim.SGD(learning_rate=0.5), optim.SGD(learning_rate=0.25)], [lambda path, weight: path == "w"]
    ... )
    >>> parameters = {"w": mx.array([1.0]), "b": mx.array([1.0])}
    >>> optimizer.apply_gradients({"w": mx.array([1.0]), "b": mx.array([1.0])}, parameters)
    {'w': array([0.5], dtype=float32), 'b': array([0.75], dtype=float32)}
    """

    def __init__(self, optimizers: Sequence[Optimizer], filters: Sequence[Filter] = ()) -> None:
        super().__init__()
        optimizers = listed("MultiOptimizer", "optimizers", optimizers)
        filters = listed("MultiOptimizer", "filters", filters)
        for optimizer in optimizers:
            if not isinstance(optimizer, Optimizer):
                raise ArgumentTypeError(f"[MultiOptimizer] takes optimizers; got {shown(optimizer)}.")
        if len(filters) != len(optimizers) - 1:
            raise ValueError(
                f"[MultiOptimizer] {len(optimizers)} optimizers need {len(optimizers) - 1} filters; got {len(filters)}."
            )
        self.optimizers = optimizers
        self.filters = [function_of("MultiOptimizer", "each filter", one) for one in filters]
        self._state = {"states": [optimizer.state for optimizer in self.optimizers]}

    def init(self, parameters: dict[str, Any]) -> None:
        """Prepare the states of all optimizers; see `Optimizer.init`.

        Args:
            parameters: a dict of arrays (and containers of them), such as ``model.trainable_parameters()``.

        >>> optimizer = optim.MultiOptimizer([optim.Adam(0.1), optim.SGD(0.1)], [lambda path, weight: weight.ndim > 1])
        >>> optimizer.init({"w": mx.ones((2, 2)), "b": mx.ones(2)})
        >>> [list(state) for state in optimizer.state["states"]]
        [['step', 'learning_rate', 'w'], ['step', 'learning_rate', 'b']]
        """
        for optimizer, part in zip(self.optimizers, self._parts(parameters, parameters), strict=True):
            optimizer.init(part)

    def apply_gradients(self, gradients: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
        """The parameters after one step; see `Optimizer.apply_gradients`.

        Args:
            gradients: a tree like that of the parameters, or a part of it.
            parameters: a tree of arrays; a module, too.

        >>> optimizer = optim.MultiOptimizer([optim.SGD(learning_rate=0.5)])
        >>> optimizer.apply_gradients({"w": mx.array([2.0])}, {"w": mx.array([1.0])})
        {'w': array([0], dtype=float32)}
        """
        updated: dict[str, Any] = {}
        for optimizer, part in zip(self.optimizers, self._parts(gradients, parameters), strict=True):
            if part:
                updated = tree_merge(updated, optimizer.apply_gradients(part, parameters))
        return updated

    def _parts(self, tree: dict[str, Any], parameters: dict[str, Any]) -> list[dict[str, Any]]:
        """The parts of a tree that belong to each optimizer."""
        leaves, structure = flatten(tree)
        parts: list[list[tuple[str, Any]]] = [[] for _ in self.optimizers]
        for keys, leaf, parameter in zip(
            structure.key_paths(), leaves, structure.leaves_beside(parameters), strict=True
        ):
            path = dotted(keys)
            chosen = (number for number, wants in enumerate(self.filters) if wants(path, parameter))
            parts[next(chosen, len(self.filters))].append((path, leaf))
        return [tree_unflatten(part) if part else {} for part in parts]

    @property
    def state(self) -> dict[str, Any]:
        """The states of all optimizers, in a list under the name ``states``.

        >>> optim.MultiOptimizer([optim.SGD(learning_rate=0.5)]).state
        {'states': [{'step': array(0, dtype=uint64), 'learning_rate': array(0.5, dtype=float32)}]}
        """
        return self._state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        states = state.get("states") if isinstance(state, dict) else None
        if not isinstance(states, list) or len(states) != len(self.optimizers):
            raise ValueError(
                f"[MultiOptimizer] the state must be {{'states': [...]}} with {len(self.optimizers)} states."
            )
        for optimizer, one in zip(self.optimizers, states, strict=True):
            optimizer.state = one
        self._state = state

    @property
    def step(self) -> mx.array:
        """The number of steps of the first optimizer so far."""
        return self.optimizers[0].step

    @property
    def learning_rate(self) -> mx.array:
        """The learning rate of the first optimizer; assigning one sets it for all."""
        return self.optimizers[0].learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: float | mx.array) -> None:
        for optimizer in self.optimizers:
            optimizer.learning_rate = learning_rate
