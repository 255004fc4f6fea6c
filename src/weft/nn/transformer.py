"""Multi-head attention and transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import weft.core as mx
from weft.checks import function_of
from weft.nn.activations import relu
from weft.nn.checks import array_input, check_last_size, share_of, size_of
from weft.nn.dropout import Dropout
from weft.nn.linear import Linear
from weft.nn.module import Module
from weft.nn.normalization import LayerNorm

__all__ = [
    "MultiHeadAttention",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

Mask = mx.array | str | None
ActivationFunction = Callable[[mx.array], mx.array]


class MultiHeadAttention(Module):
    """Attention with several heads: ``out_proj(softmax(scale * q @ k.T + mask) @ v)``.

    Vaswani et al., arXiv:1706.03762. Each head has its own part of the features of ``q = query_proj(queries)``, and of
    projected keys and values; ``scale`` is one over the square root of its size.

    Args:
        dims: features of queries and keys of all heads together.
        num_heads: a divisor of ``dims``.
        query_input_dims: features of ``queries``; by default ``dims``.
        key_input_dims: features of ``keys``; by default ``dims``.
        value_input_dims: features of ``values``; by default ``key_input_dims``.
        value_dims: features of the values of all heads together, a multiple of ``num_heads``; by default ``dims``.
        value_output_dims: features of the result; by default ``dims``.
        bias: whether the projections have biases.

    Called with ``queries`` of shape ``(batch, T, features)``, ``keys`` and ``values`` of shape ``(batch, S,
    features)``, and optionally a ``mask`` as `mx.fast.scaled_dot_product_attention` takes it (added to scores of shape
    ``(batch, num_heads, T, S)``, of bool, or ``"causal"``), it returns ``(batch, T, value_output_dims)``.

    Raises:
        ValueError: the heads do not divide the features; when called, a shape that does not fit.

    >>> attention = nn.MultiHeadAttention(16, num_heads=4)
    >>> x = mx.zeros((2, 5, 16))
    >>> attention(x, x, x, mask="causal").shape
    (2, 5, 16)
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        query_input_dims: int | None = None,
        key_input_dims: int | None = None,
        value_input_dims: int | None = None,
        value_dims: int | None = None,
        value_output_dims: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        dims, self.num_heads = _size("dims", dims), _size("num_heads", num_heads)
        value_dims = _size("value_dims", value_dims, dims)
        _check_heads("MultiHeadAttention", self.num_heads, dims=dims, value_dims=value_dims)
        self.query_input_dims = _size("query_input_dims", query_input_dims, dims)
        self.key_input_dims = _size("key_input_dims", key_input_dims, dims)
        self.value_input_dims = _size("value_input_dims", value_input_dims, self.key_input_dims)
        self.query_proj = Linear(self.query_input_dims, dims, bias)
        self.key_proj = Linear(self.key_input_dims, dims, bias)
        self.value_proj = Linear(self.value_input_dims, value_dims, bias)
        self.out_proj = Linear(value_dims, _size("value_output_dims", value_output_dims, dims), bias)

    def __call__(self, queries: mx.array, keys: mx.array, values: mx.array, mask: Mask = None) -> mx.array:
        arrays = [array_input(self, array) for array in (queries, keys, values)]
        for array, size in zip(
            arrays, (self.query_input_dims, self.key_input_dims, self.value_input_dims), strict=True
        ):
            check_last_size("MultiHeadAttention", array, size)
        _check_sequences(*arrays)
        projections = (self.query_proj, self.key_proj, self.value_proj)
        q, k, v = [
            mx.unflatten(projection(array), -1, (self.num_heads, -1)).swapaxes(1, 2)
            for projection, array in zip(projections, arrays, strict=True)
        ]
        found = mx.fast.scaled_dot_product_attention(q, k, v, scale=1 / math.sqrt(q.shape[-1]), mask=mask)
        result: mx.array = self.out_proj(found.swapaxes(1, 2).flatten(-2, -1))
        return result

    @staticmethod
    def create_additive_causal_mask(N: int, dtype: mx.Dtype = mx.float32) -> mx.array:
        """A mask with which each of N tokens sees itself and those before it: zeros there, and the lowest number
        elsewhere.

        Args:
            N: how many tokens there are.
            dtype: floating.

        >>> nn.MultiHeadAttention.create_additive_causal_mask(2)
        array([[0, -3.40282e+38],
               [0, 0]], dtype=float32)
        """
        positions = mx.arange(size_of("create_additive_causal_mask", "N", N, least=0))
        return mx.where(positions[:, None] < positions, mx.array(mx.finfo(dtype).min, dtype), 0)


