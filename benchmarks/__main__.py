"""Measures Weft and its peers and prints two tables: medians, and which budgets are kept."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

from . import report
from .gpu_tasks import GPU_TASKS
from .peers import PEERS, PEERS_OF
from .session import Session, find_peers
from .tasks import TASKS, Task

TASKS_OF = {"cpu": TASKS, "gpu": GPU_TASKS}

BUSY_LOAD = 0.7  # processes that run or are ready to run


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def matching_tasks(pattern: str) -> list[Task]:
    """The tasks, on any device, whose names match a shell pattern."""
    found = [task for task in chain(*TASKS_OF.values()) if fnmatchcase(task.name, pattern)]
    if not found:
        raise argparse.ArgumentTypeError(f"there is no task {pattern}; --help lists them")
    return found


def parse() -> argparse.Namespace:
    """The options of the command line."""
    names = "; ".join(f"on a {device}: {', '.join(task.name for task in TASKS_OF[device])}" for device in TASKS_OF)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--tasks",
        nargs="+",
        type=matching_tasks,
        metavar="TASK",
        help=f"names, or patterns such as 'compile-*', of these: {names}",
    )
    parser.add_argument("--device", choices=list(TASKS_OF), default="cpu", help="where all of them compute")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), metavar="PEER")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads of each peer")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each peer in each task")
    parser.add_argument("--budget", type=float, default=0.2, help="seconds of one turn")
    parser.add_argument("--most", type=float, default=math.inf, help="seconds after which no task begins")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--json", type=Path, help="write all medians to this file")
    return parser.parse_args()


def main() -> int:
    """Run what the command line asks for. The result is 1 if Weft gave no time for a task."""
    options = parse()
    os.environ["BENCH_DEVICE"] = options.device  # read by the processes of peers
    busy = os.getloadavg()[0] > BUSY_LOAD
    tasks = [task for task in TASKS_OF[options.device] if options.tasks is None or task in chain(*options.tasks)]
    wanted = options.peers or PEERS_OF[options.device]
    peers = find_peers(wanted, options.threads)
    names = [peer.name for peer in peers if not peer.missing]
    start = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - start:4.0f} s: {line}", file=sys.stderr, flush=True)

    session = Session(names, options.threads, options.rounds, options.budget, tell, options.most)
    results = session.run(tasks)
    left_out = [task.name for task in tasks if task.name not in results]
    tasks = [task for task in tasks if task.name in results]

    machine = report.describe_machine(peers, options.threads, options.device)
    verdicts = [report.verdict(task, limit, results[task.name]) for task in tasks for limit in task.budget]
    shown = report.as_markdown if options.markdown else report.as_text
    print(f"{machine}:" if options.markdown else f"\n{machine}")
    print(f"\n{shown(report.table(tasks, results, names))}")
    if verdicts:
        print(f"\n{shown(report.budgets_table(verdicts))}")
    print()
    if busy:
        print("- other work ran on this machine when the run began: do not publish these figures")
    if left_out:
        print(f"- not measured, because the time was over: {', '.join(left_out)}")
    for remark in report.remarks(tasks, results, peers):
        print(f"- {remark}")
    if options.json:
        options.json.write_text(json.dumps(as_json(machine, tasks, results, verdicts), indent=2) + "\n")
    failed = any(results[t.name]["weft"].reason not in ("", "-") for t in tasks) if "weft" in names else True
    return int(failed and "weft" in wanted)


def as_json(
    machine: str, tasks: list[Task], results: report.Results, verdicts: list[report.Verdict]
) -> dict[str, object]:
    """The medians and the budgets for other programs; limits and measured amounts are in seconds, or ratios to a
    peer."""
    return {
        "machine": machine,
        "medians": {
            task.name: {"unit": task.unit} | {name: result.median(task) for name, result in results[task.name].items()}
            for task in tasks
        },
        "budgets": [
            {"task": v.task.name, "most": v.limit.most, "peer": v.limit.peer, "measured": v.measured, "kept": v.reached}
            for v in verdicts
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
