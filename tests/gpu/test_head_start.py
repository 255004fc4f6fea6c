"""Threads make ready what a program needed of libraries last time; and the places where libraries are looked for."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import weft.core as mx
from tests.gpu.fake_driver import FakeDriver
from weft.compiler.codegen import loading
from weft.compiler.cuda import head_start
from weft.compiler.cuda.head_start import HeadStart, KindOfNeed
from weft.errors import EvaluationError
from weft.runtime.cuda import shared_libraries
from weft.runtime.cuda.engine import CudaEngine
from weft.runtime.disk_cache import DiskCache
from weft.runtime.engine import engine_of


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    """The cache on disk for the needs of a program that has a name."""
    found = DiskCache(str(tmp_path))
    monkeypatch.setattr(loading, "disk_of_plans", lambda: found)
    monkeypatch.setattr(head_start, "_name_of_program", lambda: "module program")
    return found


def wait() -> None:
    while any(thread.name.startswith("weft head start") for thread in threading.enumerate()):
        pass


class Process:
    """One process: its needs, and what was made ready in it."""

    def __init__(self, fails: str = "", target: str = "cuda sm_90") -> None:
        self.begun: list[str] = []
        self.made: list[str] = []
        self.fails = fails
        self.start = HeadStart(target, {name: self._kind(name) for name in ("one", "two")})
        for _ in range(2):
            self.start.begin()
        wait()
        self.start.make()
        wait()

    def _kind(self, name: str) -> KindOfNeed:
        return KindOfNeed(partial(self._begin, name), self._make)

    def _begin(self, name: str) -> None:
        if name == self.fails:
            raise OSError("there is no such library any more")
        self.begun.append(name)

    def _make(self, need: str) -> None:
        if need == self.fails:
            raise EvaluationError("there is no such library any more")
        self.made.append(need)

    def needs(self, *needs: str) -> Process:
        self.start.note([("one", need) for need in needs])
        return self


def test_what_was_needed_is_made_ready(disk: DiskCache) -> None:
    first = Process().needs("product", "attention", "product")
    assert (first.begun, first.made) == ([], [])
    second = Process()
    assert (second.begun, second.made) == (["one"], ["product", "attention"])
    assert Process(target="cuda sm_80").made == []
    assert Process(fails="product").made == ["attention"]
    assert Process(fails="one").made == ["product", "attention"]


def test_needs_of_two_kinds(disk: DiskCache) -> None:
    first = Process()
    first.start.note([("two", "attention")])
    first.start.note([("one", "product")])
    second = Process()
    assert sorted(second.begun) == ["one", "two"]
    assert sorted(second.made) == ["attention", "product"]


def test_what_is_needed_no_more_is_forgotten(disk: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    Process().needs("product", "attention")
    Process().needs("product")
    assert Process().made == ["product", "attention"]
    Process().needs("product", "convolution")
    assert Process().made == ["product", "convolution"]
    monkeypatch.setattr(disk, "put", lambda *given: pytest.fail("nothing is new"))
    Process().needs("convolution", "product")


def test_without_threads(disk: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made ready if there are too many threads, or if the process is about to end."""

    def fail(*given: object) -> None:
        raise RuntimeError("can't start new thread")

    Process().needs("product")
    monkeypatch.setattr(ThreadPoolExecutor, "submit", fail)
    assert Process().made == []


def test_a_program_that_ends_waits_for_one_need(disk: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the interpreter is ending, no thread can be had."""
    Process().needs("product", "attention", "convolution")
    submit = ThreadPoolExecutor.submit
    ending: list[bool] = []

    def submitted(*given: Any) -> Any:
        if ending:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        return submit(*given)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submitted)
    make = Process._make

    def made(process: Process, need: str) -> None:
        make(process, need)
        ending.append(True)

    monkeypatch.setattr(Process, "_make", made)
    assert Process().made == ["product"]


def test_there_is_a_limit(disk: DiskCache) -> None:
    Process().needs(*[str(number) for number in range(100)])
    assert Process().made == [str(number) for number in range(64)]


def test_a_program_without_a_name(disk: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_start, "_name_of_program", lambda: None)
    Process().needs("product")
    assert Process().made == []
    assert disk.usage()[0] == 0


@pytest.mark.parametrize("name", ["module", "file", "shell"])
def test_names_of_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = pytest.__spec__ if name == "module" else None
    if name == "file":
        main.__file__ = "folder/program.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    expected = {"module": "module pytest", "file": str(Path.cwd() / "folder/program.py"), "shell": None}
    assert head_start._name_of_program() == expected[name]


def test_a_card_that_is_used_begins(driver: FakeDriver) -> None:
    engine = engine_of(mx.Device(mx.gpu))
    assert isinstance(engine, CudaEngine)
    expected: list[int] = []
    begun: list[int] = []
    engine.when_expected = lambda: expected.append(engine.context)
    engine.when_started = lambda: begun.append(engine.context)
    stream = mx.new_stream(mx.gpu)
    assert expected == [0]
    for _ in range(2):
        mx.eval(mx.add(mx.ones((3,), stream=stream), 1, stream=stream))
    assert begun == [engine.context]


def test_libraries_of_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer versions of CUDA come first; for the same version, the folder that Python finds first."""
    one, two = tmp_path / "one", tmp_path / "two"
    paths = [
        one / "nvidia/cu13/lib/libcublasLt.so.13",
        two / "nvidia/cu13/lib/libcublasLt.so.13",
        one / "nvidia/cublas/lib/libcublasLt.so.12",
    ]
    for path in [*paths, one / "nvidia/cudnn/lib/libcudnn.so.9", one / "nvidia/other.py"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "missing"), str(one), str(two)])
    found = list(shared_libraries._in_wheels(("libcublasLt.so.13", "libcublasLt.so.12")))
    assert found == list(map(str, paths))


def test_ways_to_load_a_library_are_tried_one_after_the_other() -> None:
    def fail() -> None:
        raise OSError("no library")

    ways: list[Callable[[], object]] = [fail, lambda: "second", lambda: "third"]
    assert shared_libraries._first(ways) == "second"
    assert shared_libraries._first([fail]) is None
    with pytest.raises(OSError, match="libnone"):
        shared_libraries._loaded("libnone.so.1")
