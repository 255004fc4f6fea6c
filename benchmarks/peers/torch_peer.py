"""PyTorch, with `torch.compile` around each task."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

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
from .convolutions import CHANNELS, Convolution, cnn_data, cnn_values
from .formulas import formula_data
from .recurrent import lstm_data, lstm_values

TORCH_DEVICE = "cuda" if DEVICE == "gpu" else "cpu"


def given(array: Any) -> Any:
    """A tensor with the elements of an array, on the device of the peer."""
    return torch.from_numpy(array).to(TORCH_DEVICE)


class TorchPeer:
    """With ``TORCHDYNAMO_DISABLE=1`` it compiles nothing."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_default_device(TORCH_DEVICE)

    def synchronize(self, result: Any) -> None:
        torch.cuda.synchronize()

    def _compiled(self, function: Any, *arrays: Any) -> Work:
        inputs = [given(array) for array in arrays]
        # Otherwise the code for a second shape would serve all shapes, and be slower.
        compiled = torch.compile(function, dynamic=False)
        return lambda: compiled(*inputs)

    def gelu(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2, floats(*shape))

    def formula(self, name: str) -> Work:
        function, arrays = formula_data(name)
        names = SimpleNamespace(
            sqrt=torch.sqrt, exp=torch.exp, log=torch.log, erf=torch.erf, roll=torch.roll, replaced=replaced
        )
        return self._compiled(partial(function, names), *arrays)

    def softmax(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: torch.softmax(x, dim=-1), floats(*shape))

    def logsumexp(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: torch.logsumexp(x, dim=-1), floats(*shape))

    def variance(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: torch.var(x, dim=-1, correction=0), floats(*shape))

    def sum_all(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: torch.sum(x), floats(*shape))

    def sum_first_axis(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: torch.sum(x, dim=0), floats(*shape))

    def sum_last_axis(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: torch.sum(x, dim=-1), floats(*shape))

    def transpose(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: x.T.contiguous(), floats(*shape))

    def dense(self, size: int) -> Work:
        a, b = (given(floats(size, size, seed=seed)).bfloat16() for seed in (0, 1))
        bias = given(floats(size, seed=2)).bfloat16()
        step = torch.compile(lambda a, b, bias: F.gelu(torch.addmm(bias, a, b)), dynamic=False)
        return lambda: step(a, b, bias)[0].float()  # indexed outside, so that all rows are computed

    def sort(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: torch.sort(x).values, floats(*shape))

    def argsort(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: torch.argsort(x), floats(*shape))

    def topk(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: torch.topk(x, LARGEST).values, floats(*shape))

    def median(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: torch.median(x, dim=-1).values, floats(*shape))

    def cumsum(self, shape: tuple[int, ...], axis: int) -> Work:
        return self._compiled(lambda x: torch.cumsum(x, dim=axis), floats(*shape))

    def logcumsumexp(self, shape: tuple[int, ...], axis: int) -> Work:
        return self._compiled(lambda x: torch.logcumsumexp(x, dim=axis), floats(*shape))

    def gather(self, shape: tuple[int, ...], count: int) -> Work:
        return self._compiled(lambda x, i: x[i], floats(*shape), classes(count, shape[0]))

    def scatter_add(self, shape: tuple[int, ...], count: int) -> Work:
        data = floats(*shape), classes(count, shape[0]), floats(count, *shape[1:], seed=1)
        return self._compiled(lambda x, i, v: x.index_add(0, i, v), *data)

    def rms_norm(self, shape: tuple[int, ...]) -> Work:
        def normalize(x: Any, scale: Any) -> Any:
            return F.rms_norm(x, shape[-1:], scale, NORM_EPSILON)

        return self._compiled(normalize, floats(*shape), floats(shape[-1], seed=1))

    def rope(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(turn_pairs, floats(*shape))

    def cross_entropy(self, shape: tuple[int, int]) -> Work:
        labels = given(classes(*shape)).long()
        return self._compiled(lambda x: F.cross_entropy(x, labels, reduction="none"), floats(*shape))

    def softmax_gradient(self, shape: tuple[int, ...]) -> Work:
        def gradient(x: Any, cotangent: Any) -> Any:
            return torch.func.vjp(lambda x: torch.softmax(x, dim=-1), x)[1](cotangent)[0]

        return self._compiled(gradient, floats(*shape), floats(*shape, seed=1))

    def layer_norm(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(normalize, floats(*shape), floats(shape[-1], seed=1), floats(shape[-1], seed=2))

    def layer_norm_gradient(self, shape: tuple[int, ...]) -> Work:
        def gradients(x: Any, scale: Any, shift: Any, cotangent: Any) -> Any:
            return torch.func.vjp(normalize, x, scale, shift)[1](cotangent)

        last = shape[-1]
        arrays = (floats(*shape), floats(last, seed=1), floats(last, seed=2), floats(*shape, seed=3))
        return self._compiled(gradients, *arrays)

    def fourier(self, transform: str, shape: tuple[int, ...], axis: int = -1) -> Work:
        function, x = getattr(torch.fft, transform), given(fourier_data(transform, shape))
        if axis == -1:
            return lambda: function(x)
        return lambda: function(x, dim=axis)

    def distances(self, count: int, dimensions: int) -> Work:
        points = floats(count, dimensions), floats(count, dimensions, seed=1)
        return self._compiled(lambda x, y: torch.sum((x[:, None] - y[None]) ** 2, dim=-1), *points)

    def matmul(self, size: int) -> Work:
        a, b = given(floats(size, size)), given(floats(size, size, seed=1))
        return lambda: a @ b

    def converted_matmul(self, shape: tuple[int, ...], dtype: str) -> Work:
        a, b = (given(floats(*shape, seed=seed)).to(getattr(torch, dtype)) for seed in (0, 1))
        return lambda: (a @ b)[0].real.float()

    def fast_matmul(self, size: int) -> Work:
        """Uses the processor's instructions for bfloat16, if it has any."""
        return self.converted_matmul((size, size), "bfloat16")

    def product(self, left: tuple[int, ...], right: tuple[int, ...], transposed: bool) -> Work:
        a, b = given(floats(*left)), given(floats(*right, seed=1))
        return (lambda: a @ b.transpose(-1, -2)) if transposed else (lambda: a @ b)

    def attention(self, heads: Heads, queries: int, keys: int, mask: str, dtype: str) -> Work:
        """Not compiled, because it is a single call."""
        q, k, v = self._attended(heads, queries, keys, dtype)
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=bool(mask))[0, 0, 0].float()

    def attention_gradients(self, heads: Heads, queries: int, keys: int, mask: str, dtype: str) -> Work:
        inputs = [x.requires_grad_() for x in self._attended(heads, queries, keys, dtype)]

        def work() -> Any:
            total = F.scaled_dot_product_attention(*inputs, is_causal=bool(mask)).float().sum()
            torch.autograd.grad(total, inputs)
            return total.detach()

        return work

    def _attended(self, heads: Heads, queries: int, keys: int, dtype: str) -> list[Any]:
        return [given(x).to(getattr(torch, dtype)) for x in attention_data(heads, queries, keys)]

    def convolution(self, **sizes: Any) -> Work:
        layer = Convolution(**sizes)
        x, w, _ = channels_first(layer)
        return lambda: convolved(layer, x, w)

    def convolution_gradients(self, **sizes: Any) -> Work:
        """The gradients with respect to both operands."""
        layer = Convolution(**sizes)
        x, w, ct = channels_first(layer)
        same = [[n] * layer.rank for n in (layer.stride, layer.padding, 1, 0)]
        options = (*same[:3], layer.transposed, same[3], layer.groups, [True, True, False])

        def work() -> Any:
            of_x, of_w, _ = torch.ops.aten.convolution_backward(ct, x, w, None, *options)
            return of_x.movedim(1, -1), (of_w.transpose(0, 1) if layer.transposed else of_w).movedim(1, -1)

        return work

    def quantized_product(self, rows: int, size: int, mode: str, bits: int) -> Work:
        """For comparison, the product with a bfloat16 matrix that is not quantised."""
        x, w = (given(floats(n, size, seed=seed)).bfloat16() for seed, n in enumerate((rows, size)))
        return lambda: (x @ w.T).float()

    def linear_algebra(self, function: str, shape: tuple[int, ...]) -> Work:
        """Not compiled, because each is a single call of a library."""
        a, b = given(matrices(*shape)), given(right_sides(*shape))
        if function == "solve":
            return lambda: torch.linalg.solve(a, b)
        return lambda: getattr(torch.linalg, function)(a)

    def add(self, shape: tuple[int, ...]) -> Work:
        x = given(floats(*shape))
        return lambda: x + x

    def add_value(self, shape: tuple[int, ...]) -> Work:
        x = given(floats(*shape))
        return lambda: np.array((x + x).cpu())

    def vmap_add(self, rows: int, columns: int) -> Work:
        return self._compiled(torch.func.vmap(lambda a, b: a + b, in_dims=(0, 1)), *row_pairs(rows, columns))

    def loop_add(self, rows: int, columns: int) -> Work:
        x, y = map(given, row_pairs(rows, columns))
        return lambda: [x[row] + y[:, row] for row in range(rows)]

    def train(self, batch: int, compiled: bool = True) -> Work:
        images, labels = map(given, training_data(batch))
        labels = labels.long()
        layers: list[torch.nn.Module] = []
        for sizes, (weight, bias) in zip(pairwise(LAYERS), initial_parameters(), strict=True):
            linear = torch.nn.Linear(*sizes)
            linear.weight.data, linear.bias.data = given(weight), given(bias)
            layers += [linear, torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers[:-1])
        optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, ADAM_BETAS, ADAM_EPSILON, fused=True)
        return training(optimizer, lambda x, y: F.cross_entropy(model(x), y), images, labels, compiled=compiled)

    def train_cnn(self, batch: int) -> Work:
        images, labels = map(given, cnn_data(batch))
        model = Cnn()
        optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, ADAM_BETAS, ADAM_EPSILON, fused=True)
        return training(optimizer, lambda x, y: F.cross_entropy(model(x), y), images.movedim(-1, 1), labels.long())

    def train_lstm(self, batch: int, steps: int, width: int) -> Work:
        model = Lstm(width)
        x, labels = map(given, lstm_data(batch, steps, width))
        optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, ADAM_BETAS, ADAM_EPSILON, fused=True)

        def mean_loss(x: Any, labels: Any) -> Any:
            return F.cross_entropy(model(x).flatten(0, 1), labels.flatten())

        return training(optimizer, mean_loss, x, labels.long())

    def train_gpt(self, half: bool = False, **sizes: Any) -> Work:
        chosen = gpt.Sizes(**sizes)
        model = Gpt(chosen)
        model.load_state_dict(named("", gpt.map_leaves(given, gpt.initial_values(chosen))))
        tokens, following = map(given, gpt.windows(chosen))
        if half:
            model.bfloat16()
        optimizer = torch.optim.AdamW(
            model.parameters(), LEARNING_RATE, ADAM_BETAS, ADAM_EPSILON, gpt.WEIGHT_DECAY, fused=True
        )

        def mean_loss(tokens: Any, following: Any) -> Any:
            return F.cross_entropy(model(tokens).float().flatten(0, 1), following.flatten())

        return training(optimizer, mean_loss, tokens, following.long())

    def decode(self, half: bool, bits: int = 0, **sizes: Any) -> Work | None:
        if bits:
            return None
        chosen = gpt.Sizes(**sizes)
        dtype = torch.bfloat16 if half else torch.float32
        parameters = gpt.map_leaves(lambda value: given(value).to(dtype), gpt.initial_values(chosen))
        shapes = gpt.cache_shapes(chosen)
        caches = [[torch.zeros(shape, dtype=dtype) for shape in shapes] for _ in range(chosen.layers)]
        state = [torch.tensor([0]), torch.tensor([0])]
        # On a GPU the calls are one graph, so that launching kernels does not dominate the time.
        mode = "reduce-overhead" if DEVICE == "gpu" else "default"
        step = torch.compile(partial(decode_token, chosen), dynamic=False, mode=mode)

        def work() -> Any:
            with torch.no_grad():
                scores, *state[:] = step(parameters, caches, *state)
                return scores.float()

        return work


