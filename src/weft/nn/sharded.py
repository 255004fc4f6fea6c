"""Layers whose weights are divided among the processes of a group, which here has one process: see `mx.distributed`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import weft.core as mx
from weft.checks import integer_of, one_of, shown, wrong_type
from weft.errors import ArgumentTypeError
from weft.nn.checks import Group, array_input, check_last_size, group_of
from weft.nn.linear import Linear
from weft.nn.module import Module
from weft.nn.module_tree import put_back
from weft.nn.quantized import QuantizedLinear
from weft.utils import tree_flatten, tree_map

__all__ = [
    "AllToShardedLinear",
    "FullyShardedModule",
    "QuantizedAllToShardedLinear",
    "QuantizedShardedToAllLinear",
    "ShardedToAllLinear",
    "fully_shard",
    "shard_inplace",
    "shard_linear",
    "sum_gradients",
]

Segments = int | list[int] | list[float]

_SHARDINGS = ("all-to-sharded", "sharded-to-all")


class _ShardedLinear(Linear):
    """This process's part of a `nn.Linear`."""

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True, group: Group | None = None) -> None:
        super().__init__(input_dims, output_dims, bias)
        self.group = group_of(type(self).__name__, group)

    @classmethod
    def from_linear(cls, linear_layer: Module, *, segments: Segments = 1, group: Group | None = None) -> Self:
        """This process's part of a layer. ``segments`` are parts of its weight, each of which is divided among the
        processes."""
        _check_segments("from_linear", segments)
        output_dims, input_dims = linear_layer["weight"].shape
        layer = cls(input_dims, output_dims, "bias" in linear_layer, group)
        return layer.update(linear_layer.parameters())


class AllToShardedLinear(_ShardedLinear):
    """A `nn.Linear` of which each process computes a part of the output features.

    Args:
        input_dims: number of input features.
        output_dims: number of output features of all processes together.
        bias: whether there is a bias.
        group: which processes; None for all.

    >>> nn.AllToShardedLinear(2, 3)(mx.zeros((5, 2))).shape
    (5, 3)
    """

    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(sum_gradients(self.group)(x))


class ShardedToAllLinear(_ShardedLinear):
    """A `nn.Linear` of which each process has a part of the input features; the results of all processes are added.

    Args:
        input_dims: number of input features of all processes together.
        output_dims: number of output features.
        bias: whether there is a bias.
        group: which processes; None for all.

    >>> nn.ShardedToAllLinear(2, 3)(mx.zeros((5, 2))).shape
    (5, 3)
    """

    def __call__(self, x: mx.array) -> mx.array:
        x = array_input(self, x)
        weight: mx.array = self["weight"]
        check_last_size(self, x, weight.shape[1])
        found = mx.distributed.all_sum(x @ weight.T, group=self.group)
        return found + self["bias"] if "bias" in self else found


class _QuantizedShardedLinear(QuantizedLinear):
    """This process's part of a `nn.QuantizedLinear`. Its parameters are always frozen."""

    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        bias: bool = True,
        group_size: int = 64,
        bits: int = 4,
        mode: str = "affine",
        group: Group | None = None,
    ) -> None:
        super().__init__(input_dims, output_dims, bias, group_size, bits, mode)
        self.group = group_of(type(self).__name__, group)

    @classmethod
    def from_quantized_linear(
        cls, quantized_linear_layer: QuantizedLinear, *, segments: Segments = 1, group: Group | None = None
    ) -> Self:
        """This process's part of a layer. ``segments`` are parts of its weight, each of which is divided among the
        processes."""
        _check_segments("from_quantized_linear", segments)
        whole = quantized_linear_layer
        output_dims, input_dims = whole._sizes()
        layer = cls(input_dims, output_dims, "bias" in whole, whole.group_size, whole.bits, whole.mode, group)
        return layer.update(whole.parameters())

    def unfreeze(self, *args: Any, **kwargs: Any) -> Self:
        super().unfreeze(*args, **kwargs)
        return self.freeze(recurse=False)


