"""NVIDIA GPUs: ``mx.cuda``."""

from weft.runtime.cuda.availability import *

__all__ = ["is_available"]
