"""The benchmarks compute with Weft what they claim to compute, at sizes that take no time."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from benchmarks import memory, report
from benchmarks.gpu_tasks import GPU_TASKS
from benchmarks.peers import (
    LAYERS,
    NORM_EPSILON,
    attention_data,
    classes,
    floats,
    gpt,
    make_peer,
    matrices,
    right_sides,
    row_pairs,
)
from benchmarks.peers.convolutions import Convolution
from benchmarks.session import Caches, Measured, Peer, Session
from benchmarks.tasks import TASKS, Kind, Limit, Task

SHAPE = (3, 5, 7)
reads_proc = pytest.mark.skipif(not memory.STATUS.exists(), reason="the resident memory is read from /proc")
TINY_GPT: dict[str, Any] = {"layers": 2, "width": 16, "heads": 4, "context": 12, "batch": 3}


def normal(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + NORM_EPSILON)


def softmax(x):
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2


def layer_norm(x):
    """A layer norm with the scale and shift that the other frameworks use."""
    return normal(x) * floats(x.shape[-1], seed=1) + floats(x.shape[-1], seed=2)


def rms_norm(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + NORM_EPSILON) * floats(x.shape[-1], seed=1)


def softmax_gradient(x):
    weighted = softmax(x) * floats(*x.shape, seed=1)
    return weighted - softmax(x) * weighted.sum(-1, keepdims=True)


OF_ONE_ARRAY: dict[str, Callable[..., Any]] = {
    "gelu": gelu,
    "softmax": softmax,
    "logsumexp": lambda x: np.log(np.exp(x).sum(-1)),
    "variance": lambda x: x.var(-1),
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "softmax_gradient": softmax_gradient,
    "sum_all": np.sum,
    "sort": np.sort,
    "argsort": lambda x: x.argsort(-1, kind="stable"),
    "median": lambda x: np.median(x, -1),
    "sum_first_axis": lambda x: x.sum(0),
    "sum_last_axis": lambda x: x.sum(-1),
    "transpose": lambda x: x.T,
    "add": lambda x: x + x,
}


@pytest.fixture(scope="module")
def weft_peer():
    return make_peer("weft", threads=1)


@pytest.mark.parametrize("method", OF_ONE_ARRAY)
def test_the_work_computes_what_its_name_says(weft_peer, method):
    work = getattr(weft_peer, method)(SHAPE)
    np.testing.assert_allclose(np.array(work()), OF_ONE_ARRAY[method](floats(*SHAPE)), rtol=2e-5, atol=2e-6)


def test_cross_entropy_of_rows(weft_peer):
    x, labels = floats(6, 9), classes(6, 9)
    expected = -np.log(softmax(x)[np.arange(6), labels])
    np.testing.assert_allclose(np.array(weft_peer.cross_entropy((6, 9))()), expected, rtol=1e-5)


def test_rope_turns_pairs_by_their_position(weft_peer):
    x = floats(1, 2, 5, 8)
    angles = np.arange(5)[:, None] * 10000.0 ** (-np.arange(4) / 4)
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angles)
    expected = np.concatenate([turned.real, turned.imag], -1)
    np.testing.assert_allclose(np.array(weft_peer.rope(x.shape)()), expected, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_layer_norm_is_that_of_all_its_arguments(weft_peer):
    x, scale, cotangent = floats(*SHAPE), floats(SHAPE[-1], seed=1), floats(*SHAPE, seed=3)
    scaled = scale * cotangent
    centered = scaled - scaled.mean(-1, keepdims=True)
    along = normal(x) * (normal(x) * scaled).mean(-1, keepdims=True)
    in_x = (centered - along) / np.sqrt(x.var(-1, keepdims=True) + NORM_EPSILON)
    expected = in_x, (normal(x) * cotangent).sum((0, 1)), cotangent.sum((0, 1))
    for gradient, right in zip(weft_peer.layer_norm_gradient(SHAPE)(), expected, strict=True):
        np.testing.assert_allclose(np.array(gradient), right, rtol=1e-4, atol=1e-5)


def test_distances_of_all_pairs(weft_peer):
    x, y = floats(4, 3), floats(4, 3, seed=1)
    expected = np.linalg.norm(x[:, None] - y[None], axis=-1) ** 2
    np.testing.assert_allclose(np.array(weft_peer.distances(4, 3)()), expected, rtol=1e-5)


def test_quantized_products(weft_peer):
    """Codes of eight bits lose little precision."""
    x, w = floats(2, 64), floats(64, 64, seed=1)
    found = np.array(weft_peer.quantized_product(2, 64, "affine", 8)())
    np.testing.assert_allclose(found, x @ w.T, rtol=0.05, atol=2)


def test_experts(weft_peer):
    x, w = floats(1, 128), floats(3, 64, 128, seed=1)
    found = np.array(weft_peer.experts(3, 2, (64, 128))())
    np.testing.assert_allclose(found, x @ w[classes(2, 3)].swapaxes(1, 2), rtol=0.2, atol=40)


@pytest.mark.parametrize("function", ["cholesky", "solve", "inv", "qr", "eigh", "svd"])
def test_linear_algebra(weft_peer, function):
    """The results are NumPy's, except for the signs of vectors."""
    for shape in ((5, 5), (3, 4, 4)):
        found = weft_peer.linear_algebra(function, shape)()
        arguments = (matrices(*shape), right_sides(*shape))[: 2 if function == "solve" else 1]
        expected = getattr(np.linalg, function)(*arguments)
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        for got, want in pairs:
            np.testing.assert_allclose(abs(np.array(got)), abs(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(7,), (7, 3)], ids=str)