class QuantizedAllToShardedLinear(_QuantizedShardedLinear):
    """A `nn.QuantizedLinear` of which each process computes a part of the output features.

    Args:
        input_dims: number of input features, a multiple of the group size.
        output_dims: number of output features of all processes together.
        bias: whether there is a bias.
        group_size: how many neighbours share a scale.
        bits: how many bits a code has.
        mode: see `mx.quantize`.
        group: which processes; None for all.

    >>> nn.QuantizedAllToShardedLinear(64, 3)(mx.zeros((5, 64))).shape
    (5, 3)
    """

    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(sum_gradients(self.group)(x))


class QuantizedShardedToAllLinear(_QuantizedShardedLinear):
    """A `nn.QuantizedLinear` of which each process has a part of the input features; the results are added.

    Args:
        input_dims: number of input features of all processes together, a multiple of the group size.
        output_dims: number of output features.
        bias: whether there is a bias.
        group_size: how many neighbours share a scale.
        bits: how many bits a code has.
        mode: see `mx.quantize`.
        group: which processes; None for all.

    >>> nn.QuantizedShardedToAllLinear(64, 3)(mx.zeros((5, 64))).shape
    (5, 3)
    """

    def __call__(self, x: mx.array) -> mx.array:
        found = mx.distributed.all_sum(self._product(array_input(self, x)), group=self.group)
        return found + self["bias"] if "bias" in self else found


def sum_gradients(group: Group) -> Callable[[mx.array], mx.array]:
    """A function that returns its argument, and whose gradient is the sum of the gradients of all processes.

    Args:
        group: which processes.

    >>> nn.sum_gradients(mx.distributed.init())(mx.array([1.0]))
    array([1], dtype=float32)
    """
    group_of("sum_gradients", group)
    return _unchanged


def shard_linear(
    module: Module, sharding: str, *, segments: Segments = 1, group: Group | None = None
) -> AllToShardedLinear | ShardedToAllLinear | QuantizedAllToShardedLinear | QuantizedShardedToAllLinear:
    """This process's part of a linear layer, as a new layer.

    Args:
        module: a `nn.Linear` or `nn.QuantizedLinear`.
        sharding: ``"all-to-sharded"``: each process computes a part of the output features; or ``"sharded-to-all"``:
            each process has a part of the input features.
        segments: the number of equal parts of the weight, or the indices where parts end; each part is divided
            separately.
        group: which processes; None for all.

    >>> nn.shard_linear(nn.Linear(2, 3), "all-to-sharded")
    AllToShardedLinear(input_dims=2, output_dims=3, bias=True)
    """
    divides_outputs = one_of("shard_linear", "sharding", sharding, _SHARDINGS) == "all-to-sharded"
    group = group_of("shard_linear", group)
    _check_segments("shard_linear", segments)
    if isinstance(module, QuantizedLinear):
        quantized = QuantizedAllToShardedLinear if divides_outputs else QuantizedShardedToAllLinear
        return quantized.from_quantized_linear(module, segments=segments, group=group)
    if not isinstance(module, Linear):
        raise ArgumentTypeError(f"[shard_linear] takes a Linear or a QuantizedLinear; got {shown(module)}.")
    plain = AllToShardedLinear if divides_outputs else ShardedToAllLinear
    return plain.from_linear(module, segments=segments, group=group)


