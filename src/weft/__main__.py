"""The command line: ``python -m weft info``, ``... cache``, ``... demo`` and ``... run``."""

from __future__ import annotations

import argparse
import os
import platform
import runpy
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import weft
import weft.core as mx
from weft.compiler import cards
from weft.compiler.codegen import jit
from weft.mlx import finder, program
from weft.runtime import disk_cache, holders
from weft.runtime.executor import thread_count_from_environment

DEPENDENCIES = ("numpy", "scipy", "llvmlite", "ml_dtypes")
DEMO_PACKAGES = ("sklearn", "matplotlib", "tqdm")


def installed(package: str) -> str:
    """The version of an installed package, or a note that it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def facts() -> list[tuple[str, str]]:
    """Facts about this machine and installation, as names and values."""
    device = mx.device_info(mx.cpu)
    host = jit.host()
    return [
        ("weft", weft.__version__),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("processor", f"{device['device_name']} (code for {host.name}), {os.cpu_count()} cores"),
        ("memory", f"{int(device['memory_size']) / 2**30:.1f} GiB"),
        ("threads", str(thread_count_from_environment())),
        ("gpu", gpus()),
        *[(library.name, library.version()) for library in cards.libraries()],
        ("device", str(mx.default_device())),
        ("donation", holders.donation()),
        ("cache", cached()),
        *((package, installed(package)) for package in DEPENDENCIES),
    ]


def gpus() -> str:
    """The GPUs of this machine, or why there is none."""
    found = [mx.device_info(mx.Device(mx.gpu, number)) for number in range(mx.device_count(mx.gpu))]
    names = [f"{card['device_name']} ({card['architecture']})" for card in found]
    return ", ".join(names) or f"none: {cards.reason()}"


def cached() -> str:
    """Where machine code is cached for other processes, and how much of it; or why it is not cached."""
    try:
        cache = disk_cache.from_environment()
    except disk_cache.Unusable as reason:
        return f"none: {reason}"
    entries, size = cache.usage()
    return f"{cache.folder} ({entries} entries, {size / 2**20:.1f} of {cache.limit / 2**20:.0f} MiB)"


def cache(clear: bool) -> int:
    """Print the state of the disk cache, after clearing it if ``clear``."""
    if clear:
        try:
            disk_cache.from_environment().clear()
        except disk_cache.Unusable as reason:
            print(f"There is nothing to clear: {reason}", file=sys.stderr)
            return 1
    print(cached())
    return 0


def info() -> int:
    """Print versions, processor, threads and folders, for problem reports."""
    rows = facts()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    return 0


def demo(arguments: Sequence[str]) -> int:
    """Run `weft.demo`, or print which packages it needs."""
    missing = [package for package in DEMO_PACKAGES if find_spec(package) is None]
    if missing:
        print(f"The demo needs {', '.join(missing)}: pip install 'weft[demo]'", file=sys.stderr)
        return 2
    sys.argv[1:] = arguments
    runpy.run_module("weft.demo", run_name="__main__", alter_sys=True)
    return 0


def run(arguments: Sequence[str]) -> None:
    """Run a program that was written for MLX."""
    finder.activate()
    finder.activate_in_children()
    program.run(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m weft", description=weft.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="what Weft found on this machine")
    caching = commands.add_parser("cache", help="where machine code is cached between processes, and how much of it")
    caching.add_argument("--clear", action="store_true", help="remove it")
    commands.add_parser(
        "demo", help="train a classifier of handwritten digits (python -m weft demo --help)", add_help=False
    )
    running = commands.add_parser(
        "run",
        usage="python -m weft run [script.py | -m module] [arguments of the program]",
        help="run a program that was written for MLX",
    )
    if arguments[:1] == ["run"]:
        given = arguments[1:]
        if given in ([], ["-m"]):
            running.error("it needs the file of a script, or -m and the name of a module")
        if given[0] not in ("-h", "--help"):
            run(given)
            return 0
    options, rest = parser.parse_known_args(arguments)
    if options.command == "demo":
        return demo(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return cache(options.clear) if options.command == "cache" else info()


if __name__ == "__main__":
    sys.exit(main())
