"""Native code that runs plans: the loop over a plan's steps, and the thread pool. With it comes what reads dicts.

A step is ``{function, numbers, units, grain}``. ``weft_run`` runs the steps of a table, from the first one that has not
been run yet; ``weft_run_timed`` also reads a clock, and ``weft_run_apart`` runs on a thread with a larger stack. The
functions of steps have the signature of kernels, ``void f(ptr numbers, ptr table, i64 begin, i64 end)``. Steps with
several grains of units are shared with the workers of the pool.
"""

from __future__ import annotations

import os
import re
from functools import cache

from weft.compiler.codegen import loading
from weft.compiler.cpu import dict_reading
from weft.compiler.cpu.threads import pool
from weft.runtime.steps import HEAD_FIELDS, STEP_FIELDS, TRIAL_FIELDS, Fields

_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
    "arm64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
_ASKED_FIELDS: Fields = {"order": "ptr", "times": "ptr", "clock": "i64"}
_STRUCTURES = {
    **pool.STRUCTURES,
    "step": STEP_FIELDS,
    "trial": TRIAL_FIELDS,
    "order": HEAD_FIELDS,
    "asked": _ASKED_FIELDS,
}

_LOOP = """
declare ptr @PyLong_AsVoidPtr(ptr)
declare void @Py_IncRef(ptr)

; Run steps, each shared by no more than %most threads.
define internal i64 @walk(ptr %p, ptr %steps, i64 %first, i64 %count, ptr %table, ptr %state, i64 %most) {
entry:
  %single = icmp sle i64 %most, 1
  br label %loop
loop:
  %i = phi i64 [%first, %entry], [%i1, %next]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %look, label %out
look:
  %flag = load atomic i64, ptr %state monotonic, align 8
  %stop = icmp ne i64 %flag, 0
  br i1 %stop, label %out, label %body
body:
  %step = getelementptr %step, ptr %steps, i64 %i
  %f = load ptr, ptr %step
  %np = field step.numbers %step
  %numbers = load ptr, ptr %np
  %up = field step.units %step
  %units = load i64, ptr %up
  %gp = field step.grain %step
  %grain = load i64, ptr %gp
  %little = icmp sge i64 %grain, %units
  %here = or i1 %little, %single
  br i1 %here, label %alone, label %shared
alone:
  call void %f(ptr %numbers, ptr %table, i64 0, i64 %units)
  br label %next
shared:
  call void @share(ptr %p, ptr %f, ptr %numbers, ptr %table, i64 %units, i64 %grain, i64 %most)
  br label %next
next:
  %i1 = add i64 %i, 1
  br label %loop
out:
  ret i64 %i
}

define i64 @weft_run(ptr %order) {
entry:
ORDER_FIELDS  %hp = field trial.shared %trial
  %shared = load i64, ptr %hp
  %some_shared = icmp ne i64 %shared, 0
  %enough = icmp sge i64 %threads, FEWEST_TRIED
  %tried = and i1 %some_shared, %enough
  br i1 %tried, label %trying, label %plain
plain:
  %done = call i64 @walk(ptr %p, ptr %steps, i64 %before, i64 %count, ptr %table, ptr %state, i64 %threads)
  store i64 %done, ptr %dp
  ret i64 %done
trying:
  %most = call i64 @weft_threads_of_run(ptr %trial, i64 %threads)
  %wp = field pool.waited %p
  %waited_before = load atomic i64, ptr %wp monotonic, align 8
  %begin = call i64 @now(ptr %p)
  %ran = call i64 @walk(ptr %p, ptr %steps, i64 %before, i64 %count, ptr %table, ptr %state, i64 %most)
  store i64 %ran, ptr %dp
  %left = sub i64 %count, %ran
  %not_all = add i64 %left, %before
  %whole = icmp eq i64 %not_all, 0
  br i1 %whole, label %note, label %out
note:
  %end = call i64 @now(ptr %p)
  %spent = sub i64 %end, %begin
  %waited_then = load atomic i64, ptr %wp monotonic, align 8
  %waited = sub i64 %waited_then, %waited_before
  call void @weft_note_run(ptr %trial, i64 %spent, i64 %waited)
  br label %out
out:
  ret i64 %ran
}

; A function of Python without arguments, bound to the address of an order as a number of Python: runs all steps.
define ptr @weft_run_called(ptr %number, ptr %nothing) {
entry:
  %order = call ptr @PyLong_AsVoidPtr(ptr %number)
  %dp = field order.done %order
  store i64 0, ptr %dp
  call i64 @weft_run(ptr %order)
  call void @Py_IncRef(ptr %number)
  ret ptr %number
}

; The same, and notes in %times (two of 16 bytes per step) when each of these steps began and ended.
define i64 @weft_run_timed(ptr %order, ptr %times, i64 %clock) {
entry:
ORDER_FIELDS  %most = call i64 @weft_threads_of_run(ptr %trial, i64 %threads)
  %id = trunc i64 %clock to i32
  br label %loop
loop:
  %i = phi i64 [%before, %entry], [%i1, %body]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %out
body:
  %step = getelementptr %step, ptr %steps, i64 %i
  %first = mul i64 %i, 32
  %begin = getelementptr i8, ptr %times, i64 %first
  %end = getelementptr i8, ptr %begin, i64 16
  call i32 @clock_gettime(i32 %id, ptr %begin)
  %ran = call i64 @walk(ptr %p, ptr %step, i64 0, i64 1, ptr %table, ptr %state, i64 %most)
  call i32 @clock_gettime(i32 %id, ptr %end)
  %i1 = add i64 %i, %ran
  %stopped = icmp eq i64 %ran, 0
  br i1 %stopped, label %out, label %loop
out:
  %all = phi i64 [%i, %loop], [%i1, %body]
  store i64 %all, ptr %dp
  ret i64 %all
}

define internal ptr @run_there(ptr %asked) {
entry:
  %order = load ptr, ptr %asked
  %tp = field asked.times %asked
  %times = load ptr, ptr %tp
  %kp = field asked.clock %asked
  %clock = load i64, ptr %kp
  %untimed = icmp eq ptr %times, null
  br i1 %untimed, label %run, label %timed
run:
  call i64 @weft_run(ptr %order)
  ret ptr null
timed:
  call i64 @weft_run_timed(ptr %order, ptr %times, i64 %clock)
  ret ptr null
}

; The same on a new thread with a large stack, with a clock if %times is not null; -1 if there can be no such thread.
define i64 @weft_run_apart(ptr %order, ptr %times, i64 %clock) {
entry:
  %id = alloca i64
  %attributes = alloca [128 x i8], align 16
  %asked = alloca %asked
  store ptr %order, ptr %asked
  %tp = field asked.times %asked
  store ptr %times, ptr %tp
  %kp = field asked.clock %asked
  store i64 %clock, ptr %kp
  call i32 @pthread_attr_init(ptr %attributes)
  call i32 @pthread_attr_setstacksize(ptr %attributes, i64 STACK_BYTES)
  %failed = call i32 @pthread_create(ptr %id, ptr %attributes, ptr @run_there, ptr %asked)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %started, label %out
started:
  %thread = load i64, ptr %id
  call i32 @pthread_join(i64 %thread, ptr null)
  %dp = field order.done %order
  %done = load i64, ptr %dp
  ret i64 %done
out:
  ret i64 -1
}
"""

