"""Several cards, without a card: copies between them, and which work waits for which."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.conftest import driver_of
from tests.gpu.fake_driver import FakeDriver
from tests.gpu.test_engine import values, walk

FIRST, SECOND = mx.Device(mx.gpu, 0), mx.Device(mx.gpu, 1)


@pytest.fixture
def cards() -> Iterator[FakeDriver]:
    """A driver with two cards."""
    with driver_of(2) as driver:
        yield driver


def test_work_goes_from_card_to_card(cards: FakeDriver) -> None:
    """Only queues wait for each other; no thread waits."""
    x, y = mx.exp(values(4, 6), stream=FIRST), mx.exp(values(4, 6), stream=SECOND)
    mx.eval(x, y)
    before = cards.calls["synchronize"]
    with mx.stream(FIRST):
        x = x * 0.5
        mx.async_eval(x)
    with mx.stream(SECOND):
        y = mx.sin(x) + y
        mx.async_eval(y)
    with mx.stream(FIRST):
        z = mx.cos(y) - x
        mx.async_eval(z)
    assert cards.calls["synchronize"] == before
    with mx.stream(mx.cpu):
        x = mx.exp(values(4, 6)) * 0.5
        assert_same_bits(z, mx.cos(mx.sin(x) + mx.exp(values(4, 6))) - x)


def test_memory_that_another_card_reads_is_not_used_again(cards: FakeDriver) -> None:
    """Neither for the next results nor by the driver."""
    for streams in (1, 2):
        others = [mx.new_stream(FIRST) for _ in range(streams)]
        x = values(64)
        y = mx.exp(x, stream=others[0])
        mx.eval(y)
        there = mx.negative(y, stream=SECOND)
        mx.async_eval(there)
        del y
        more = [mx.sin(x, stream=stream) for stream in others]
        mx.async_eval(more)
        mx.clear_cache(device=FIRST)
        assert_same_bits(there, mx.negative(mx.exp(x, stream=mx.cpu), stream=mx.cpu))


def test_streams_of_two_cards(cards: FakeDriver, seed: int) -> None:
    cpu = mx.default_stream(mx.cpu)
    streams = [mx.new_stream(device) for device in (FIRST, SECOND, FIRST, SECOND)]
    for number in range(seed, seed + 3):
        assert_same_bits(walk(streams, number), walk([cpu] * len(streams), number))


def test_a_compiled_function_follows_the_card(cards: FakeDriver) -> None:
    function = mx.compile(lambda x: mx.softmax(mx.exp(x) * 2, axis=-1))
    x = values(4, 6)
    before = weft.counters()
    results = []
    for device in (FIRST, SECOND, FIRST, SECOND):
        with mx.stream(device):
            results.append(function(x))
    assert (weft.counters() - before).traces == 1
    assert (weft.counters() - before).plans == 2
    for result in results[1:]:
        assert_same_bits(result, results[0])


def test_gradients_of_halves_of_a_batch(cards: FakeDriver) -> None:
    """Data parallel training: each card has a copy of the weights, and the first one adds up the gradients."""
    w, x = values(6), values(8, 6)
    loss = mx.value_and_grad(lambda w, x: mx.mean((x @ w - 1) ** 2))
    whole = loss(w, x)[1]
    for _ in range(3):
        halves = []
        for device, half in zip((FIRST, SECOND), (x[:4], x[4:]), strict=True):
            with mx.stream(device):
                halves.append(loss(w, half)[1])
                mx.async_eval(halves[-1])
        with mx.stream(FIRST):
            mean = (halves[0] + halves[1]) / 2
        assert np.allclose(np.array(mean), np.array(whole), rtol=1e-5)
    assert cards.calls["copy"]


def test_transfers_between_cards_are_seen(cards: FakeDriver) -> None:
    y = mx.exp(values(100), stream=FIRST)
    mx.eval(y)
    with weft.profile() as profile:
        mx.eval(mx.sin(y, stream=SECOND))
    assert profile.transfers["Device(gpu, 0) to Device(gpu, 1)"].bytes == 400
