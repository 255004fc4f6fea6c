"""The line of the user's program that is running, for messages."""

from __future__ import annotations

from weft.checks import outermost


def user_location() -> str:
    """``file:line`` of the innermost frame outside Weft, and the name of the function there."""
    inside = outermost()
    frame = inside.f_back or inside
    return f'{frame.f_code.co_filename}:{frame.f_lineno}, in "{frame.f_code.co_name}"'
