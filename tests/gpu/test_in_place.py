"""State that a compiled function replaces, on a card: the same arrays get new elements where no caller can notice."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.gpu.fake_driver import FakeDriver
from weft.runtime.cuda.driver import CudaError

RATE = np.float32(0.5)


class Training:
    """Steps of a momentum method by Weft and by NumPy."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"w": mx.array([1.0, 2.0, 3.0]), "m": mx.zeros((3,)), "count": [mx.array(0)]}
        mx.eval(self.state)
        self.w, self.m = np.array([1, 2, 3], np.float32), np.zeros(3, np.float32)
        self.compiled = mx.compile(self._step, inputs=self.state, outputs=self.state)

    def _step(self, x: mx.array) -> mx.array:
        state = self.state
        state["m"] = state["m"] * RATE.item() + x
        state["w"] = state["w"] - state["m"] * RATE.item()
        state["count"][0] = state["count"][0] + 1
        return mx.sum(state["m"])

    def step(self, x: float = 1.0) -> mx.array:
        """One step by NumPy and by Weft; the loss of Weft. `check` compares the states."""
        given = np.full(3, x, np.float32)
        self.m = self.m * RATE + given
        self.w = self.w - self.m * RATE
        loss: mx.array = self.compiled(mx.array(given))
        return loss

    def check(self) -> None:
        assert np.array_equal(np.array(self.state["w"]), self.w)
        assert np.array_equal(np.array(self.state["m"]), self.m)

    @property
    def arrays(self) -> list[int]:
        return [id(self.state["w"]), id(self.state["m"]), id(self.state["count"][0])]


@pytest.fixture
def training(driver: FakeDriver) -> Training:
    mx.set_default_device(mx.gpu)
    training = Training()
    for _ in range(8):
        training.step()
    return training


def test_arrays_stay_and_one_graph_is_launched(training: Training, driver: FakeDriver) -> None:
    arrays, before = training.arrays, driver.calls.copy()
    losses = [training.step(x) for x in (1.0, 2.0, 3.0)]
    assert training.arrays == arrays
    assert driver.calls["launch_graph"] == before["launch_graph"] + 3
    assert driver.calls["launch"] == before["launch"]
    assert len({loss.item() for loss in losses}) == 3
    assert losses[-1].item() == training.m.sum()
    assert training.state["count"][0].item() == 11
    training.check()


def under_way(x: mx.array) -> mx.array:
    mx.async_eval(x)
    return x