def test_gather_and_scatter(weft_peer, shape):
    x, index, values = floats(*shape), classes(20, 7), floats(20, *shape[1:], seed=1)
    np.testing.assert_array_equal(np.array(weft_peer.gather(shape, 20)()), x[index])
    expected = x.astype(np.float64)
    np.add.at(expected, index, values)
    np.testing.assert_allclose(np.array(weft_peer.scatter_add(shape, 20)()), expected, rtol=1e-4, atol=1e-5)


def test_vmap_and_loop_and_matmul(weft_peer):
    x, y = row_pairs(4, 3)
    np.testing.assert_array_equal(np.array(weft_peer.vmap_add(4, 3)()), x + y.T)
    np.testing.assert_array_equal(np.array([np.array(row) for row in weft_peer.loop_add(4, 3)()]), x + y.T)
    product = floats(6, 6) @ floats(6, 6, seed=1)
    np.testing.assert_allclose(np.array(weft_peer.matmul(6)()), product, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("geometry", [{"stride": 2}, {"transposed": True, "padding": 1}], ids=str)
def test_convolutions_have_the_shapes_that_all_peers_expect(weft_peer, geometry):
    sizes = {"array": (2, 6, 5, 3), "weights": (4, 3, 2, 3), **geometry}
    assert np.array(weft_peer.convolution(**sizes)()).shape == Convolution(**sizes).result
    assert [x.shape for x in weft_peer.convolution_gradients(**sizes)()] == [sizes["array"], sizes["weights"]]


def test_the_training_step_learns(weft_peer):
    step = weft_peer.train(batch=32)
    losses = [step().item() for _ in range(30)]
    assert losses[0] == pytest.approx(math.log(LAYERS[-1]), rel=0.2)
    assert losses[-1] < losses[0] / 2


def scores_of_gpt(sizes: gpt.Sizes, tokens):
    """The scores for the token after each token, with the initial values, in NumPy."""
    values = gpt.initial_values(sizes)

    def linear(layer, x):
        return x @ layer["weight"].T + layer.get("bias", 0)

    def attention(mixed):
        by_head = mixed.reshape(len(tokens), sizes.context, 3, sizes.heads, -1)
        queries, keys, values = by_head.transpose(2, 0, 3, 1, 4)
        scores = queries @ keys.swapaxes(-1, -2) / math.sqrt(queries.shape[-1])
        later = np.triu(np.ones((sizes.context, sizes.context), dtype=bool), 1)
        weights = softmax(np.where(later, -np.inf, scores))
        return (weights @ values).swapaxes(1, 2).reshape(len(tokens), sizes.context, -1)

    x = values["tokens"]["weight"][tokens] + values["positions"]
    for block in values["blocks"]:  # scales are one and shifts zero at the beginning
        x = x + linear(block["attended"], attention(linear(block["mixed"], normal(x))))
        x = x + linear(block["narrowed"], gelu(linear(block["widened"], normal(x))))
    return linear(values["head"], normal(x))


def mean_loss_of_gpt(sizes: gpt.Sizes) -> float:
    """The loss with the initial values."""
    tokens, following = gpt.windows(sizes)
    likely = softmax(scores_of_gpt(sizes, tokens))
    return -np.log(np.take_along_axis(likely, following[..., None], -1)).mean()


def test_the_gpt_computes_what_it_should_and_learns(weft_peer):
    step = weft_peer.train_gpt(**TINY_GPT)
    losses = [step().item() for _ in range(40)]
    assert losses[0] == pytest.approx(mean_loss_of_gpt(gpt.Sizes(**TINY_GPT)), rel=1e-5)
    assert losses[-1] < losses[0] - 1


def test_tokens_are_decoded_as_if_all_text_were_read_again(weft_peer):
    work = weft_peer.decode(half=False, **TINY_GPT)
    scores = [np.array(work())[0] for _ in range(TINY_GPT["context"])]
    tokens = [0, *(row.argmax() for row in scores[:-1])]
    np.testing.assert_allclose(
        scores, scores_of_gpt(gpt.Sizes(**TINY_GPT), np.array([tokens]))[0], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("train", {"batch": 8}),
        ("train_cnn", {"batch": 2}),
        ("train_lstm", {"batch": 2, "steps": 3, "width": 8}),
        ("train_gpt", TINY_GPT),
    ],
)
@pytest.mark.usefixtures("mlx")
def test_training_in_mlx_gives_the_same_losses(weft_peer, method, arguments):
    steps = [getattr(peer, method)(**arguments) for peer in (weft_peer, make_peer("mlx", threads=1))]
    for _ in range(3):
        ours, theirs = (step().item() for step in steps)
        assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("mask", ["", "causal"])
