"""The contents of the site, in this order: the pages of the guide, the groups of the reference, the pages about the
inside.

A group names modules, not functions: its page has the functions that these modules make public in the group's
namespace. So a new function needs no line here.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]

ORDER = (
    "index",
    "arrays",
    "transformations",
    "compile",
    "devices",
    "streams",
    "indexing",
    "saving",
    "from-numpy",
    "from-pytorch",
    "from-jax",
    "from-mlx",
    "same-bits",
)
"""The first pages of the guide; the others follow in alphabetical order."""

INSIDE = ("architecture", "exported-functions")

NAMESPACES = {
    "weft.core": "mx",
    "weft": "weft",
    "weft.core.cuda": "mx.cuda",
    "weft.core.distributed": "mx.distributed",
    "weft.core.fast": "mx.fast",
    "weft.core.fft": "mx.fft",
    "weft.core.linalg": "mx.linalg",
    "weft.core.metal": "mx.metal",
    "weft.core.random": "mx.random",
    "weft.errors": "weft.errors",
    "weft.nn": "nn",
    "weft.nn.init": "nn.init",
    "weft.nn.losses": "nn.losses",
    "weft.optimizers": "optim",
    "weft.utils": "weft.utils",
}
"""Every module that users import or reach by its attributes, with the way the documentation writes it."""


@dataclass(frozen=True)
class Group:
    """A page of the reference: all names of a namespace, or those that the named modules define."""

    page: str
    title: str
    namespace: str
    modules: tuple[str, ...] = ()
    text: str = ""
    results: tuple[str, ...] = ()
    """Classes without a public name: their objects are returned by these functions, or by methods of such classes."""


GROUPS = (
    Group("array", "Arrays", "weft.core", ("weft.array",)),
    Group("dtypes", "Dtypes", "weft.core", ("weft.dtypes",)),
    Group(
        "creation",
        "Making arrays",
        "weft.core",
        ("weft.ops.creation", "weft.ops.construction", "weft.ops.diagonals", "weft.ops.constants"),
    ),
    Group("elementwise", "Functions of each element", "weft.core", ("weft.ops.elementwise",)),
    Group("arithmetic", "Arithmetic of two arrays", "weft.core", ("weft.ops.arithmetic",)),
    Group("comparison", "Comparison and logic", "weft.core", ("weft.ops.comparison",)),
    Group("reductions", "Reductions", "weft.core", ("weft.ops.reductions",)),
    Group("scans", "Scans", "weft.core", ("weft.ops.scans",)),
    Group("sorting", "Sorting, searching, sets", "weft.core", ("weft.ops.sorting", "weft.ops.sets")),
    Group("indexing", "Indexing", "weft.core", ("weft.ops.indexing",)),
    Group(
        "shapes",
        "Shapes",
        "weft.core",
        ("weft.ops.shaping", "weft.ops.joining", "weft.ops.padding", "weft.ops.views"),
    ),
    Group("conversion", "Conversion", "weft.core", ("weft.ops.conversion", "weft.ops.float8")),
    Group(
        "products",
        "Products",
        "weft.core",
        (
            "weft.ops.products",
            "weft.ops.gathered_products",
            "weft.ops.einsum",
            "weft.ops.convolution",
            "weft.ops.hadamard",
            "weft.ops.norms",
        ),
    ),
    Group(
        "quantized",
        "Quantised matrices",
        "weft.core",
        ("weft.ops.quantized", "weft.ops.quantized_products"),
    ),
    Group(
        "linalg",
        "Linear algebra",
        "weft.core.linalg",
        text="Matrices are the last two axes of an array; axes in front of them are those of a stack. Matrices for "
        "which there is no result give NaN: singular ones, or those for which an iteration does not converge.",
    ),
    Group("fft", "Fourier transforms", "weft.core.fft"),
    Group(
        "random",
        "Random numbers",
        "weft.core.random",
        ("weft.ops.random", "weft.ops.generator", "weft.ops.multivariate"),
    ),
    Group("fast", "Fused operations", "weft.core.fast"),
    Group(
        "transformations",
        "Transformations of functions",
        "weft.core",
        ("weft.transforms.gradients", "weft.transforms.vectorize", "weft.transforms.custom"),
    ),
    Group(
        "compile",
        "Compiling",
        "weft.core",
        ("weft.transforms.compile",),
        results=("weft.transforms.compile._Compiled.explain",),
    ),
    Group("evaluation", "Evaluation", "weft.core", ("weft.transforms.evaluation",)),
    Group("streams", "Streams and devices", "weft.core", ("weft.runtime.devices",)),
    Group("memory", "Memory", "weft.core", ("weft.runtime.memory_use",)),
    Group(
        "files",
        "Files of arrays",
        "weft.core",
        (
            "weft.io.loading",
            "weft.io.npy_files",
            "weft.io.npz_files",
            "weft.io.safetensors_files",
            "weft.io.gguf_saving",
        ),
    ),
    Group("export", "Files of functions", "weft.core", ("weft.export.functions",)),
    Group("printing", "Printing", "weft.core", ("weft.formatting",)),
    Group(
        "inspection",
        "Seeing what runs",
        "weft.core",
        ("weft.inspection.dot", "weft.inspection.profile"),
        results=(
            "weft.inspection.profile.Profile",
            "weft.inspection.profile.KernelTotal",
            "weft.inspection.explanation.Explanation",
            "weft.inspection.explanation.ExplainedStep",
        ),
    ),
    Group(
        "counters",
        "Counters",
        "weft",
        ("weft.runtime.counters", "weft.inspection.profile"),
        results=("weft.runtime.counters.Counts",),
    ),
    Group("precision", "Precision of products", "weft", ("weft.runtime.precision",)),
    Group("metal", "GPUs of Apple", "weft.core.metal"),
    Group("cuda", "GPUs of NVIDIA", "weft.core.cuda"),
    Group("distributed", "Work of several processes", "weft.core.distributed"),
    Group(
        "modules",
        "Modules",
        "weft.nn",
        ("weft.nn.module", "weft.nn.gradients", "weft.nn.summaries"),
        results=("weft.nn.summaries.Summary", "weft.nn.summaries.Layer"),
    ),
    Group(
        "layers",
        "Layers",
        "weft.nn",
        (
            "weft.nn.linear",
            "weft.nn.quantized",
            "weft.nn.convolution",
            "weft.nn.pooling",
            "weft.nn.normalization",
            "weft.nn.positions",
            "weft.nn.upsampling",
            "weft.nn.dropout",
            "weft.nn.containers",
        ),
    ),
    Group("sequence-layers", "Layers for sequences", "weft.nn", ("weft.nn.recurrent", "weft.nn.transformer")),
    Group("sharded-layers", "Layers shared out among processes", "weft.nn", ("weft.nn.sharded",)),
    Group("activations", "Activations", "weft.nn", ("weft.nn.activations", "weft.nn.activation_layers")),
    Group("losses", "Losses", "weft.nn.losses"),
    Group("initialisers", "Initialisers", "weft.nn.init"),
    Group("optimizers", "Optimizers", "weft.optimizers"),
    Group("trees", "Trees", "weft.utils"),
    Group(
        "errors",
        "Errors",
        "weft.errors",
        ("weft.errors",),
        text="The errors that are Weft's own. Wrong arguments raise those of Python: ``ValueError``, ``TypeError``, "
        "``IndexError``.",
    ),
)


def public_names(namespace: str) -> list[str]:
    """The public names of a namespace, without modules."""
    module = importlib.import_module(namespace)
    names = getattr(module, "__all__", None) or [name for name in vars(module) if _is_defined_in(module, name)]
    return [name for name in names if not inspect.ismodule(getattr(module, name))]


def names_of(group: Group) -> list[str]:
    """The names on the page of a group."""
    public = public_names(group.namespace)
    if not group.modules:
        return public
    found = [name for source in group.modules for name in _in_order(_defined_by(source, group.namespace, public))]
    return list(dict.fromkeys(found))


def _in_order(names: Iterator[str]) -> list[str]:
    return sorted(names, key=str.casefold)


def _defined_by(source: str, namespace: str, public: list[str]) -> Iterator[str]:
    module, space = importlib.import_module(source), importlib.import_module(namespace)
    own = getattr(module, "__all__", None) or [name for name in vars(module) if _is_defined_in(module, name)]
    for name in public:
        value = getattr(space, name)
        if any(getattr(module, mine) is value and (mine == name or mine not in public) for mine in own):
            yield name


def _is_defined_in(module: Any, name: str) -> bool:
    return not name.startswith("_") and getattr(getattr(module, name), "__module__", "") == module.__name__


def guide_pages() -> list[str]:
    """The pages in docs/guide, as paths below docs without their suffix."""
    names = [path.stem for path in (DOCS / "guide").glob("*.md")]
    place = {name: number for number, name in enumerate(ORDER)}
    return [f"guide/{name}" for name in sorted(names, key=lambda name: (place.get(name, len(ORDER)), name))]
