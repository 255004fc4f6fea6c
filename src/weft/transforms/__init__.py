"""Function transformations. They run the user's function on traced arrays and walk over the graph that it makes."""

from weft.transforms.compile import compile, disable_compile, enable_compile
from weft.transforms.custom import checkpoint, custom_function
from weft.transforms.evaluation import async_eval, clear_streams, eval, get_array_buffer_size, synchronize
from weft.transforms.gradients import grad, jvp, value_and_grad, vjp
from weft.transforms.vectorize import vmap

__all__ = [
    "async_eval",
    "checkpoint",
    "clear_streams",
    "compile",
    "custom_function",
    "disable_compile",
    "enable_compile",
    "eval",
    "get_array_buffer_size",
    "grad",
    "jvp",
    "synchronize",
    "value_and_grad",
    "vjp",
    "vmap",
]
