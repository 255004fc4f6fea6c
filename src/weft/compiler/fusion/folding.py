"""Reductions in fused groups: which reductions a group can compute in its own rows."""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.fusion import scanning
from weft.compiler.index import own_axes, whole_axes
from weft.compiler.target import FusionLimits
from weft.graph.node import Node, Shape
from weft.primitives.index import ZERO, Term, Terms

from .groups import FusedGroup


def fits(node: Node, group: FusedGroup, terms: Terms, limits: FusionLimits) -> bool:
    """Whether a reduction can be computed in the rows of a group that uses its result."""
    if not scanning.may_fold(group):
        return False
    parallel = whole_axes(terms, node.shape, group.extents)
    return parallel is not None and _reduced_axes(node, group, parallel, limits) is not None


def include(node: Node, group: FusedGroup, terms: Terms, limits: FusionLimits) -> Terms:
    """Make a group fold the axes of a reduction that it uses at ``terms``; returns the index at which it uses the
    input."""
    source, folded = node.inputs[0].shape, node.params[0]
    parallel = whole_axes(terms, node.shape, group.extents)
    assert parallel is not None
    reduced = _reduced_axes(node, group, parallel, limits)
    assert reduced is not None
    if reduced == ():
        inner, axes = _insert_axes(group, source, folded, parallel)
        group.axes, group.reduced = axes, tuple([axis for axis in axes if axis not in parallel])
    else:
        group.reduced = reduced
        following = iter(group.axes)
        inner = [ZERO if extent == 1 else Term(0, ((next(following), 1),)) for extent in source]
    group.folds = True
    return tuple(inner)


def _reduced_axes(
    node: Node, group: FusedGroup, parallel: tuple[int, ...], limits: FusionLimits
) -> tuple[int, ...] | None:
    """The loop axes that the reduction would fold: some of the group's, or () if new ones are needed."""
    source, folded = node.inputs[0].shape, node.params[0]
    extents = [(axis in folded, extent) for axis, extent in enumerate(source) if extent != 1]
    if parallel == tuple(group.axes) and not group.reduced:
        return ()
    if len(extents) != len(group.axes):
        return None
    for (is_folded, extent), axis in zip(extents, group.axes, strict=True):
        if group.extents[axis] != extent or is_folded == (axis in parallel):
            return None
    reduced = tuple([axis for axis in group.axes if axis not in parallel])
    if group.reduced:
        return reduced if reduced == group.reduced else None
    return reduced if _rows_pay(group, parallel, limits) else None


def _rows_pay(group: FusedGroup, parallel: tuple[int, ...], limits: FusionLimits) -> bool:
    """Whether enough is left to do in parallel if each row is folded by itself."""
    rows, size = 1, 1
    for axis in group.axes:
        size *= group.extents[axis]
        rows *= group.extents[axis] if axis in parallel else 1
    return rows >= limits.group_rows or size <= limits.group_size


def _insert_axes(
    group: FusedGroup, source: Shape, folded: Sequence[int], parallel: Sequence[int]
) -> tuple[list[Term], list[int]]:
    """The index of the input, and the group's axes with new ones for the folded axes of ``source`` among them."""
    existing = iter(parallel)
    inner: list[Term] = []
    axes: list[int] = []
    for axis, extent in enumerate(source):
        if extent == 1:
            inner.append(ZERO)
            continue
        if axis in folded:
            _, (loop,) = own_axes((extent,))
            group.extents[loop] = extent
        else:
            loop = next(existing)
        axes.append(loop)
        inner.append(Term(0, ((loop, 1),)))
    return inner, axes
