"""MLX's module names in Python's import system: `activate` and `activate_in_children`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, final

from weft.core import __version__ as mlx_version
from weft.dtypes import print_as_names_of
from weft.mlx.names import ALSO_LOADED, GATHERED, OF_MLX_ALONE, SAME

__all__ = ["activate", "activate_in_children"]

PACKAGE = "mlx"

FOR_CHILDREN = str(Path(__file__).parent / "for_children")
"""The folder of the module ``mlx`` that processes import in which `activate` was not called."""

IMPORTED_BEFORE = """\
MLX itself was imported before Weft could answer to its name, so that parts of this process would use the one and parts
the other. Let `import weft.as_mlx` be the first import of the program, or start the program with
`python -m weft run program.py`."""


def activate() -> None:
    """From now on, in this process, MLX's modules are Weft's. Further calls do nothing.

    Raises:
        ImportError: MLX itself was imported before.
    """
    if any(isinstance(finder, ModuleFinder) for finder in sys.meta_path):
        return
    if PACKAGE in sys.modules:
        raise ImportError(IMPORTED_BEFORE, name=PACKAGE)
    sys.meta_path.insert(0, ModuleFinder())
    print_as_names_of("mlx.core")  # because programs remove this prefix


def activate_in_children() -> None:
    """From now on, MLX's modules are Weft's in the Python processes that this one starts, and in those that they start.

    Processes of `subprocess` find them by the environment; those that `multiprocessing` starts with "spawn" and
    "forkserver" replace their ``sys.path`` by this one's.
    """
    if FOR_CHILDREN not in sys.path:
        sys.path.insert(0 if sys.flags.safe_path else 1, FOR_CHILDREN)  # after the folder of the program
    inherited = os.environ.get("PYTHONPATH", "")
    if FOR_CHILDREN not in inherited.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([FOR_CHILDREN, *([inherited] if inherited else [])])


@final
class ModuleFinder(MetaPathFinder):
    """Finds MLX's modules and version before Python looks for files."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """How to load a module of MLX; None for modules of other packages, also of those installed in MLX's folder."""
        if name == PACKAGE:
            spec = ModuleSpec(name, Names(), is_package=True)
            spec.submodule_search_locations = folders()
            return spec
        if name in SAME or name in GATHERED:
            return ModuleSpec(name, Names(), is_package=True)
        parent, _, child = name.rpartition(".")
        if parent in SAME or parent in GATHERED or (parent == PACKAGE and child in OF_MLX_ALONE):
            # If this returned None, Python would look for a file of that name in Weft's own folders, or in MLX's.
            raise ModuleNotFoundError(
                f"No module named {name!r}: Weft, which answers for MLX here, has none", name=name
            )
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        """The metadata of the package ``mlx`` for `importlib.metadata`, unless it searches particular folders."""
        if context is None or (context.name in (None, PACKAGE) and "path" not in vars(context)):
            yield Metadata()


def folders() -> list[str]:
    """Folders in which other packages may have installed modules whose names begin with ``mlx.``"""
    spec = PathFinder.find_spec(PACKAGE, [entry for entry in sys.path if entry != FOR_CHILDREN])
    return list(spec.submodule_search_locations or ()) if spec is not None else []


@final
class Names(Loader):
    """Loads a module of MLX by registering a module of Weft under its name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """A module that collects names; or None, for an empty module that a module of Weft will replace."""
        return Gathered(spec.name) if spec.name in GATHERED else None

    def exec_module(self, module: ModuleType) -> None:
        """Replace an empty module by the module of Weft, and load the modules that MLX's module imports."""
        name = module.__name__
        if name in SAME:
            sys.modules[name] = importlib.import_module(SAME[name])
        if name == PACKAGE:
            module.__file__ = None  # as a package of several folders has no file
        else:
            inside = [inner for inner in (*SAME, *GATHERED) if inner.rpartition(".")[0] == name]
            for also in (*ALSO_LOADED.get(name, ()), *inside):
                importlib.import_module(also)


@final
class Gathered(ModuleType):
    """A module whose names come from other modules."""

    def __getattr__(self, name: str) -> Any:
        if not (name.startswith("__") and name.endswith("__")):
            for source in GATHERED[self.__name__]:
                module = importlib.import_module(source)
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        sources = [importlib.import_module(source) for source in GATHERED[self.__name__]]
        return sorted({*super().__dir__(), *(name for source in sources for name in source.__all__)})


@final
class Metadata(Distribution):
    """Metadata that say that the version of MLX that Weft follows is installed."""

    def read_text(self, filename: str) -> str | None:
        """A metadata file of the package; None if there is none of that name."""
        return {
            "METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {mlx_version}\n",
            "top_level.txt": f"{PACKAGE}\n",
        }.get(filename)

    def locate_file(self, path: str | PathLike[str]) -> Path:
        """The path that a file of the package would have; no such file exists."""
        return Path(path)
