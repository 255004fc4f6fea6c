"""Summaries of models: their modules, parameters and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import weft.core as mx
from weft.errors import ArgumentTypeError
from weft.inspection.paged import Paged
from weft.inspection.text import number_of, shortened, size_text, table
from weft.nn.module import Module
from weft.tree import join_path
from weft.utils import tree_flatten

__all__ = ["summary"]


class Layer(NamedTuple):
    """A module of a model: its path, its depth, its text, and the sizes of all parameters in it and in the modules
    inside it."""

    path: str
    depth: int
    text: str
    parameters: int
    trainable: int
    bytes: int


@dataclass(frozen=True, repr=False)
class Summary(Paged):
    """The result of ``nn.summary``. ``print`` shows a table, and ``html(file)`` writes a page for a browser.

    ``layers`` lists all modules, the model itself first. An array that occurs several times is counted once in each
    module, and once in the model.
    """

    function = "summary"
    layers: Sequence[Layer]

    @property
    def parameters(self) -> int:
        """The number of elements of all parameters of the model.

        >>> nn.summary(nn.Linear(2, 3)).parameters
        9
        """
        return self.layers[0].parameters

    @property
    def trainable(self) -> int:
        """The number of elements of parameters that are not frozen.

        >>> nn.summary(nn.Linear(2, 3).freeze(keys="bias")).trainable
        6
        """
        return self.layers[0].trainable

    @property
    def bytes(self) -> int:
        """The bytes of all parameters.

        >>> nn.summary(nn.Linear(2, 3)).bytes
        36
        """
        return self.layers[0].bytes

    def __str__(self) -> str:
        rows = [(f"{layer.parameters:,}", size_text(layer.bytes), _indented(layer)) for layer in self.layers]
        lines = table(("parameters", "memory", "module"), rows, left=1)
        lines.append(self._total())
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _total(self) -> str:
        frozen = self.parameters - self.trainable
        note = f", {frozen:,} of them frozen" if frozen else ""
        return f"{number_of(self.parameters, 'parameter')}{note}: {size_text(self.bytes)}"

    def _page_data(self) -> dict[str, Any]:
        from weft.inspection.pages.tables import column, detail, table_view

        layers = self.layers
        columns = [
            column("parameters", [layer.parameters for layer in layers], lambda count: f"{count:,}", bar=True),
            column("trainable", [layer.trainable for layer in layers], lambda count: f"{count:,}"),
            column("memory", [layer.bytes for layer in layers], size_text, bar=True),
            column("module", None, texts=[_indented(layer) for layer in layers]),
        ]
        return {
            "title": layers[0].text,
            "facts": [("in all", self._total()), ("modules", f"{len(layers):,}")],
            "details": [detail(layer.path or layer.text, _facts(layer)) for layer in layers],
            "views": [table_view("Modules", columns, range(len(layers)))],
        }


def summary(model: Module) -> Summary:
    """The modules of a model, with the number of their parameters and the memory that these take.

    Args:
        model: a module.

    Returns:
        An object with ``layers``, ``parameters``, ``trainable`` and ``bytes``, which prints as a table.

    Raises:
        TypeError: ``model`` is no module.

    >>> print(nn.summary(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1).freeze())))
    parameters  memory  module
            13    52 B  Sequential
             9    36 B    layers.0: Linear(input_dims=2, output_dims=3, bias=True)
             0     0 B    layers.1: ReLU()
             4    16 B    layers.2: Linear(input_dims=3, output_dims=1, bias=True)
    13 parameters, 4 of them frozen: 52 B
    """
    if not isinstance(model, Module):
        raise ArgumentTypeError(f"[summary] takes a Module; got {type(model).__name__}.")
    layers: list[Layer] = []
    waiting: list[tuple[int, str, Module]] = [(0, "", model)]
    while waiting:
        depth, path, module = waiting.pop()
        children = tree_flatten(module.children(), is_leaf=Module.is_module)
        text = type(module).__name__ if children else repr(module).partition("\n")[0]
        arrays, trained = _distinct(module.parameters()), _distinct(module.trainable_parameters())
        layers.append(
            Layer(
                path,
                depth,
                text,
                sum(array.size for array in arrays),
                sum(array.size for array in trained),
                sum(array.nbytes for array in arrays),
            )
        )
        waiting += [(depth + 1, join_path(path, key), child) for key, child in reversed(children)]
    return Summary(layers)


def _distinct(parameters: Any) -> list[mx.array]:
    """The arrays of a tree, each once."""
    return list({id(array): array for _, array in tree_flatten(parameters) if isinstance(array, mx.array)}.values())


def _indented(layer: Layer) -> str:
    name = f"{layer.path}: " if layer.path else ""
    return "  " * layer.depth + name + shortened(layer.text, 100)


def _facts(layer: Layer) -> list[tuple[str, str]]:
    return [
        ("module", layer.text),
        ("parameters", f"{layer.parameters:,}"),
        ("trainable", f"{layer.trainable:,}"),
        ("memory", size_text(layer.bytes)),
    ]
