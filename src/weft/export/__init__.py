"""Functions in files: a traced function as data, which another process reads and runs without its source."""

from __future__ import annotations

from weft.export.functions import FunctionExporter, export_function, exporter, import_function

__all__ = ["FunctionExporter", "export_function", "exporter", "import_function"]
