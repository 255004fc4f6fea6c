"""The process in which one peer runs: `python -m benchmarks.worker PEER THREADS`.

It reads requests from its input, one JSON object per line, and answers each with one line on its output. It needs only
NumPy and the peer's own packages.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import math
import os
import platform
import sys
import time
from typing import Any

import numpy as np

from . import memory
from .peers import DEVICE, PEERS, Work, make_peer

WARM_UP_CALLS = 3
# Seconds. Work that takes less is called several times per sample. On a GPU, a sample waits once for all its calls.
SHORTEST_SAMPLE = 2e-3 if DEVICE == "cpu" else 20e-3
COMPARED = 1000  # elements of the result
SMALL = (16,)  # a shape so small that only the compiler needs memory
MEMORY_CALLS = 2
# Seconds in which an idle process spends no more than a part of the time on a processor, and the most it is waited for.
QUIET, QUIET_PART, LONGEST_REST = 5e-3, 0.2, 0.5


def set_affinity(threads: int) -> None:
    """Restricts the process to as many cores as it may have threads, for peers that count cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def rest() -> None:
    """Waits until the threads of this process sleep, so that the next peer has all processors. Some pools wait for more
    work with busy processors: that of OpenBLAS for 2^28 cycles, an eighth of a second."""
    end = time.perf_counter() + LONGEST_REST
    while time.perf_counter() < end:
        spent = time.process_time()
        time.sleep(QUIET)
        if time.process_time() - spent < QUIET_PART * QUIET:
            return


def fingerprint(result: Any) -> float:
    """A number by which the results of different peers are compared."""
    if isinstance(result, (tuple, list)):
        return sum(map(fingerprint, result))
    for copy_to_host in ("cpu", "get"):  # PyTorch's name for it, and CuPy's
        result = getattr(result, copy_to_host, lambda result=result: result)()
    return float(np.abs(np.asarray(result).reshape(-1)[:COMPARED]).sum(dtype=np.float64))


def version_of(package: str) -> str:
    """The version of a package, even if its distribution has another name."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules[package], "__version__", "unknown"))


class Worker:
    """One peer, and the work it has prepared."""

    def __init__(self, name: str, threads: int) -> None:
        self.entry = PEERS[name]
        self.peer = make_peer(name, threads)
        self.work: Work | None = None
        self.calls = 1

    def describe(self) -> dict[str, Any]:
        """The versions to be printed with the tables."""
        package = self.entry.imports.partition(".")[0] or "numpy"
        return {"package": package, "version": version_of(package), "python": platform.python_version()}

    def prepare(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Make data and work, warm up, and find out how many calls a sample needs."""
        prepared = self._make(method, arguments)
        if prepared is None:
            return {"missing": True}
        self.work = prepared
        for _ in range(WARM_UP_CALLS - 1):
            prepared()
        self._finish(None)
        start = time.perf_counter()
        result = self._finish(prepared())
        self.calls = math.ceil(SHORTEST_SAMPLE / max(time.perf_counter() - start, 1e-9))
        return {"fingerprint": self._fingerprint(result)}

    def _finish(self, result: Any) -> Any:
        """The result of work, after it was computed."""
        if DEVICE != "cpu":
            self.peer.synchronize(result)
        return result

    def _seconds(self, work: Work) -> float:
        """The time of one call, as the mean of several in a row."""
        start = time.perf_counter()
        for _ in range(self.calls):
            result = work()
        self._finish(result)
        return (time.perf_counter() - start) / self.calls

    def sample(self, budget: float) -> dict[str, Any]:
        """Times of calls, as many as fit into `budget` seconds, but at least one."""
        assert self.work is not None, "sample before prepare"
        gc.disable()
        end = time.perf_counter() + budget
        times = [self._seconds(self.work)]
        while time.perf_counter() < end:
            times.append(self._seconds(self.work))
        gc.enable()
        gc.collect()
        return {"samples": times}

    def first(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The time of the first call, without what comes before it (imports, data)."""
        work = self._make(method, arguments)
        if work is None:
            return {"missing": True}
        start = time.perf_counter()
        result = self._finish(work())
        return {"samples": [time.perf_counter() - start], "fingerprint": self._fingerprint(result)}

    def memory(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The largest increase of memory by data and warm calls, after the peer's compiler was loaded.

        Data are included because some peers make them on first use.
        """
        if not hasattr(self.peer, method):
            return {"missing": True}
        self.peer.gelu(SMALL)()
        before = memory.resident()
        work = self._make(method, arguments)
        assert work is not None, "a method that exists gave no work"
        for _ in range(WARM_UP_CALLS):
            work()
        gc.collect()
        memory.forget_peak()
        for _ in range(MEMORY_CALLS):
            result = work()
        return {"samples": [memory.peak() - before], "fingerprint": self._fingerprint(result)}

    def release(self) -> dict[str, Any]:
        """Releases the work and its data."""
        self.work = None
        gc.collect()
        return {}

    def _fingerprint(self, result: Any) -> float | None:
        return fingerprint(result) if self.entry.computes else None

    def _make(self, method: str, arguments: dict[str, Any]) -> Work | None:
        maker = getattr(self.peer, method, None)
        return None if maker is None else maker(**arguments)


def answer(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request; a failure is reported in the answer, not raised."""
    try:
        reply: dict[str, Any] = getattr(worker, request.pop("do"))(**request)
    except Exception as error:
        return {"error": brief(error)}
    return reply


def brief(error: Exception) -> str:
    """An error in one line."""
    first, *_ = str(error).splitlines() or ["no message"]
    return f"{type(error).__name__}: {first}"


def main() -> None:
    """Answer requests until the input ends."""
    # Frameworks may print anything, so answers use a copy of the original output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name, threads = sys.argv[1], int(sys.argv[2])
    set_affinity(threads)
    try:
        worker = Worker(name, threads)
    except Exception as error:
        print(json.dumps({"error": brief(error)}), file=answers, flush=True)
        return
    print(json.dumps(worker.describe()), file=answers, flush=True)
    for line in sys.stdin:
        reply = answer(worker, json.loads(line))
        rest()
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