def _size(name: str, value: int | None, default: int | None = None) -> int:
    """An argument of `MultiHeadAttention`; None for the default, if there is one."""
    if value is None and default is not None:
        return default
    return size_of("MultiHeadAttention", name, value, least=1)


def _check_heads(layer: str, num_heads: int, **sizes: int) -> None:
    for name, size in sizes.items():
        if size % num_heads:
            raise ValueError(f"[{layer}] {num_heads} heads do not divide {name}, {size}.")


def _check_sequences(queries: mx.array, keys: mx.array, values: mx.array) -> None:
    fits = queries.ndim == keys.ndim == values.ndim == 3
    if not fits or queries.shape[0] != keys.shape[0] or keys.shape[:2] != values.shape[:2]:
        raise ValueError(
            "[MultiHeadAttention] queries have the shape (batch, T, features), keys and values (batch, S, features); "
            f"got {queries.shape}, {keys.shape} and {values.shape}."
        )


def _checked(
    layer: str, dims: int, num_heads: int, mlp_dims: int | None, dropout: float, activation: ActivationFunction
) -> tuple[int, int, int, float]:
    """Sizes and a probability, checked, with the default size between the affine maps; errors name the layer."""
    dims = size_of(layer, "dims", dims, least=1)
    num_heads = size_of(layer, "num_heads", num_heads, least=1)
    _check_heads(layer, num_heads, dims=dims)
    between = 0 if mlp_dims is None else size_of(layer, "mlp_dims", mlp_dims, least=0)
    function_of(layer, "activation", activation)
    return dims, num_heads, between or 4 * dims, share_of(layer, "dropout", dropout)


class _TransformerLayer(Module):
    """The base of encoder and decoder layers: residual connections, and two affine maps with an activation between."""

    activation: ActivationFunction
    norm_first: bool

    def _residual(self, x: mx.array, norm: Any, part: Callable[[mx.array], mx.array]) -> mx.array:
        """``x`` plus the result of a part of the layer; either the input of the part is normalised, or the sum."""
        if self.norm_first:
            return x + part(norm(x))
        result: mx.array = norm(x + part(x))
        return result

    def _feed_forward(self, x: mx.array, dropout: Any) -> mx.array:
        result: mx.array = self.linear2(dropout(self.activation(self.linear1(x))))
        return result


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention, and two affine maps with an activation between; each is added to its input.

    Args:
        dims: features of the input and of the result.
        num_heads: the number of heads of the attention; a divisor of ``dims``.
        mlp_dims: features between the two affine maps; by default ``4 * dims``.
        dropout: the probability of zeros after the attention and after the activation.
        activation: the function between the affine maps.
        norm_first: whether to normalise the inputs of the two parts; otherwise, sums of inputs and results.

    Called with ``x`` of shape ``(batch, length, dims)`` and optionally a mask, as for `nn.MultiHeadAttention`, it
    returns an array of the shape of ``x``.

    >>> layer = nn.TransformerEncoderLayer(16, num_heads=4)
    >>> layer(mx.zeros((2, 5, 16)), mask="causal").shape
    (2, 5, 16)
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: ActivationFunction = relu,
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        dims, num_heads, mlp_dims, dropout = _checked(
            "TransformerEncoderLayer", dims, num_heads, mlp_dims, dropout, activation
        )
        self.activation = activation
        self.norm_first = norm_first
        self.attention = MultiHeadAttention(dims, num_heads)
        self.ln1 = LayerNorm(dims)
        self.ln2 = LayerNorm(dims)
        self.linear1 = Linear(dims, mlp_dims)
        self.linear2 = Linear(mlp_dims, dims)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)

    def __call__(self, x: mx.array, mask: Mask = None) -> mx.array:
        x = array_input(self, x)
        x = self._residual(x, self.ln1, lambda y: self.dropout1(self.attention(y, y, y, mask)))
        return self._residual(x, self.ln2, lambda y: self._feed_forward(y, self.dropout2))


