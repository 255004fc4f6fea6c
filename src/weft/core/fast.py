"""Operations that are computed by one kernel or few: ``mx.fast``."""

from __future__ import annotations

from weft.ops.fast import cross_entropy, layer_norm, rms_norm, rope
from weft.ops.gated_delta import gated_delta_update

__all__ = ["cross_entropy", "gated_delta_update", "layer_norm", "rms_norm", "rope"]