_ORDER_FIELDS = """\
  %p = load ptr, ptr %order
  %sp = field order.steps %order
  %steps = load ptr, ptr %sp
  %cp = field order.count %order
  %count = load i64, ptr %cp
  %state = field order.stop %order
  %dp = field order.done %order
  %before = load i64, ptr %dp
  %table = getelementptr %order, ptr %order, i32 1
  %trial = getelementptr %trial, ptr %steps, i32 -1
  %thp = field pool.threads %p
  %threads = load i64, ptr %thp
"""


def _with_fields(text: str) -> str:
    """LLVM text with definitions of the structures, and with each ``field`` replaced by LLVM's address computation."""
    numbers = {f"{name}.{field}": n for name, fields in _STRUCTURES.items() for n, field in enumerate(fields)}
    types = "".join([f"\n%{name} = type {{ {', '.join(fields.values())} }}" for name, fields in _STRUCTURES.items()])

    def address(found: re.Match[str]) -> str:
        structure, field, pointer = found.groups()
        return f"getelementptr %{structure}, ptr {pointer}, i32 0, i32 {numbers[f'{structure}.{field}']}"

    return types + re.sub(r"field (\w+)\.(\w+) (%\w+)", address, text)


_EXPORTED = (
    "weft_note_run",
    "weft_pool_bytes",
    "weft_pool_init",
    "weft_pool_stop",
    "weft_read_dicts",
    "weft_run",
    "weft_run_called",
    "weft_run_timed",
    "weft_run_apart",
    "weft_threads_of_run",
)


@cache
def runtime_functions() -> dict[str, int]:
    """Addresses of the pool, of the loop over steps, and of what reads dicts."""
    declaration, pause = _PAUSES.get(os.uname().machine, ("", "; no pause instruction"))
    constants = {name: str(number) for name, number in pool.CONSTANTS.items()}
    words = {"PAUSE_DECLARATION": declaration, **constants, "PAUSE": pause}  # last, because it is a part of other words

    def generate() -> str:
        text = (pool.FUNCTIONS + _LOOP + dict_reading.FUNCTIONS).replace("ORDER_FIELDS", _ORDER_FIELDS)
        for word, instead in words.items():
            text = text.replace(word, instead)
        return _with_fields(text)

    source = f"{pool.FUNCTIONS}{_LOOP}{dict_reading.FUNCTIONS}{_ORDER_FIELDS}{words}{_STRUCTURES}"
    return loading.load(source, generate, _EXPORTED, quickly=True)
