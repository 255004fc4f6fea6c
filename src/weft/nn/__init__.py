"""Neural-network layers, losses and initialisers, under the names of MLX's ``nn``.

Each file lists its public names in ``__all__``; they are not listed again here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.nn import (
    activation_layers,
    activations,
    containers,
    convolution,
    dropout,
    gradients,
    linear,
    module,
    normalization,
    pooling,
    positions,
    quantized,
    recurrent,
    sharded,
    summaries,
    transformer,
    upsampling,
)
from weft.nn import init as init
from weft.nn import losses as losses
from weft.nn.activation_layers import *
from weft.nn.activations import *
from weft.nn.containers import *
from weft.nn.convolution import *
from weft.nn.dropout import *
from weft.nn.gradients import *
from weft.nn.linear import *
from weft.nn.module import *
from weft.nn.normalization import *
from weft.nn.pooling import *
from weft.nn.positions import *
from weft.nn.quantized import *
from weft.nn.recurrent import *
from weft.nn.sharded import *
from weft.nn.summaries import *
from weft.nn.transformer import *
from weft.nn.upsampling import *

if not TYPE_CHECKING:  # mypy understands only literal lists, and treats names imported by * as public
    __all__ = [
        "init",
        "losses",
        *activation_layers.__all__,
        *activations.__all__,
        *containers.__all__,
        *convolution.__all__,
        *dropout.__all__,
        *gradients.__all__,
        *linear.__all__,
        *module.__all__,
        *normalization.__all__,
        *pooling.__all__,
        *positions.__all__,
        *quantized.__all__,
        *recurrent.__all__,
        *sharded.__all__,
        *summaries.__all__,
        *transformer.__all__,
        *upsampling.__all__,
    ]

    def __dir__() -> list[str]:
        return __all__
