"""PyTorch, with `torch.compile` around each task."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

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


class TorchPeer:
    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def _compiled(self, function: Any, *arrays: Any) -> Work:
        inputs = [torch.from_numpy(array) for array in arrays]
        compiled = torch.compile(function)
        return lambda: compiled(*inputs)

    def gelu(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2, floats(*shape))

    def softmax(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: torch.softmax(x, dim=-1), floats(*shape))

    def logsumexp(self, shape: tuple[int, ...]) -> Work:
        return self._compiled(lambda x: torch.logsumexp(x, dim=-1), floats(*shape))

    def layer_norm(self, shape: tuple[int, ...]) -> Work:
        def normalize(x: Any, scale: Any, shift: Any) -> Any:
            return F.layer_norm(x, shape[-1:], scale, shift, LAYER_NORM_EPSILON)

        return self._compiled(normalize, floats(*shape), floats(shape[-1], seed=1), floats(shape[-1], seed=2))

    def matmul(self, size: int) -> Work:
        a, b = torch.from_numpy(floats(size, size)), torch.from_numpy(floats(size, size, seed=1))
        return lambda: a @ b

    def add(self, shape: tuple[int, ...]) -> Work:
        x = torch.from_numpy(floats(*shape))
        return lambda: x + x

    def vmap_add(self, rows: int, columns: int) -> Work:
        return self._compiled(torch.func.vmap(lambda a, b: a + b, in_dims=(0, 1)), *row_pairs(rows, columns))

    def loop_add(self, rows: int, columns: int) -> Work:
        x, y = map(torch.from_numpy, row_pairs(rows, columns))
        return lambda: [x[row] + y[:, row] for row in range(rows)]

    def train(self, batch: int) -> Work:
        images, labels = map(torch.from_numpy, training_data(batch))
        labels = labels.long()
        layers: list[torch.nn.Module] = []
        for sizes, (weight, bias) in zip(pairwise(LAYERS), initial_parameters(), strict=True):
            linear = torch.nn.Linear(*sizes)
            linear.weight.data, linear.bias.data = torch.from_numpy(weight), torch.from_numpy(bias)
            layers += [linear, torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers[:-1])
        optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, ADAM_BETAS, ADAM_EPSILON, fused=True)
        mean_loss = torch.compile(lambda x, y: F.cross_entropy(model(x), y))

        def work() -> Any:
            optimizer.zero_grad()
            loss = mean_loss(images, labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return work
