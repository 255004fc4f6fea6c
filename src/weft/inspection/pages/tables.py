"""Tables, and details of what is selected, as data for a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def column(
    title: str,
    values: Iterable[float] | None,
    text: Callable[[Any], str] = str,
    *,
    texts: Sequence[str] | None = None,
    bar: bool = False,
) -> dict[str, Any]:
    """A column: numbers formatted by ``text``, optionally with a ``bar`` after each in proportion to it; or
    ``texts``."""
    numbers = None if values is None else list(values)
    shown = list(texts or ()) if numbers is None else [text(number) for number in numbers]
    return {"title": title, "values": numbers, "texts": shown, "bar": bar}


def table_view(title: str, columns: Sequence[dict[str, Any]], details: Iterable[int | None]) -> dict[str, Any]:
    """A table; ``details`` are the numbers of the details of its rows."""
    return {"kind": "table", "title": title, "columns": list(columns), "details": list(details)}


def detail(
    title: str, facts: Sequence[tuple[str, str]], text: str = "", graph: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The details of something that can be selected: facts by name, a text, a graph."""
    return {"title": title, "facts": [list(fact) for fact in facts], "text": text, "graph": graph}
