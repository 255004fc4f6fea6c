"""GPUs of NVIDIA: ``mx.cuda``. Weft has no backend for them."""

__all__ = ["is_available"]


def is_available() -> bool:
    """Whether arrays can be computed on a GPU of NVIDIA: no.

    >>> mx.cuda.is_available()
    False
    """
    return False
