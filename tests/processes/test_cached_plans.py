"""Plans that one process leaves on disk for the next."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft.core as mx
from tests import checks
from weft.compiler.codegen import loading
from weft.compiler.planning import cached_plans, plan_data
from weft.compiler.program import Program
from weft.runtime.host import host

WORK = """
import json
import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.compiler.planning import cached_plans, templates
from weft.primitives import Elementwise

planned, made = [], templates.parts_of
def noted(entries, *rest):
    if len(entries) >= cached_plans.FEWEST_ENTRIES:
        planned.append(len(entries))
    return made(entries, *rest)
templates.parts_of = noted

PRELUDE

def data(*shape):
    return mx.sin(mx.arange(mx.prod(mx.array(shape)).item()).reshape(shape).astype(mx.float32))

def training():
    mx.random.seed(3)
    model = nn.Sequential(nn.Linear(12, 16), nn.gelu, nn.LayerNorm(16), nn.Dropout(0.5), nn.Linear(16, 5))
    optimizer = optim.AdamW(0.01)
    optimizer.init(model.trainable_parameters())
    state = [model.state, optimizer.state, mx.random.state]
    loss = lambda x, y: nn.losses.cross_entropy(model(x), y, reduction="mean")
    def step(x, y):
        found, gradients = nn.value_and_grad(model, loss)(x, y)
        optimizer.update(model, gradients)
        return found
    step = mx.compile(step, inputs=state, outputs=state)
    return [step(data(8, 12), mx.arange(8) % 5) for _ in range(3)] + [model.layers[0].weight]

def attention(q, k, v):
    for _ in range(2):
        scores = mx.softmax(q @ k.swapaxes(-1, -2) * 0.3, axis=-1)
        q = scores @ v + mx.exp(-q) * mx.sqrt(mx.abs(k) + 1)
    gradient = mx.grad(lambda x: mx.sum(mx.tanh(x @ x.swapaxes(-1, -2))))(q)
    return mx.cumsum(q, axis=0), mx.argmax(q, axis=-1).astype(mx.float32), gradient, k[::-1]

results = {
    "training": training,
    "attention": lambda: mx.compile(attention)(data(6, 256, 32), data(6, 256, 32) + 1, data(6, 256, 32) * 2),
    "transforms": lambda: mx.compile(lambda x: [mx.fft.fft(x).real * mx.exp(x) + n for n in range(20)])(data(4, 16)),
}
asked = ASKED
for name in asked:
    mx.eval(results[name]())
found = {name: [mx.view(x, mx.uint32).tolist() for x in results[name]()] for name in asked}
if "attention" in asked:
    mx.compile(attention).explain(data(6, 256, 32), data(6, 256, 32) + 1, data(6, 256, 32) * 2)
print(json.dumps({"results": found, "planned": len(planned)}))
"""


def run(base: Path, asked: str, prelude: str = "", **variables: str) -> dict[str, Any]:
    """The bits of the results of a process, and how many large programs it planned for them."""
    fixed = {"WEFT_CACHE_DIR": str(base), "WEFT_DISK_CACHE": "", "WEFT_CHECKS": "", "WEFT_NUM_THREADS": "2"}
    program = WORK.replace("PRELUDE", prelude).replace("ASKED", repr(asked.split()))
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env=checks.child_environment(**fixed | variables),
        capture_output=True,
        text=True,
        timeout=120 * checks.patience,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A cache that a process has filled, and the results of that process."""
    base = tmp_path_factory.mktemp("plans")
    first = run(base, "training attention")
    assert first["planned"] > 1
    return base, first["results"]


@pytest.fixture
def copy(filled: tuple[Path, dict[str, Any]], tmp_path: Path) -> Iterator[Path]:
    base = tmp_path / "copy"
    shutil.copytree(filled[0], base)
    yield base
    shutil.rmtree(base)


def test_a_second_process_plans_no_large_program(filled: tuple[Path, dict[str, Any]]) -> None:
    base, results = filled
    second = run(base, "training attention")
    assert second["results"] == results
    assert second["planned"] == 0


