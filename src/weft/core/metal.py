"""GPUs of Apple: ``mx.metal``. Weft has no backend for them."""

__all__ = ["is_available"]


def is_available() -> bool:
    """Whether arrays can be computed on a GPU of Apple: no.

    >>> mx.metal.is_available()
    False
    """
    return False
