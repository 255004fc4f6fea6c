"""The gated delta rule: a state that decays and is corrected at every step of a sequence."""

from __future__ import annotations

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import AnyExtent, agree, derived, fixed, named
from weft.graph.node import Shape
from weft.ops.arguments import Array, array_argument, shape_text, to_dtype
from weft.ops.entrance import on_stream
from weft.ops.products import matmul
from weft.runtime.devices import StreamOrDevice

__all__ = ["gated_delta_update"]

_CHUNK = 64
"""How many steps are computed together as matrix products; a power of two."""


@on_stream
def gated_delta_update(
    q: Array,
    k: Array,
    v: Array,
    gamma: Array,
    beta: Array,
    initial_state: Array | None = None,
    mask: Array | None = None,
    stream: StreamOrDevice = None,
) -> list[Array]:
    """The gated delta rule over T steps, for each of B sequences and each head of ``v``.

    At each step ``S = gamma * S``, then ``S = S + beta * (v - S @ k) @ k.T``, and the output is ``S @ q``. Yang, Kautz,
    Hatamizadeh, arXiv:2412.06464. Steps are computed in chunks, as matrix products, in float32 (in float64 if an
    argument is float64).

    Args:
        q, k: ``(B, T, Hk, Dk)``; a head serves ``Hv / Hk`` neighbouring ones of ``v``.
        v: ``(B, T, Hv, Dv)``.
        gamma: ``(B, T, Hv)``: the factor of the state, from 0 to 1; or ``(B, T, Hv, Dk)`` with a factor for each
            feature of the keys, for which steps are computed one after the other.
        beta: ``(B, T, Hv)``: the factor of the correction.
        initial_state: ``(B, Hv, Dv, Dk)``; zeros if None.
        mask: ``(B, T)``. Where it is False (or 0) the state does not change and the output is 0.

    Returns:
        The output, ``(B, T, Hv, Dv)`` in the dtype of ``q``, and the last state, ``(B, Hv, Dv, Dk)`` in float32 or
        float64.

    Raises:
        ValueError: shapes do not fit, or an array is complex.

    >>> one = mx.ones((1, 2, 1, 1))
    >>> output, state = mx.fast.gated_delta_update(one, one, one * 4, one[..., 0] * 0.5, one[..., 0] * 0.5)
    >>> output.flatten(), state.flatten()
    (array([2, 2.5], dtype=float32), array([2.5], dtype=float32))
    """
    given = {"q": q, "k": k, "v": v, "gamma": gamma, "beta": beta}
    given |= {word: x for word, x in (("initial_state", initial_state), ("mask", mask)) if x is not None}
    arrays = {word: array_argument("gated_delta_update", value, word) for word, value in given.items()}
    _check_shapes(arrays)
    dtype = arrays["q"].node.dtype
    skipped = p.logical_not(to_dtype(arrays.pop("mask"), dtypes.bool_)) if mask is not None else None
    wide = _common_dtype(arrays)
    arrays = {word: to_dtype(x, wide) for word, x in arrays.items()}
    in_chunks = arrays["gamma"].node.ndim == 3
    output, state = _Chunks(arrays, skipped).output_and_state() if in_chunks else _by_steps(arrays, skipped)
    return [to_dtype(output, dtype if dtype.is_floating else wide), state]


def _common_dtype(arrays: dict[str, Array]) -> Dtype:
    for word, x in arrays.items():
        if x.node.dtype.is_complex:
            raise ValueError(f"[gated_delta_update] {word} must be real, not {x.node.dtype.name}.")
    double = any(x.node.dtype is dtypes.float64 for x in arrays.values())
    return dtypes.float64 if double else dtypes.float32


def _check_shapes(arrays: dict[str, Array]) -> None:
    shapes = {word: x.node.shape for word, x in arrays.items()}
    for word in ("q", "v"):
        if len(shapes[word]) != 4:
            raise ValueError(
                f"[gated_delta_update] {word} must have 4 dimensions, (B, T, heads, features); its shape is "
                f"{shape_text(shapes[word])}."
            )
    batch, steps, key_heads, key_features = shapes["q"]
    value_heads, value_features = shapes["v"][2:]
    rows = (batch, steps, value_heads)
    expected: dict[str, Shape] = {
        "k": (batch, steps, key_heads, key_features),
        "v": (*rows, value_features),
        "gamma": (*rows, key_features) if len(shapes["gamma"]) == 4 else rows,
        "beta": rows,
        "initial_state": (batch, value_heads, value_features, key_features),
        "mask": (batch, steps),
    }
    for word, shape in expected.items():
        if word in shapes and (len(shapes[word]) != len(shape) or not agree(shapes[word], shape)):
            raise ValueError(
                f"[gated_delta_update] {word} must have the shape {shape_text(shape)} beside q of shape "
                f"{shape_text(shapes['q'])} and v of shape {shape_text(shapes['v'])}; its shape is "
                f"{shape_text(shapes[word])}."
            )
    if not agree(derived(_rest_of_heads, value_heads, key_heads), 0):
        raise ValueError(
            f"[gated_delta_update] The number of heads of v must be a multiple of that of q and k; got {value_heads} "
            f"and {key_heads}."
        )


