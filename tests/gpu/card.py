"""Skips tests that need a card if there is none."""

from __future__ import annotations

import pytest

from weft.runtime.cuda import cards


def missing_card() -> str:
    """Why there is no card; the empty text if there is one."""
    return "" if cards.engines() else f"no GPU: {cards.reason()}"


def require_card() -> None:
    """Skip the module that calls this, with the reason, if there is no card."""
    reason = missing_card()
    if reason:
        pytest.skip(reason, allow_module_level=True)
