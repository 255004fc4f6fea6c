"""Leaves out what needs a card where there is none."""

from __future__ import annotations

import pytest

from weft.runtime.cuda import cards


def require_card() -> None:
    """Skip the module that calls this, with the reason, if there is no card."""
    if not cards.engines():
        pytest.skip(f"no GPU: {cards.reason()}", allow_module_level=True)