@named
def _rest_of_heads(values: int, keys: int) -> int:
    return values % keys if keys else values


@named
def _heads_per_key(values: int, keys: int) -> int:
    return values // keys if keys else 1


@named
def _chunk_extent(steps: int) -> int:
    """How many steps a chunk has: a power of two, so that its triangular matrix can be halved again and again."""
    extent = 1
    while extent < min(steps, _CHUNK):
        extent *= 2
    return extent


@named
def _chunk_count(steps: int) -> int:
    """At least one chunk; a sequence without steps has one that changes nothing."""
    return max(1, -(-steps // _CHUNK))


def _by_steps(arrays: dict[str, Array], skipped: Array | None) -> tuple[Array, Array]:
    """The rule for a gamma for each feature of the keys, one step after the other."""
    q, k, v, gamma, beta = [arrays[word] for word in ("q", "k", "v", "gamma", "beta")]
    (batch, steps, keys, key_features), (heads, features) = q.node.shape, v.node.shape[2:]
    rows = (batch, steps, keys, derived(_heads_per_key, heads, keys), key_features)
    columns = (batch, steps, heads, key_features, 1)
    q, k = [p.reshape(p.broadcast(p.expand(x, axes=(3,)), shape=rows), shape=columns) for x in (q, k)]
    v, gamma, beta = p.expand(v, axes=(4,)), p.expand(gamma, axes=(3,)), p.expand(beta, axes=(3, 4))
    given = arrays.get("initial_state")
    state = p.zeros((batch, heads, features, key_features), v.node.dtype) if given is None else given
    outputs = []
    for number in range(fixed(steps)):
        query, key, value, remains, corrected = [_step(x, number) for x in (q, k, v, gamma, beta)]
        decayed = state * remains
        following = decayed + matmul(corrected * (value - matmul(decayed, key)), p.matrix_transpose(key))
        output = matmul(following, query)
        if skipped is not None:
            still = p.expand(_step(skipped, number), axes=(1, 2, 3))
            following = p.select(p.broadcast(still, shape=state.node.shape), state, following)
            output = p.select(p.broadcast(still, shape=output.node.shape), p.zeros_like(output), output)
        state = following
        outputs.append(p.reshape(output, shape=(batch, 1, heads, features)))
    return p.concatenate(*outputs, axis=1) if outputs else p.zeros_like(arrays["v"]), state


def _step(x: Array, number: int) -> Array:
    """The entry at an index of the second axis, without that axis."""
    shape = x.node.shape
    starts = (0, number, *[0] * (len(shape) - 2))
    part = p.slice_(x, starts=starts, sizes=(shape[0], 1, *shape[2:]), steps=(1,) * len(shape))
    return p.squeeze(part, axes=(1,))


class _Chunks:
    """The arguments with axes ``(B, Hk, Hv / Hk, chunk, step in the chunk, feature)``.

    Inside a chunk that begins with the state S, the correction of step i is ``u[i] = beta[i] * (v[i] - G[i] * S k[i] -
    sum of D[i, j] * (k[j] . k[i]) * u[j] for j < i)``, where ``D[i, j]`` is the product of gamma from step j + 1 to i
    and ``G[i]`` that of all steps up to i. This is a triangular system of equations, linear in S. Its solution is ``u =
    U - W S.T``; the state after the chunk is ``G[-1] * S + sum of D[-1, j] * u[j] k[j].T``, which gives a recurrence
    over chunks.
    """

    def __init__(self, arrays: dict[str, Array], skipped: Array | None) -> None:
        self.shape_of_q, self.shape_of_v = arrays["q"].node.shape, arrays["v"].node.shape
        (self.batch, self.steps, self.keys, self.key_features) = self.shape_of_q
        self.per_key = derived(_heads_per_key, self.shape_of_v[2], self.keys)
        self.extent = derived(_chunk_extent, self.steps)
        self.count = derived(_chunk_count, self.steps)
        self.skipped = skipped
        gamma, beta = arrays["gamma"], arrays["beta"]
        if skipped is not None:
            still = p.broadcast(p.expand(skipped, axes=(2,)), shape=gamma.node.shape)
            gamma = p.select(still, p.ones_like(gamma), gamma)
            beta = p.select(still, p.zeros_like(beta), beta)
        self.q, self.k = self._cut(arrays["q"], 1, 0), self._cut(arrays["k"], 1, 0)
        self.v = self._cut(arrays["v"], self.per_key, 0)
        columns = [p.expand(x, axes=(3,)) for x in (gamma, beta)]
        self.gamma, self.beta = self._cut(columns[0], self.per_key, 1), self._cut(columns[1], self.per_key, 0)
        self.first = self._first_state(arrays.get("initial_state"))

    def _cut(self, x: Array, per_key: AnyExtent, filling: int) -> Array:
        """``(B, T, heads, F)`` cut into chunks; missing steps of the last chunk are filled with a number."""
        shape = x.node.shape
        missing = self.count * self.extent - self.steps
        number = p.full((), filling, x.node.dtype)
        x = p.pad(x, number, low=(0, 0, 0, 0), high=(0, missing, 0, 0))
        x = p.reshape(x, shape=(self.batch, self.count, self.extent, self.keys, per_key, shape[3]))
        return p.transpose(x, axes=(0, 3, 4, 1, 2, 5))

    def _first_state(self, given: Array | None) -> Array:
        shape = (self.batch, self.keys, self.per_key, self.shape_of_v[3], self.key_features)
        return p.zeros(shape, self.v.node.dtype) if given is None else p.reshape(given, shape=shape)

    def _decays(self) -> Array:
        """D: the product of gamma from step j + 1 to i at position i, j; zeros above the diagonal."""
        across = p.matrix_transpose(self.gamma)
        shape = (*across.node.shape[:-2], self.extent, self.extent)
        ndim = len(shape)
        j, i = [p.iota(shape=shape, axis=axis, dtype=dtypes.int32) for axis in (ndim - 2, ndim - 1)]
        gamma = p.broadcast(across, shape=shape)
        behind = p.select(p.less(j, i), gamma, p.ones_like(gamma))
        products = p.cumprod(behind, axis=ndim - 1, reverse=False, inclusive=True)
        return p.matrix_transpose(p.select(p.less_equal(j, i), products, p.zeros_like(products)))

    def output_and_state(self) -> tuple[Array, Array]:
        decays = self._decays()
        from_start = _part(decays, -1, first=True) * _part(self.gamma, -2, first=True)
        to_end = p.matrix_transpose(_part(decays, -2, first=False))
        turned = p.matrix_transpose(self.k)
        solution = p.unit_triangular_inverse(self.beta * decays * matmul(self.k, turned))
        without_start = matmul(solution, self.beta * self.v)
        per_start = matmul(solution, self.beta * from_start * self.k)
        keys = to_end * self.k
        factor = _part(from_start, -2, first=False)
        flat = p.squeeze(factor, axes=(factor.node.ndim - 2, factor.node.ndim - 1))
        change = matmul(p.matrix_transpose(without_start), keys)
        starts = p.state_recurrence(flat, per_start, keys, change, self.first)
        corrections = without_start - matmul(per_start, p.matrix_transpose(starts))
        inside = decays * matmul(self.q, turned)
        output = from_start * matmul(self.q, p.matrix_transpose(starts)) + matmul(inside, corrections)
        last, correction, key, remains = [_part(x, 3, first=False) for x in (starts, corrections, keys, factor)]
        state = remains * last + matmul(p.matrix_transpose(correction), key)
        shape = (self.batch, self.shape_of_v[2], self.shape_of_v[3], self.key_features)
        return self._joined(output), p.reshape(state, shape=shape)

    def _joined(self, output: Array) -> Array:
        """The chunks, concatenated, as ``(B, T, Hv, Dv)``."""
        _, _, heads, features = self.shape_of_v
        moved = p.transpose(output, axes=(0, 3, 4, 1, 2, 5))
        joined = p.reshape(moved, shape=(self.batch, self.count * self.extent, heads, features))
        shape = (self.batch, self.steps, heads, features)
        result = p.slice_(joined, starts=(0, 0, 0, 0), sizes=shape, steps=(1, 1, 1, 1))
        if self.skipped is None:
            return result
        still = p.broadcast(p.expand(self.skipped, axes=(2, 3)), shape=shape)
        return p.select(still, p.zeros_like(result), result)


def _part(x: Array, axis: int, first: bool) -> Array:
    """The first or the last entry along an axis, which is kept with extent 1."""
    shape, ndim = x.node.shape, x.node.ndim
    axis %= ndim
    starts = tuple([0 if first or position != axis else extent - 1 for position, extent in enumerate(shape)])
    return p.slice_(x, starts=starts, sizes=(*shape[:axis], 1, *shape[axis + 1 :]), steps=(1,) * ndim)
