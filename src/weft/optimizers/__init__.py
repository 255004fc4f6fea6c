"""Optimizers and learning-rate schedules, under the names of MLX's ``optimizers``."""

from weft.optimizers.adam import Adam, AdamW
from weft.optimizers.clipping import clip_grad_norm
from weft.optimizers.optimizer import Optimizer
from weft.optimizers.schedules import cosine_decay, exponential_decay, join_schedules, linear_schedule, step_decay
from weft.optimizers.sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "clip_grad_norm",
    "cosine_decay",
    "exponential_decay",
    "join_schedules",
    "linear_schedule",
    "step_decay",
]


def __dir__() -> list[str]:
    return __all__