class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to the output of an encoder, and two affine maps; each is added to its input.

    Args:
        dims: features of the input, of the encoder's output, and of the result.
        num_heads: the number of heads of each attention; a divisor of ``dims``.
        mlp_dims: features between the two affine maps; by default ``4 * dims``.
        dropout: the probability of zeros after the attentions and after the activation.
        activation: the function between the affine maps.
        norm_first: whether to normalise the inputs of the three parts; otherwise, sums of inputs and results.

    Called with ``x`` of shape ``(batch, length, dims)``, the encoder's ``memory`` of shape ``(batch, tokens, dims)``,
    and optionally masks for the two attentions, as for `nn.MultiHeadAttention`, it returns an array of the shape of
    ``x``.

    >>> layer = nn.TransformerDecoderLayer(16, num_heads=4)
    >>> layer(mx.zeros((2, 5, 16)), mx.zeros((2, 7, 16)), x_mask="causal").shape
    (2, 5, 16)
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: ActivationFunction = relu,
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        dims, num_heads, mlp_dims, dropout = _checked(
            "TransformerDecoderLayer", dims, num_heads, mlp_dims, dropout, activation
        )
        self.activation = activation
        self.norm_first = norm_first
        self.self_attention = MultiHeadAttention(dims, num_heads)
        self.cross_attention = MultiHeadAttention(dims, num_heads)
        self.ln1 = LayerNorm(dims)
        self.ln2 = LayerNorm(dims)
        self.ln3 = LayerNorm(dims)
        self.linear1 = Linear(dims, mlp_dims)
        self.linear2 = Linear(mlp_dims, dims)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.dropout3 = Dropout(dropout)

    def __call__(self, x: mx.array, memory: mx.array, x_mask: Mask = None, memory_mask: Mask = None) -> mx.array:
        x = array_input(self, x)
        x = self._residual(x, self.ln1, lambda y: self.dropout1(self.self_attention(y, y, y, x_mask)))
        x = self._residual(x, self.ln2, lambda y: self.dropout2(self.cross_attention(y, memory, memory, memory_mask)))
        return self._residual(x, self.ln3, lambda y: self._feed_forward(y, self.dropout3))


class _Stack(Module):
    """Several layers one after the other, and a norm at the end."""

    def _set_layers(self, layers: list[Any], dims: int, checkpoint: bool) -> None:
        self.layers = layers
        self.ln = LayerNorm(dims)
        self.checkpoint = checkpoint

    def _through(self, x: mx.array, *others: Any) -> mx.array:
        for layer in self.layers:
            x = (mx.checkpoint(layer) if self.checkpoint else layer)(x, *others)
        result: mx.array = self.ln(x)
        return result