def decode_token(sizes: gpt.Sizes, parameters: Any, caches: Any, token: Any, place: Any) -> Any:
    """One step of generation with the model of `gpt`, with keys and values of earlier tokens; scores, next token and
    position."""

    def linear(layer: Any, x: Any) -> Any:
        return F.linear(x, layer["weight"], layer["bias"])

    def norm(parameters: Any, x: Any) -> Any:
        return normalize(x, parameters["weight"], parameters["bias"])

    size = sizes.width // sizes.heads
    seen = torch.arange(sizes.context) <= place
    x = parameters["tokens"]["weight"][token] + parameters["positions"][place]
    for block, (keys, values) in zip(parameters["blocks"], caches, strict=True):
        query, key, value = linear(block["mixed"], norm(block["attention_norm"], x)).reshape(3, sizes.heads, 1, size)
        keys.index_copy_(1, place, key)
        values.index_copy_(1, place, value)
        scores = query @ keys.transpose(1, 2) * size**-0.5
        weights = torch.softmax(torch.where(seen, scores, -math.inf), dim=-1)
        x = x + linear(block["attended"], (weights @ values).reshape(1, sizes.width))
        x = x + linear(block["narrowed"], F.gelu(linear(block["widened"], norm(block["mlp_norm"], x))))
    scores = norm(parameters["norm"], x) @ parameters["head"]["weight"].T
    return scores, scores.argmax(-1), (place + 1) % sizes.context


