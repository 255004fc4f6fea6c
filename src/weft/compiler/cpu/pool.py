"""Native code that runs plans: the thread pool, and the loop over a plan's steps.

A step is ``{function, numbers, units, grain}``; ``weft_run`` walks a table of them, from the one on that was not run
yet, ``weft_run_timed`` does so with a clock. Functions of steps have the signature of kernels, ``void f(ptr numbers,
ptr table, i64 begin, i64 end)``. Steps with several grains of units are shared with the workers of the pool, unless
another thread is using it: then the caller does all the work itself.
"""

from __future__ import annotations

import os
import re
from functools import cache

from weft.compiler.codegen import loading
from weft.runtime.steps import HEAD_FIELDS, STEP_FIELDS, Fields

_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
    "arm64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
SPINS = 1000
STACK_BYTES = 8 << 20
"""Steps have panels of matrices on the stack, more than some systems give a thread."""

# The mutex and the conditions have more room than the types of any platform's pthreads need.
_POOL_FIELDS: Fields = {
    "mutex": "[128 x i8]",
    "start": "[128 x i8]",
    "done": "[128 x i8]",
    "epoch": "i64",
    "function": "ptr",
    "numbers": "ptr",
    "table": "ptr",
    "units": "i64",
    "grain": "i64",
    "next": "i64",
    "running": "i64",
    "workers": "i64",
    "busy": "i64",
    "stop": "i64",
}
_STRUCTURES = {"pool": _POOL_FIELDS, "step": STEP_FIELDS, "order": HEAD_FIELDS}

