"""The benchmarks do for Weft what they say, on sizes that take no time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import report
from benchmarks.peers import LAYERS, floats, make_peer, row_pairs
from benchmarks.session import Measured, Peer, Session
from benchmarks.tasks import TASKS, Kind, Task

SHAPE = (3, 5, 7)


def layer_norm(x):
    """With the scale and shift that the peers use."""
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return normal * floats(x.shape[-1], seed=1) + floats(x.shape[-1], seed=2)


ELEMENTWISE = {
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2,
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    "logsumexp": lambda x: np.log(np.exp(x).sum(-1)),
    "layer_norm": layer_norm,
    "add": lambda x: x + x,
}


@pytest.fixture(scope="module")
def weft_peer():
    return make_peer("weft", threads=1)


@pytest.mark.parametrize("method", ELEMENTWISE)
def test_the_work_computes_what_its_name_says(weft_peer, method):
    work = getattr(weft_peer, method)(SHAPE)
    np.testing.assert_allclose(np.array(work()), ELEMENTWISE[method](floats(*SHAPE)), rtol=2e-5, atol=2e-6)


def test_vmap_and_loop_and_matmul(weft_peer):
    x, y = row_pairs(4, 3)
    np.testing.assert_array_equal(np.array(weft_peer.vmap_add(4, 3)()), x + y.T)
    np.testing.assert_array_equal(np.array([np.array(row) for row in weft_peer.loop_add(4, 3)()]), x + y.T)
    product = floats(6, 6) @ floats(6, 6, seed=1)
    np.testing.assert_allclose(np.array(weft_peer.matmul(6)()), product, rtol=1e-5, atol=1e-5)


def test_the_training_step_learns(weft_peer):
    step = weft_peer.train(batch=32)
    losses = [step().item() for _ in range(30)]
    assert losses[0] == pytest.approx(math.log(LAYERS[-1]), rel=0.2)
    assert losses[-1] < losses[0] / 2


def test_every_task_is_one_that_weft_has(weft_peer):
    assert len({task.name for task in TASKS}) == len(TASKS)
    assert [task.name for task in TASKS if task.kind is not Kind.IMPORT and not hasattr(weft_peer, task.method)] == []


def test_a_session_measures_in_processes_of_their_own_and_says_what_is_missing():
    task = Task("small", "small", "add", {"shape": (16,)})
    unknown = Task("unknown", "unknown", "no_such_method")
    wrong = Task("wrong", "wrong", "add", {"shape": (-1,)})
    cold = Task("cold", "cold", "add", {"shape": (16,)}, Kind.FIRST_CALL)
    said: list[str] = []
    results = Session(["numpy"], threads=1, rounds=2, budget=0.01, tell=said.append).run([task, unknown, wrong, cold])
    assert len(results["small"]["numpy"].times) >= 2
    assert len(results["cold"]["numpy"].times) == 2
    assert results["unknown"]["numpy"].reason == "-"
    assert results["wrong"]["numpy"].reason.startswith("ValueError")
    assert said == ["small", "unknown", "wrong", "cold"]


def test_the_table_gives_times_and_ratios():
    task = Task("a", "work", "add", repeats=2)
    results = {"a": {"weft": Measured([2e-3, 4e-3, 9e-3]), "jax": Measured([8e-3]), "numpy": Measured(reason="-")}}
    rows = report.table([task], results, ["weft", "jax", "numpy"])
    assert rows == [["", "weft", "jax", "numpy"], ["work", "2 ms", "4 ms (2x)", "-"]]
    assert report.as_markdown(rows).splitlines()[1:] == [
        "| --- | ---: | ---: | ---: |",
        "| work | 2 ms | 4 ms (2x) | - |",
    ]
    assert report.as_text(rows).splitlines()[1] == "work  2 ms  4 ms (2x)      -"


def test_remarks_name_missing_peers_failures_and_results_that_differ():
    task = Task("a", "work", "add")
    peers = [Peer("mlx", python=Path("python"), missing="not installed")]
    measured = {
        "weft": Measured([1.0], fingerprint=10.0),
        "jax": Measured([1.0], fingerprint=10.001),
        "torch": Measured([1.0], fingerprint=float("nan")),
        "numpy": Measured(reason="ValueError: no"),
    }
    assert report.remarks([task], {"a": measured}, peers) == [
        "mlx is missing: not installed",
        "work: numpy gave no time: ValueError: no",
        "work: torch computes something else than weft (nan instead of 10)",
    ]
