"""Optimizers and learning-rate schedules, under the names of MLX's ``optimizers``.

Each file lists its public names in ``__all__``; they are not listed again here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.optimizers import adafactor, adam, adaptive, clipping, multiple, muon, optimizer, schedules, sgd
from weft.optimizers.adafactor import *
from weft.optimizers.adam import *
from weft.optimizers.adaptive import *
from weft.optimizers.clipping import *
from weft.optimizers.multiple import *
from weft.optimizers.muon import *
from weft.optimizers.optimizer import *
from weft.optimizers.schedules import *
from weft.optimizers.sgd import *

if not TYPE_CHECKING:  # mypy understands only literal lists, and treats names imported by * as public
    __all__ = [
        *adafactor.__all__,
        *adam.__all__,
        *adaptive.__all__,
        *clipping.__all__,
        *multiple.__all__,
        *muon.__all__,
        *optimizer.__all__,
        *schedules.__all__,
        *sgd.__all__,
    ]

    def __dir__() -> list[str]:
        return __all__
