"""Measures Weft beside its peers and prints one table; times are medians."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from . import report
from .peers import PEERS
from .session import Session, find_peers
from .tasks import TASKS

BUSY_LOAD = 0.7  # processes that run or want to


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parse() -> argparse.Namespace:
    """The options of the command line."""
    names = [task.name for task in TASKS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=names, default=names, metavar="TASK", help=", ".join(names))
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS), metavar="PEER")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads of each peer")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each peer in each task")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds of one turn")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path, help="write all medians to this file")
    return parser.parse_args()


def main() -> int:
    """Runs what the command line asks for; 1 if Weft itself gave no time for something."""
    options = parse()
    busy = os.getloadavg()[0] > BUSY_LOAD
    tasks = [task for task in TASKS if task.name in options.tasks]
    peers = find_peers(options.peers, options.threads)
    names = [peer.name for peer in peers if not peer.missing]
    session = Session(
        names, options.threads, options.rounds, options.budget, lambda line: print(f"... {line}", file=sys.stderr)
    )
    results = session.run(tasks)

    machine = report.describe_machine(peers, options.threads)
    rows = report.table(tasks, results, names)
    print(f"\n{machine}\n" if not options.markdown else f"{machine}:\n")
    print(report.as_markdown(rows) if options.markdown else report.as_text(rows))
    if busy:
        print("- other work ran on this machine when the run began: do not publish these times")
    for remark in report.remarks(tasks, results, peers):
        print(f"- {remark}")
    if options.json:
        medians = {t.name: {n: results[t.name][n].seconds(t) for n in names} for t in tasks}
        options.json.write_text(json.dumps({"machine": machine, "seconds": medians}, indent=2) + "\n")
    failed = any(results[t.name]["weft"].reason not in ("", "-") for t in tasks) if "weft" in names else True
    return int(failed and "weft" in options.peers)


if __name__ == "__main__":
    sys.exit(main())
