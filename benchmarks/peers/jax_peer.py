"""JAX, with `jax.jit` around each task."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import (
    ADAM_BETAS,
    ADAM_EPSILON,
    DEVICE,
    LARGEST,
    LEARNING_RATE,
    NORM_EPSILON,
    ROPE_BASE,
    Heads,
    Work,
    attention_data,
    classes,
    floats,
    fourier_data,
    gpt,
    initial_parameters,
    matrices,
    right_sides,
    row_pairs,
    training_data,
)
from .convolutions import CHANNELS, Convolution, cnn_data, cnn_values
from .formulas import formula_data
from .recurrent import lstm_data, lstm_values

# On a GPU JAX would round the operands of float32 products to TF32, as no other peer does.
if DEVICE == "gpu":
    jax.config.update("jax_default_matmul_precision", "highest")

NAMES = SimpleNamespace(
    sqrt=jnp.sqrt,
    exp=jnp.exp,
    log=jnp.log,
    erf=jax.scipy.special.erf,
    roll=jnp.roll,
    replaced=lambda x, at, values: x.at[at].set(values),
)
"""The names used in formulas."""


waited_for = jax.block_until_ready if DEVICE == "cpu" else lambda result: result
"""Returns the result of a call; on a GPU it may not be computed yet."""

FLASH = "cudnn" if DEVICE == "gpu" else None
"""The implementation of attention in half precision."""


class JaxPeer:
    def __init__(self, threads: int) -> None:
        del threads  # XLA uses the cores that the process may run on.

    def synchronize(self, result: Any) -> None:
        jax.block_until_ready(result)

    def _compiled(self, function: Any, *arrays: Any) -> Work:
        inputs = jax.block_until_ready([jnp.asarray(array) for array in arrays])
        compiled = jax.jit(function)
        return lambda: waited_for(compiled(*inputs))

    def formula(self, name: str) -> Work:
        function, arrays = formula_data(name)
        return self._compiled(partial(function, NAMES), *arrays)

    def formula_gradient(self, name: str) -> Work:
        function, arrays = formula_data(name)
        mean = jax.value_and_grad(lambda *x: function(NAMES, *x).mean(), argnums=tuple(range(len(arrays))))
        return self._compiled(mean, *arrays)

    def gelu(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: x * (1 + jax.scipy.special.erf(x / math.sqrt(2))) / 2, floats(*shape))

    def softmax(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: jax.nn.softmax(x, axis=-1), floats(*shape))

    def logsumexp(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: jax.nn.logsumexp(x, axis=-1), floats(*shape))

    def variance(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: jnp.var(x, axis=-1), floats(*shape))

    def sum_all(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(jnp.sum, floats(*shape))

    def sum_first_axis(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: jnp.sum(x, axis=0), floats(*shape))

    def sum_last_axis(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: jnp.sum(x, axis=-1), floats(*shape))

    def transpose(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: x.T, floats(*shape))

    def dense(self, size: int) -> Work:
        arrays = [
            jnp.asarray(x, jnp.bfloat16) for x in (floats(size, size), floats(size, size, seed=1), floats(size, seed=2))
        ]
        step = jax.jit(lambda a, b, bias: jax.nn.gelu(a @ b + bias, approximate=False))
        return lambda: waited_for(step(*arrays))[0].astype(jnp.float32)

    def attention(self, heads: Heads, queries: int, keys: int, mask: str, dtype: str) -> Work:
        arrays, attend = attended(heads, queries, keys, mask, dtype)
        step = jax.jit(attend)
        return lambda: waited_for(step(*arrays))[0, 0, 0].astype(jnp.float32)

    def attention_gradients(self, heads: Heads, queries: int, keys: int, mask: str, dtype: str) -> Work:
        arrays, attend = attended(heads, queries, keys, mask, dtype)
        total = lambda *x: attend(*x).astype(jnp.float32).sum()  # noqa: E731
        step = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))
        return lambda: waited_for(step(*arrays))[0]

    def sort(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(jnp.sort, floats(*shape))

    def argsort(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(jnp.argsort, floats(*shape))

    def topk(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: jax.lax.top_k(x, LARGEST)[0], floats(*shape))

    def median(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: jnp.median(x, axis=-1), floats(*shape))

    def cumsum(self, shape: tuple[int, ...], axis: int) -> Work:
        return self._compiled(lambda x: jnp.cumsum(x, axis=axis), floats(*shape))

    def logcumsumexp(self, shape: tuple[int, ...], axis: int) -> Work:
        return self._compiled(lambda x: jax.lax.cumlogsumexp(x, axis=axis), floats(*shape))

    def gather(self, shape: tuple[int, ...], count: int) -> Work:
        return self._compiled(lambda x, i: x[i], floats(*shape), classes(count, shape[0]))

    def scatter_add(self, shape: tuple[int, ...], count: int) -> Work:
        data = floats(*shape), classes(count, shape[0]), floats(count, *shape[1:], seed=1)
        return self._compiled(lambda x, i, v: x.at[i].add(v), *data)

    def rms_norm(self, shape: tuple[int, ...]) -> Work:
        def normalize(x: Any, scale: Any) -> Any:
            return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + NORM_EPSILON) * scale

        return self._compiled(normalize, floats(*shape), floats(shape[-1], seed=1))

    def rope(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(turn_pairs, floats(*shape))

    def cross_entropy(self, shape: tuple[int, int]) -> Work:
        return self._compiled(losses, floats(*shape), classes(*shape))

    def softmax_gradient(self, shape: tuple[int, ...]) -> Work:
        def gradient(x: Any, cotangent: Any) -> Any:
            return jax.vjp(lambda x: jax.nn.softmax(x, axis=-1), x)[1](cotangent)[0]

        return self._compiled(gradient, floats(*shape), floats(*shape, seed=1))

    def layer_norm(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(normalize, floats(*shape), floats(shape[-1], seed=1), floats(shape[-1], seed=2))

    def layer_norm_gradient(self, shape: tuple[int, ...]) -> Work:
        def gradients(x: Any, scale: Any, shift: Any, cotangent: Any) -> Any:
            return jax.vjp(normalize, x, scale, shift)[1](cotangent)

        last = shape[-1]
        arrays = (floats(*shape), floats(last, seed=1), floats(last, seed=2), floats(*shape, seed=3))
        inputs = [jnp.asarray(array) for array in arrays]
        compiled = jax.jit(gradients)
        return lambda: waited_for(compiled(*inputs))

    def fourier(self, transform: str, shape: tuple[int, ...], **keywords: Any) -> Work:
        function = getattr(jnp.fft, transform)
        return self._compiled(lambda x: function(x, **keywords), fourier_data(transform, shape))

    def distances(self, count: int, dimensions: int) -> Work:
        points = floats(count, dimensions), floats(count, dimensions, seed=1)
        return self._compiled(lambda x, y: jnp.sum((x[:, None] - y[None]) ** 2, axis=-1), *points)

    def matmul(self, size: int) -> Work:
        return self._compiled(jnp.matmul, floats(size, size), floats(size, size, seed=1))

    def converted_matmul(self, shape: tuple[int, ...], dtype: str) -> Work:
        a, b = (jnp.asarray(floats(*shape, seed=seed), dtype) for seed in (0, 1))
        multiply = self._compiled(jnp.matmul, a, b)
        return lambda: multiply()[0].real.astype(jnp.float32)

    def fast_matmul(self, size: int) -> Work:
        """Uses the processor's instructions for bfloat16, if it has any."""
        return self.converted_matmul((size, size), "bfloat16")

    def product(self, left: tuple[int, ...], right: tuple[int, ...], transposed: bool) -> Work:
        def multiply(a: Any, b: Any) -> Any:
            return a @ (b.swapaxes(-1, -2) if transposed else b)

        return self._compiled(multiply, floats(*left), floats(*right, seed=1))

    def convolution(self, **sizes: Any) -> Work:
        layer = Convolution(**sizes)
        x, w, _ = layer.data()
        return self._compiled(partial(convolved, layer), x, w)

    def convolution_gradients(self, **sizes: Any) -> Work:
        """The gradients with respect to both operands."""
        layer = Convolution(**sizes)
        return self._compiled(lambda x, w, ct: jax.vjp(partial(convolved, layer), x, w)[1](ct), *layer.data())

    def linear_algebra(self, function: str, shape: tuple[int, ...]) -> Work:
        if function == "solve":
            return self._compiled(jnp.linalg.solve, matrices(*shape), right_sides(*shape))
        return self._compiled(getattr(jnp.linalg, function), matrices(*shape))

    def add(self, shape: tuple[int, ...]) -> Work:
        x = jnp.asarray(floats(*shape))
        return lambda: waited_for(x + x)

    def add_value(self, shape: tuple[int, ...]) -> Work:
        x = jnp.asarray(floats(*shape))
        return lambda: np.array(x + x)

    def vmap_add(self, rows: int, columns: int) -> Work:
        return self._compiled(jax.vmap(lambda a, b: a + b, in_axes=(0, 1)), *row_pairs(rows, columns))

    def loop_add(self, rows: int, columns: int) -> Work:
        x, y = map(jnp.asarray, row_pairs(rows, columns))
        return lambda: waited_for([x[row] + y[:, row] for row in range(rows)])

    def train(self, batch: int, compiled: bool = True) -> Work:
        def mean_loss(parameters: Any, images: Any, labels: Any) -> Any:
            x = images
            for weight, bias in parameters[:-1]:
                x = jax.nn.relu(x @ weight.T + bias)
            weight, bias = parameters[-1]
            return jnp.mean(losses(x @ weight.T + bias, labels))

        return training(mean_loss, initial_parameters(), 0.0, *training_data(batch), compiled=compiled)

    def train_cnn(self, batch: int) -> Work:
        def mean_loss(parameters: Any, images: Any, labels: Any) -> Any:
            return jnp.mean(losses(cnn_scores(parameters, images), labels))

        return training(mean_loss, cnn_values(), 0.0, *cnn_data(batch))

    def train_lstm(self, batch: int, steps: int, width: int) -> Work:
        def mean_loss(parameters: Any, x: Any, labels: Any) -> Any:
            return jnp.mean(losses(lstm_scores(parameters, x), labels))

        return training(mean_loss, lstm_values(width), 0.0, *lstm_data(batch, steps, width))

    def train_gpt(self, half: bool = False, **sizes: Any) -> Work:
        chosen = gpt.Sizes(**sizes)
        values = gpt.initial_values(chosen)
        if half:
            values = gpt.map_leaves(lambda value: jnp.asarray(value, jnp.bfloat16), values)

        def mean_loss(parameters: Any, tokens: Any, following: Any) -> Any:
            scores = gpt_scores(parameters, tokens, chosen.heads, chosen.fused)
            return jnp.mean(losses(scores.astype(jnp.float32), following))

        return training(mean_loss, values, gpt.WEIGHT_DECAY, *gpt.windows(chosen))

    def decode(self, half: bool, bits: int = 0, **sizes: Any) -> Work | None:
        if bits:
            return None
        chosen = gpt.Sizes(**sizes)
        dtype = jnp.bfloat16 if half else jnp.float32
        parameters = gpt.map_leaves(lambda value: jnp.asarray(value, dtype), gpt.initial_values(chosen))
        shapes = gpt.cache_shapes(chosen)
        caches = [[jnp.zeros(shape, dtype) for shape in shapes] for _ in range(chosen.layers)]
        state = (caches, jnp.array([0]), jnp.array([0]))
        step = jax.jit(partial(decode_token, chosen), donate_argnums=0)

        def work() -> Any:
            nonlocal state
            state, scores = step(state, parameters)
            return waited_for(scores).astype(jnp.float32)

        return work


