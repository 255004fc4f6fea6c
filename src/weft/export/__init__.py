"""Exported functions: a traced function in a file, which another process reads and runs without the function's
source."""

from __future__ import annotations

from weft.export.functions import FunctionExporter, export_function, exporter, import_function

__all__ = ["FunctionExporter", "export_function", "exporter", "import_function"]
