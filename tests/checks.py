"""Functions that many tests use: comparing bits and trees, counting traces, finding lines."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

import weft.core as mx

patience = 1
"""A factor for the time limits of new interpreters: larger where processors are emulated."""


def bits(value: mx.array) -> tuple[tuple[int, ...], str, bytes]:
    """Shape, dtype and bytes; all NaNs count as equal, because IEEE 754 does not define their signs and payloads."""
    dtype = str(value.dtype)
    plain = value.astype(mx.float32) if value.dtype == mx.bfloat16 else value
    numbers = np.array(plain)
    if numbers.dtype.kind in "fc":
        numbers = np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype), numbers)
    return tuple(value.shape), dtype, numbers.tobytes()


def leaves(tree: Any) -> list[Any]:
    """The leaves of nested lists, tuples and dicts, in order."""
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in leaves(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree]


def structure(tree: Any) -> Any:
    """The tree with every leaf replaced by its type."""
    if isinstance(tree, dict):
        return {key: structure(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(structure(item) for item in tree)
    return type(tree)


def assert_same_bits(actual: Any, expected: Any) -> None:
    assert structure(actual) == structure(expected)
    for got, wanted in zip(leaves(actual), leaves(expected), strict=True):
        if isinstance(wanted, mx.array):
            assert bits(got) == bits(wanted), f"{got} is not bit for bit {wanted}"
        else:
            assert got == wanted


def assert_close(actual: Any, expected: Any, *, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Assert that trees of arrays have the shapes and values of `expected` at the same positions."""
    if isinstance(actual, dict):
        assert actual.keys() == expected.keys()
        for key in actual:
            assert_close(actual[key], expected[key], rtol=rtol, atol=atol)
    elif isinstance(actual, list | tuple):
        for got, wanted in zip(actual, expected, strict=True):
            assert_close(got, wanted, rtol=rtol, atol=atol)
    else:
        got, wanted = np.array(actual), np.array(expected)
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)


class Counted:
    """A function that counts how often Python runs its body; for a compiled function, that is the number of traces."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.calls = 0

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return function(*args, **kwargs)

        self.function = counting


def line_of(function: Callable[..., Any], text: str) -> int:
    """The number of the line of `function` in which `text` stands."""
    source, first = inspect.getsourcelines(function)
    return first + next(offset for offset, line in enumerate(source) if text in line)


def without_spaces(error: BaseException) -> str:
    """The message without spaces, so that `(2, 3)` and `(2,3)` are the same."""
    return "".join(str(error).split())


def run_python(source: str, *, timeout: float = 60, **environment: str) -> str:
    """The output of a new interpreter that runs `source`; fails unless it exits with status 0."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=timeout * patience,
        env=child_environment(**environment),
        check=False,
    )
    assert result.returncode == 0, f"exit status {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def child_environment(**changes: str) -> dict[str, str]:
    """This process's environment with `changes`, and its import path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **changes}
