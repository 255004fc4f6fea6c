"""Describes the code of steps for cards by numbers and texts, so that plans on disk can name it for other processes.

Kernels are described by the keys of their PTX, calls of cuBLASLt and cuDNN by what the library is asked for, and code
that the stand-in runs as it describes it. How much scratch memory cuDNN needs is a part of a plan: with a version that
needs another amount, the plan on disk is not used.
"""

from __future__ import annotations

import json
from enum import IntEnum
from functools import lru_cache
from typing import Any

from weft.compiler.codegen import loading
from weft.compiler.codegen.loading import CachedText
from weft.compiler.target import Target
from weft.runtime.cuda import cublas, shared_libraries
from weft.runtime.cuda.code import CopyPlaces, CudaCode
from weft.runtime.cuda.cudnn.descriptors import Attribute, DescriptorContent, DescriptorKind, Of
from weft.runtime.cuda.cudnn.plans import CudnnCall, CudnnWork, Note, plans_of
from weft.runtime.steps import OnHost, Touched

_KERNEL, _ON_HOST, _PRODUCT, _CUDNN = "kernel", "on host", "product", "cuDNN"
_WORKS = 64
"""How many texts are cached: the layers of a model ask for the same works."""
_CLASSES: dict[str, Any] = {
    one.__name__: one
    for one in (
        Attribute,
        DescriptorContent,
        DescriptorKind,
        Note,
        Of,
        CudnnWork,
        cublas.MatrixLayout,
        cublas.MatmulProblem,
        cublas.ProductCall,
        frozenset,
        tuple,
    )
}


class CodeDescriptions:
    """Describes the code of one target. Equal kernels become the same object."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._kernels: dict[tuple[Any, ...], CudaCode] = {}

    @property
    def key(self) -> str:
        """What plans depend on, including which libraries were found to be missing."""
        missing = [one.name for one in shared_libraries.ALL if one.is_known_to_be_missing]
        stand_in = None if self._target.stand_in is None else self._target.stand_in.cache_key
        return f"{self._target.key}, without {missing}, beside {stand_in}"

    def only(self, code: CudaCode) -> CudaCode:
        """The object that stands for all equal kernels."""
        facts = _facts_of(code)
        return code if facts is None else self._kernels.setdefault(facts, code)

    def data(self, code: Any) -> Any:
        """The description of a code; None if it cannot be cached."""
        if isinstance(code, CudaCode):
            facts = _facts_of(code)
            return None if facts is None else [_KERNEL, *facts]
        if isinstance(code, OnHost):
            inside = None if self._target.stand_in is None else self._target.stand_in.code_description(code.code)
            return None if inside is None else [_ON_HOST, inside, code.touched]
        if isinstance(code, cublas.ProductCall):
            return [_PRODUCT, _as_data(code)]
        scratch = self.scratch_for(code.work) if isinstance(code, CudnnCall) else None
        if scratch is None:
            return None
        return [
            _CUDNN,
            code.title,
            _as_data(code.places),
            work_as_text(code.work),
            code.sizes,
            _as_data(code.offsets),
            scratch,
        ]

    def code(self, data: Any) -> Any:
        """The code of a description; None if it is not there, or has changed."""
        kind, *rest = data
        if kind == _KERNEL:
            return self._kernel(tuple(rest))
        if kind == _ON_HOST:
            inside, touched = rest
            code = None if self._target.stand_in is None else self._target.stand_in.described_code(inside)
            return None if code is None else OnHost(code, tuple([Touched(*one) for one in touched]))
        if kind == _PRODUCT:
            return None if cublas.missing() else _from_data(rest[0])
        title, places, text, sizes, offsets, scratch = rest
        work = work_in(text)
        if self.scratch_for(work) != scratch:
            return None
        return CudnnCall(title, _from_data(places), work, tuple(sizes), _from_data(offsets))

    def _kernel(self, facts: tuple[Any, ...]) -> CudaCode | None:
        found = self._kernels.get(facts)
        if found is None:
            key, name, threads, shared, title, cluster, queue, *copied = facts
            text = loading.text_by(bytes.fromhex(key))
            if text is not None:
                made = CudaCode(text, name, threads, shared, title, cluster, queue, CopyPlaces.of(copied))
                found = self._kernels.setdefault(facts, made)
        return found

    def scratch_for(self, work: CudnnWork) -> int | None:
        """The scratch memory that cuDNN needs for a work; None if it cannot do it."""
        known = plans_of(self._target.machine)
        plan = None if known is None else known.of(work)
        return None if plan is None else plan.scratch


def _facts_of(code: CudaCode) -> tuple[Any, ...] | None:
    """What identifies a kernel, with the key in place of the PTX; None if the PTX has no key."""
    if not isinstance(code.ptx, CachedText):
        return None
    facts = code.ptx.key.hex(), code.name, code.threads, code.shared, code.title, code.cluster, code.queue
    return facts if code.copied is None else (*facts, *code.copied.flat)


def problem_as_text(problem: cublas.MatmulProblem) -> str:
    """A text from which `problem_in` makes the problem again."""
    return json.dumps(_as_data(problem), separators=(",", ":"))


def problem_in(text: str) -> cublas.MatmulProblem:
    """The problem that a text describes."""
    found: cublas.MatmulProblem = _from_data(json.loads(text))
    return found


@lru_cache(_WORKS)
def work_as_text(work: CudnnWork) -> str:
    """A text from which `work_in` makes the work again."""
    return json.dumps(_as_data(work), separators=(",", ":"))


@lru_cache(_WORKS)
def work_in(text: str) -> CudnnWork:
    """The work of cuDNN that a text describes."""
    found: CudnnWork = _from_data(json.loads(text))
    return found


def _as_data(value: Any) -> Any:
    """A value as data for JSON: an object of `_CLASSES` becomes a list that begins with the name of its class."""
    kind = type(value)
    if kind.__name__ not in _CLASSES:
        return value
    if isinstance(value, IntEnum):
        return [kind.__name__, int(value)]
    parts = sorted(value) if isinstance(value, frozenset) else value
    return [kind.__name__, *map(_as_data, parts)]


def _from_data(data: Any) -> Any:
    """The inverse of `_as_data`."""
    if not isinstance(data, list):
        return data
    kind, parts = _CLASSES[data[0]], [_from_data(part) for part in data[1:]]
    return kind(parts) if kind in (frozenset, tuple) else kind(*parts)
