"""Neural-network layers, losses and initialisers, under the names of MLX's ``nn``."""

from weft.nn import init, losses
from weft.nn.activations import (
    ELU,
    GELU,
    LeakyReLU,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
    elu,
    gelu,
    gelu_approx,
    gelu_fast_approx,
    leaky_relu,
    log_softmax,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)
from weft.nn.containers import Identity, Sequential
from weft.nn.dropout import Dropout
from weft.nn.gradients import value_and_grad
from weft.nn.linear import Embedding, Linear
from weft.nn.module import Module
from weft.nn.normalization import LayerNorm, RMSNorm

__all__ = [
    "ELU",
    "GELU",
    "Dropout",
    "Embedding",
    "Identity",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "Module",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "elu",
    "gelu",
    "gelu_approx",
    "gelu_fast_approx",
    "init",
    "leaky_relu",
    "log_softmax",
    "losses",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
    "value_and_grad",
]
