"""Loads and stores of lanes touch no memory beside their elements."""

from __future__ import annotations

import ctypes

import numpy as np

from tests.codegen.test_tiny_stacks import Guarded
from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load_near, store, store_first, store_near
from weft.compiler.cpu.apart import NEAR

WIDTH = 16


def test_lanes_that_are_near_are_read_to_the_last_element() -> None:
    emitter = Emitter()
    lanes = Lanes(emitter, WIDTH)
    for number, stride in enumerate(NEAR):
        value = load_near(lanes, dtypes.float32, Location(f"%x{number}", "0", False), stride, None)
        store(lanes, value, dtypes.float32, Location("%result", str(number * WIDTH), False), None)
    pointers = [f"ptr %x{number}" for number in range(len(NEAR))]
    text = module([emitter], [emitter.function("near", ", ".join([*pointers, "ptr %result"]))])
    address = loading.load(text, lambda: text, ("near",), lasting=False)["near"]
    blocks = [Guarded(4 * (abs(stride) * (WIDTH - 1) + 1)) for stride in NEAR]
    addresses = []
    for block, stride in zip(blocks, NEAR, strict=True):
        numbers = (ctypes.c_float * (abs(stride) * (WIDTH - 1) + 1)).from_address(block.address)
        first = 0 if stride > 0 else len(numbers) - 1
        numbers[:] = [float(number - first) for number in range(len(numbers))]
        addresses.append(block.address + 4 * first)
    result = np.zeros((len(NEAR), WIDTH), np.float32)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(NEAR) + 1))(address)
    function(*addresses, result.ctypes.data)
    np.testing.assert_array_equal(result, np.outer(NEAR, np.arange(WIDTH)))


def test_lanes_that_are_near_are_written_alone() -> None:
    emitter = Emitter()
    lanes = Lanes(emitter, WIDTH)
    value = load_near(lanes, dtypes.float32, Location("%x", "0", False), 2, None)
    for number, stride in enumerate(NEAR):
        store_near(lanes, value, dtypes.float32, Location(f"%y{number}", "0", False), stride)
    pointers = [f"ptr %y{number}" for number in range(len(NEAR))]
    text = module([emitter], [emitter.function("apart", ", ".join(["ptr %x", *pointers]))])
    address = loading.load(text, lambda: text, ("apart",), lasting=False)["apart"]
    blocks = [Guarded(4 * (abs(stride) * (WIDTH - 1) + 1)) for stride in NEAR]
    written, addresses = [], []
    for block, stride in zip(blocks, NEAR, strict=True):
        written.append((ctypes.c_float * (abs(stride) * (WIDTH - 1) + 1)).from_address(block.address))
        written[-1][:] = [-1.0] * len(written[-1])
        addresses.append(block.address + (4 * (len(written[-1]) - 1) if stride < 0 else 0))
    source = np.arange(2 * WIDTH, dtype=np.float32)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(NEAR) + 1))(address)
    function(source.ctypes.data, *addresses)
    for numbers, stride in zip(written, NEAR, strict=True):
        want = np.full(len(numbers), -1.0, np.float32)
        want[::stride] = source[::2]
        np.testing.assert_array_equal(np.array(numbers), want)


def test_the_first_lanes_are_stored_alone() -> None:
    emitter = Emitter()
    lanes = Lanes(emitter, WIDTH)
    value = lanes.constant(7, dtypes.uint8)
    store_first(lanes, value, dtypes.uint8, Location("%result", "1", False), "%count")
    text = module([emitter], [emitter.function("first", "ptr %result, i64 %count")])
    address = loading.load(text, lambda: text, ("first",), lasting=False)["first"]
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)
    for count in range(WIDTH):
        result = np.zeros(WIDTH + 2, np.uint8)
        function(result.ctypes.data, count)
        assert result.tolist() == [0] + [7] * count + [0] * (WIDTH + 1 - count)
