"""How threads of the pool wait for each other, in LLVM IR: they watch a word of memory for some time, then sleep.

The functions are in one module with those of `pool`, and use its structures.
"""

from __future__ import annotations

PAUSES = 32
"""How often a thread reads the word before it reads the clock and yields its processor."""
SPIN_NANOSECONDS = 100_000
"""How long a thread waits before it sleeps: longer than Python takes from one short evaluation to the next."""
LONG_SPIN_NANOSECONDS = 1_000_000
"""How long a worker waits that was last needed again within this time. Calling a training step from Python takes some
hundred microseconds, and then each step would wait for sleeping workers, which takes some ten microseconds."""

CONSTANTS = {
    "LONG_SPIN_NANOSECONDS": LONG_SPIN_NANOSECONDS,
    "SPIN_NANOSECONDS": SPIN_NANOSECONDS,
    "PAUSES": PAUSES,
}

FUNCTIONS = """
define internal void @signal(ptr %mutex, ptr %condition) {
  call i32 @pthread_mutex_lock(ptr %mutex)
  call i32 @pthread_cond_signal(ptr %condition)
  call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}

; Nanoseconds of the clock.
define internal i64 @now(ptr %p) {
  %time = alloca [2 x i64]
  %kp = field pool.clock %p
  %clock = load i64, ptr %kp
  %id = trunc i64 %clock to i32
  call i32 @clock_gettime(i32 %id, ptr %time)
  %seconds = load i64, ptr %time
  %rest = getelementptr i64, ptr %time, i64 1
  %nanoseconds = load i64, ptr %rest
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %nanoseconds
  ret i64 %all
}

; Wait for a word of memory to be another one (or, if %wanted, to be %number). False if that has not come %most
; nanoseconds after the time %since.
define internal i1 @awaited(ptr %p, ptr %word, i64 %number, i1 %wanted, i64 %since, i64 %most) {
entry:
  br label %round
round:
  br label %look
look:
  %k = phi i64 [0, %round], [%k1, %again]
  %found = load atomic i64, ptr %word acquire, align 8
  %same = icmp eq i64 %found, %number
  %good = icmp eq i1 %same, %wanted
  br i1 %good, label %yes, label %again
again:
  PAUSE
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, PAUSES
  br i1 %more, label %look, label %rest
rest:
  call i32 @sched_yield()
  %time = call i64 @now(ptr %p)
  %spent = sub i64 %time, %since
  %long = icmp sgt i64 %spent, %most
  br i1 %long, label %no, label %round
yes:
  ret i1 true
no:
  ret i1 false
}

; Wait until all groups of a job are finished, and add the time to that which callers have waited.
define internal void @join(ptr %p, i64 %groups) {
entry:
  %fp = field pool.finished %p
  %since = call i64 @now(ptr %p)
  %soon = call i1 @awaited(ptr %p, ptr %fp, i64 %groups, i1 true, i64 %since, i64 SPIN_NANOSECONDS)
  br i1 %soon, label %note, label %sleep
sleep:
  %m = field pool.mutex %p
  %d = field pool.done %p
  %wp = field pool.waiting %p
  call i32 @pthread_mutex_lock(ptr %m)
  store atomic i64 1, ptr %wp seq_cst, align 8
  br label %check
check:
  %finished = load atomic i64, ptr %fp seq_cst, align 8
  %all = icmp eq i64 %finished, %groups
  br i1 %all, label %unlock, label %wait
wait:
  call i32 @pthread_cond_wait(ptr %d, ptr %m)
  br label %check
unlock:
  store atomic i64 0, ptr %wp seq_cst, align 8
  call i32 @pthread_mutex_unlock(ptr %m)
  br label %note
note:
  %end = call i64 @now(ptr %p)
  %this = sub i64 %end, %since
  %ap = field pool.waited %p
  call void @add_to(ptr %ap, i64 %this)
  ret void
}

; Wake a worker, unless it is awake or somebody is waking it.
define internal void @wake(ptr %t) {
entry:
  %kp = field thread.parked %t
  %parked = load atomic i64, ptr %kp seq_cst, align 8
  %asleep = icmp ne i64 %parked, 0
  br i1 %asleep, label %claim, label %out
claim:
  %before = atomicrmw xchg ptr %kp, i64 0 seq_cst
  %mine = icmp ne i64 %before, 0
  br i1 %mine, label %signal, label %out
signal:
  %m = field thread.mutex %t
  %s = field thread.start %t
  call void @signal(ptr %m, ptr %s)
  br label %out
out:
  ret void
}

; Wake the two workers, if a job has shares for them, that a thread has to wake.
define internal void @wake_next(ptr %p, i64 %index, i64 %shares) {
entry:
  %twice = mul i64 %index, 2
  %a = add i64 %twice, 1
  %b = add i64 %twice, 2
  %some = icmp slt i64 %a, %shares
  br i1 %some, label %first, label %out
first:
  %t = call ptr @thread_of(ptr %p, i64 %a)
  call void @wake(ptr %t)
  %another = icmp slt i64 %b, %shares
  br i1 %another, label %second, label %out
second:
  %u = call ptr @thread_of(ptr %p, i64 %b)
  call void @wake(ptr %u)
  br label %out
out:
  ret void
}

; Sleep until the epoch is another one, or the pool is stopped.
define internal void @sleep(ptr %p, ptr %t, i64 %seen) {
entry:
  %ep = field pool.epoch %p
  %sp = field pool.stop %p
  %kp = field thread.parked %t
  %m = field thread.mutex %t
  %s = field thread.start %t
  call i32 @pthread_mutex_lock(ptr %m)
  br label %check
check:
  store atomic i64 1, ptr %kp seq_cst, align 8
  %e = load atomic i64, ptr %ep seq_cst, align 8
  %stop = load atomic i64, ptr %sp seq_cst, align 8
  %same = icmp eq i64 %e, %seen
  %going_on = icmp eq i64 %stop, 0
  %idle = and i1 %same, %going_on
  br i1 %idle, label %wait, label %unlock
wait:
  call i32 @pthread_cond_wait(ptr %s, ptr %m)
  br label %check
unlock:
  store atomic i64 0, ptr %kp seq_cst, align 8
  call i32 @pthread_mutex_unlock(ptr %m)
  ret void
}
"""