def shard_inplace(
    module: Module,
    sharding: str | Callable[[str, mx.array], Any],
    *,
    segments: Segments = 1,
    group: Group | None = None,
) -> None:
    """Replace the parameters of a module by this process's part of them: with one process, by all of them.

    Args:
        module: any module.
        sharding: as for `nn.shard_linear`; or a function of the path of a parameter and the parameter that returns the
            axis along which it is divided, optionally with its segments, or None.
        segments: the number of equal parts of a weight, or the indices where parts end; each part is divided
            separately.
        group: which processes; None for all.

    >>> nn.shard_inplace(nn.Linear(2, 3), "sharded-to-all")
    """
    _check_module("shard_inplace", module)
    group_of("shard_inplace", group)
    _check_segments("shard_inplace", segments)
    if not callable(sharding):
        one_of("shard_inplace", "sharding", sharding, _SHARDINGS)
        return
    for path, parameter in tree_flatten(module.parameters()):
        sharding(path, parameter)


class FullyShardedModule(Module):
    """A module of which each process stores a part of each parameter; the parts are gathered while it is called.

    Args:
        module: the module to call.
        group: which processes; None for all.
        compute_dtype: the dtype of floating parameters while the module is called; None for their own.

    >>> model = nn.FullyShardedModule(nn.Linear(2, 3), compute_dtype=mx.bfloat16)
    >>> model(mx.zeros((5, 2), mx.bfloat16)).dtype, model.module.weight.dtype
    (weft.core.bfloat16, weft.core.float32)
    """

    def __init__(self, module: Module, group: Group | None = None, compute_dtype: mx.Dtype | None = None) -> None:
        super().__init__()
        _check_module("FullyShardedModule", module)
        if not (compute_dtype is None or isinstance(compute_dtype, mx.Dtype)):
            raise wrong_type("FullyShardedModule", "compute_dtype", "a dtype", compute_dtype)
        self.group = group_of("FullyShardedModule", group)
        self.module = module
        self.compute_dtype = compute_dtype

    def _extra_repr(self) -> str:
        return f"num_sharded_params={len(tree_flatten(self.module.parameters()))}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self.module
        return self._with_gathered(module, *args, **kwargs)

    def as_linear(self, x: mx.array) -> mx.array:
        """Call the module's method of this name, which an embedding has.

        Args:
            x: the argument of that method.

        >>> nn.FullyShardedModule(nn.Embedding(10, 4)).as_linear(mx.zeros((3, 4))).shape
        (3, 10)
        """
        result: mx.array = self._with_gathered(self.module.as_linear, x)
        return result

    def _with_gathered(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.compute_dtype is None:
            return function(*args, **kwargs)
        stored = self.module.parameters()
        dtype = self.compute_dtype
        gathered = tree_map(lambda array: array.astype(dtype) if _is_floating(array) else array, stored)
        self.module.update(gathered)
        try:
            return function(*args, **kwargs)
        finally:
            put_back(self.module, gathered, stored)


def fully_shard(module: Module, *, group: Group | None = None, compute_dtype: mx.Dtype | None = None) -> Module:
    """A `nn.FullyShardedModule` of a module; with one process, the module itself.

    Args:
        module: any module.
        group: which processes; None for all.
        compute_dtype: the dtype of floating parameters while the module is called, if they are divided.

    >>> nn.fully_shard(nn.Linear(2, 3))
    Linear(input_dims=2, output_dims=3, bias=True)
    """
    _check_module("fully_shard", module)
    group_of("fully_shard", group)
    if not (compute_dtype is None or isinstance(compute_dtype, mx.Dtype)):
        raise wrong_type("fully_shard", "compute_dtype", "a dtype", compute_dtype)
    return module


def _is_floating(array: mx.array) -> bool:
    return bool(mx.issubdtype(array.dtype, mx.floating))


def _unchanged(x: mx.array) -> mx.array:
    return x


def _check_module(name: str, module: Any) -> None:
    if not isinstance(module, Module):
        raise wrong_type(name, "module", "a Module", module)


def _check_segments(name: str, segments: Any) -> None:
    if isinstance(segments, list):
        return
    if integer_of(name, "segments", segments) < 1:
        raise ValueError(f"[{name}] segments must be at least 1, or a list of indices; got {segments}.")
