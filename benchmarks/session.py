"""Measures the peers in turns, so that disturbances of the machine affect all of them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from .peers import PEERS
from .tasks import Kind, Task

ROOT = Path(__file__).resolve().parent.parent
LONGEST_ANSWER = 300.0  # seconds
LONGEST_END = 10.0  # seconds
FRESH_SAMPLES = 3
PATIENCE = 5.0  # seconds spent on one task after which a peer gives no further sample
# Variables for folders that outlive the process, in which peers cache. (MLX caches below TMPDIR.)
CACHE_VARIABLES = ("HOME", "XDG_CACHE_HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
# Variables that are removed: peers must compile, and Python must cache byte code, as for packages installed by pip.
UNWANTED_VARIABLES = ("WEFT_DISABLE_COMPILE", "PYTHONDONTWRITEBYTECODE")
# How many arrays of a task's size a peer may hold at once: input, output, and intermediate results of eager code.
ARRAYS_HELD = 4
IMPORT = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


@dataclass
class Measured:
    """A peer's results for a task: samples (in the task's unit), or the reason why there are none."""

    samples: list[float] = field(default_factory=list)
    reason: str = ""
    fingerprint: float | None = None
    spent: float = 0.0  # seconds for all samples, including what is around them

    def median(self, task: Task) -> float | None:
        """The median, for the amount of work that the task's title says."""
        return median(self.samples) / task.repeats if self.samples else None

    @property
    def wants_more(self) -> bool:
        """Whether another sample is possible and not too expensive."""
        return not self.reason and self.spent <= PATIENCE

    def collect(self, answer: dict[str, Any]) -> None:
        """Add a worker's samples, or the reason why there are none."""
        if answer.get("missing"):
            self.reason = "-"
        elif "error" in answer:
            self.reason, self.samples = answer["error"], []
        self.samples += answer.get("samples", [])
        self.spent += answer.get("spent", 0.0)
        self.fingerprint = answer.get("fingerprint", self.fingerprint)


@dataclass(frozen=True)
class Peer:
    """A framework with the path of its interpreter, or the reason why it is not measured."""

    name: str
    python: Path
    version: str = ""
    missing: str = ""


