"""Arrays in files: ``.npy``, ``.npz``, ``.safetensors`` and ``.gguf``. Nothing in a file is ever executed."""

from __future__ import annotations

from weft.io.gguf_saving import save_gguf
from weft.io.loading import load
from weft.io.npy_files import save
from weft.io.npz_files import savez, savez_compressed
from weft.io.safetensors_files import save_safetensors

__all__ = ["load", "save", "save_gguf", "save_safetensors", "savez", "savez_compressed"]