class TransformerEncoder(_Stack):
    """Several `nn.TransformerEncoderLayer`, and a norm at the end.

    Args:
        num_layers: how many layers there are.
        dims: features of the input and of the result.
        num_heads: the number of heads of each attention; a divisor of ``dims``.
        mlp_dims: features between the affine maps of a layer; by default ``4 * dims``.
        dropout: the probability of zeros after attentions and activations.
        activation: the function between the affine maps.
        norm_first: whether to normalise the inputs of the parts of a layer; otherwise, sums of inputs and results.
        checkpoint: whether intermediate results of layers are computed again for gradients instead of being stored.

    Called with ``x`` of shape ``(batch, length, dims)`` and optionally a mask, as for `nn.MultiHeadAttention`, it
    returns an array of the shape of ``x``.

    >>> encoder = nn.TransformerEncoder(1, 16, num_heads=4)
    >>> encoder(mx.zeros((2, 5, 16)), mask=None).shape
    (2, 5, 16)
    """

    def __init__(
        self,
        num_layers: int,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: ActivationFunction = relu,
        norm_first: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        count = size_of("TransformerEncoder", "num_layers", num_layers, least=0)
        sizes = _checked("TransformerEncoder", dims, num_heads, mlp_dims, dropout, activation)
        layers = [TransformerEncoderLayer(*sizes, activation, norm_first) for _ in range(count)]
        self._set_layers(layers, sizes[0], checkpoint)

    def __call__(self, x: mx.array, mask: Mask = None) -> mx.array:
        return self._through(x, mask)


class TransformerDecoder(_Stack):
    """Several `nn.TransformerDecoderLayer`, and a norm at the end.

    Args:
        num_layers: how many layers there are.
        dims: features of the input, of the encoder's output, and of the result.
        num_heads: the number of heads of each attention; a divisor of ``dims``.
        mlp_dims: features between the affine maps of a layer; by default ``4 * dims``.
        dropout: the probability of zeros after attentions and activations.
        activation: the function between the affine maps.
        norm_first: whether to normalise the inputs of the parts of a layer; otherwise, sums of inputs and results.
        checkpoint: whether intermediate results of layers are computed again for gradients instead of being stored.

    Called with the arguments of a `nn.TransformerDecoderLayer`, it returns an array of the shape of ``x``.

    >>> decoder = nn.TransformerDecoder(1, 16, num_heads=4)
    >>> decoder(mx.zeros((2, 5, 16)), mx.zeros((2, 7, 16)), x_mask="causal").shape
    (2, 5, 16)
    """

    def __init__(
        self,
        num_layers: int,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: ActivationFunction = relu,
        norm_first: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        count = size_of("TransformerDecoder", "num_layers", num_layers, least=0)
        sizes = _checked("TransformerDecoder", dims, num_heads, mlp_dims, dropout, activation)
        layers = [TransformerDecoderLayer(*sizes, activation, norm_first) for _ in range(count)]
        self._set_layers(layers, sizes[0], checkpoint)

    def __call__(self, x: mx.array, memory: mx.array, x_mask: Mask = None, memory_mask: Mask = None) -> mx.array:
        return self._through(x, memory, x_mask, memory_mask)


class Transformer(Module):
    """An encoder of one sequence, and a decoder that computes another sequence from its output.

    Vaswani et al., "Attention is all you need", arXiv:1706.03762, without the embeddings.

    Args:
        dims: features of all sequences.
        num_heads: the number of heads of each attention; a divisor of ``dims``.
        num_encoder_layers: how many layers the encoder has.
        num_decoder_layers: how many layers the decoder has.
        mlp_dims: features between the affine maps of a layer; by default ``4 * dims``.
        dropout: the probability of zeros after attentions and activations.
        activation: the function between the affine maps.
        custom_encoder: called in place of a `nn.TransformerEncoder`, with the same arguments.
        custom_decoder: called in place of a `nn.TransformerDecoder`, with the same arguments.
        norm_first: whether to normalise the inputs of the parts of a layer; otherwise, sums of inputs and results.
        checkpoint: whether intermediate results of layers are computed again for gradients instead of being stored.

    Called with sequences ``src`` and ``tgt``, and optionally masks for the attentions of the encoder, of the decoder,
    and of the decoder to the encoder, it returns an array of the shape of ``tgt``.

    >>> model = nn.Transformer(16, num_heads=4, num_encoder_layers=1, num_decoder_layers=1)
    >>> model(mx.zeros((2, 7, 16)), mx.zeros((2, 5, 16)), None, "causal", None).shape
    (2, 5, 16)
    """

    def __init__(
        self,
        dims: int = 512,
        num_heads: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: ActivationFunction = relu,
        custom_encoder: Callable[..., Any] | None = None,
        custom_decoder: Callable[..., Any] | None = None,
        norm_first: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        sizes = _checked("Transformer", dims, num_heads, mlp_dims, dropout, activation)
        settings = (*sizes, activation, norm_first, checkpoint)
        encoder_layers = size_of("Transformer", "num_encoder_layers", num_encoder_layers, least=0)
        decoder_layers = size_of("Transformer", "num_decoder_layers", num_decoder_layers, least=0)
        self.encoder: Any = TransformerEncoder(encoder_layers, *settings) if custom_encoder is None else custom_encoder
        self.decoder: Any = TransformerDecoder(decoder_layers, *settings) if custom_decoder is None else custom_decoder
        function_of("Transformer", "custom_encoder", self.encoder)
        function_of("Transformer", "custom_decoder", self.decoder)

    def __call__(
        self,
        src: mx.array,
        tgt: mx.array,
        src_mask: Mask = None,
        tgt_mask: Mask = None,
        memory_mask: Mask = None,
    ) -> mx.array:
        memory = self.encoder(src, src_mask)
        result: mx.array = self.decoder(tgt, memory, tgt_mask, memory_mask)
        return result
