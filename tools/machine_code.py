"""Prints what the compiler makes of many programs: plans, the text of each kernel, and a digest of each object code.

The output must be the same before and after a change that should not affect machine code:

    python tools/machine_code.py > before.txt
    ... the change ...
    python tools/machine_code.py > after.txt; diff before.txt after.txt

The programs are the tasks of the benchmarks and ``--random`` many random programs, which are the same each time. Object
code is for the processor of this machine. Plans and kernels are numbered in the order of their creation; ``--brief``
omits their texts.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RANDOM_PROGRAMS = 200
LARGEST_ARRAY = 200_000_000
"""Tasks with more bytes are skipped, because they run the same kernels as smaller ones."""

SECTION = re.compile(r"^\[(program|weft \w+)\] ?(.*)$")
FUNCTION = re.compile(r"^define (?:\w+ )?\w+ @(\w+)\(", re.MULTILINE)
INTERNAL = re.compile(r"^define internal ", re.MULTILINE)


def run_programs(count: int) -> None:
    """Run all programs in this process, with a line on stderr before each."""
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    import hypothesis

    import weft.core as mx
    from benchmarks.peers import make_peer
    from benchmarks.tasks import TASKS, Kind
    from tests.programs import Program, programs

    def announce(name: str) -> None:
        print(f"[program] {name}", file=sys.stderr, flush=True)

    peer = make_peer("weft", 1)
    for task in TASKS:
        if task.kind is Kind.STEADY and task.memory <= LARGEST_ARRAY:
            announce(task.name)
            getattr(peer, task.method)(**task.arguments)()
    number = 0

    @hypothesis.seed(20260101)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(programs() | programs(large=True))
    def run(program: Program) -> None:
        nonlocal number
        announce(f"random {number}: {', '.join(map(repr, program.statements))}")
        number += 1
        mx.eval(mx.compile(program.__call__)(*program.arrays()))

    run()


def sections(lines: Iterator[str]) -> Iterator[tuple[str, str, str]]:
    """What the stages of compilation wrote: kind, title and text."""
    kind = title = ""
    text: list[str] = []
    for line in lines:
        found = SECTION.match(line)
        if found is None:
            text.append(line.rstrip("\n"))
            continue
        if kind:
            yield kind, title, "\n".join(text)
        kind, title, text = found[1], found[2].rstrip("\n"), []
    if kind:
        yield kind, title, "\n".join(text)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def object_digest(module: str) -> str:
    """The digest of the object code of a module."""
    from weft.compiler.codegen import jit

    names = [
        found[1]
        for found in FUNCTION.finditer(module)
        if not INTERNAL.match(module[found.start() : module.index("\n", found.start()) + 1])
    ]
    made = jit.make(module, tuple(names))
    return digest(made if isinstance(made, bytes) else made.to_bytes())


def report(lines: Iterator[str], brief: bool) -> Iterator[str]:
    """The lines to print."""
    for kind, title, text in sections(lines):
        if kind == "program":
            yield f"program {title}"
        elif kind == "weft llvm":
            heading, _, module = text.partition("\n")
            yield f"  code {object_digest(module)} {heading.removeprefix('; ')}"
        else:
            stage = kind.removeprefix("weft ")
            yield f"  {stage} {digest(text.encode())}"
            if not brief:
                yield from [f"    {line}" for line in text.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--random", type=int, default=RANDOM_PROGRAMS, help="how many random programs")
    parser.add_argument("--brief", action="store_true", help="digests only")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_programs(options.random)
        return
    sys.path[:0] = [str(ROOT / "src")]
    environment = os.environ | {
        "WEFT_DUMP": "plan,kernel,llvm",
        "WEFT_DISK_CACHE": "0",
        "WEFT_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }
    command = [sys.executable, __file__, "--run", f"--random={options.random}"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in report(iter(process.stderr), options.brief):
            print(line)
    if process.returncode:
        sys.exit(f"the programs ended with status {process.returncode}")


if __name__ == "__main__":
    main()
