"""Weft and MLX: one program for both, because Weft has MLX's names."""

from __future__ import annotations

import math
from importlib import import_module
from itertools import pairwise
from typing import Any

from . import (
    ADAM_BETAS,
    ADAM_EPSILON,
    LAYER_NORM_EPSILON,
    LAYERS,
    LEARNING_RATE,
    Work,
    floats,
    initial_parameters,
    row_pairs,
    training_data,
)


class MlxStylePeer:
    """The tasks in the names of `mlx.core`, for the package that a subclass names."""

    package: str

    def __init__(self, threads: int) -> None:
        del threads  # Weft reads WEFT_NUM_THREADS; MLX has no setting.
        self.mx = import_module(f"{self.package}.core")
        self.mx.set_default_device(self.mx.cpu)

    def _compiled(self, function: Any, *arrays: Any) -> Work:
        mx = self.mx
        inputs = [mx.array(array) for array in arrays]
        mx.eval(inputs)
        compiled = mx.compile(function)

        def work() -> Any:
            result = compiled(*inputs)
            mx.eval(result)
            return result

        return work

    def gelu(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx
        return self._compiled(lambda x: x * (1 + mx.erf(x / math.sqrt(2))) / 2, floats(*shape))

    def softmax(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx
        return self._compiled(lambda x: mx.softmax(x, axis=-1), floats(*shape))

    def logsumexp(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx
        return self._compiled(lambda x: mx.logsumexp(x, axis=-1), floats(*shape))

    def layer_norm(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx

        def normalize(x: Any, scale: Any, shift: Any) -> Any:
            centered = x - mx.mean(x, axis=-1, keepdims=True)
            variance = mx.mean(mx.square(centered), axis=-1, keepdims=True)
            return centered * mx.rsqrt(variance + LAYER_NORM_EPSILON) * scale + shift

        return self._compiled(normalize, floats(*shape), floats(shape[-1], seed=1), floats(shape[-1], seed=2))

    def matmul(self, size: int) -> Work:
        mx = self.mx
        a, b = mx.array(floats(size, size)), mx.array(floats(size, size, seed=1))

        def work() -> Any:
            result = a @ b
            mx.eval(result)
            return result

        return work

    def build(self, count: int) -> Work:
        x = self.mx.array(floats(16))

        def work() -> Any:
            for _ in range(count):
                result = x + x
            return result

        return work

    def add(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx
        x = mx.array(floats(*shape))

        def work() -> Any:
            result = x + x
            mx.eval(result)
            return result

        return work

    def vmap_add(self, rows: int, columns: int) -> Work:
        mx = self.mx
        x, y = map(mx.array, row_pairs(rows, columns))
        add = mx.vmap(lambda a, b: a + b, in_axes=(0, 1))

        def work() -> Any:
            result = add(x, y)
            mx.eval(result)
            return result

        return work

    def loop_add(self, rows: int, columns: int) -> Work:
        mx = self.mx
        x, y = map(mx.array, row_pairs(rows, columns))

        def work() -> Any:
            results = [x[row] + y[:, row] for row in range(rows)]
            mx.eval(results)
            return results

        return work

    def train(self, batch: int) -> Work:
        mx = self.mx
        nn = import_module(f"{self.package}.nn")
        optimizers = import_module(f"{self.package}.optimizers")

        layers = []
        for sizes, (weight, bias) in zip(pairwise(LAYERS), initial_parameters(), strict=True):
            linear = nn.Linear(*sizes)
            linear.weight, linear.bias = mx.array(weight), mx.array(bias)
            layers += [linear, nn.ReLU()]
        model = nn.Sequential(*layers[:-1])
        images, labels = map(mx.array, training_data(batch))
        optimizer = optimizers.Adam(LEARNING_RATE, list(ADAM_BETAS), ADAM_EPSILON, bias_correction=True)
        optimizer.init(model.trainable_parameters())
        state = [model.state, optimizer.state]
        mx.eval(state, images, labels)

        def mean_loss(x: Any, y: Any) -> Any:
            return nn.losses.cross_entropy(model(x), y, reduction="mean")

        loss_and_gradients = nn.value_and_grad(model, mean_loss)

        def step(x: Any, y: Any) -> Any:
            loss, gradients = loss_and_gradients(x, y)
            optimizer.update(model, gradients)
            return loss

        compiled = mx.compile(step, inputs=state, outputs=state)

        def work() -> Any:
            loss = compiled(images, labels)
            mx.eval(loss, state)
            return loss

        return work


class WeftPeer(MlxStylePeer):
    package = "weft"


class MlxPeer(MlxStylePeer):
    package = "mlx"