def decode_token(sizes: gpt.Sizes, state: Any, parameters: Any) -> Any:
    """One step of generation with the model of `gpt`, with keys and values of earlier tokens."""
    (caches, token, place), size = state, sizes.width // sizes.heads
    seen = jnp.arange(sizes.context) <= place
    x = parameters["tokens"]["weight"][token] + parameters["positions"][place]
    updated = []
    for block, cache in zip(parameters["blocks"], caches, strict=True):
        mixed = linear(block["mixed"], normalize_with(block["attention_norm"], x))
        query, *new = mixed.reshape(3, sizes.heads, 1, size)
        start = (0, place[0], 0)
        keys, values = (jax.lax.dynamic_update_slice(old, part, start) for old, part in zip(cache, new, strict=True))
        updated.append([keys, values])
        scores = query @ keys.swapaxes(1, 2) * size**-0.5
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        x = x + linear(block["attended"], (weights @ values).reshape(1, sizes.width))
        widened = linear(block["widened"], normalize_with(block["mlp_norm"], x))
        x = x + linear(block["narrowed"], jax.nn.gelu(widened, approximate=False))
    scores = normalize_with(parameters["norm"], x) @ parameters["head"]["weight"].T
    return (updated, jnp.argmax(scores, axis=-1), (place + 1) % sizes.context), scores


