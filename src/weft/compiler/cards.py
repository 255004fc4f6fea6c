"""NVIDIA's cards with their target. Modules for GPUs are imported only when a GPU is asked for."""

from __future__ import annotations

from typing import Any

from weft.runtime.atomic import without_interrupts
from weft.runtime.host import host


def engines() -> list[Any]:
    """The engine of each card of this machine, with its target."""
    return without_interrupts(_engines)


def _engines() -> list[Any]:
    from weft.runtime.cuda import cards

    found = cards.engines()
    if found:
        from weft.compiler.cuda.target import CudaTarget

        for engine in found:
            engine.target = CudaTarget(engine.architecture)
            engine.target.stand_in = host.target
            engine.target.machine = engine
            engine.when_expected = engine.target.card_will_be_used
            engine.when_started = engine.target.card_is_used
    return found


def libraries() -> list[Any]:
    """NVIDIA's libraries that Weft calls; an empty list if there is no card."""
    if not engines():
        return []
    from weft.runtime.cuda import shared_libraries

    return list(shared_libraries.ALL)


def reason() -> str:
    """Why no card can be used."""
    from weft.runtime.cuda import cards

    return cards.reason()
