"""On which processors the threads of the pool are, in LLVM IR.

Linux may leave a worker on the processor of the caller, above all if the other processors have work of their own, even
if that has a low priority. Then a job takes as long as on one thread, and the system may notice only after many jobs.
So a worker that is there excludes this processor from those it may use, and at once allows it again: meanwhile the
system has moved it.

The functions are in one module with those of `pool`, and use its structures.
"""

from __future__ import annotations

import sys

STAY_NANOSECONDS = 10_000_000
"""How long a worker stays where the system places it, after it has moved: moving takes some microseconds."""
MASK_BYTES = 128
"""The bytes of a set of processors, as C libraries have it."""

CONSTANTS = {"STAY_NANOSECONDS": STAY_NANOSECONDS, "MASK_BYTES": MASK_BYTES}

_ON_LINUX = """
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

; The number of this thread's processor, negative if it is not known.
define internal i64 @processor() {
  %number = call i32 @sched_getcpu()
  %processor = sext i32 %number to i64
  ret i64 %processor
}

; Move a worker that is on the %processor of the caller to another one, if it may use others.
define internal void @leave(ptr %p, ptr %t, i64 %processor) {
entry:
  %mask = alloca [MASK_BYTES x i8], align 8
  %here = call i64 @processor()
  %same = icmp eq i64 %here, %processor
  %known = icmp sge i64 %here, 0
  %together = and i1 %same, %known
  br i1 %together, label %look, label %out
look:
  %mp = field thread.moved %t
  %moved = load i64, ptr %mp
  %now = call i64 @now(ptr %p)
  %passed = sub i64 %now, %moved
  %long = icmp sgt i64 %passed, STAY_NANOSECONDS
  br i1 %long, label %allowed, label %out
allowed:
  store i64 %now, ptr %mp
  %bytes = call i32 @sched_getaffinity(i32 0, i64 MASK_BYTES, ptr %mask)
  %found = icmp sge i32 %bytes, 0
  br i1 %found, label %exclude, label %out
exclude:
  %byte = lshr i64 %here, 3
  %place = getelementptr i8, ptr %mask, i64 %byte
  %before = load i8, ptr %place
  %position = and i64 %here, 7
  %short = trunc i64 %position to i8
  %bit = shl i8 1, %short
  %others = xor i8 %bit, -1
  %after = and i8 %before, %others
  store i8 %after, ptr %place
  %failed = call i32 @sched_setaffinity(i32 0, i64 MASK_BYTES, ptr %mask)
  %done = icmp eq i32 %failed, 0
  br i1 %done, label %allow, label %out
allow:
  store i8 %before, ptr %place
  call i32 @sched_setaffinity(i32 0, i64 MASK_BYTES, ptr %mask)
  br label %out
out:
  ret void
}
"""
_ELSEWHERE = """
define internal i64 @processor() {
  ret i64 -1
}

define internal void @leave(ptr %p, ptr %t, i64 %processor) {
  ret void
}
"""

FUNCTIONS = _ON_LINUX if sys.platform == "linux" else _ELSEWHERE
