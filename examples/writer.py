"""The transformer that `language_model.py` trains and `fine_tuning.py` adapts, and how it generates text.

- a model, `Writer`: attention with rotary positions, and feed-forward layers with gates,
- generation with a cache: keys and values of earlier bytes are stored, so that a new byte costs one row of each
  product,
- sampling: the next byte is drawn at random from the most likely ones.
"""

from __future__ import annotations

from typing import NamedTuple

import weft.core as mx
import weft.nn as nn

CONTEXT = 256
Cache = dict[str, mx.array]


class Sizes(NamedTuple):
    layers: int
    width: int
    heads: int
    steps: int


class Attention(nn.Module):
    """Self-attention in which each position sees itself and earlier ones."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.mixed = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.rope = nn.RoPE(width // heads)

    def __call__(self, x: mx.array, cache: Cache | None, place: mx.array | int) -> mx.array:
        parts = mx.split(self.mixed(x), 3, axis=-1)
        queries, keys, values = [mx.unflatten(part, -1, (self.heads, -1)).swapaxes(1, 2) for part in parts]
        queries, keys = self.rope(queries, offset=place), self.rope(keys, offset=place)
        mask: str | mx.array = "causal"
        if cache is not None:
            keys = cache["keys"] = mx.slice_update(cache["keys"], keys, place, axes=(2,))
            values = cache["values"] = mx.slice_update(cache["values"], values, place, axes=(2,))
            mask = mx.arange(keys.shape[2]) <= place  # later entries of the cache are empty
        found = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.scale, mask=mask)
        return self.out(found.swapaxes(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, and a feed-forward layer with a gate."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width), Attention(width, heads)
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def __call__(self, x: mx.array, cache: Cache | None, place: mx.array | int) -> mx.array:
        x = x + self.attention(self.attention_norm(x), cache, place)
        y = self.norm(x)
        return x + self.down(nn.silu(self.gate(y)) * self.up(y))


class Writer(nn.Module):
    """For each byte of texts of shape (N, length), scores of the 256 possible next bytes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, sizes.width)
        self.blocks = [Block(sizes.width, sizes.heads) for _ in range(sizes.layers)]
        self.norm = nn.RMSNorm(sizes.width)

    def __call__(self, text: mx.array, caches: list[Cache] | None = None, place: mx.array | int = 0) -> mx.array:
        x = self.bytes(text)
        for number, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[number], place)
        return self.bytes.as_linear(self.norm(x))

    def loss(self, text: mx.array) -> mx.array:
        """The mean cross entropy per byte, in nats."""
        return nn.losses.cross_entropy(self(text[:, :-1]), text[:, 1:], reduction="mean")


def write(model: Writer, sizes: Sizes, beginning: bytes, temperature: float = 0.7, likely: int = 20) -> bytes:
    """A text of 256 bytes; each byte is drawn from the ``likely`` ones with the highest scores."""
    shape = (1, sizes.heads, CONTEXT, sizes.width // sizes.heads)
    caches: list[Cache] = [{"keys": mx.zeros(shape), "values": mx.zeros(shape)} for _ in model.blocks]

    def following(byte: mx.array, place: mx.array) -> mx.array:
        scores = model(byte[None], caches, place)[0, -1]
        scores = mx.where(scores < mx.min(mx.topk(scores, likely)), -mx.inf, scores)
        return mx.random.categorical(scores[None] / temperature)

    state = [caches, mx.random.state]
    following = mx.compile(following, inputs=[model.state, *state], outputs=state)
    text = list(beginning)
    for place in range(CONTEXT - 1):
        byte = following(mx.array([text[place]]), mx.array([place]))
        if place + 1 == len(text):
            text.append(byte.item())
    return bytes(text)
