"""Recurrent layers: a state that is updated in each step of a sequence."""

from __future__ import annotations

import math
from collections.abc import Callable

import weft.core as mx
from weft.checks import shown
from weft.nn.activations import tanh
from weft.nn.checks import array_input, array_of, size_of
from weft.nn.module import Module

__all__ = ["GRU", "LSTM", "RNN"]

States = tuple[mx.array | None, ...]


class _Recurrent(Module):
    """The base of recurrent layers: sizes, the product with the inputs of all steps, and the loop over the steps."""

    hidden_size: int

    def _set_sizes(self, input_size: int, hidden_size: int) -> tuple[int, int]:
        name = type(self).__name__
        self.hidden_size = size_of(name, "hidden_size", hidden_size, least=1)
        return size_of(name, "input_size", input_size, least=0), self.hidden_size

    def _uniform(self, *shape: int) -> mx.array:
        bound = 1 / math.sqrt(self.hidden_size)
        return mx.random.uniform(-bound, bound, shape)

    def _walk(
        self,
        step: Callable[..., tuple[mx.array, ...]],
        inputs: tuple[mx.array, mx.array, mx.array | None],
        states: dict[str, mx.array | None],
    ) -> tuple[mx.array, ...]:
        """The states after each step, along the last axis but one.

        Args:
            step: called with ``x @ weight.T + bias`` of a step and the states before it; returns the states after it.
            inputs: x, weight and bias.
            states: the states before the first step, by the names of the arguments; None for zeros.
        """
        x, weight, bias = array_input(self, inputs[0]), *inputs[1:]
        if x.ndim < 2 or x.shape[-1] != weight.shape[1]:
            raise ValueError(
                f"[{self!r}] the input must have the shape (..., length, {weight.shape[1]}); got {x.shape}."
            )
        projected = x @ weight.T if bias is None else mx.addmm(bias, x, weight.T)
        batch, current = self._beginning(x.shape[:-2], states)
        if x.shape[-2] == 0:
            return tuple(mx.zeros((*batch, 0, self.hidden_size), projected.dtype) for _ in states)
        found: list[tuple[mx.array, ...]] = []
        for of_step in [projected[..., number, :] for number in range(x.shape[-2])]:
            after = step(of_step, *current)
            found.append(after)
            current = after
        return tuple(mx.stack(list(arrays), axis=-2) for arrays in zip(*found, strict=True))

    def _beginning(self, batch: tuple[int, ...], states: dict[str, mx.array | None]) -> tuple[tuple[int, ...], States]:
        """The axes before that of the steps, broadcast from inputs and states; and the states with these axes."""
        given = {name: array_of(repr(self), name, state) for name, state in states.items() if state is not None}
        for name, state in given.items():
            if state.shape[-1:] != (self.hidden_size,):
                expected = f"(..., {self.hidden_size})"
                raise ValueError(f"[{self!r}] {name} must have the shape {expected}; got {state.shape}.")
            try:
                batch = mx.broadcast_shapes(batch, state.shape[:-1])
            except ValueError:
                message = f"{name} of shape {state.shape} does not broadcast with a batch of shape {batch}."
                raise ValueError(f"[{self!r}] {message}") from None
        shape = (*batch, self.hidden_size)
        return batch, tuple(mx.broadcast_to(given[name], shape) if name in given else None for name in states)


