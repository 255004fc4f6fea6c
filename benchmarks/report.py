"""The tables that are printed at the end of a session."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .peers import PEERS
from .session import Measured, Peer
from .tasks import Limit, Task

REFERENCE = "weft"
LARGEST_DIFFERENCE = 1e-3  # relative, between the results of two peers
MEBIBYTE = 2**20

Results = dict[str, dict[str, Measured]]


def cpu_name() -> str:
    """The processor's name."""
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def gpu_name() -> str:
    """The GPU's name."""
    command = [sys.executable, "-c", "import weft.core as mx; print(mx.device_info(mx.gpu)['device_name'])"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "no GPU"


def describe_machine(peers: list[Peer], threads: int, device: str = "cpu") -> str:
    """One line: GPU, processor, cores, threads, system, Python, and the peers' versions."""
    versions = ", ".join(f"{peer.name} {peer.version}" for peer in peers if peer.version and peer.name != "copy")
    gpu = f"{gpu_name()}; " if device == "gpu" else ""
    return (
        f"{gpu}{cpu_name()}, {os.cpu_count()} cores, {threads} threads each; {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}; {versions}"
    )


def show_seconds(seconds: float) -> str:
    """A duration with three digits and a suitable unit."""
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def show_amount(amount: float, task: Task) -> str:
    """A median in the unit of its task."""
    return show_seconds(amount) if task.unit == "seconds" else f"{amount / MEBIBYTE:.3g} MiB"


def cell(task: Task, results: dict[str, Measured], name: str) -> str:
    """A peer's median, and its ratio to the reference's."""
    result = results.get(name)
    amount = result.median(task) if result else None
    if result is None or amount is None:
        return "-" if result is None or result.reason == "-" else "failed"
    reference = results[REFERENCE].median(task) if REFERENCE in results else None
    if name == REFERENCE or reference is None:
        return show_amount(amount, task)
    return f"{show_amount(amount, task)} ({amount / reference:.2g}x)"


def table(tasks: list[Task], results: Results, names: list[str]) -> list[list[str]]:
    """Header and rows as text."""
    header = ["", *names]
    return [header, *([task.title, *(cell(task, results[task.name], name) for name in names)] for task in tasks)]


@dataclass(frozen=True)
class Verdict:
    """A limit of a task, and whether it was kept.

    Attributes:
        measured: What the reference took, in the unit of the limit; None if that or the peer's result is unknown.
        reached: Whether the limit was kept; None if that is unknown.
    """

    task: Task
    limit: Limit
    measured: float | None
    reached: bool | None

    def show(self, amount: float | None) -> str:
        """The limit or the measured amount as text."""
        if amount is None:
            return "-" if self.reached is None else "failed"
        return f"{amount:.3g} x {self.limit.peer}" if self.limit.peer else show_amount(amount, self.task)


def verdict(task: Task, limit: Limit, results: dict[str, Measured]) -> Verdict:
    """Whether a limit was kept; if the reference failed at a task, its limits were not."""
    amounts = {name: result.median(task) for name, result in results.items()}
    amount, compared = amounts.get(REFERENCE), amounts.get(limit.peer) if limit.peer else 1.0
    if amount is None or compared is None:
        return Verdict(task, limit, None, False if REFERENCE in amounts and amount is None else None)
    return Verdict(task, limit, amount / compared, amount <= limit.most * compared)


def budgets_table(verdicts: list[Verdict]) -> list[list[str]]:
    """Header and rows as text."""
    words = {True: "yes", False: "no", None: "unknown"}
    header = ["budget", "at most", "measured", "reached"]
    return [header, *([v.task.title, v.show(v.limit.most), v.show(v.measured), words[v.reached]] for v in verdicts)]


def as_text(rows: list[list[str]]) -> str:
    """Columns side by side, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def as_markdown(rows: list[list[str]]) -> str:
    """The same as a Markdown table."""
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rule, *rows[1:]])


def remarks(tasks: list[Task], results: Results, peers: list[Peer]) -> list[str]:
    """Remarks below the tables: missing peers, failures, and results that differ."""
    lines = [f"{peer.name} is missing: {peer.missing}" for peer in peers if peer.missing]
    for task in tasks:
        for name, result in results[task.name].items():
            if result.reason not in ("", "-"):
                lines.append(f"{task.title}: {name} failed: {result.reason}")
        lines += differences(task, results[task.name])
    return lines


def differences(task: Task, results: dict[str, Measured]) -> list[str]:
    """Peers whose result differs from that of the first peer, so that they did not do the same work."""
    values = {n: r.fingerprint for n, r in results.items() if PEERS[n].computes and r.fingerprint is not None}
    if not values:
        return []
    first, expected = next(iter(values.items()))
    return [
        f"{task.title}: {name} computes something else than {first} ({value:.6g} instead of {expected:.6g})"
        for name, value in values.items()
        if not abs(value - expected) <= LARGEST_DIFFERENCE * abs(expected)
    ]