def normalize(x: Any, scale: Any, shift: Any) -> Any:
    """Layer norm of the last axis."""
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt(variance + NORM_EPSILON) * scale + shift


def turn_pairs(x: Any) -> Any:
    """Rotary positions; feature i and feature i + half form a pair."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[-2])[:, None] * ROPE_BASE ** (-jnp.arange(half) / half)
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], -1)


def losses(scores: Any, labels: Any) -> Any:
    """The cross entropy of each row."""
    chosen = jnp.take_along_axis(scores, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - chosen


def training(mean_loss: Any, parameters: Any, weight_decay: float, *batch: Any, compiled: bool = True) -> Work:
    """Steps of AdamW. If they are compiled, the memory of the state is donated to the next state."""
    arrays = [jnp.asarray(array) for array in batch]
    parameters = jax.tree.map(jnp.asarray, parameters)
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    state = jax.block_until_ready((parameters, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros((), jnp.int32)))
    first_decay, second_decay = ADAM_BETAS

    def step(state: Any, *arrays: Any) -> Any:
        parameters, first, second, count = state
        loss, gradients = jax.value_and_grad(mean_loss)(parameters, *arrays)
        count = count + 1
        first = jax.tree.map(lambda m, g: first_decay * m + (1 - first_decay) * g, first, gradients)
        second = jax.tree.map(lambda v, g: second_decay * v + (1 - second_decay) * g * g, second, gradients)
        rate = LEARNING_RATE / (1 - first_decay**count)
        correction = jax.lax.rsqrt(1 - jnp.float32(second_decay) ** count)
        kept = 1 - LEARNING_RATE * weight_decay
        parameters = jax.tree.map(
            lambda p, m, v: (kept * p - rate * m / (jnp.sqrt(v) * correction + ADAM_EPSILON)).astype(p.dtype),
            parameters,
            first,
            second,
        )
        return loss, (parameters, first, second, count)

    run = jax.jit(step, donate_argnums=0) if compiled else step

    def work() -> Any:
        nonlocal state
        loss, state = waited_for(run(state, *arrays))
        return loss

    return work


def gpt_scores(parameters: Any, tokens: Any, heads: int, fused: bool) -> Any:
    """The model of `gpt`: scores of the next byte for each byte."""
    place = jnp.arange(tokens.shape[1])
    causal = place[:, None] >= place
    x = parameters["tokens"]["weight"][tokens] + parameters["positions"]
    for block in parameters["blocks"]:
        mixed = linear(block["mixed"], normalize_with(block["attention_norm"], x))
        x = x + linear(block["attended"], attention(mixed, causal, heads, fused))
        widened = linear(block["widened"], normalize_with(block["mlp_norm"], x))
        x = x + linear(block["narrowed"], jax.nn.gelu(widened, approximate=False))
    return normalize_with(parameters["norm"], x) @ parameters["head"]["weight"].T


def normalize_with(norm: Any, x: Any) -> Any:
    """Layer norm with its parameters."""
    return normalize(x, norm["weight"], norm["bias"])


def linear(layer: Any, x: Any) -> Any:
    """A linear layer with its parameters."""
    return x @ layer["weight"].T + layer["bias"]


def attended(heads: Heads, queries: int, keys: int, mask: str, dtype: str) -> tuple[list[Any], Any]:
    """Queries, keys and values with heads after positions, and a function that computes attention with heads before
    them."""
    arrays = [jnp.asarray(x.swapaxes(1, 2), jnp.dtype(dtype)) for x in attention_data(heads, queries, keys)]
    kind = FLASH if dtype == "bfloat16" else None

    def attend(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=bool(mask), implementation=kind).swapaxes(1, 2)

    return arrays, attend


def attention(mixed: Any, causal: Any, heads: int, fused: bool) -> Any:
    """Attention of several heads; queries, keys and values are concatenated in ``mixed``."""
    batch, length, _ = mixed.shape
    parts = jnp.split(mixed, 3, axis=-1)
    if fused:
        by_head = [part.reshape(batch, length, heads, -1) for part in parts]
        return jax.nn.dot_product_attention(*by_head, is_causal=True, implementation=FLASH).reshape(batch, length, -1)
    queries, keys, values = (part.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3) for part in parts)
    scores = queries @ keys.transpose(0, 1, 3, 2) * queries.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    return (weights @ values).transpose(0, 2, 1, 3).reshape(batch, length, -1)


def convolved(layer: Convolution, x: Any, w: Any) -> Any:
    """A convolution of arrays with channels last."""
    inner = "DHW"[-layer.rank :]
    padding, strides = [(layer.padding, layer.padding)] * layer.rank, [layer.stride] * layer.rank
    dilation = [1] * layer.rank
    if layer.transposed:
        padding = [(size - 1 - layer.padding,) * 2 for size in layer.weights[1:-1]]
        w, strides, dilation = jnp.flip(w, range(1, layer.rank + 1)), dilation, strides
    return jax.lax.conv_general_dilated(
        x, w, strides, padding, dilation, None, (f"N{inner}C", f"O{inner}I", f"N{inner}C"), layer.groups
    )


def cnn_scores(parameters: Any, x: Any) -> Any:
    """The net of `convolutions`."""
    for number in range(len(CHANNELS)):
        kernel = parameters[f"kernel{number}"]
        x = convolved(Convolution(x.shape, kernel.shape, padding=1), x, kernel)
        x = jax.nn.relu(x + parameters[f"bias{number}"])
        count, height, width, channels = x.shape
        x = x.reshape(count, height // 2, 2, width // 2, 2, channels).max((2, 4))
    return x.mean((1, 2)) @ parameters["head"].T


def lstm_scores(parameters: Any, x: Any) -> Any:
    """The net of `recurrent`."""

    def step(state: Any, projected: Any) -> Any:
        hidden, cell = state
        inputs, forget, new, output = jnp.split(projected + hidden @ parameters["Wh"].T, 4, axis=-1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(inputs) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(output) * jnp.tanh(cell)
        return (hidden, cell), hidden

    projected = x @ parameters["Wx"].T + parameters["bias"]
    zeros = jnp.zeros((x.shape[0], parameters["Wh"].shape[1]))
    _, hidden = jax.lax.scan(step, (zeros, zeros), projected.swapaxes(0, 1))
    return hidden.swapaxes(0, 1) @ parameters["head"].T
