"""Running a script or a module as Python does: `run`."""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from pkgutil import get_importer
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

__all__ = ["run"]


def run(arguments: Sequence[str]) -> None:
    """Run ``script.py args...`` or ``-m module args...`` as ``python`` runs them.

    The program stays the module ``__main__`` after its last line, for its threads and exit functions. The traceback of
    an error that ends it has no frames of this file.

    Raises:
        SystemExit: the program raised it, or there is no such program.
    """
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins)
    if sys.version_info < (3, 14):  # later versions make it when it is first needed
        main.__dict__.update(__annotations__={})
    try:
        if arguments[0] == "-m":
            run_module(arguments[1], arguments[2:], main)
        else:
            run_script(arguments[0], arguments[1:], main)
    except BaseException as error:
        show_from(error, first_of_program(error.__traceback__))
        raise


def run_script(path: str, arguments: Sequence[str], main: ModuleType) -> None:
    """Run a source or bytecode file, or a folder or archive that contains a module ``__main__``."""
    sys.argv[:] = [path, *arguments]
    file = os.path.abspath(path)
    importer = get_importer(file)
    if importer is not None:
        begin_search_in(file)
        spec = importer.find_spec("__main__")
        if spec is None:
            stop(f"can't find '__main__' module in {file!r}")
        run_found(spec, main)
        return
    begin_search_in(os.path.dirname(os.path.realpath(path)))
    loader = (SourcelessFileLoader if path.endswith(".pyc") else SourceFileLoader)("__main__", file)
    main.__dict__.update(__cached__=None, __file__=file, __loader__=loader)
    try:
        source = loader.get_data(path)
    except OSError as error:
        stop(f"can't open file {file!r}: [Errno {error.errno}] {error.strerror}", status=2)
    if isinstance(loader, SourcelessFileLoader):
        execute(loader.get_code("__main__"), main)
    else:
        # The loader's get_code would write bytecode next to the script, which Python does not do for scripts.
        execute(compile(source, file, "exec", dont_inherit=True), main)


def run_module(name: str, arguments: Sequence[str], main: ModuleType) -> None:
    """Run a module, or the module ``__main__`` of a package, found as by an import."""
    sys.argv[:] = ["-m", *arguments]
    spec = found(name)
    if spec.submodule_search_locations is not None:
        spec = found(f"{name}.__main__", f"; {name!r} is a package and cannot be directly executed")
    sys.argv[0] = spec.origin or name
    run_found(spec, main)


def found(name: str, explanation: str = "") -> ModuleSpec:
    """The spec of a module; its package is imported to find it."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        stop(f"Error while finding module specification for {name!r} ({type(error).__name__}: {error})")
    if spec is None:
        stop(f"No module named {name}{explanation}")
    return spec


def run_found(spec: ModuleSpec, main: ModuleType) -> None:
    """Run a module, given by its spec."""
    get_code = getattr(spec.loader, "get_code", None)  # a loader may have this method without being an InspectLoader
    code = get_code(spec.name) if get_code is not None else None
    if code is None:
        stop(f"No code object available for {spec.name}")
    main.__dict__.update(
        __cached__=spec.cached, __file__=spec.origin, __loader__=spec.loader, __package__=spec.parent, __spec__=spec
    )
    execute(code, main)


def execute(code: CodeType | None, main: ModuleType) -> None:
    """Run the code of a program in its module."""
    assert code is not None
    exec(code, main.__dict__)


def begin_search_in(folder: str) -> None:
    """Make the folder of the program the first in which imports look, instead of the folder in which Python was
    started."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def stop(message: str, status: int = 1) -> NoReturn:
    """End the process as Python does if there is no such program."""
    print(f"{sys.executable}: {message}", file=sys.stderr)
    sys.exit(status)


def first_of_program(traceback: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins with a frame of the program, after those of this file and the import
    system."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith((__file__, "<frozen importlib")):
        traceback = traceback.tb_next
    return traceback


def show_from(error: BaseException, traceback: TracebackType | None) -> None:
    """Have the hook for uncaught errors show an error with a given traceback."""
    hook = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, whole: TracebackType | None) -> None:
        if value is error:
            whole = traceback
        hook(kind, value.with_traceback(whole), whole)

    sys.excepthook = show