class RNN(_Recurrent):
    """A recurrent layer whose state is also its output (Elman, "Finding structure in time", 1990).

    ::

        h[t] = tanh(Wx @ x[t] + Wh @ h[t-1] + b)

    Args:
        input_size: number of input features.
        hidden_size: size of the state.
        bias: whether there is a bias.
        nonlinearity: in place of the hyperbolic tangent.

    Called with a sequence ``x`` of shape ``(..., length, input_size)``, and optionally the state ``hidden`` before the
    first step, of shape ``(..., hidden_size)`` (zeros by default), it returns the states after all steps,
    ``(..., length, hidden_size)``. All initial parameters are uniform between plus and minus ``1 / sqrt(hidden_size)``.

    Raises:
        ValueError: when called, if a shape does not fit.

    >>> layer = nn.RNN(3, 5)
    >>> layer(mx.zeros((2, 7, 3))).shape
    (2, 7, 5)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Callable[[mx.array], mx.array] | None = None,
    ) -> None:
        super().__init__()
        self.nonlinearity = tanh if nonlinearity is None else nonlinearity
        if not callable(self.nonlinearity):
            raise ValueError(f"[RNN] nonlinearity must be a function; got {shown(nonlinearity)}.")
        features, size = self._set_sizes(input_size, hidden_size)
        self.Wxh = self._uniform(size, features)
        self.Whh = self._uniform(size, size)
        self.bias = self._uniform(size) if bias else None

    def _extra_repr(self) -> str:
        sizes = f"input_dims={self['Wxh'].shape[1]}, hidden_size={self.hidden_size}"
        function = getattr(self.nonlinearity, "__name__", self.nonlinearity)
        return f"{sizes}, nonlinearity={function}, bias={'bias' in self}"

    def __call__(self, x: mx.array, hidden: mx.array | None = None) -> mx.array:
        (states,) = self._walk(self._step, (x, self["Wxh"], self.get("bias")), {"hidden": hidden})
        return states

    def _step(self, projected: mx.array, hidden: mx.array | None) -> tuple[mx.array]:
        if hidden is not None:
            projected = mx.addmm(projected, hidden, self["Whh"].T)
        return (self.nonlinearity(projected),)


class GRU(_Recurrent):
    """Gated recurrent units (Cho et al., arXiv:1406.1078).

    ::

        r[t] = sigmoid(Wxr @ x[t] + Whr @ h[t-1] + br)
        z[t] = sigmoid(Wxz @ x[t] + Whz @ h[t-1] + bz)
        n[t] = tanh(Wxn @ x[t] + bn + r[t] * (Whn @ h[t-1] + bhn))
        h[t] = (1 - z[t]) * n[t] + z[t] * h[t-1]

    Args:
        input_size: number of input features.
        hidden_size: size of the state.
        bias: whether there are biases.

    Called with a sequence ``x`` of shape ``(..., length, input_size)``, and optionally the state ``hidden`` before the
    first step, of shape ``(..., hidden_size)`` (zeros by default), it returns the states after all steps,
    ``(..., length, hidden_size)``. ``Wx``, ``Wh`` and ``b`` hold the weights of r, z and n one below the other; all
    parameters are initially uniform between plus and minus ``1 / sqrt(hidden_size)``.

    Raises:
        ValueError: when called, if a shape does not fit.

    >>> layer = nn.GRU(3, 5)
    >>> layer.Wx.shape, layer(mx.zeros((2, 7, 3))).shape
    ((15, 3), (2, 7, 5))
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        features, size = self._set_sizes(input_size, hidden_size)
        self.Wx = self._uniform(3 * size, features)
        self.Wh = self._uniform(3 * size, size)
        self.b = self._uniform(3 * size) if bias else None
        self.bhn = self._uniform(size) if bias else None

    def _extra_repr(self) -> str:
        return f"input_dims={self['Wx'].shape[1]}, hidden_size={self.hidden_size}, bias={'b' in self}"

    def __call__(self, x: mx.array, hidden: mx.array | None = None) -> mx.array:
        (states,) = self._walk(self._step, (x, self["Wx"], self.get("b")), {"hidden": hidden})
        return states

    def _step(self, projected: mx.array, hidden: mx.array | None) -> tuple[mx.array]:
        reset, update, new = mx.split(projected, 3, axis=-1)
        bias = self.get("bhn")
        if hidden is None:
            new = new if bias is None else new + mx.sigmoid(reset) * bias
            return ((1 - mx.sigmoid(update)) * mx.tanh(new),)
        of_reset, of_update, of_new = mx.split(hidden @ self["Wh"].T, 3, axis=-1)
        of_new = of_new if bias is None else of_new + bias
        update = mx.sigmoid(update + of_update)
        new = mx.tanh(new + mx.sigmoid(reset + of_reset) * of_new)
        return ((1 - update) * new + update * hidden,)


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997) with forget gates (Gers et al., 2000).

    ::

        i[t] = sigmoid(Wxi @ x[t] + Whi @ h[t-1] + bi)
        f[t] = sigmoid(Wxf @ x[t] + Whf @ h[t-1] + bf)
        g[t] = tanh(Wxg @ x[t] + Whg @ h[t-1] + bg)
        o[t] = sigmoid(Wxo @ x[t] + Who @ h[t-1] + bo)
        c[t] = f[t] * c[t-1] + i[t] * g[t]
        h[t] = o[t] * tanh(c[t])

    Args:
        input_size: number of input features.
        hidden_size: size of the state and of the cell.
        bias: whether there is a bias.

    Called with a sequence ``x`` of shape ``(..., length, input_size)``, and optionally the state ``hidden`` and the
    cells ``cell`` before the first step, of shape ``(..., hidden_size)`` (zeros by default), it returns states and
    cells after all steps, each ``(..., length, hidden_size)``. ``Wx``, ``Wh`` and ``bias`` hold the weights of i, f, g
    and o one below the other; all initial parameters are uniform between plus and minus ``1 / sqrt(hidden_size)``.

    Raises:
        ValueError: when called, if a shape does not fit.

    >>> layer = nn.LSTM(3, 5)
    >>> hidden, cell = layer(mx.zeros((2, 7, 3)))
    >>> hidden.shape, cell.shape
    ((2, 7, 5), (2, 7, 5))
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        features, size = self._set_sizes(input_size, hidden_size)
        self.Wx = self._uniform(4 * size, features)
        self.Wh = self._uniform(4 * size, size)
        self.bias = self._uniform(4 * size) if bias else None

    def _extra_repr(self) -> str:
        return f"input_dims={self['Wx'].shape[1]}, hidden_size={self.hidden_size}, bias={'bias' in self}"

    def __call__(
        self, x: mx.array, hidden: mx.array | None = None, cell: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        before = {"hidden": hidden, "cell": cell}
        states, cells = self._walk(self._step, (x, self["Wx"], self.get("bias")), before)
        return states, cells

    def _step(self, projected: mx.array, hidden: mx.array | None, cell: mx.array | None) -> tuple[mx.array, mx.array]:
        if hidden is not None:
            projected = mx.addmm(projected, hidden, self["Wh"].T)
        inputs, forget, new, output = mx.split(projected, 4, axis=-1)
        kept = mx.sigmoid(inputs) * mx.tanh(new)
        cell = kept if cell is None else mx.sigmoid(forget) * cell + kept
        return mx.sigmoid(output) * mx.tanh(cell), cell
