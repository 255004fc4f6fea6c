"""Where in the user's program something happens, for messages."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def user_location() -> str:
    """``file:line`` of the innermost frame outside Weft, and the name of the function there."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f'{frame.f_code.co_filename}:{frame.f_lineno}, in "{frame.f_code.co_name}"'
