"""The models of the tasks as modules of `weft.nn` and `mlx.nn`."""

from __future__ import annotations

from typing import Any

from . import NORM_EPSILON, gpt
from .convolutions import CHANNELS, cnn_values
from .recurrent import lstm_values


def make_gpt(mx: Any, nn: Any, sizes: gpt.Sizes) -> Any:
    """The model of `gpt` as a module, with the same names of parameters."""
    width, heads = sizes.width, sizes.heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm = nn.LayerNorm(width, NORM_EPSILON)
            self.mixed = nn.Linear(width, 3 * width)
            self.attended = nn.Linear(width, width)
            self.mlp_norm = nn.LayerNorm(width, NORM_EPSILON)
            self.widened = nn.Linear(width, gpt.MLP_WIDENING * width)
            self.narrowed = nn.Linear(gpt.MLP_WIDENING * width, width)

        def __call__(self, x: Any, causal: Any) -> Any:
            x = x + self.attended(self.attention(self.mixed(self.attention_norm(x)), causal))
            return x + self.narrowed(nn.gelu(self.widened(self.mlp_norm(x))))

        def attention(self, mixed: Any, causal: Any) -> Any:
            batch, length, _ = mixed.shape
            by_head = (batch, length, heads, width // heads)
            parts = mx.split(mixed, 3, axis=-1)
            queries, keys, values = (part.reshape(by_head).transpose(0, 2, 1, 3) for part in parts)
            scale = (width // heads) ** -0.5
            if sizes.fused:
                found = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask="causal")
            else:
                scores = queries @ keys.transpose(0, 1, 3, 2) * scale
                found = mx.softmax(mx.where(causal, scores, -mx.inf), axis=-1) @ values
            return found.transpose(0, 2, 1, 3).reshape(batch, length, width)

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(gpt.VOCABULARY, width)
            self.positions = mx.zeros((sizes.context, width))
            self.blocks = [Block() for _ in range(sizes.layers)]
            self.norm = nn.LayerNorm(width, NORM_EPSILON)
            self.head = nn.Linear(width, gpt.VOCABULARY, bias=False)

        def __call__(self, tokens: Any) -> Any:
            place = mx.arange(sizes.context)
            causal = place[:, None] >= place
            x = self.tokens(tokens) + self.positions
            for block in self.blocks:
                x = block(x, causal)
            return self.head(self.norm(x))

    return Gpt()


def make_cnn(mx: Any, nn: Any) -> Any:
    """The net of `convolutions` as a module, with the same names of parameters."""

    class Cnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in cnn_values().items():
                self[name] = mx.array(value)

        def __call__(self, x: Any) -> Any:
            for number in range(len(CHANNELS)):
                x = nn.relu(mx.conv2d(x, self[f"kernel{number}"], padding=1) + self[f"bias{number}"])
                count, height, width, channels = x.shape
                x = x.reshape(count, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))
            return x.mean(axis=(1, 2)) @ self["head"].T

    return Cnn()


def make_lstm(mx: Any, nn: Any, width: int) -> Any:
    """The net of `recurrent` as a module."""

    class Lstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            values = {name: mx.array(value) for name, value in lstm_values(width).items()}
            self.head = values.pop("head")
            self.lstm = nn.LSTM(width, width)
            self.lstm.update(values)

        def __call__(self, x: Any) -> Any:
            return self.lstm(x)[0] @ self.head.T

    return Lstm()