# ``i32 pool.epoch`` stands for the number of that field, see `_with_numbers`.
_POOL = """
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setstacksize(ptr, i64)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @clock_gettime(i32, ptr)
PAUSE_DECLARATION

define i64 @weft_pool_init(ptr %p, i64 %workers) {
entry:
  %thread = alloca i64
  %attributes = alloca [128 x i8], align 16
  %m = getelementptr %pool, ptr %p, i32 0, i32 pool.mutex
  %s = getelementptr %pool, ptr %p, i32 0, i32 pool.start
  %d = getelementptr %pool, ptr %p, i32 0, i32 pool.done
  %w = getelementptr %pool, ptr %p, i32 0, i32 pool.workers
  call i32 @pthread_mutex_init(ptr %m, ptr null)
  call i32 @pthread_cond_init(ptr %s, ptr null)
  call i32 @pthread_cond_init(ptr %d, ptr null)
  call i32 @pthread_attr_init(ptr %attributes)
  call i32 @pthread_attr_setstacksize(ptr %attributes, i64 STACK_BYTES)
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %started]
  %more = icmp slt i64 %i, %workers
  br i1 %more, label %start, label %out
start:
  %failed = call i32 @pthread_create(ptr %thread, ptr %attributes, ptr @weft_worker, ptr %p)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %started, label %out
started:
  %t = load i64, ptr %thread
  call i32 @pthread_detach(i64 %t)
  %i1 = add i64 %i, 1
  br label %loop
out:
  store i64 %i, ptr %w
  ret i64 %i
}

define internal void @drain(ptr %p) {
entry:
  %fp = getelementptr %pool, ptr %p, i32 0, i32 pool.function
  %f = load ptr, ptr %fp
  %np = getelementptr %pool, ptr %p, i32 0, i32 pool.numbers
  %numbers = load ptr, ptr %np
  %tp = getelementptr %pool, ptr %p, i32 0, i32 pool.table
  %table = load ptr, ptr %tp
  %up = getelementptr %pool, ptr %p, i32 0, i32 pool.units
  %units = load i64, ptr %up
  %gp = getelementptr %pool, ptr %p, i32 0, i32 pool.grain
  %grain = load i64, ptr %gp
  %xp = getelementptr %pool, ptr %p, i32 0, i32 pool.next
  br label %loop
loop:
  %begin = atomicrmw add ptr %xp, i64 %grain monotonic
  %go = icmp slt i64 %begin, %units
  br i1 %go, label %body, label %out
body:
  %after = add i64 %begin, %grain
  %over = icmp sgt i64 %after, %units
  %end = select i1 %over, i64 %units, i64 %after
  call void %f(ptr %numbers, ptr %table, i64 %begin, i64 %end)
  br label %loop
out:
  ret void
}

define internal ptr @weft_worker(ptr %p) {
entry:
  %m = getelementptr %pool, ptr %p, i32 0, i32 pool.mutex
  %s = getelementptr %pool, ptr %p, i32 0, i32 pool.start
  %d = getelementptr %pool, ptr %p, i32 0, i32 pool.done
  %ep = getelementptr %pool, ptr %p, i32 0, i32 pool.epoch
  %rp = getelementptr %pool, ptr %p, i32 0, i32 pool.running
  %stp = getelementptr %pool, ptr %p, i32 0, i32 pool.stop
  br label %outer
outer:
  %seen = phi i64 [0, %entry], [%e, %finish]
  br label %spin
spin:
  %k = phi i32 [0, %outer], [%k1, %again]
  %e0 = load atomic i64, ptr %ep acquire, align 8
  %changed = icmp ne i64 %e0, %seen
  br i1 %changed, label %work, label %again
again:
  PAUSE
  %k1 = add i32 %k, 1
  %more = icmp slt i32 %k1, SPINS
  br i1 %more, label %spin, label %block
block:
  call i32 @pthread_mutex_lock(ptr %m)
  br label %check
check:
  %e1 = load atomic i64, ptr %ep acquire, align 8
  %changed1 = icmp ne i64 %e1, %seen
  br i1 %changed1, label %unlock, label %wait
wait:
  call i32 @pthread_cond_wait(ptr %s, ptr %m)
  br label %check
unlock:
  call i32 @pthread_mutex_unlock(ptr %m)
  br label %work
work:
  %e = phi i64 [%e0, %spin], [%e1, %unlock]
  %stopping = load atomic i64, ptr %stp acquire, align 8
  %stop = icmp ne i64 %stopping, 0
  br i1 %stop, label %exit, label %run
run:
  call void @drain(ptr %p)
  %before = atomicrmw sub ptr %rp, i64 1 acq_rel
  %last = icmp eq i64 %before, 1
  br i1 %last, label %signal, label %finish
signal:
  call i32 @pthread_mutex_lock(ptr %m)
  call i32 @pthread_cond_signal(ptr %d)
  call i32 @pthread_mutex_unlock(ptr %m)
  br label %finish
finish:
  br label %outer
exit:
  %left = atomicrmw sub ptr %rp, i64 1 acq_rel
  call i32 @pthread_mutex_lock(ptr %m)
  call i32 @pthread_cond_signal(ptr %d)
  call i32 @pthread_mutex_unlock(ptr %m)
  ret ptr null
}

define internal void @wake(ptr %p) {
  %m = getelementptr %pool, ptr %p, i32 0, i32 pool.mutex
  %s = getelementptr %pool, ptr %p, i32 0, i32 pool.start
  %ep = getelementptr %pool, ptr %p, i32 0, i32 pool.epoch
  %wp = getelementptr %pool, ptr %p, i32 0, i32 pool.workers
  %rp = getelementptr %pool, ptr %p, i32 0, i32 pool.running
  %w = load i64, ptr %wp
  store i64 %w, ptr %rp
  call i32 @pthread_mutex_lock(ptr %m)
  %e = load i64, ptr %ep
  %e1 = add i64 %e, 1
  store atomic i64 %e1, ptr %ep release, align 8
  call i32 @pthread_cond_broadcast(ptr %s)
  call i32 @pthread_mutex_unlock(ptr %m)
  ret void
}

define internal void @join(ptr %p) {
entry:
  %m = getelementptr %pool, ptr %p, i32 0, i32 pool.mutex
  %d = getelementptr %pool, ptr %p, i32 0, i32 pool.done
  %rp = getelementptr %pool, ptr %p, i32 0, i32 pool.running
  br label %spin
spin:
  %k = phi i32 [0, %entry], [%k1, %again]
  %r0 = load atomic i64, ptr %rp acquire, align 8
  %z0 = icmp eq i64 %r0, 0
  br i1 %z0, label %out, label %again
again:
  PAUSE
  %k1 = add i32 %k, 1
  %more = icmp slt i32 %k1, SPINS
  br i1 %more, label %spin, label %block
block:
  call i32 @pthread_mutex_lock(ptr %m)
  br label %check
check:
  %r = load atomic i64, ptr %rp acquire, align 8
  %z = icmp eq i64 %r, 0
  br i1 %z, label %unlock, label %wait
wait:
  call i32 @pthread_cond_wait(ptr %d, ptr %m)
  br label %check
unlock:
  call i32 @pthread_mutex_unlock(ptr %m)
  br label %out
out:
  ret void
}

define void @weft_pool_stop(ptr %p) {
  %stp = getelementptr %pool, ptr %p, i32 0, i32 pool.stop
  store atomic i64 1, ptr %stp release, align 8
  call void @wake(ptr %p)
  call void @join(ptr %p)
  ret void
}

define internal void @share(ptr %p, ptr %f, ptr %numbers, ptr %table, i64 %units, i64 %grain) {
entry:
  %busy = getelementptr %pool, ptr %p, i32 0, i32 pool.busy
  %claim = cmpxchg ptr %busy, i64 0, i64 1 acq_rel monotonic
  %mine = extractvalue { i64, i1 } %claim, 1
  br i1 %mine, label %shared, label %alone
alone:
  call void %f(ptr %numbers, ptr %table, i64 0, i64 %units)
  ret void
shared:
  %fp = getelementptr %pool, ptr %p, i32 0, i32 pool.function
  store ptr %f, ptr %fp
  %np = getelementptr %pool, ptr %p, i32 0, i32 pool.numbers
  store ptr %numbers, ptr %np
  %tp = getelementptr %pool, ptr %p, i32 0, i32 pool.table
  store ptr %table, ptr %tp
  %up = getelementptr %pool, ptr %p, i32 0, i32 pool.units
  store i64 %units, ptr %up
  %gp = getelementptr %pool, ptr %p, i32 0, i32 pool.grain
  store i64 %grain, ptr %gp
  %xp = getelementptr %pool, ptr %p, i32 0, i32 pool.next
  store i64 0, ptr %xp
  call void @wake(ptr %p)
  call void @drain(ptr %p)
  call void @join(ptr %p)
  store atomic i64 0, ptr %busy release, align 8
  ret void
}

define internal i64 @walk(ptr %p, ptr %steps, i64 %first, i64 %count, ptr %table, ptr %state) {
entry:
  %wp = getelementptr %pool, ptr %p, i32 0, i32 pool.workers
  %workers = load i64, ptr %wp
  %single = icmp eq i64 %workers, 0
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
  %np = getelementptr %step, ptr %step, i32 0, i32 step.numbers
  %numbers = load ptr, ptr %np
  %up = getelementptr %step, ptr %step, i32 0, i32 step.units
  %units = load i64, ptr %up
  %gp = getelementptr %step, ptr %step, i32 0, i32 step.grain
  %grain = load i64, ptr %gp
  %little = icmp sge i64 %grain, %units
  %here = or i1 %little, %single
  br i1 %here, label %alone, label %shared
alone:
  call void %f(ptr %numbers, ptr %table, i64 0, i64 %units)
  br label %next
shared:
  call void @share(ptr %p, ptr %f, ptr %numbers, ptr %table, i64 %units, i64 %grain)
  br label %next
next:
  %i1 = add i64 %i, 1
  br label %loop
out:
  ret i64 %i
}

define i64 @weft_run(ptr %order) {
entry:
ORDER_FIELDS  %done = call i64 @walk(ptr %p, ptr %steps, i64 %before, i64 %count, ptr %table, ptr %state)
  store i64 %done, ptr %dp
  ret i64 %done
}

; The same, and notes in %times (two of 16 bytes per step) when each of these steps began and ended.
define i64 @weft_run_timed(ptr %order, ptr %times, i64 %clock) {
entry:
ORDER_FIELDS  %id = trunc i64 %clock to i32
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
  %ran = call i64 @walk(ptr %p, ptr %step, i64 0, i64 1, ptr %table, ptr %state)
  call i32 @clock_gettime(i32 %id, ptr %end)
  %i1 = add i64 %i, %ran
  %stopped = icmp eq i64 %ran, 0
  br i1 %stopped, label %out, label %loop
out:
  %all = phi i64 [%i, %loop], [%i1, %body]
  store i64 %all, ptr %dp
  ret i64 %all
}
"""

