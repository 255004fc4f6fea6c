"""Arrays in files: ``.npy``, ``.npz`` and ``.safetensors``. Nothing in a file is ever executed."""

from __future__ import annotations

from weft.io.loading import load
from weft.io.numpy_files import save, savez, savez_compressed
from weft.io.safetensors_files import save_safetensors

__all__ = ["load", "save", "save_safetensors", "savez", "savez_compressed"]
