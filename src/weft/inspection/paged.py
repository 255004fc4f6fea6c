"""What can be seen in a browser besides being printed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from weft.inspection.files import writable


class Paged(ABC):
    """Something with a page in HTML; a notebook shows it by itself. ``function`` is what users called, for errors."""

    function: ClassVar[str]

    def html(self, file: Any) -> None:
        """Write a page for a browser: one file that needs no network. All of it is reached with the keyboard, too.

        Args:
            file: a path, or a file opened for writing text.
        """
        with writable(f"{self.function}.html", file) as target:
            target.write(self._page())

    def _repr_html_(self) -> str:
        from weft.inspection.pages.page import notebook_text

        return notebook_text(self._page())

    def _page(self) -> str:
        # Few programs show a page, so its modules are imported when one does.
        from weft.inspection.pages.page import page_text

        return page_text(self._page_data())

    @abstractmethod
    def _page_data(self) -> dict[str, Any]:
        """What the page shows; see `page_text`."""
