"""Images of machine code: packed from object code, placed in memory without a linker."""

from __future__ import annotations

import ctypes
import platform
import struct

import llvmlite.binding as llvm
import pytest

from weft.compiler.codegen import jit
from weft.compiler.codegen.elf import image_of
from weft.runtime import machine_code
from weft.runtime.machine_code import Image

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="objects are ELF for x86-64 or ARM64 here",
)

# A table of constants, a function that is called and one whose address is taken, a routine of the C library.
MODULE = """
@table = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
@numbers = internal constant [3 x i32] [i32 10, i32 20, i32 30]
declare double @fmod(double, double)
declare double @given(double)

define internal double @twice(double %x) noinline {
  %y = fadd double %x, %x
  ret double %y
}

define internal double @through(ptr %f, double %x) noinline {
  %y = call double %f(double %x)
  ret double %y
}

define double @first(i64 %i) {
  %p = getelementptr double, ptr @table, i64 %i
  %x = load double, ptr %p
  %q = getelementptr i32, ptr @numbers, i64 %i
  %n = load i32, ptr %q
  %m = sitofp i32 %n to double
  %y = call double @twice(double %x)
  %z = call double @through(ptr @twice, double %y)
  %r = call double @fmod(double %z, double 4.0)
  %s = fadd double %r, %m
  ret double %s
}

define double @second(double %x) {
  %y = call double @given(double %x)
  %z = call double @through(ptr @given, double %y)
  ret double %z
}
"""
FIRST = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)
SECOND = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)


@pytest.fixture(scope="module")
def object_code() -> bytes:
    return jit.generator().object_code(MODULE)


@pytest.fixture(scope="module")
def image(object_code: bytes) -> Image:
    packed = image_of(object_code, ("first", "second"))
    assert packed is not None
    return packed


def check(functions: dict[str, int]) -> None:
    assert [FIRST(functions["first"])(i) for i in range(3)] == [6.0 % 4 + 10, 10.0 % 4 + 20, 14.0 % 4 + 30]
    assert SECOND(functions["second"])(4.0) == 9.0


_given = SECOND(lambda x: x * 2 - 1 if x == 4 else x + 2)
PROVIDED = {"given": ctypes.cast(_given, ctypes.c_void_p).value or 0}


def test_an_image_does_what_its_object_does(object_code, image):
    check(machine_code.load(image, PROVIDED))
    if platform.machine() == "aarch64":
        with pytest.raises(jit.CodeGenerationError, match="only code that is an image"):
            jit.link(object_code, ("first", "second"), PROVIDED)
    else:
        check(jit.link(object_code, ("first", "second"), PROVIDED))
    assert set(image.slots) == {"fmod", "given"}


def test_an_image_is_the_same_after_a_file(image):
    again = Image.from_bytes(image.to_bytes())
    assert again == image
    check(machine_code.load(again, PROVIDED))


def test_placed_code_cannot_be_written(image):
    address = machine_code.load(image, PROVIDED)["first"]
    with open("/proc/self/maps") as maps:
        (rights,) = [
            rights
            for start, end, rights in [(*line.split()[0].split("-"), line.split()[1]) for line in maps]
            if int(start, 16) <= address < int(end, 16)
        ]
    assert rights.startswith("r-x")


def test_a_function_that_is_nowhere_is_named(image):
    with pytest.raises(LookupError, match="given"):
        machine_code.load(image, {})


@pytest.mark.parametrize(
    "text",
    [
        "@n = global i64 0\ndefine i64 @f() {\n  %x = load i64, ptr @n\n  ret i64 %x\n}",
        "@n = internal global i64 7\ndefine void @f(i64 %x) {\n  store i64 %x, ptr @n\n  ret void\n}",
        "@n = internal global [9 x i64] zeroinitializer\ndefine ptr @f() {\n  ret ptr @n\n}",
        "@n = thread_local global i64 3\ndefine i64 @f() {\n  %x = load i64, ptr @n\n  ret i64 %x\n}",
        "@t = internal constant [1 x ptr] [ptr @f]\ndefine ptr @f(i64 %i) {\n"
        "  %p = getelementptr ptr, ptr @t, i64 %i\n  %q = load ptr, ptr %p\n  ret ptr %q\n}",
    ],
    ids=["exported data", "data", "zeros", "data of a thread", "table of addresses"],
)
def test_what_needs_a_linker_is_no_image(text):
    assert image_of(jit.generator().object_code(text), ("f",)) is None


def test_other_files_are_no_image(object_code):
    assert image_of(b"", ("first",)) is None
    assert image_of(b"\xcf\xfa\xed\xfe" + bytes(100), ("first",)) is None
    other_machine = bytearray(object_code)
    struct.pack_into("<H", other_machine, 18, 243)
    assert image_of(bytes(other_machine), ("first",)) is None


def test_code_for_arm64_needs_no_linker_either():
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu="generic", opt=2, reloc="pic", codemodel="default")
    packed = image_of(machine.emit_object(llvm.parse_assembly(MODULE)), ("first", "second"))
    assert packed is not None
    assert packed.slots.keys() == {"fmod", "given"}
    # The first call (bl) of `second` goes to the stub of `given`: ldr x16, .+8; br x16.
    start = packed.functions["second"]
    words = struct.unpack_from(f"<{(len(packed.code) - start) // 4}I", packed.code, start)
    at, call = next((at, word) for at, word in enumerate(words) if word >> 26 == 0b100101)
    stub = start + 4 * (at + call % (1 << 26))
    assert struct.unpack_from("<II", packed.code, stub) == (0x58000050, 0xD61F0200)
    assert stub + 8 == packed.slots["given"]
