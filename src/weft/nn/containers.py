"""Layers that pass their input on unchanged, to other layers or as the output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.checks import shortened
from weft.errors import ArgumentTypeError
from weft.nn.module import Module

__all__ = ["Identity", "Sequential"]


class Sequential(Module):
    """Calls its modules (or plain functions) one after the other, each with the result of the previous one.

    Args:
        modules: stored as the list ``layers``; one that cannot be called raises ``TypeError``.

    >>> model = nn.Sequential(nn.Linear(2, 3), mx.tanh, nn.Linear(3, 1))
    >>> model(mx.zeros((5, 2))).shape
    (5, 1)
    """

    def __init__(self, *modules: Module | Callable[[Any], Any]) -> None:
        super().__init__()
        for position, module in enumerate(modules):
            _check_callable(position, module)
        self.layers: list[Any] = list(modules)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class Identity(Module):
    """Returns its input, and ignores all arguments of its constructor.

    >>> nn.Identity(3, bias=True)(mx.array([1.0, 2.0]))
    array([1, 2], dtype=float32)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __call__(self, x: Any) -> Any:
        return x


def _check_callable(position: int, module: Any) -> None:
    if not callable(module):
        remedy = " Pass them one by one: Sequential(*modules)." if isinstance(module, (list, tuple)) else ""
        raise ArgumentTypeError(f"[Sequential] module {position} cannot be called: {shortened(module)}.{remedy}")
