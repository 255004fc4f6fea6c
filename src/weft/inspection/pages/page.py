"""A page: data, a style and a script in one HTML file that needs no other file and no network."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any

_FRAME_HEIGHT = 640
"""The height of a page in a notebook, in pixels."""


def page_text(data: dict[str, Any]) -> str:
    """The page that shows ``data``: a ``title``, ``facts``, ``views``, which are tabs, and ``details`` of what can be
    selected. ``page.js`` describes the kinds of views."""
    # `<` could end the script element. In JSON it occurs only in strings, where it can be escaped.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">",
            f"<title>{html.escape(data['title'])}</title>",
            f"<style>\n{_asset('page.css')}</style>",
            "</head>",
            "<body>",
            f'<script type="application/json" id="data">{text}</script>',
            f"<script>\n{''.join(map(_asset, _SCRIPTS))}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


_SCRIPTS = ("elements.js", "graph.js", "memory.js", "timeline.js", "page.js")


def notebook_text(page: str) -> str:
    """A page as a part of a notebook: in a frame, so that the styles of page and notebook do not affect each other."""
    return (
        f'<iframe sandbox="allow-scripts" style="width:100%;height:{_FRAME_HEIGHT}px;border:0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
    )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
