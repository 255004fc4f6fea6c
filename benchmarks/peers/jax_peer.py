"""JAX, with `jax.jit` around each task."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from . import (
    ADAM_BETAS,
    ADAM_EPSILON,
    LAYER_NORM_EPSILON,
    LEARNING_RATE,
    Work,
    floats,
    initial_parameters,
    row_pairs,
    training_data,
)


class JaxPeer:
    def __init__(self, threads: int) -> None:
        del threads  # XLA uses the cores that the process may run on.

    def _compiled(self, function: Any, *arrays: Any) -> Work:
        inputs = jax.block_until_ready([jnp.asarray(array) for array in arrays])
        compiled = jax.jit(function)
        return lambda: compiled(*inputs).block_until_ready()

    def gelu(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: x * (1 + jax.scipy.special.erf(x / math.sqrt(2))) / 2, floats(*shape))

    def softmax(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: jax.nn.softmax(x, axis=-1), floats(*shape))

    def logsumexp(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: jax.nn.logsumexp(x, axis=-1), floats(*shape))

    def layer_norm(self, shape: tuple[int, ...]) -> Work:
        def normalize(x: Any, scale: Any, shift: Any) -> Any:
            centered = x - jnp.mean(x, axis=-1, keepdims=True)
            variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
            return centered * jax.lax.rsqrt(variance + LAYER_NORM_EPSILON) * scale + shift

        return self._compiled(normalize, floats(*shape), floats(shape[-1], seed=1), floats(shape[-1], seed=2))

    def matmul(self, size: int) -> Work:
        return self._compiled(jnp.matmul, floats(size, size), floats(size, size, seed=1))

    def add(self, shape: tuple[int, ...]) -> Work:
        x = jnp.asarray(floats(*shape))
        return lambda: (x + x).block_until_ready()

    def vmap_add(self, rows: int, columns: int) -> Work:
        return self._compiled(jax.vmap(lambda a, b: a + b, in_axes=(0, 1)), *row_pairs(rows, columns))

    def loop_add(self, rows: int, columns: int) -> Work:
        x, y = map(jnp.asarray, row_pairs(rows, columns))
        return lambda: jax.block_until_ready([x[row] + y[:, row] for row in range(rows)])

    def train(self, batch: int) -> Work:
        images, labels = map(jnp.asarray, training_data(batch))
        parameters = jax.tree.map(jnp.asarray, initial_parameters())
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        state = (parameters, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros((), jnp.int32))
        first_decay, second_decay = ADAM_BETAS

        def mean_loss(parameters: Any) -> Any:
            x = images
            for weight, bias in parameters[:-1]:
                x = jax.nn.relu(x @ weight.T + bias)
            weight, bias = parameters[-1]
            scores = x @ weight.T + bias
            chosen = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
            return jnp.mean(jax.nn.logsumexp(scores, axis=1) - chosen)

        def step(state: Any) -> Any:
            parameters, first, second, count = state
            loss, gradients = jax.value_and_grad(mean_loss)(parameters)
            count = count + 1
            first = jax.tree.map(lambda m, g: first_decay * m + (1 - first_decay) * g, first, gradients)
            second = jax.tree.map(lambda v, g: second_decay * v + (1 - second_decay) * g * g, second, gradients)
            rate = LEARNING_RATE / (1 - first_decay**count)
            correction = jax.lax.rsqrt(1 - jnp.float32(second_decay) ** count)
            parameters = jax.tree.map(
                lambda p, m, v: p - rate * m / (jnp.sqrt(v) * correction + ADAM_EPSILON), parameters, first, second
            )
            return loss, (parameters, first, second, count)

        compiled = jax.jit(step, donate_argnums=0)

        def work() -> Any:
            nonlocal state
            loss, state = jax.block_until_ready(compiled(state))
            return loss

        return work