_ORDER_FIELDS = """\
  %p = load ptr, ptr %order
  %sp = getelementptr %order, ptr %order, i32 0, i32 order.steps
  %steps = load ptr, ptr %sp
  %cp = getelementptr %order, ptr %order, i32 0, i32 order.count
  %count = load i64, ptr %cp
  %state = getelementptr %order, ptr %order, i32 0, i32 order.stop
  %dp = getelementptr %order, ptr %order, i32 0, i32 order.done
  %before = load i64, ptr %dp
  %table = getelementptr %order, ptr %order, i32 1
"""


def _with_numbers(text: str) -> str:
    """LLVM text with the definitions of the structures in front, and numbers in place of the names of their fields."""
    numbers = {f"{name}.{field}": n for name, fields in _STRUCTURES.items() for n, field in enumerate(fields)}
    types = "".join([f"\n%{name} = type {{ {', '.join(fields.values())} }}" for name, fields in _STRUCTURES.items()])
    return types + re.sub(r"\b(?:pool|step|order)\.\w+", lambda found: str(numbers[found[0]]), text)


@cache
def runtime_functions() -> dict[str, int]:
    """Addresses of the pool and of the loop over steps."""
    declaration, pause = _PAUSES.get(os.uname().machine, ("", "; no pause instruction"))
    text = _POOL.replace("PAUSE_DECLARATION", declaration).replace("PAUSE", pause).replace("SPINS", str(SPINS))
    text = text.replace("STACK_BYTES", str(STACK_BYTES))
    text = _with_numbers(text.replace("ORDER_FIELDS", _ORDER_FIELDS))
    return loading.load(text, lambda: text, ("weft_pool_init", "weft_pool_stop", "weft_run", "weft_run_timed"))
