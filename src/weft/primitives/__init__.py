"""The primitives. Rules refer to other primitives as attributes of this package, so that files need no cyclic
imports."""

from __future__ import annotations

import sys

from weft.graph.node import wrap as wrap
from weft.primitives.attention import *
from weft.primitives.base import *
from weft.primitives.batching import *
from weft.primitives.binary import *
from weft.primitives.chosen_products import *
from weft.primitives.columns import *
from weft.primitives.contraction import *
from weft.primitives.conversions import *
from weft.primitives.convolution import *
from weft.primitives.convolution_phases import *
from weft.primitives.convolution_products import *
from weft.primitives.convolution_windows import *
from weft.primitives.decompositions import *
from weft.primitives.depthwise import *
from weft.primitives.dequantization import *
from weft.primitives.fourier import *
from weft.primitives.frames import *
from weft.primitives.index import AxisTerm as AxisTerm
from weft.primitives.indexing import *
from weft.primitives.linalg import *
from weft.primitives.long_scans import *
from weft.primitives.padded_sums import *
from weft.primitives.products import *
from weft.primitives.quantized_formats import *
from weft.primitives.quantized_products import *
from weft.primitives.quick import *
from weft.primitives.random_functions import *
from weft.primitives.randomness import *
from weft.primitives.reducers import *
from weft.primitives.reductions import *
from weft.primitives.reductions import sum_
from weft.primitives.reinterpreting import *
from weft.primitives.row_updates import *
from weft.primitives.scans import *
from weft.primitives.searching import *
from weft.primitives.shaping import *
from weft.primitives.single_updates import *
from weft.primitives.sorting import *
from weft.primitives.state_recurrence import *
from weft.primitives.structure import *
from weft.primitives.unary import *
from weft.primitives.updates import *
from weft.primitives.windowed import *

sum = sum_


def _found() -> frozenset[Primitive]:
    modules = [module for name, module in sys.modules.items() if name.startswith("weft.primitives.")]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Primitive)]
    found += [part for primitive in found for part in vars(primitive).values() if isinstance(part, Primitive)]
    for primitive in found:
        primitive.equal_is_same = not primitive.is_unique
    return frozenset(found)


OWN = _found()
"""Weft's own primitives, all with different names. They are collected when Weft is imported, because other code may put
primitives of its own into these modules later.

Their code is cached on disk under their names; the code of other primitives may change while their names and Weft stay
the same. Each parameter of Weft's primitives has one type, and none is a float.
"""
