"""Loss functions, under the names of MLX's ``nn.losses``."""

from weft.nn.loss_functions import Reduction as Reduction
from weft.nn.loss_functions import binary_cross_entropy, cross_entropy, l1_loss, mse_loss, nll_loss

__all__ = ["binary_cross_entropy", "cross_entropy", "l1_loss", "mse_loss", "nll_loss"]
