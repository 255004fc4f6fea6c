"""`export_function`, `exporter` and `import_function`: functions in files."""

from __future__ import annotations

import os
from collections.abc import Callable
from string import ascii_uppercase
from types import TracebackType
from typing import Any

import numpy as np

from weft.checks import function_of, wrong_type
from weft.errors import FileFormatError
from weft.export import container
from weft.export.decoding import DecodedTrace
from weft.export.encoding import Encoder
from weft.export.trace import Arguments, ExportedGraph, Signature, arguments_of, listed, sources_of, trace_of
from weft.graph.extents import values_of
from weft.graph.node import Node, wrap
from weft.graph.symbolic import SymbolicExtent
from weft.graph.tracing import name_of
from weft.io.files import File, is_open
from weft.transforms.traced import Traced

__all__ = ["FunctionExporter", "export_function", "exporter", "import_function"]


def export_function(
    file_or_callback: File | Callable[[dict[str, Any]], object],
    fun: Callable[..., Any],
    *args: Any,
    shapeless: bool = False,
    metadata: str | None = None,
    **kwargs: Any,
) -> None:
    """Trace a function and write its graph to a file, which another process can import without the function's source.

    Arrays that are not arguments are constants, and stored in the file. Operations run on the stream that is current
    when the imported function is called. The rules of a `custom_function` are not exported, only its graph.

    Args:
        file_or_callback: a name, a file opened for writing bytes, or a function that is called, instead of writing a
            file, with a dict for each part of the graph: its inputs, the names of its keyword inputs, outputs,
            constants, and then the operations in order.
        fun: a function of arrays that returns an array, or a tuple or list of arrays.
        args: example arrays, of which only shapes and dtypes are used. A tuple and a dict of arrays stand for
            positional and keyword arguments.
        shapeless: whether the function may be called with other shapes of the same numbers of dimensions; see
            `compile`.
        metadata: a text that is stored in the file.
        kwargs: example arrays for keyword arguments.

    Raises:
        ValueError: arguments or results are not arrays; or metadata is given without a file.
        TraceError: ``fun`` needs the value of an array while it is traced.
        NotImplementedError: the graph contains something that the format cannot store.

    >>> import io
    >>> file = io.BytesIO()
    >>> mx.export_function(file, lambda x, y: mx.exp(x) + y, mx.array(0.0), y=mx.array(1.0))
    >>> _ = file.seek(0)
    >>> mx.import_function(file)(mx.array(0.0), y=mx.array(2.0))
    (array(3, dtype=float32),)
    """
    function_of("export_function", "fun", fun)
    _check_options("export_function", shapeless, metadata)
    arguments = arguments_of("export_function", args, kwargs)
    if callable(file_or_callback) and not is_open(file_or_callback):
        if metadata is not None:
            raise ValueError("[export_function] metadata is kept in a file; a callback gets none.")
        _describe(trace_of("export_function", fun, arguments, bool(shapeless)), file_or_callback)
        return
    _check_file("export_function", file_or_callback)
    with FunctionExporter("export_function", file_or_callback, fun, bool(shapeless), metadata) as writer:
        writer._add(arguments)


def exporter(
    file: File, fun: Callable[..., Any], *, shapeless: bool = False, metadata: str | None = None
) -> FunctionExporter:
    """Export several traces of a function to one file: for different numbers, names, shapes or dtypes of arguments.

    Args:
        file: a name, or a file opened for writing bytes. It is written when the exporter is closed.
        fun: as for `export_function`.
        shapeless: as for `export_function`.
        metadata: as for `export_function`.

    Returns:
        An object to call with example arrays for each trace, and to use in a ``with`` statement, which closes it.

    >>> import io
    >>> file = io.BytesIO()
    >>> with mx.exporter(file, lambda *arrays: sum(arrays)) as export:
    ...     export(mx.array(1))
    ...     export(mx.array(1), mx.array(2))
    >>> _ = file.seek(0)
    >>> mx.import_function(file)(mx.array(3), mx.array(4))
    (array(7, dtype=int32),)
    """
    function_of("exporter", "fun", fun)
    _check_options("exporter", shapeless, metadata)
    _check_file("exporter", file)
    return FunctionExporter("exporter", file, fun, bool(shapeless), metadata)