def test_attention(weft_peer, mask):
    sizes = (2, 3, 8), 5, 7
    q, k, v = attention_data(*sizes)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(8)
    later = np.arange(7) > np.arange(5)[:, None] + 2
    expected = softmax(np.where(later, -np.inf, scores) if mask else scores) @ v
    for dtype, error in (("float32", 1e-5), ("bfloat16", 2e-2)):
        found = weft_peer.attention(*sizes, mask=mask, dtype=dtype)()
        np.testing.assert_allclose(np.array(found), expected[0, 0, 0], rtol=error, atol=error)
        total = weft_peer.attention_gradients(*sizes, mask=mask, dtype=dtype)()
        np.testing.assert_allclose(total.item(), expected.sum(), rtol=error)


def test_code_generation_is_that_of_the_kernel_of_gelu(weft_peer):
    assert weft_peer.generate_kernel((16,))() != 0
    before = weft.counters()
    weft_peer.gelu((16,))()
    assert (weft.counters() - before).generated == 0


@pytest.mark.parametrize("tasks", [TASKS, GPU_TASKS], ids=["cpu", "gpu"])
def test_every_task_is_one_that_weft_has(weft_peer, tasks):
    assert len({task.name for task in tasks}) == len(tasks)
    assert [task.name for task in tasks if task.kind is not Kind.IMPORT and not hasattr(weft_peer, task.method)] == []


def test_what_is_measured_in_half_precision(weft_peer):
    sizes = TINY_GPT | {"layers": 1}
    product = floats(6, 6) @ floats(6, 6, seed=1) + floats(6, seed=2)
    np.testing.assert_allclose(np.array(weft_peer.dense(6)()), gelu(product)[0], rtol=3e-2, atol=0.3)
    whole = mean_loss_of_gpt(gpt.Sizes(**sizes))
    assert weft_peer.train_gpt(half=True, fused=True, **sizes)().item() == pytest.approx(whole, rel=1e-2)
    tokens = sizes | {"width": 64, "half": True}
    exact, coded = (np.array(weft_peer.decode(bits=bits, **tokens)()) for bits in (0, 8))
    np.testing.assert_allclose(coded, exact, rtol=0.1, atol=0.02)