def replaced(x: Any, at: Any, values: Any) -> Any:
    """An array with other values at an index."""
    result = x.clone()
    result[at] = values
    return result


def normalize(x: Any, scale: Any, shift: Any) -> Any:
    """Layer norm of the last axis."""
    return F.layer_norm(x, x.shape[-1:], scale, shift, NORM_EPSILON)


def turn_pairs(x: Any) -> Any:
    """Rotary positions; feature i and feature i + half form a pair."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * ROPE_BASE ** (-torch.arange(half) / half)
    cosine, sine = torch.cos(angles), torch.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


def training(optimizer: Any, mean_loss: Any, *batch: Any, compiled: bool = True) -> Work:
    """Steps of an optimizer, which is PyTorch's fused kernel; forward and backward pass are ``compiled`` or not."""
    forward = torch.compile(mean_loss, dynamic=False) if compiled else mean_loss

    def work() -> Any:
        optimizer.zero_grad()
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return work


def named(path: str, values: Any) -> dict[str, Any]:
    """Leaves of nested dicts and lists by their dotted paths, as PyTorch's modules name parameters."""
    if isinstance(values, torch.Tensor):
        return {path: values}
    items = values.items() if isinstance(values, dict) else enumerate(values)
    return {
        name: leaf for key, value in items for name, leaf in named(f"{path}.{key}" if path else str(key), value).items()
    }