HOLDERS: dict[str, Callable[[mx.array], Any]] = {
    "the array": lambda x: x,
    "a view": lambda x: x[1:],
    "what is pending": lambda x: x * 2,
    "a copy of the container": lambda x: [x],
    "what is under way": lambda x: under_way(x * 2),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_who_holds_an_array_has_the_old_elements(training: Training, name: str) -> None:
    held = HOLDERS[name](training.state["w"])
    wanted = np.array(HOLDERS[name](mx.array(training.w))) if name != "a copy of the container" else [training.w.copy()]
    training.step()
    training.step()
    training.check()
    assert np.array_equal(np.array(held[0] if isinstance(held, list) else held), np.array(wanted).reshape(-1)[-3:])


def test_a_reference_to_an_array_that_was_replaced_is_dead(training: Training) -> None:
    reference = weakref.ref(training.state["w"])
    training.step()
    assert reference() is None
    training.check()


def test_copies_on_other_devices_are_not_of_old_elements(training: Training) -> None:
    for _ in range(3):
        assert mx.add(training.state["w"], 0.0, stream=mx.cpu).tolist() == training.w.tolist()
        training.step()
    training.check()


def test_arrays_that_the_program_assigns(training: Training) -> None:
    training.state["w"] = mx.array([5.0, 6.0, 7.0, 8.0])[1:]
    training.w = np.array([6, 7, 8], np.float32)
    for _ in range(4):
        training.step()
        training.check()
    training.state["w"], training.state["m"] = training.state["m"], training.state["w"]
    training.w, training.m = training.m, training.w
    for _ in range(4):
        training.step()
        training.check()


def test_two_entries_with_one_array(training: Training) -> None:
    training.state["m"] = training.state["w"]
    training.m = training.w
    for _ in range(3):
        training.step()
        training.check()


def test_a_failing_launch_leaves_the_state(
    training: Training, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = training.arrays
    with monkeypatch.context() as patched:
        patched.setattr(driver, "check", failed)
        for slots in [slots for latest in latest_slots(training) for slots in latest]:
            patched.setattr(slots, "together", (lambda: 999,))
        with pytest.raises(CudaError):
            training.compiled(mx.array(np.ones(3, np.float32)))
    assert training.arrays == arrays
    training.check()
    training.step()
    training.check()


def failed(code: int, called: str, more: str = "") -> None:
    if code:
        raise CudaError("CUDA_ERROR_UNKNOWN", "unknown", called)


def latest_slots(training: Training) -> list[Any]:
    """The slots on the card for the steps."""
    compiled: Any = training.compiled
    return list(compiled._repeat._prepared._plan.steps._latest.values())


def test_a_profile_sees_the_steps(training: Training) -> None:
    with weft.profile() as profile:
        training.step()
    assert profile.kernels
    training.step()
    training.check()


def test_threads_that_read_the_state_see_old_or_new_elements(training: Training) -> None:
    """An array does not change while a thread holds it."""
    wrong, ended = [], threading.Event()

    def read() -> None:
        while not ended.is_set():
            w = training.state["w"]
            first, second = w.tolist(), w.tolist()
            if first != second:
                wrong.append((first, second))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(60):
        training.step()
    ended.set()
    reader.join()
    assert not wrong
    training.check()


def test_a_thread_that_reads_the_state_while_steps_are_queued(training: Training) -> None:
    """It may run then, since the driver's functions release the interpreter's lock."""
    found: list[list[float]] = []
    reads = [lambda x: x.tolist(), lambda x: np.from_dlpack(x, device="cpu").tolist(), lambda x: (x + 0).tolist()]
    launched, read_once = threading.Event(), threading.Event()

    def read(elements: Callable[[mx.array], list[float]]) -> None:
        w = training.state["w"]
        first = elements(w)
        read_once.set()
        launched.wait()
        found[:] = first, elements(w)

    for elements in reads:
        launched.clear()
        read_once.clear()
        reader = threading.Thread(target=read, args=(elements,))

        def launch(together: tuple[Any, ...]) -> int:
            reader.start()  # noqa: B023  # called in this turn of the loop
            read_once.wait(0.2)
            function, *arguments = together
            code: int = function(*arguments)
            launched.set()
            return code

        with pytest.MonkeyPatch.context() as patched:
            for slots in [slots for latest in latest_slots(training) for slots in latest]:
                patched.setattr(slots, "together", (launch, slots.together))
            training.step()
        reader.join()
        assert found[0] == found[1]
        training.check()


assigned: list[str] = []


class Watched(dict[str, Any]):
    """A dict with its own ``__setitem__``."""

    def __setitem__(self, key: str, value: Any) -> None:
        assigned.append(key)
        super().__setitem__(key, value)


def test_containers_that_see_assignments_see_them(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    state = [Watched(w=mx.zeros((3,)))]

    def step() -> None:
        state[0]["w"] = state[0]["w"] + 1

    compiled = mx.compile(step, inputs=state, outputs=state)
    compiled()
    assigned.clear()
    for _ in range(8):
        compiled()
    assert assigned == ["w"] * 8
    assert state[0]["w"].tolist() == [9, 9, 9]


def test_arrays_that_are_held_in_each_step(training: Training) -> None:
    """While the arrays are held, not every call tries to keep them; when they are no longer held, calls keep them
    again."""
    held = []
    for _ in range(30):
        held.append((training.state["w"], training.w))
        training.step()
    for array, wanted in held:
        assert np.array_equal(np.array(array), wanted)
    del held, array
    arrays: list[list[int]] = []
    for _ in range(20):
        arrays.append(training.arrays)
        training.step()
    assert arrays[-1] == arrays[-2]
    training.check()