def _check_options(name: str, shapeless: Any, metadata: Any) -> None:
    if not isinstance(shapeless, (bool, np.bool_)):
        raise wrong_type(name, "shapeless", "a bool", shapeless)
    if metadata is not None and not isinstance(metadata, str):
        raise wrong_type(name, "metadata", "a string", metadata)


def _check_file(name: str, file: Any) -> None:
    if not is_open(file) and not isinstance(file, (str, os.PathLike)):
        raise wrong_type(name, "file", "a name or a file opened for bytes", file)


class FunctionExporter:
    """Writes traces of a function to a file; see `exporter`.

    >>> import io
    >>> with mx.exporter(io.BytesIO(), mx.exp) as export:
    ...     export(mx.zeros((2,)))
    """

    __module__ = "weft.core"

    def __init__(self, name: str, file: Any, fun: Callable[..., Any], shapeless: bool, metadata: str | None) -> None:
        self._name, self._file, self._fun, self._shapeless = name, file, fun, shapeless
        self._metadata = metadata
        self._encoder = Encoder(name)
        self._traces: dict[Signature, dict[str, Any]] = {}
        self._closed = False

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Trace the function for arguments like these.

        Raises:
            RuntimeError: the exporter was closed, or the file already has a trace for such arguments.
        """
        self._add(arguments_of(self._name, args, kwargs))

    def _add(self, arguments: Arguments) -> None:
        if self._closed:
            raise RuntimeError(f"[{self._name}] The file was written already; make another exporter.")
        signature = arguments.signature(self._shapeless)
        if signature in self._traces:
            raise RuntimeError(f"[{self._name}] There is a trace for arguments like these already: {arguments}.")
        trace = trace_of(self._name, self._fun, arguments, self._shapeless)
        self._traces[signature] = self._encoder.trace(trace)

    def close(self) -> None:
        """Write the file.

        >>> import io
        >>> file = io.BytesIO()
        >>> export = mx.exporter(file, mx.exp)
        >>> export(mx.zeros((2,)))
        >>> export.close()
        >>> len(file.getvalue()) > 0
        True
        """
        if not self._closed:
            self._closed = True
            header = {
                "function": name_of(self._fun),
                "shapeless": self._shapeless,
                "metadata": self._metadata or "",
                "traces": list(self._traces.values()),
            }
            container.write(self._file, header, self._encoder.arrays)

    def __enter__(self) -> FunctionExporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        self._closed = True


def import_function(file: File, return_metadata: bool = False) -> Any:
    """A function from a file that `export_function` or `exporter` wrote.

    It takes arrays with the dtypes and (without ``shapeless``) the shapes for which it was traced, or a tuple and a
    dict of them, and returns a tuple of arrays. It can be transformed and compiled like any function. Large constants
    are read when they are needed; see `load`.

    Files from untrusted sources are safe to import: nothing in them is executed as Python, and each operation is
    checked. But the function may use much memory or time when it is called.

    Args:
        file: a name, or a file opened for reading bytes.
        return_metadata: whether to return the exported metadata as well.

    Returns:
        The function; with the metadata, a pair.

    Raises:
        FileNotFoundError: there is no such file; the error is a RuntimeError, too.
        ValueError: the file is damaged, or contains something that this version of Weft does not know; the error is a
            RuntimeError, too.

    >>> import io
    >>> file = io.BytesIO()
    >>> mx.export_function(file, lambda x: mx.sum(x * x), mx.array([1.0, 2.0]))
    >>> _ = file.seek(0)
    >>> f = mx.import_function(file)
    >>> mx.grad(lambda x: f(x)[0])(mx.array([3.0, 4.0]))
    array([6, 8], dtype=float32)
    """
    _check_file("import_function", file)
    what, header, arrays = container.read(file)
    function = ImportedFunction(what, header, arrays)
    return (function, function.metadata) if return_metadata else function


class ImportedFunction:
    """A function from a file."""

    def __init__(self, what: str, header: dict[str, Any], arrays: list[Node]) -> None:
        name, shapeless, metadata, traces = [header.get(key) for key in ("function", "shapeless", "metadata", "traces")]
        if not (
            isinstance(name, str)
            and isinstance(shapeless, bool)
            and isinstance(metadata, str)
            and isinstance(traces, list)
        ):
            raise FileFormatError(
                f"[import_function] {what} is no sound file of a function: its header lacks function, shapeless, "
                "metadata or traces."
            )
        self.metadata: str = metadata
        self._name: str = name
        self._shapeless: bool = shapeless
        self._traces: dict[Signature, DecodedTrace] = {}
        self._made: dict[Signature, Traced] = {}
        for data in traces:
            trace = DecodedTrace(what, name, shapeless, data, arrays)
            handles = [wrap(node) for node in trace.inputs]
            named = dict(zip(trace.names, handles[trace.count :], strict=True))
            self._traces[Arguments(tuple(handles[: trace.count]), named).signature(shapeless)] = trace

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        arguments = arguments_of("import_function", args, kwargs)
        signature = arguments.signature(self._shapeless)
        traced = self._made.get(signature)
        if traced is None:
            traced = self._made[signature] = self._trace(arguments, signature).traced
        inputs = [one.node for one in arguments.arrays]
        results: tuple[Any, ...] = traced.results(traced.call(inputs), (), inputs)
        return results

    def _trace(self, arguments: Arguments, signature: Signature) -> DecodedTrace:
        found = self._traces.get(signature)
        if found is None:
            known = "; ".join([listed(one.count, one.names, one.inputs) for one in self._traces.values()])
            shapes = " (with any extents)" if self._shapeless else ""
            raise ValueError(
                f"[import_function] {self._name} was exported for {known or 'no arguments'}{shapes}; it was called "
                f"with {arguments}."
            )
        return found

    def __repr__(self) -> str:
        return f"<imported function {self._name}>"


def _describe(trace: ExportedGraph, callback: Callable[[dict[str, Any]], object]) -> None:
    """Call a callback with the parts of a graph."""
    names = {node: _letters(number) for number, node in enumerate([*trace.inputs, *trace.order])}

    def shown(node: Node) -> tuple[Any, ...]:
        return names[node], values_of(node.shape), node.dtype

    constants = [node for node in trace.order if node.value is not None or node.primitive.is_constant]
    callback({"type": "inputs", "inputs": [shown(node) for node in trace.inputs]})
    keywords = [(key, names[node]) for key, node in zip(trace.names, trace.inputs[trace.positional :], strict=True)]
    callback({"type": "keyword_inputs", "keywords": keywords})
    callback({"type": "outputs", "outputs": [shown(node) for node in trace.outputs]})
    callback({"type": "constants", "constants": [(names[node], wrap(node)) for node in constants]})
    for node in trace.order:
        if node not in constants:
            callback(
                {
                    "type": "primitive",
                    "name": node.primitive.name,
                    "inputs": [shown(source) for source in sources_of(node)],
                    "outputs": [shown(node)],
                    "arguments": [_without_symbols(value) for value in node.params],
                }
            )


def _letters(number: int) -> str:
    """The names A, B, ..., Z, AA, AB, ..."""
    text = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        text = ascii_uppercase[letter] + text
    return text


def _without_symbols(value: Any) -> Any:
    if type(value) is SymbolicExtent:
        return value.value
    return tuple(map(_without_symbols, value)) if isinstance(value, tuple) else value
