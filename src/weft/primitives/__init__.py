"""The primitives. Rules find other primitives as attributes of this package, so that files need no cyclic imports."""

from __future__ import annotations

from weft.graph.node import wrap as wrap
from weft.primitives.base import *
from weft.primitives.batching import *
from weft.primitives.binary import *
from weft.primitives.contraction import *
from weft.primitives.decompositions import *
from weft.primitives.fourier import *
from weft.primitives.frames import *
from weft.primitives.index import AxisTerm as AxisTerm
from weft.primitives.indexing import *
from weft.primitives.linalg import *
from weft.primitives.products import *
from weft.primitives.random_functions import *
from weft.primitives.randomness import *
from weft.primitives.reductions import *
from weft.primitives.reductions import sum_
from weft.primitives.reinterpreting import *
from weft.primitives.scans import *
from weft.primitives.searching import *
from weft.primitives.shaping import *
from weft.primitives.sorting import *
from weft.primitives.state_recurrence import *
from weft.primitives.structure import *
from weft.primitives.unary import *
from weft.primitives.updates import *

sum = sum_
