"""Asks the peers in turns, so that whatever disturbs the machine disturbs all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from .peers import PEERS
from .tasks import Kind, Task

ROOT = Path(__file__).resolve().parent.parent
PAUSE = 0.05  # seconds between peers, in which the thread pool of the last one falls asleep
LONGEST_ANSWER = 300.0  # seconds
FRESH_SAMPLES = 3
PATIENCE = 5.0  # seconds of first calls after which a peer is not asked for another
# Where the peers look for a folder that outlives the process. (MLX keeps what it compiled below TMPDIR.)
CACHE_VARIABLES = ("HOME", "XDG_CACHE_HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
# Arrays of a task's size that a peer may hold at once: input, output, and what eager code leaves between.
ARRAYS_HELD = 4
IMPORT = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


@dataclass
class Measured:
    """What a peer gave for a task: times, or the reason why there are none."""

    times: list[float] = field(default_factory=list)
    reason: str = ""
    fingerprint: float | None = None

    def seconds(self, task: Task) -> float | None:
        """The median time of what the task's title says."""
        return median(self.times) / task.repeats if self.times else None


@dataclass(frozen=True)
class Peer:
    """A framework with the interpreter that has it, or the reason why it is not measured."""

    name: str
    python: Path
    version: str = ""
    missing: str = ""


def environment(name: str, threads: int, cache: Path | None = None) -> dict[str, str]:
    """The variables of a peer's process: the same number of threads for all, and its caches on disk."""
    variables = {key: value for key, value in os.environ.items() if key != "WEFT_DISABLE_COMPILE"}
    for variable in ("WEFT", "OMP", "OPENBLAS", "MKL"):
        variables[f"{variable}_NUM_THREADS"] = str(threads)
    variables["JAX_PLATFORMS"] = "cpu"
    if cache is not None:
        for variable in CACHE_VARIABLES:
            variables[variable] = str(cache)
        variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        variables["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    return variables


def interpreter(name: str) -> Path:
    """Where the interpreter of a peer should be: its own environment, or this one."""
    own = ROOT / ".bench" / name / "bin" / "python"
    return Path(sys.executable) if name in ("weft", "numpy", "copy") else own


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
        """The answer to a request; a process that died or takes too long gives a reason."""
        if self.process.poll() is not None or self.process.stdin is None:
            return {"error": "its process has ended"}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends the process."""
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
    """A worker that ends with the block."""
    worker = Connection(name, threads, cache)
    try:
        yield worker
    finally:
        worker.close()


def find_peers(names: list[str], threads: int) -> list[Peer]:
    """Asks each peer whether it runs here, and in which version."""
    found = []
    for name in names:
        python = interpreter(name)
        if not python.exists():
            found.append(Peer(name, python, missing="not installed (make bench-peers)"))
            continue
        with connection(name, threads) as worker:
            hello = worker.hello
        found.append(Peer(name, python, version=hello.get("version", ""), missing=hello.get("error", "")))
    return found


def free_memory() -> int | None:
    """Bytes that processes may still use, where the system tells."""
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
        rounds: How often each peer has its turn in each task.
        budget: Seconds of one turn.
        tell: Called with a line about what is being measured.
    """

    def __init__(self, peers: list[str], threads: int, rounds: int, budget: float, tell: Callable[[str], None]) -> None:
        self.peers, self.threads, self.rounds, self.budget, self.tell = peers, threads, rounds, budget, tell

    def run(self, tasks: list[Task]) -> dict[str, dict[str, Measured]]:
        """Medians by task and peer; tasks in warm processes first, because these share their processes."""
        results: dict[str, dict[str, Measured]] = {}
        steady = [task for task in tasks if not task.fresh]
        if steady:
            workers = {name: Connection(name, self.threads) for name in self.peers}
            try:
                results |= {task.name: self._steady(task, workers) for task in steady}
            finally:
                for worker in workers.values():
                    worker.close()
        results |= {task.name: self._fresh(task) for task in tasks if task.fresh}
        return results

    def _steady(self, task: Task, workers: dict[str, Connection]) -> dict[str, Measured]:
        self.tell(task.title)
        needed, free = task.memory * ARRAYS_HELD * len(workers), free_memory()
        if free is not None and needed > free:
            reason = f"needs {needed / 2**30:.0f} GiB for all peers at once, {free / 2**30:.0f} are free"
            return {name: Measured(reason=reason) for name in workers}
        results = {name: self._prepare(task, worker) for name, worker in workers.items()}
        for _ in range(self.rounds):
            for name, result in results.items():
                if not result.reason:
                    time.sleep(PAUSE)
                    collect(workers[name].ask({"do": "sample", "budget": self.budget}), result)
        for worker in workers.values():
            worker.ask({"do": "release"})
        return results

    def _prepare(self, task: Task, worker: Connection) -> Measured:
        answer = worker.ask({"do": "prepare", "method": task.method, "arguments": task.arguments})
        result = Measured(fingerprint=answer.get("fingerprint"))
        collect(answer, result)
        return result

    def _fresh(self, task: Task) -> dict[str, Measured]:
        self.tell(task.title)
        results = {name: Measured() for name in self.peers}
        with tempfile.TemporaryDirectory() as filled:
            for turn in range(min(self.rounds, FRESH_SAMPLES) + (task.kind is Kind.SECOND_PROCESS)):
                for name, result in results.items():
                    if result.reason or sum(result.times) > PATIENCE:
                        continue
                    answer = self._fresh_sample(task, name, Path(filled) / name)
                    if turn == 0 and task.kind is Kind.SECOND_PROCESS:
                        answer.pop("seconds", None)  # This was the first process.
                    collect(answer, result)
        return results

    def _fresh_sample(self, task: Task, name: str, filled: Path) -> dict[str, Any]:
        if task.kind is Kind.IMPORT:
            return self._import_sample(name)
        with tempfile.TemporaryDirectory() as empty:
            cache = filled if task.kind is Kind.SECOND_PROCESS else Path(empty)
            cache.mkdir(exist_ok=True)
            with connection(name, self.threads, cache) as worker:
                if "error" in worker.hello:
                    return worker.hello
                return worker.ask({"do": "first", "method": task.method, "arguments": task.arguments})

    def _import_sample(self, name: str) -> dict[str, Any]:
        module = PEERS[name].imports
        if not module:
            return {"missing": True}
        finished = subprocess.run(
            [interpreter(name), "-c", IMPORT.format(module)],
            env=environment(name, self.threads),
            capture_output=True,
            text=True,
            check=False,
        )
        if finished.returncode:
            return {"error": finished.stderr.strip().splitlines()[-1]}
        return {"seconds": [float(finished.stdout)]}


def collect(answer: dict[str, Any], result: Measured) -> None:
    """Adds an answer's times to a result, or says why there are none."""
    if answer.get("missing"):
        result.reason = "-"
    elif "error" in answer:
        result.reason, result.times = answer["error"], []
    result.times += answer.get("seconds", [])
