"""Objects that can be shown in a browser besides being printed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from weft.inspection.files import writable


class Paged(ABC):
    """An object with a page in HTML, which a notebook shows. ``function`` is the function that users called, for
    errors."""

    function: ClassVar[str]

    def html(self, file: Any) -> None:
        """Write a page for a browser: one file that needs no network. All of it can be reached with the keyboard.

        Args:
            file: a path, or a file opened for writing text.
        """
        with writable(f"{self.function}.html", file) as target:
            target.write(self._page())

    def _repr_html_(self) -> str:
        from weft.inspection.pages.page import notebook_text

        return notebook_text(self._page())

    def _page(self) -> str:
        # The modules of pages are imported here because few programs show a page.
        from weft.inspection.pages.page import page_text

        return page_text(self._page_data())

    @abstractmethod
    def _page_data(self) -> dict[str, Any]:
        """The contents of the page; see `page_text`."""
