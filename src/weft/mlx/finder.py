"""The names of MLX in Python's import system: `activate`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import spec_from_loader
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, final

from weft.core import __version__ as mlx_version
from weft.dtypes import print_as_names_of
from weft.mlx.names import ALSO_LOADED, GATHERED, OF_MLX_ALONE, SAME

__all__ = ["activate"]

PACKAGE = "mlx"

IMPORTED_BEFORE = """\
MLX itself was imported before Weft could answer to its name, so that parts of this process would use the one and parts
the other. Let `import weft.as_mlx` be the first import of the program, or start the program with
`python -m weft run program.py`."""


def activate() -> None:
    """Let the modules of MLX be those of Weft from now on, in this process; again does nothing.

    Raises:
        ImportError: MLX itself was imported before.
    """
    if any(isinstance(finder, ModuleFinder) for finder in sys.meta_path):
        return
    if PACKAGE in sys.modules:
        raise ImportError(IMPORTED_BEFORE, name=PACKAGE)
    sys.meta_path.insert(0, ModuleFinder())
    print_as_names_of("mlx.core")  # programs cut these letters off


@final
class ModuleFinder(MetaPathFinder):
    """Finds the modules and the version of MLX, before Python looks for files."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """How to load a module of MLX; None for a module of another package, also for one inside of MLX's folder."""
        if name == PACKAGE:
            spec = spec_from_loader(name, Names(), is_package=True)
            assert spec is not None
            spec.submodule_search_locations = folders()
            return spec
        if name in SAME or name in GATHERED:
            return spec_from_loader(name, Names(), is_package=True)
        parent, _, child = name.rpartition(".")
        if parent in SAME or parent in GATHERED or (parent == PACKAGE and child in OF_MLX_ALONE):
            # Returning None would let Python look for a file of that name in Weft's own folders, or in MLX's.
            raise ModuleNotFoundError(
                f"No module named {name!r}: Weft, which answers for MLX here, has none", name=name
            )
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        """What `importlib.metadata` says about the package ``mlx``, unless it is asked about other folders."""
        if context is None or (context.name in (None, PACKAGE) and "path" not in vars(context)):
            yield Metadata()


def folders() -> list[str]:
    """Folders where other packages may have put modules of theirs whose names begin with ``mlx.``"""
    spec = PathFinder.find_spec(PACKAGE)
    return list(spec.submodule_search_locations or ()) if spec is not None else []


@final
class Names(Loader):
    """Loads a module of MLX by putting a module of Weft under its name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """A module that gathers names; None, which is an empty one, where a module of Weft will take its place."""
        return Gathered(spec.name) if spec.name in GATHERED else None

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module of Weft in the place of an empty one, and loads what MLX's module has imported itself."""
        name = module.__name__
        if name in SAME:
            sys.modules[name] = importlib.import_module(SAME[name])
        if name == PACKAGE:
            module.__file__ = None  # a package of several folders has none
        else:
            inside = [inner for inner in (*SAME, *GATHERED) if inner.rpartition(".")[0] == name]
            for also in (*ALSO_LOADED.get(name, ()), *inside):
                importlib.import_module(also)


@final
class Gathered(ModuleType):
    """A module whose names are those of other modules."""

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
    """The version of MLX that Weft follows, as if it were installed."""

    def read_text(self, filename: str) -> str | None:
        """A file of the package's metadata; None if there is none of that name."""
        return {
            "METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {mlx_version}\n",
            "top_level.txt": f"{PACKAGE}\n",
        }.get(filename)

    def locate_file(self, path: str | PathLike[str]) -> Path:
        """Where a file of the package would be; none of them exists."""
        return Path(path)
