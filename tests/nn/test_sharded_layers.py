"""Layers and functions for several processes, in a group of one."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
from tests.nn.layer_oracle import Row, check_beginning, check_numbers, numbers
from tests.sampling import Cases

UNTYPED: Any = nn  # so that the type checker lets wrong arguments pass
SHARDINGS = ("all-to-sharded", "sharded-to-all")

ROWS = {
    "all to sharded": Row(lambda nn: nn.AllToShardedLinear(3, 4), (numbers(2, 3),)),
    "sharded to all": Row(lambda nn: nn.ShardedToAllLinear(3, 4, bias=False), (numbers(2, 3),)),
    "from linear": Row(lambda nn: nn.ShardedToAllLinear.from_linear(nn.Linear(3, 4)), (numbers(2, 3),)),
    "quantised": Row(lambda nn: nn.QuantizedAllToShardedLinear(64, 4), (numbers(2, 64),)),
    "quantised to all": Row(lambda nn: nn.QuantizedShardedToAllLinear(64, 4, True, 32, 8), (numbers(2, 64),)),
    "from quantised": Row(
        lambda nn: nn.QuantizedAllToShardedLinear.from_quantized_linear(nn.QuantizedLinear(32, 4, mode="mxfp4")),
        (numbers(2, 32),),
    ),
    "fully sharded": Row(lambda nn: nn.FullyShardedModule(nn.Sequential(nn.Linear(3, 4), nn.relu)), (numbers(2, 3),)),
}


def test_numbers_against_mlx(mlx_package: Any, tmp_path: Path, cases: Cases) -> None:
    for name in cases.some(2, list(ROWS)):
        check_numbers(mlx_package, ROWS[name], tmp_path)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_beginnings_against_mlx(mlx_package: Any, row: Row) -> None:
    check_beginning(mlx_package, row)


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("whole", [nn.Linear(64, 4), nn.QuantizedLinear(64, 4, bias=False)], ids=["plain", "quantised"])
def test_shard_linear_gives_the_same_numbers(whole: Any, sharding: str) -> None:
    x = mx.array(numbers(2, 64))
    part = nn.shard_linear(whole, sharding)
    assert (
        type(part).__name__.replace("Quantized", "")
        == {
            "all-to-sharded": "AllToShardedLinear",
            "sharded-to-all": "ShardedToAllLinear",
        }[sharding]
    )
    np.testing.assert_allclose(part(x), whole(x), rtol=1e-5, atol=1e-6)


def test_quantised_parts_stay_frozen() -> None:
    assert nn.QuantizedAllToShardedLinear(64, 4).unfreeze().trainable_parameters() == {}


def test_shard_inplace_leaves_all_to_one_process() -> None:
    layer = nn.Linear(3, 4)
    before, seen = layer.parameters(), []
    nn.shard_inplace(layer, lambda path, weight: seen.append((path, weight.shape)))
    nn.shard_inplace(layer, SHARDINGS[0])
    assert seen == [("weight", (4, 3)), ("bias", (4,))]
    assert all(layer[name] is before[name] for name in before)


def test_a_fully_sharded_module_computes_in_another_dtype() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = mx.array([1 / 3])
            self.calls = mx.array(0)

        def __call__(self, x: mx.array) -> mx.array:
            self.calls = self.calls + 1
            return self.scale * x

    model = nn.FullyShardedModule(Counting(), compute_dtype=mx.bfloat16)
    value, gradients = nn.value_and_grad(model, lambda: model(mx.array([3.0])).sum())()
    assert value.item() == mx.array(1 / 3).astype(mx.bfloat16).item() * 3
    assert gradients["module"]["scale"].dtype == model.module.scale.dtype == mx.float32
    assert model.module.calls.item() == 1  # an array that the module itself assigns stays


def test_one_process_averages_nothing() -> None:
    gradients = {"a": mx.ones(3), "b": [mx.ones(2)]}
    assert nn.average_gradients(gradients, mx.distributed.init()) is gradients
    assert nn.fully_shard(model := nn.Linear(2, 3)) is model


def test_groups_are_one() -> None:
    group = mx.distributed.init(backend="ring")
    assert (group.rank(), group.size(), group is mx.distributed.init()) == (0, 1, True)
    assert copy.deepcopy(group) is pickle.loads(pickle.dumps(group)) is group


COLLECTIVES = [mx.distributed.all_sum, mx.distributed.all_gather, mx.distributed.all_max, mx.distributed.sum_scatter]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_collectives_of_one_process_return_what_they_are_given(collective: Any) -> None:
    x = mx.array(numbers(2, 3))

    def loss(x: mx.array) -> mx.array:
        return (collective(x, group=mx.distributed.init()) ** 2).sum()

    assert mx.array_equal(collective(x), x)
    assert collective(1.5).item() == 1.5
    assert mx.array_equal(mx.compile(mx.grad(loss))(x), 2 * x)
    assert mx.array_equal(mx.vmap(collective)(x), x)


ERRORS = {
    "sending": (lambda: mx.distributed.send(mx.ones(2), 0), ValueError, r"\[send\] this process is alone"),
    "receiving": (lambda: mx.distributed.recv((2,), mx.float32, 1), ValueError, r"\[recv\] .* alone"),
    "receiving alike": (lambda: mx.distributed.recv_like(mx.ones(2), 1), ValueError, r"\[recv_like\] .* alone"),
    "strictness": (lambda: mx.distributed.init(strict=True), RuntimeError, r"\[init\] .*strict=False"),
    "a backend": (lambda: mx.distributed.init(backend="x"), ValueError, r"\[init\] backend must be one of 'any'"),
    "a split": (lambda: mx.distributed.init().split(0), RuntimeError, r"\[Group.split\]"),
    "a group by hand": (mx.distributed.Group, TypeError, r"\[Group\] .*mx.distributed.init\(\)"),
    "no group": (lambda: UNTYPED.AllToShardedLinear(2, 3, group=3), TypeError, r"\[AllToShardedLinear\] group"),
    "a sharding": (lambda: nn.shard_linear(nn.Linear(2, 3), "x"), ValueError, r"\[shard_linear\] sharding must be one"),
    "an activation": (lambda: nn.shard_linear(nn.ReLU(), SHARDINGS[0]), TypeError, r"\[shard_linear\] .* ReLU"),
    "no segments": (
        lambda: nn.shard_inplace(nn.ReLU(), SHARDINGS[0], segments=0),
        ValueError,
        r"\[shard_inplace\] segments must be at least 1",
    ),
    "a function": (lambda: UNTYPED.fully_shard(nn.relu), TypeError, r"\[fully_shard\] module"),
    "a dtype": (
        lambda: UNTYPED.FullyShardedModule(nn.ReLU(), compute_dtype=3),
        TypeError,
        r"\[FullyShardedModule\] compute_dtype",
    ),
}


@pytest.mark.parametrize(("make", "error", "message"), ERRORS.values(), ids=ERRORS)
def test_what_cannot_be_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