def test_a_session_measures_in_processes_of_their_own_and_says_what_is_missing():
    task = Task("small", "small", "add", {"shape": (16,)})
    unknown = Task("unknown", "unknown", "no_such_method")
    wrong = Task("wrong", "wrong", "add", {"shape": (-1,)})
    cold = Task("cold", "cold", "add", {"shape": (16,)}, Kind.FIRST_CALL)
    said: list[str] = []
    results = Session(["numpy"], threads=1, rounds=2, budget=0.01, tell=said.append).run([task, unknown, wrong, cold])
    assert len(results["small"]["numpy"].samples) >= 2
    assert len(results["cold"]["numpy"].samples) == 2
    assert results["unknown"]["numpy"].reason == "-"
    assert results["wrong"]["numpy"].reason.startswith("ValueError")
    assert said == ["small", "unknown", "wrong", "cold"]


@reads_proc
def test_memory_is_measured_in_a_process_that_finds_filled_caches():
    task = Task("memory", "memory", "train", {"batch": 8}, Kind.MEMORY)
    (result,) = (
        Session(["weft"], threads=1, rounds=1, budget=0.01, tell=lambda line: None).run([task])["memory"].values()
    )
    assert result.reason == ""
    assert result.samples[0] > 2**20


@reads_proc
def test_the_peak_of_the_resident_memory_is_seen_and_forgotten():
    size = 2**26
    memory.forget_peak()
    before = memory.resident()
    # Not an array of NumPy: it may get memory that the process has freed and that is still resident.
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        for page in range(0, size, mmap.PAGESIZE):
            pages[page] = 1
    assert memory.peak() - before > 0.9 * size
    memory.forget_peak()
    assert memory.peak() - before < 0.1 * size


def test_a_second_process_gets_the_folder_that_a_first_one_with_the_same_work_has_filled(tmp_path):
    cold, again = (
        Task("name", "title", "add", {"shape": (1,)}, kind) for kind in (Kind.FIRST_CALL, Kind.SECOND_PROCESS)
    )
    caches = Caches(tmp_path)
    assert caches.filled(again, "jax") is None
    folders = [caches.fresh(cold, "jax") for _ in range(2)]
    assert folders[0] != folders[1]
    assert caches.filled(again, "jax") == folders[1]
    assert caches.filled(again, "torch") is None
    assert caches.filled(Task("name", "title", "add", {"shape": (2,)}), "jax") is None


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


def test_memory_is_shown_in_mebibytes():
    task = Task("a", "memory", "train", kind=Kind.MEMORY)
    results = {"a": {"weft": Measured([2.0**21, 2.0**22, 2.0**22]), "jax": Measured([2.0**23])}}
    assert report.table([task], results, ["weft", "jax"])[1] == ["memory", "4 MiB", "8 MiB (2x)"]


def test_budgets_are_judged_by_the_same_run():
    absolute, relative = Limit(2e-3), Limit(1.5, "copy")
    task = Task("a", "work", "add", budget=(absolute, relative))
    measured = {"weft": Measured([3e-3]), "copy": Measured([2e-3])}
    verdicts = [report.verdict(task, limit, measured) for limit in task.budget]
    assert report.budgets_table(verdicts) == [
        ["budget", "at most", "measured", "reached"],
        ["work", "2 ms", "3 ms", "no"],
        ["work", "1.5 x copy", "1.5 x copy", "yes"],
    ]


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        ({"weft": Measured([1.0]), "jax": Measured(reason="no")}, ["-", "unknown"]),
        ({"weft": Measured([1.0])}, ["-", "unknown"]),
        ({"jax": Measured([1.0])}, ["-", "unknown"]),
        ({"weft": Measured(reason="no"), "jax": Measured([1.0])}, ["failed", "no"]),
    ],
)
def test_a_budget_without_figures_is_unknown_and_one_at_which_weft_failed_is_not_reached(measured, shown):
    task = Task("a", "work", "add", budget=(Limit(peer="jax"),))
    table = report.budgets_table([report.verdict(task, task.budget[0], measured)])
    assert table[1] == ["work", "1 x jax", *shown]


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
        "work: numpy failed: ValueError: no",
        "work: torch computes something else than weft (nan instead of 10)",
    ]


def test_no_task_begins_when_the_time_is_over():
    task = Task("small", "small", "add", {"shape": (16,)})
    assert Session(["numpy"], threads=1, rounds=1, budget=0.01, tell=print, most=0.0).run([task]) == {}