def test_where_they_are_planned_again(copy: Path, filled: tuple[Path, dict[str, Any]]) -> None:
    """Another number of threads, other or unknown files of the planner, another version, checks of plans, or no cache:
    plans are made again, and give the same results."""
    _, results = filled
    changes: list[tuple[str, dict[str, str]]] = [
        ("", {"WEFT_NUM_THREADS": "1"}),
        ("", {"WEFT_CHECKS": "1"}),
        ("", {"WEFT_DISK_CACHE": "0"}),
        ("from weft.compiler.codegen import loading; loading._planning_sources.append(('new.py', 1, 2))", {}),
        ("import weft; weft.__version__ = '9.9'", {}),
        ("from weft.compiler.codegen import loading; loading._planning_sources = []", {}),
    ]
    for prelude, variables in changes:
        again = run(copy, "training", prelude, **variables)
        assert again["planned"] > 0, (prelude, variables)
        assert again["results"]["training"] == results["training"], (prelude, variables)


def test_code_that_is_gone_is_made_again(copy: Path, filled: tuple[Path, dict[str, Any]]) -> None:
    for number, path in enumerate(sorted((copy / "kernels").iterdir())):
        if number % 3 == 0 and b'"' not in path.read_bytes()[80:100]:
            path.unlink()
    again = run(copy, "training attention")
    assert again["results"] == filled[1]


def test_what_refers_to_memory_is_not_cached(tmp_path: Path) -> None:
    """Steps of Fourier transforms hold addresses of tables, so their plans are made anew in each process."""
    first, second = [run(tmp_path, "transforms") for _ in range(2)]
    assert first["planned"] == second["planned"] > 0
    assert first["results"] == second["results"]


def test_primitives_of_others_are_not_cached(tmp_path: Path) -> None:
    prelude = """
twice = Elementwise("exp", lambda L, x: x + x, (1,))
x = mx.array([1.0])
mx.eval([twice(x) * n + mx.cos(x) for n in range(12)])
"""
    assert run(tmp_path, "", prelude)["planned"] == run(tmp_path, "", prelude)["planned"] == 1


def large(x: mx.array) -> mx.array:
    for number in range(cached_plans.FEWEST_ENTRIES):
        x = mx.sin(x) + number
    return x


def planned_key(result: mx.array) -> bytes | None:
    program = Program()
    program.add([result.node])
    return cached_plans.key_of(program.entries, [program.position(result.node)], host.target)[1]


def test_keys() -> None:
    """Two keys differ if and only if the plans do."""
    x = mx.ones((4, 6))
    mx.eval(x)
    results = [
        large(x),
        large(x[:, :5]),
        large(x.astype(mx.float16)),
        mx.sum(large(x), axis=0),
        mx.sum(large(x), axis=1),
        large(mx.swapaxes(x, 0, 1)),
        large(mx.sum(x, axis=0, keepdims=True)),
        large(mx.sum(x, axis=0)),
    ]
    keys = [planned_key(result) for result in results]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert planned_key(large(mx.zeros((4, 6)) + x)) is not None
    assert planned_key(large(x)) == keys[0]
    assert planned_key(x + 1) is None


def test_parameters_of_other_types_are_others() -> None:
    found = [plan_data.plain_parameter((value,)) for value in (1, True, 1.0, "1", b"1", None, (1,), mx.int32)]
    assert len({repr(value) for value in found}) == len(found)
    with pytest.raises(plan_data.NotCacheable):
        plan_data.plain_parameter((object(),))


def test_addresses_are_not_taken_for_numbers() -> None:
    addresses = loading.load("cached or not", lambda: "define void @cached() {\n  ret void\n}", ("cached",))
    assert host.target.code_description(addresses["cached"]) is not None
    assert host.target.code_description(int(addresses["cached"])) is None
    with pytest.raises(plan_data.NotCacheable):
        plan_data.require_numbers([[1, 2], [3, int(addresses["cached"])]])
    with pytest.raises(plan_data.NotCacheable):
        plan_data.require_numbers([1.0])
