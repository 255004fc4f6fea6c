"""What ``import mlx`` finds in the Python processes that a program under ``python -m weft run`` starts.

Such a process knows the program's ``PYTHONPATH``, which has this folder, and no more. The first import of ``mlx`` runs
this file, which lets Weft answer to the name, as in the program itself. An interpreter that does not have Weft imports
the MLX that is installed for it.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec

if __name__ == "mlx":  # and not a tool that reads all files of Weft
    del sys.modules["mlx"]
    if find_spec("weft") is not None:
        importlib.import_module("weft.as_mlx")
    else:
        folder = os.path.dirname(__file__)
        sys.path[:] = [entry for entry in sys.path if entry != folder]
    importlib.import_module("mlx")  # the import system returns what is now registered under that name
