"""Weft and MLX: the same program for both, because Weft uses MLX's names."""

from __future__ import annotations

import math
from functools import partial
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import (
    ADAM_BETAS,
    ADAM_EPSILON,
    DEVICE,
    LARGEST,
    LAYERS,
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
from .convolutions import Convolution, cnn_data
from .formulas import formula_data
from .mlx_models import make_cnn, make_gpt, make_lstm
from .recurrent import lstm_data


class MlxStylePeer:
    """The tasks written with the names of `mlx.core`, for the package that a subclass names."""

    package: str

    def __init__(self, threads: int) -> None:
        del threads  # Weft reads WEFT_NUM_THREADS; MLX has no setting.
        self.mx = import_module(f"{self.package}.core")
        self.mx.set_default_device(getattr(self.mx, DEVICE))
        self._run = self.mx.eval if DEVICE == "cpu" else self.mx.async_eval

    def synchronize(self, result: Any) -> None:
        self.mx.synchronize()

    def _compiled(self, function: Any, *arrays: Any) -> Work:
        mx = self.mx
        inputs = [mx.array(array) for array in arrays]
        mx.eval(inputs)
        compiled = mx.compile(function)

        def work() -> Any:
            result = compiled(*inputs)
            self._run(result)
            return result

        return work

    def formula(self, name: str) -> Work:
        function, arrays = formula_data(name)
        return self._compiled(partial(function, self._names()), *arrays)

    def formula_gradient(self, name: str) -> Work:
        function, arrays = formula_data(name)
        names = self._names()
        mean = self.mx.value_and_grad(lambda *x: function(names, *x).mean(), argnums=tuple(range(len(arrays))))
        return self._compiled(mean, *arrays)

    def _names(self) -> SimpleNamespace:
        """The names used in formulas."""
        mx = self.mx

        def replaced(x: Any, at: Any, values: Any) -> Any:
            result = mx.array(x)
            result[at] = values
            return result

        return SimpleNamespace(sqrt=mx.sqrt, exp=mx.exp, log=mx.log, erf=mx.erf, roll=mx.roll, replaced=replaced)

    def attention(self, heads: Heads, queries: int, keys: int, mask: str, dtype: str) -> Work:
        work = self._attended(lambda attend: attend, heads, queries, keys, mask, dtype)
        return lambda: work()[0, 0, 0].astype(self.mx.float32)

    def attention_gradients(self, heads: Heads, queries: int, keys: int, mask: str, dtype: str) -> Work:
        def gradients(attend: Any) -> Any:
            total = lambda *inputs: attend(*inputs).astype(self.mx.float32).sum()  # noqa: E731
            return self.mx.value_and_grad(total, argnums=(0, 1, 2))

        work = self._attended(gradients, heads, queries, keys, mask, dtype)
        return lambda: work()[0]

    def _attended(self, made: Any, heads: Heads, queries: int, keys: int, mask: str, dtype: str) -> Work:
        """The attention computed by ``made``."""
        mx = self.mx
        inputs = [mx.array(x).astype(getattr(mx, dtype)) for x in attention_data(heads, queries, keys)]
        mx.eval(inputs)
        scale = heads[2] ** -0.5

        def attend(q: Any, k: Any, v: Any) -> Any:
            return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask or None)

        compiled = mx.compile(made(attend))

        def work() -> Any:
            result = compiled(*inputs)
            self._run(result)
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

    def variance(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx
        return self._compiled(lambda x: mx.var(x, axis=-1), floats(*shape))

    def sum_all(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(self.mx.sum, floats(*shape))

    def sum_first_axis(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx
        return self._compiled(lambda x: mx.sum(x, axis=0), floats(*shape))

    def sum_last_axis(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx
        return self._compiled(lambda x: mx.sum(x, axis=-1), floats(*shape))

    def transpose(self, shape: tuple[int, ...]) -> Work:
        # Multiplied by one, which is unknown when this is compiled, because a transpose alone would only be a view.
        return self._compiled(lambda x, one: x.T * one, floats(*shape), np.ones((), np.float32))

    def dense(self, size: int) -> Work:
        mx, nn = self.mx, import_module(f"{self.package}.nn")
        a, b = (mx.array(floats(size, size, seed=seed)).astype(mx.bfloat16) for seed in (0, 1))
        bias = mx.array(floats(size, seed=2)).astype(mx.bfloat16)
        step = mx.compile(lambda a, b, bias: nn.gelu(a @ b + bias))
        work = self._on_arrays(step, a, b, bias)
        return lambda: work()[0]

    def sort(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx
        return self._compiled(lambda x: mx.sort(x), floats(*shape))

    def argsort(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx
        return self._compiled(lambda x: mx.argsort(x), floats(*shape))

    def topk(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx
        return self._compiled(lambda x: mx.topk(x, LARGEST), floats(*shape))

    def median(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx
        return self._compiled(lambda x: mx.median(x, axis=-1), floats(*shape))

    def cumsum(self, shape: tuple[int, ...], axis: int) -> Work:
        mx = self.mx
        return self._compiled(lambda x: mx.cumsum(x, axis=axis), floats(*shape))

    def logcumsumexp(self, shape: tuple[int, ...], axis: int) -> Work:
        mx = self.mx
        return self._compiled(lambda x: mx.logcumsumexp(x, axis=axis), floats(*shape))

    def gather(self, shape: tuple[int, ...], count: int) -> Work:
        return self._compiled(lambda x, i: x[i], floats(*shape), classes(count, shape[0]))

    def scatter_add(self, shape: tuple[int, ...], count: int) -> Work:
        data = floats(*shape), classes(count, shape[0]), floats(count, *shape[1:], seed=1)
        return self._compiled(lambda x, i, v: x.at[i].add(v), *data)

    def rms_norm(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx

        def normalize(x: Any, scale: Any) -> Any:
            return mx.fast.rms_norm(x, scale, NORM_EPSILON)

        return self._compiled(normalize, floats(*shape), floats(shape[-1], seed=1))

    def rope(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx

        def turn(x: Any) -> Any:
            return mx.fast.rope(x, shape[-1], traditional=False, base=ROPE_BASE, scale=1.0, offset=0)

        return self._compiled(turn, floats(*shape))

    def cross_entropy(self, shape: tuple[int, int]) -> Work:
        losses = import_module(f"{self.package}.nn").losses
        return self._compiled(losses.cross_entropy, floats(*shape), classes(*shape))

    def softmax_gradient(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx

        def gradient(x: Any, cotangent: Any) -> Any:
            return mx.vjp(lambda x: mx.softmax(x, axis=-1), [x], [cotangent])[1][0]

        return self._compiled(gradient, floats(*shape), floats(*shape, seed=1))

    def layer_norm(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(self._normalize, floats(*shape), floats(shape[-1], seed=1), floats(shape[-1], seed=2))

    def layer_norm_gradient(self, shape: tuple[int, ...]) -> Work:
        mx = self.mx

        def gradients(x: Any, scale: Any, shift: Any, cotangent: Any) -> Any:
            return mx.vjp(self._normalize, [x, scale, shift], [cotangent])[1]

        last = shape[-1]
        arrays = (floats(*shape), floats(last, seed=1), floats(last, seed=2), floats(*shape, seed=3))
        return self._compiled(gradients, *arrays)

    def _normalize(self, x: Any, scale: Any, shift: Any) -> Any:
        return self.mx.fast.layer_norm(x, scale, shift, NORM_EPSILON)

    def fourier(self, transform: str, shape: tuple[int, ...], **keywords: Any) -> Work:
        function = getattr(self.mx.fft, transform)
        return self._compiled(lambda x: function(x, **keywords), fourier_data(transform, shape))

    def distances(self, count: int, dimensions: int) -> Work:
        mx = self.mx
        points = floats(count, dimensions), floats(count, dimensions, seed=1)
        return self._compiled(lambda x, y: mx.sum((x[:, None] - y[None]) ** 2, axis=-1), *points)

    def matmul(self, size: int) -> Work:
        mx = self.mx
        a, b = mx.array(floats(size, size)), mx.array(floats(size, size, seed=1))

        def work() -> Any:
            result = a @ b
            self._run(result)
            return result

        return work

    def product(self, left: tuple[int, ...], right: tuple[int, ...], transposed: bool) -> Work:
        def multiply(a: Any, b: Any) -> Any:
            return a @ (b.swapaxes(-1, -2) if transposed else b)

        return self._compiled(multiply, floats(*left), floats(*right, seed=1))

    def convolution(self, **sizes: Any) -> Work:
        layer = Convolution(**sizes)
        x, w, _ = layer.data()
        return self._compiled(self._convolution(layer), x, w)

    def convolution_gradients(self, **sizes: Any) -> Work:
        """The gradients with respect to both operands."""
        layer = Convolution(**sizes)
        mx, convolved = self.mx, self._convolution(layer)
        return self._compiled(lambda x, w, ct: mx.vjp(convolved, [x, w], [ct])[1], *layer.data())

    def _convolution(self, layer: Convolution) -> Any:
        function = getattr(self.mx, f"conv{'_transpose' if layer.transposed else ''}{layer.rank}d")
        return lambda x, w: function(x, w, stride=layer.stride, padding=layer.padding, groups=layer.groups)

    def quantized_product(self, rows: int, size: int, mode: str, bits: int) -> Work:
        mx = self.mx
        parts = mx.quantize(mx.array(floats(size, size, seed=1)).astype(mx.bfloat16), None, bits, mode)
        x = mx.array(floats(rows, size)).astype(mx.bfloat16)
        step = mx.compile(lambda x, *parts: mx.quantized_matmul(x, *parts, bits=bits, mode=mode))
        return self._on_arrays(step, x, *parts)

    def experts(self, experts: int, chosen: int, shape: tuple[int, int]) -> Work:
        mx = self.mx
        parts = mx.quantize(mx.array(floats(experts, *shape, seed=1)).astype(mx.bfloat16))
        x = mx.array(floats(1, shape[1])).astype(mx.bfloat16)
        index = mx.array(classes(chosen, experts))
        step = mx.compile(lambda x, index, *parts: mx.gather_qmm(x, *parts, rhs_indices=index))
        return self._on_arrays(step, x, index, *parts)

    def _on_arrays(self, step: Any, *arrays: Any) -> Work:
        """A compiled function of given arrays; its result is converted to float32."""
        mx = self.mx
        mx.eval(*arrays)

        def work() -> Any:
            result = step(*arrays)
            self._run(result)
            return result.astype(mx.float32)

        return work

    def linear_algebra(self, function: str, shape: tuple[int, ...]) -> Work:
        linalg = self.mx.linalg
        if function == "solve":
            return self._compiled(linalg.solve, matrices(*shape), right_sides(*shape))
        return self._compiled(getattr(linalg, function), matrices(*shape))

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
            self._run(result)
            return result

        return work

    def add_value(self, shape: tuple[int, ...]) -> Work:
        x = self.mx.array(floats(*shape))
        return lambda: np.array(x + x)

    def vmap_add(self, rows: int, columns: int) -> Work:
        mx = self.mx
        x, y = map(mx.array, row_pairs(rows, columns))
        add = mx.vmap(lambda a, b: a + b, in_axes=(0, 1))

        def work() -> Any:
            result = add(x, y)
            self._run(result)
            return result

        return work

    def loop_add(self, rows: int, columns: int) -> Work:
        mx = self.mx
        x, y = map(mx.array, row_pairs(rows, columns))

        def work() -> Any:
            results = [x[row] + y[:, row] for row in range(rows)]
            self._run(results)
            return results

        return work

    def train(self, batch: int, compiled: bool = True) -> Work:
        mx = self.mx
        nn = import_module(f"{self.package}.nn")
        optimizers = import_module(f"{self.package}.optimizers")

        layers = []
        for sizes, (weight, bias) in zip(pairwise(LAYERS), initial_parameters(), strict=True):
            linear = nn.Linear(*sizes)
            linear.weight, linear.bias = mx.array(weight), mx.array(bias)
            layers += [linear, nn.ReLU()]
        model = nn.Sequential(*layers[:-1])
        optimizer = optimizers.Adam(LEARNING_RATE, list(ADAM_BETAS), ADAM_EPSILON, bias_correction=True)

        def mean_loss(images: Any, labels: Any) -> Any:
            return nn.losses.cross_entropy(model(images), labels, reduction="mean")

        return self._training(model, optimizer, mean_loss, *training_data(batch), compiled=compiled)

    def train_cnn(self, batch: int) -> Work:
        mx = self.mx
        nn = import_module(f"{self.package}.nn")
        optimizers = import_module(f"{self.package}.optimizers")
        model = make_cnn(mx, nn)
        optimizer = optimizers.Adam(LEARNING_RATE, list(ADAM_BETAS), ADAM_EPSILON, bias_correction=True)

        def mean_loss(images: Any, labels: Any) -> Any:
            return nn.losses.cross_entropy(model(images), labels, reduction="mean")

        return self._training(model, optimizer, mean_loss, *cnn_data(batch))

    def train_lstm(self, batch: int, steps: int, width: int) -> Work:
        nn = import_module(f"{self.package}.nn")
        optimizers = import_module(f"{self.package}.optimizers")
        model = make_lstm(self.mx, nn, width)
        optimizer = optimizers.Adam(LEARNING_RATE, list(ADAM_BETAS), ADAM_EPSILON, bias_correction=True)

        def mean_loss(x: Any, labels: Any) -> Any:
            return nn.losses.cross_entropy(model(x), labels, reduction="mean")

        return self._training(model, optimizer, mean_loss, *lstm_data(batch, steps, width))

    def train_gpt(self, half: bool = False, **sizes: Any) -> Work:
        mx = self.mx
        nn = import_module(f"{self.package}.nn")
        optimizers = import_module(f"{self.package}.optimizers")
        chosen = gpt.Sizes(**sizes)
        model = make_gpt(mx, nn, chosen)
        model.update(gpt.map_leaves(mx.array, gpt.initial_values(chosen)))
        if half:
            model.set_dtype(mx.bfloat16)
        betas = list(ADAM_BETAS)
        optimizer = optimizers.AdamW(LEARNING_RATE, betas, ADAM_EPSILON, gpt.WEIGHT_DECAY, bias_correction=True)

        def mean_loss(tokens: Any, following: Any) -> Any:
            return nn.losses.cross_entropy(model(tokens).astype(mx.float32), following, reduction="mean")

        return self._training(model, optimizer, mean_loss, *gpt.windows(chosen))

    def decode(self, half: bool, bits: int = 0, **sizes: Any) -> Work:
        mx = self.mx
        chosen = gpt.Sizes(**sizes)
        dtype = mx.bfloat16 if half else mx.float32
        parameters = gpt.map_leaves(lambda value: mx.array(value).astype(dtype), gpt.initial_values(chosen))
        if bits:
            self._quantize(parameters, bits)
        caches = [[mx.zeros(shape, dtype) for shape in gpt.cache_shapes(chosen)] for _ in range(chosen.layers)]
        state = [caches, mx.array([0]), mx.array([0])]
        mx.eval(parameters, state)
        step = mx.compile(partial(self._decode_token, chosen, state), inputs=state, outputs=state)

        def work() -> Any:
            scores = step(parameters)
            self._run(scores, state)
            return scores.astype(mx.float32)

        return work

    def _decode_token(self, sizes: gpt.Sizes, state: list[Any], parameters: Any) -> Any:
        mx = self.mx
        (caches, token, place), size = state, sizes.width // sizes.heads
        seen = mx.arange(sizes.context) <= place
        x = parameters["tokens"]["weight"][token] + parameters["positions"][place]
        for block, cache in zip(parameters["blocks"], caches, strict=True):
            mixed = self._linear(block["mixed"], self._norm(block["attention_norm"], x))
            query, key, value = mixed.reshape(3, sizes.heads, 1, size)
            cache[0] = mx.slice_update(cache[0], key, place, axes=(1,))
            cache[1] = mx.slice_update(cache[1], value, place, axes=(1,))
            scores = query @ cache[0].swapaxes(1, 2) * size**-0.5
            weights = mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1)
            x = x + self._linear(block["attended"], (weights @ cache[1]).reshape(1, sizes.width))
            widened = self._linear(block["widened"], self._norm(block["mlp_norm"], x))
            x = x + self._linear(block["narrowed"], widened * (1 + mx.erf(widened / math.sqrt(2))) / 2)
        scores = self._linear(parameters["head"], self._norm(parameters["norm"], x))
        state[1], state[2] = mx.argmax(scores, axis=-1).astype(mx.int32), (place + 1) % sizes.context
        return scores

    def _quantize(self, parameters: Any, bits: int) -> None:
        """Replace the weights of linear layers by codes, scales and biases."""
        layers = [layer for block in parameters["blocks"] for name, layer in block.items() if "norm" not in name]
        for layer in [*layers, parameters["head"]]:
            layer["codes"] = self.mx.quantize(layer.pop("weight"), bits=bits)
            layer["bits"] = bits

    def _linear(self, layer: Any, x: Any) -> Any:
        if "codes" in layer:
            product = self.mx.quantized_matmul(x, *layer["codes"], bits=layer["bits"])
        else:
            product = x @ layer["weight"].T
        return product + layer["bias"] if "bias" in layer else product

    def _norm(self, norm: Any, x: Any) -> Any:
        return self._normalize(x, norm["weight"], norm["bias"])

    def _training(self, model: Any, optimizer: Any, mean_loss: Any, *batch: Any, compiled: bool = True) -> Work:
        mx = self.mx
        arrays = [mx.array(array) for array in batch]
        optimizer.init(model.trainable_parameters())
        state = [model.state, optimizer.state]
        mx.eval(state, arrays)
        loss_and_gradients = import_module(f"{self.package}.nn").value_and_grad(model, mean_loss)

        def step(*arrays: Any) -> Any:
            loss, gradients = loss_and_gradients(*arrays)
            optimizer.update(model, gradients)
            return loss

        run = mx.compile(step, inputs=state, outputs=state) if compiled else step

        def work() -> Any:
            loss = run(*arrays)
            self._run(loss, state)
            return loss

        return work


class MlxPeer(MlxStylePeer):
    package = "mlx"