def environment(name: str, threads: int, cache: Path | None = None) -> dict[str, str]:
    """The environment of a peer's process: the same number of threads for all, and folders for caches."""
    variables = {key: value for key, value in os.environ.items() if key not in UNWANTED_VARIABLES}
    for variable in ("WEFT", "OMP", "OPENBLAS", "MKL"):
        variables[f"{variable}_NUM_THREADS"] = str(threads)
    on_gpu = variables.get("BENCH_DEVICE") == "gpu"
    variables["JAX_PLATFORMS"] = "cuda" if on_gpu else "cpu"
    variables["WEFT_DEVICE"] = "gpu" if on_gpu else "cpu"
    variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several peers share a GPU
    if name == "torch-eager":
        variables["TORCHDYNAMO_DISABLE"] = "1"
    if cache is not None:
        for variable in CACHE_VARIABLES:
            variables[variable] = str(cache)
        variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        variables["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    return variables


def interpreter(name: str) -> Path:
    """The path of a peer's interpreter: its own environment, or this one, in which it may be as well."""
    own = ROOT / ".bench" / name.removesuffix("-eager") / "bin" / "python"
    if name in ("weft", "numpy", "copy") or not own.exists():
        return Path(sys.executable)
    return own


class Connection:
    """A worker process that answers requests."""

    def __init__(self, name: str, threads: int, cache: Path | None = None) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        self.process = subprocess.Popen(
            [interpreter(name), "-m", "benchmarks.worker", name, str(threads)],
            cwd=ROOT,
            env=environment(name, threads, cache),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.hello = self._read()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request; if the process died or takes too long, the answer is the reason."""
        if self.ended or self.process.stdin is None:
            return {"error": "its process has ended"}
        start = time.perf_counter()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": "its process has ended"}
        return self._read() | {"spent": time.perf_counter() - start}

    @property
    def ended(self) -> bool:
        """Whether the process has ended without being told to."""
        return self.process.poll() is not None

    def close(self) -> None:
        """End the process, after it has finished what it does at its end, such as filling caches."""
        try:
            self.process.communicate(timeout=LONGEST_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        self.log.close()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        timer = threading.Timer(LONGEST_ANSWER, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self.log.seek(0)
        last = self.log.read().strip().splitlines()[-1:] or ["no message"]
        return {"error": f"its process ended: {last[0]}"}


@contextmanager
def connection(name: str, threads: int, cache: Path | None = None) -> Iterator[Connection]:
    """A worker that is ended when the block ends."""
    worker = Connection(name, threads, cache)
    try:
        yield worker
    finally:
        worker.close()


def find_peers(names: Sequence[str], threads: int) -> list[Peer]:
    """The peers, with their versions or the reasons why they do not run here."""
    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(partial(find_peer, threads=threads), names))


def find_peer(name: str, threads: int) -> Peer:
    """A peer, with its version or the reason why it does not run here."""
    python = interpreter(name)
    with connection(name, threads) as worker:
        hello = worker.hello
    error = hello.get("error", "")
    if error.startswith(ModuleNotFoundError.__name__):
        error = "not installed (make bench-peers)"
    return Peer(name, python, version=hello.get("version", ""), missing=error)


def free_memory() -> int | None:
    """Bytes that processes can still use, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


class Session:
    """Measures tasks with all peers.

    Args:
        peers: Names of the peers that run here.
        threads: How many threads each of them gets.
        rounds: How many turns each peer has in each task.
        budget: Seconds of one turn.
        tell: Called with a line about what is being measured.
        most: No task begins after this many seconds.
    """

    def __init__(
        self,
        peers: list[str],
        threads: int,
        rounds: int,
        budget: float,
        tell: Callable[[str], None],
        most: float = math.inf,
    ) -> None:
        self.peers, self.threads, self.rounds, self.budget, self.tell = peers, threads, rounds, budget, tell
        self.end = time.monotonic() + most

    def run(self, tasks: list[Task]) -> dict[str, dict[str, Measured]]:
        """Samples by task and peer. Tasks in warm processes come first, because they share their processes. Tasks for
        which no time is left are omitted."""
        results: dict[str, dict[str, Measured]] = {}
        steady = [task for task in tasks if not task.fresh]
        if steady:
            workers = {name: Connection(name, self.threads) for name in self.peers}
            try:
                results |= {task.name: self._steady(task, workers) for task in steady if self._has_time}
            finally:
                for worker in workers.values():
                    worker.close()
        with tempfile.TemporaryDirectory() as folder:
            caches = Caches(Path(folder))
            results |= {task.name: self._fresh(task, caches) for task in tasks if task.fresh and self._has_time}
        return results

    @property
    def _has_time(self) -> bool:
        return time.monotonic() < self.end

    def _steady(self, task: Task, workers: dict[str, Connection]) -> dict[str, Measured]:
        self.tell(task.title)
        needed, free = task.memory * ARRAYS_HELD * len(workers), free_memory()
        if free is not None and needed > free:
            reason = f"needs {needed / 2**30:.0f} GiB for all peers at once, {free / 2**30:.0f} are free"
            return {name: Measured(reason=reason) for name in workers}
        for name, worker in workers.items():
            if worker.ended:
                worker.close()
                workers[name] = Connection(name, self.threads)
        # Peers that compile for a GPU mostly wait for the host, so they run at the same time.
        at_once = max(len(workers), 1) if os.environ.get("BENCH_DEVICE") == "gpu" else 1
        with ThreadPoolExecutor(at_once) as pool:
            results = dict(zip(workers, pool.map(partial(self._prepare, task), workers.values()), strict=True))
        for _ in range(self.rounds):
            for name, result in results.items():
                if result.wants_more:
                    result.collect(workers[name].ask({"do": "sample", "budget": self.budget}))
        for worker in workers.values():
            worker.ask({"do": "release"})
        return results

    def _prepare(self, task: Task, worker: Connection) -> Measured:
        result = Measured()
        result.collect(worker.ask({"do": "prepare", **work_of(task)}))
        result.spent = 0.0
        return result

    def _fresh(self, task: Task, caches: Caches) -> dict[str, Measured]:
        self.tell(task.title)
        results = {name: Measured() for name in self.peers}
        for _ in range(min(self.rounds, FRESH_SAMPLES)):
            for name, result in results.items():
                if result.wants_more:
                    result.collect(self._fresh_sample(task, name, caches))
        return results

    def _fresh_sample(self, task: Task, name: str, caches: Caches) -> dict[str, Any]:
        if task.kind is Kind.IMPORT:
            return import_sample(name, self.threads)
        first = {"do": "first", **work_of(task)}
        if task.kind is Kind.FIRST_CALL:
            return self._ask_fresh(name, first, caches.fresh(task, name))
        filled = caches.filled(task, name)
        if filled is None:
            filled = caches.fresh(task, name)
            answer = self._ask_fresh(name, first, filled)
            if "samples" not in answer:
                return answer
        return self._ask_fresh(name, first if task.kind is Kind.SECOND_PROCESS else first | {"do": "memory"}, filled)

    def _ask_fresh(self, name: str, request: dict[str, Any], cache: Path) -> dict[str, Any]:
        with connection(name, self.threads, cache) as worker:
            return worker.hello if "error" in worker.hello else worker.ask(request)


class Caches:
    """Folders in which peers cache what they have compiled, by peer and work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.latest: dict[tuple[str, str], Path] = {}

    def fresh(self, task: Task, name: str) -> Path:
        """An empty folder; the work that uses it will fill it."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        self.latest[name, json.dumps(work_of(task))] = folder
        return folder

    def filled(self, task: Task, name: str) -> Path | None:
        """The folder that an earlier process has filled with this work."""
        return self.latest.get((name, json.dumps(work_of(task))))


def work_of(task: Task) -> dict[str, Any]:
    """The description of a task's work in a request."""
    return {"method": task.method, "arguments": task.arguments}


def import_sample(name: str, threads: int) -> dict[str, Any]:
    """The time that importing a peer takes in a new process."""
    module = PEERS[name].imports
    if not module:
        return {"missing": True}
    finished = subprocess.run(
        [interpreter(name), "-c", IMPORT.format(module)],
        env=environment(name, threads),
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        return {"error": finished.stderr.strip().splitlines()[-1]}
    return {"samples": [float(finished.stdout)]}