class Block(torch.nn.Module):
    """A block of the model of `gpt`."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.attention_norm = torch.nn.LayerNorm(width, NORM_EPSILON)
        self.mixed = torch.nn.Linear(width, 3 * width)
        self.attended = torch.nn.Linear(width, width)
        self.mlp_norm = torch.nn.LayerNorm(width, NORM_EPSILON)
        self.widened = torch.nn.Linear(width, gpt.MLP_WIDENING * width)
        self.narrowed = torch.nn.Linear(gpt.MLP_WIDENING * width, width)

    def forward(self, x: Any, causal: Any) -> Any:
        x = x + self.attended(self.attention(self.mixed(self.attention_norm(x)), causal))
        return x + self.narrowed(F.gelu(self.widened(self.mlp_norm(x))))

    def attention(self, mixed: Any, causal: Any) -> Any:
        """Attention of several heads; queries, keys and values are concatenated in ``mixed``."""
        batch, length, _ = mixed.shape
        parts = mixed.chunk(3, dim=-1)
        queries, keys, values = (part.reshape(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        if self.fused:
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            return attended.transpose(1, 2).reshape(batch, length, -1)
        scores = queries @ keys.transpose(2, 3) * queries.shape[-1] ** -0.5
        weights = torch.softmax(torch.where(causal, scores, -math.inf), dim=-1)
        return (weights @ values).transpose(1, 2).reshape(batch, length, -1)


class Gpt(torch.nn.Module):
    """The model of `gpt`; its parameters have the same names."""

    def __init__(self, sizes: gpt.Sizes) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(gpt.VOCABULARY, sizes.width)
        self.positions = torch.nn.Parameter(torch.zeros(sizes.context, sizes.width))
        self.blocks = torch.nn.ModuleList(Block(sizes.width, sizes.heads, sizes.fused) for _ in range(sizes.layers))
        self.norm = torch.nn.LayerNorm(sizes.width, NORM_EPSILON)
        self.head = torch.nn.Linear(sizes.width, gpt.VOCABULARY, bias=False)

    def forward(self, tokens: Any) -> Any:
        place = torch.arange(tokens.shape[1])
        causal = place[:, None] >= place
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x, causal)
        return self.head(self.norm(x))


def channels_first(layer: Convolution) -> list[Any]:
    """The data of a layer as views with channels after the first axis."""
    x, w, ct = [given(array).movedim(-1, 1) for array in layer.data()]
    return [x, w.transpose(0, 1) if layer.transposed else w, ct]


def convolved(layer: Convolution, x: Any, w: Any) -> Any:
    function = getattr(F, f"conv{'_transpose' if layer.transposed else ''}{layer.rank}d")
    return function(x, w, stride=layer.stride, padding=layer.padding, groups=layer.groups).movedim(1, -1)


class Cnn(torch.nn.Module):
    """The net of `convolutions`."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in cnn_values().items():
            ordered = given(value)
            ordered = ordered.movedim(-1, 1) if ordered.ndim == 4 else ordered
            self.register_parameter(name, torch.nn.Parameter(ordered))

    def forward(self, x: Any) -> Any:
        for number in range(len(CHANNELS)):
            x = F.conv2d(x, self.get_parameter(f"kernel{number}"), self.get_parameter(f"bias{number}"), padding=1)
            x = F.max_pool2d(F.relu(x), 2)
        return x.mean((2, 3)) @ self.get_parameter("head").T


class Lstm(torch.nn.Module):
    """The net of `recurrent`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        values = {name: given(value) for name, value in lstm_values(width).items()}
        self.head = torch.nn.Parameter(values["head"])
        self.lstm = torch.nn.LSTM(width, width, batch_first=True)
        self.lstm.load_state_dict(
            {
                "weight_ih_l0": values["Wx"],
                "weight_hh_l0": values["Wh"],
                "bias_ih_l0": values["bias"],
                "bias_hh_l0": torch.zeros_like(values["bias"]),
            }
        )
        self.lstm.bias_hh_l0.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.lstm(x)[0] @ self.head.T
