"""The thread pool, in LLVM IR: threads share the units of a step.

One step at a time is shared: it is the pool's *job*, and meanwhile other callers do all their work themselves. The
grains of a job are divided into equal *shares*, one for each thread (or grain, if there are fewer). A thread takes the
grains of its own share one by one, then those that are left in other shares. So it does the same part of each step, and
its caches hold what it wrote in the step before. The caller waits until all grains are finished. It does not wait for a
worker that took no grain, because it sleeps or has no processor.

Memory that one thread writes while others access it is in cache lines of its own.

- Only the caller writes the line of the job. It makes ``epoch`` odd before it writes and even afterwards. Values that a
  worker reads while ``epoch`` has the same even value belong to one job.
- Each share has a ``claim``: the epoch of its job, and in the lower bits how many grains were taken. If the epoch is an
  older one, none was taken. A thread takes a grain by a compare-and-exchange of the claim for one with the epoch of the
  job and one grain more. A job ends when the grains of all shares are finished; a worker that comes later finds none to
  take.
- A worker that no job needs watches ``epoch`` for ``SPIN_NANOSECONDS``, and yields its processor from time to time.
  Then it sets ``parked`` and sleeps. A caller wakes two of the workers for which its job has shares, and each of these
  wakes two more.
"""

from __future__ import annotations

from weft.compiler.cpu import pool_waiting
from weft.runtime.steps import Fields
from weft.runtime.thread_stack import GIVEN_BYTES

EPOCH_SHIFT = 16
"""A claim has the epoch above this many bits, which hold the number of grains."""
MOST_GRAINS = 1 << (EPOCH_SHIFT - 1)

CONSTANTS = {
    **pool_waiting.CONSTANTS,
    "STACK_BYTES": GIVEN_BYTES,
    "EPOCH_SHIFT": EPOCH_SHIFT,
    "MOST_GRAINS": MOST_GRAINS,
}

# The mutex and the conditions have more room than the pthread types of any platform need.
_POOL_FIELDS: Fields = {
    "epoch": "i64",
    "function": "ptr",
    "numbers": "ptr",
    "table": "ptr",
    "units": "i64",
    "grain": "i64",
    "shares": "i64",
    "stop": "i64",
    "finished": "i64",
    "waiting": "i64",
    "end_of_finished": "[6 x i64]",
    "busy": "i64",
    "end_of_busy": "[7 x i64]",
    "threads": "i64",
    "clock": "i64",
    "end_of_constants": "[6 x i64]",
    "mutex": "[128 x i8]",
    "done": "[128 x i8]",
}
# The fields of a thread. The first element is for all callers, and only its claim is used.
_THREAD_FIELDS: Fields = {
    "claim": "i64",
    "end_of_claim": "[7 x i64]",
    "pool": "ptr",
    "index": "i64",
    "parked": "i64",
    "end_of_parked": "[5 x i64]",
    "mutex": "[128 x i8]",
    "start": "[128 x i8]",
}
STRUCTURES = {"pool": _POOL_FIELDS, "thread": _THREAD_FIELDS}

# ``%x = field pool.epoch %p`` is the address of that field, see `step_loop`.
_FUNCTIONS = """
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setstacksize(ptr, i64)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_join(i64, ptr)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
PAUSE_DECLARATION

; The bytes of a pool for so many threads.
define i64 @weft_pool_bytes(i64 %threads) {
  %first = getelementptr %pool, ptr null, i64 1
  %end = getelementptr %thread, ptr %first, i64 %threads
  %bytes = ptrtoint ptr %end to i64
  ret i64 %bytes
}

define internal ptr @thread_of(ptr %p, i64 %index) {
  %first = getelementptr %pool, ptr %p, i64 1
  %thread = getelementptr %thread, ptr %first, i64 %index
  ret ptr %thread
}

; Make a pool in memory that is zero and begins with a cache line. Without all threads it does with those it has.
define void @weft_pool_init(ptr %p, i64 %wanted, i64 %clock) {
entry:
  %id = alloca i64
  %attributes = alloca [128 x i8], align 16
  %m = field pool.mutex %p
  call i32 @pthread_mutex_init(ptr %m, ptr null)
  %d = field pool.done %p
  call i32 @pthread_cond_init(ptr %d, ptr null)
  %kp = field pool.clock %p
  store i64 %clock, ptr %kp
  call i32 @pthread_attr_init(ptr %attributes)
  call i32 @pthread_attr_setstacksize(ptr %attributes, i64 STACK_BYTES)
  br label %loop
loop:
  %i = phi i64 [1, %entry], [%i1, %started]
  %more = icmp slt i64 %i, %wanted
  br i1 %more, label %start, label %out
start:
  %t = call ptr @thread_of(ptr %p, i64 %i)
  %tp = field thread.pool %t
  store ptr %p, ptr %tp
  %ip = field thread.index %t
  store i64 %i, ptr %ip
  %tm = field thread.mutex %t
  call i32 @pthread_mutex_init(ptr %tm, ptr null)
  %ts = field thread.start %t
  call i32 @pthread_cond_init(ptr %ts, ptr null)
  %failed = call i32 @pthread_create(ptr %id, ptr %attributes, ptr @weft_worker, ptr %t)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %started, label %out
started:
  %identity = load i64, ptr %id
  call i32 @pthread_detach(i64 %identity)
  %i1 = add i64 %i, 1
  br label %loop
out:
  %np = field pool.threads %p
  store i64 %i, ptr %np
  ret void
}

define internal i64 @grains_of(i64 %units, i64 %grain) {
  %most = add i64 %units, %grain
  %rounded = sub i64 %most, 1
  %grains = udiv i64 %rounded, %grain
  ret i64 %grains
}

; Take one of the %count grains of a share: its number, or one from %count on if there is none left.
define internal i64 @take(ptr %claim, i64 %epoch, i64 %count) {
entry:
  %none_taken = shl i64 %epoch, EPOCH_SHIFT
  br label %look
look:
  %before = load atomic i64, ptr %claim monotonic, align 8
  %ahead = sub i64 %before, %none_taken
  %older = icmp slt i64 %ahead, 0
  %taken = select i1 %older, i64 0, i64 %ahead
  %left = icmp slt i64 %taken, %count
  br i1 %left, label %try, label %out
try:
  %next = add i64 %taken, 1
  %after = add i64 %none_taken, %next
  %exchange = cmpxchg ptr %claim, i64 %before, i64 %after acq_rel monotonic
  %mine = extractvalue { i64, i1 } %exchange, 1
  br i1 %mine, label %out, label %look
out:
  ret i64 %taken
}

; Do grains of a job, until none is left to take, and return how many. %mine is the share to begin with.
define internal i64 @work(ptr %p, i64 %mine, i64 %epoch, ptr %f, ptr %numbers, ptr %table, i64 %units, i64 %grain,
    i64 %shares) {
entry:
  %grains = call i64 @grains_of(i64 %units, i64 %grain)
  %even = udiv i64 %grains, %shares
  %longer = urem i64 %grains, %shares
  br label %share
share:
  %tried = phi i64 [0, %entry], [%tried1, %next]
  %before = phi i64 [0, %entry], [%did, %next]
  %more = icmp ult i64 %tried, %shares
  br i1 %more, label %look, label %out
look:
  %sum = add i64 %mine, %tried
  %over = icmp uge i64 %sum, %shares
  %wrapped = sub i64 %sum, %shares
  %s = select i1 %over, i64 %wrapped, i64 %sum
  %is_longer = icmp ult i64 %s, %longer
  %additional = zext i1 %is_longer to i64
  %count = add i64 %even, %additional
  %longer_before = select i1 %is_longer, i64 %s, i64 %longer
  %product = mul i64 %s, %even
  %first = add i64 %product, %longer_before
  %t = call ptr @thread_of(ptr %p, i64 %s)
  %claim = field thread.claim %t
  br label %take
take:
  %did = phi i64 [%before, %look], [%did1, %grain_of_share]
  %number = call i64 @take(ptr %claim, i64 %epoch, i64 %count)
  %got = icmp slt i64 %number, %count
  br i1 %got, label %grain_of_share, label %next
grain_of_share:
  %position = add i64 %first, %number
  %begin = mul i64 %position, %grain
  %after = add i64 %begin, %grain
  %beyond = icmp sgt i64 %after, %units
  %end = select i1 %beyond, i64 %units, i64 %after
  call void %f(ptr %numbers, ptr %table, i64 %begin, i64 %end)
  %did1 = add i64 %did, 1
  br label %take
next:
  %tried1 = add i64 %tried, 1
  br label %share
out:
  ret i64 %before
}

; Add to the finished grains of a job, and wake the caller who waits for the last one. Returns how many are finished.
define internal i64 @finish(ptr %p, i64 %did, i64 %grains) {
entry:
  %fp = field pool.finished %p
  %before = atomicrmw add ptr %fp, i64 %did seq_cst
  %finished = add i64 %before, %did
  %last = icmp eq i64 %finished, %grains
  %wp = field pool.waiting %p
  br i1 %last, label %look, label %out
look:
  %waiting = load atomic i64, ptr %wp seq_cst, align 8
  %asleep = icmp ne i64 %waiting, 0
  br i1 %asleep, label %signal, label %out
signal:
  %m = field pool.mutex %p
  %d = field pool.done %p
  call void @signal(ptr %m, ptr %d)
  br label %out
out:
  ret i64 %finished
}

define internal ptr @weft_worker(ptr %t) {
entry:
  %pp = field thread.pool %t
  %p = load ptr, ptr %pp
  %ip = field thread.index %t
  %index = load i64, ptr %ip
  %ep = field pool.epoch %p
  %fp = field pool.function %p
  %np = field pool.numbers %p
  %tp = field pool.table %p
  %up = field pool.units %p
  %gp = field pool.grain %p
  %hp = field pool.shares %p
  %sp = field pool.stop %p
  br label %needed
needed:
  %seen_needed = phi i64 [0, %entry], [%seen, %asleep], [%epoch, %worked]
  %now = call i64 @now(ptr %p)
  br label %idle
idle:
  %seen = phi i64 [%seen_needed, %needed], [%seen, %changing], [%epoch, %job]
  %since = phi i64 [%now, %needed], [%since, %changing], [%since, %job]
  %soon = call i1 @awaited(ptr %p, ptr %ep, i64 %seen, i1 false, i64 %since)
  br i1 %soon, label %awake, label %asleep
asleep:
  call void @sleep(ptr %p, ptr %t, i64 %seen)
  %stop = load atomic i64, ptr %sp seq_cst, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %exit, label %needed
awake:
  %epoch = load atomic i64, ptr %ep seq_cst, align 8
  %f = load atomic ptr, ptr %fp monotonic, align 8
  %numbers = load atomic ptr, ptr %np monotonic, align 8
  %table = load atomic ptr, ptr %tp monotonic, align 8
  %units = load atomic i64, ptr %up monotonic, align 8
  %grain = load atomic i64, ptr %gp monotonic, align 8
  %shares = load atomic i64, ptr %hp monotonic, align 8
  fence acquire
  %epoch_then = load atomic i64, ptr %ep monotonic, align 8
  %still = icmp eq i64 %epoch, %epoch_then
  %odd = trunc i64 %epoch to i1
  %even = xor i1 %odd, true
  %whole = and i1 %still, %even
  br i1 %whole, label %job, label %changing
changing:
  call i32 @sched_yield()
  br label %idle
job:
  %for_this = icmp slt i64 %index, %shares
  br i1 %for_this, label %share, label %idle
share:
  call void @wake_next(ptr %p, i64 %index, i64 %shares)
  %did = call i64 @work(ptr %p, i64 %index, i64 %epoch, ptr %f, ptr %numbers, ptr %table, i64 %units, i64 %grain,
      i64 %shares)
  %some = icmp ne i64 %did, 0
  br i1 %some, label %did_some, label %worked
did_some:
  %grains = call i64 @grains_of(i64 %units, i64 %grain)
  call i64 @finish(ptr %p, i64 %did, i64 %grains)
  br label %worked
worked:
  br label %needed
exit:
  ret ptr null
}

; End the workers, each when it has nothing to do. The memory of the pool has to stay.
define void @weft_pool_stop(ptr %p) {
entry:
  %sp = field pool.stop %p
  store atomic i64 1, ptr %sp seq_cst, align 8
  %np = field pool.threads %p
  %threads = load i64, ptr %np
  br label %loop
loop:
  %i = phi i64 [1, %entry], [%i1, %body]
  %more = icmp slt i64 %i, %threads
  br i1 %more, label %body, label %out
body:
  %t = call ptr @thread_of(ptr %p, i64 %i)
  call void @wake(ptr %t)
  %i1 = add i64 %i, 1
  br label %loop
out:
  ret void
}

define internal void @share(ptr %p, ptr %f, ptr %numbers, ptr %table, i64 %units, i64 %wanted) {
entry:
  %bp = field pool.busy %p
  %exchange = cmpxchg ptr %bp, i64 0, i64 1 acq_rel monotonic
  %mine = extractvalue { i64, i1 } %exchange, 1
  br i1 %mine, label %shared, label %alone
alone:
  call void %f(ptr %numbers, ptr %table, i64 0, i64 %units)
  ret void
shared:
  ; No more grains than a claim can count.
  %parts = udiv i64 %units, MOST_GRAINS
  %least = add i64 %parts, 1
  %enough = icmp sge i64 %wanted, %least
  %grain = select i1 %enough, i64 %wanted, i64 %least
  %grains = call i64 @grains_of(i64 %units, i64 %grain)
  %thp = field pool.threads %p
  %threads = load i64, ptr %thp
  %few = icmp slt i64 %grains, %threads
  %shares = select i1 %few, i64 %grains, i64 %threads
  %ep = field pool.epoch %p
  %before = load atomic i64, ptr %ep monotonic, align 8
  %changing = add i64 %before, 1
  %epoch = add i64 %before, 2
  store atomic i64 %changing, ptr %ep monotonic, align 8
  fence release
  %dp = field pool.finished %p
  store atomic i64 0, ptr %dp monotonic, align 8
  %fp = field pool.function %p
  store atomic ptr %f, ptr %fp monotonic, align 8
  %np = field pool.numbers %p
  store atomic ptr %numbers, ptr %np monotonic, align 8
  %tp = field pool.table %p
  store atomic ptr %table, ptr %tp monotonic, align 8
  %up = field pool.units %p
  store atomic i64 %units, ptr %up monotonic, align 8
  %gp = field pool.grain %p
  store atomic i64 %grain, ptr %gp monotonic, align 8
  %hp = field pool.shares %p
  store atomic i64 %shares, ptr %hp monotonic, align 8
  store atomic i64 %epoch, ptr %ep seq_cst, align 8
  call void @wake_next(ptr %p, i64 0, i64 %shares)
  %did = call i64 @work(ptr %p, i64 0, i64 %epoch, ptr %f, ptr %numbers, ptr %table, i64 %units, i64 %grain,
      i64 %shares)
  %finished = call i64 @finish(ptr %p, i64 %did, i64 %grains)
  %all = icmp eq i64 %finished, %grains
  br i1 %all, label %out, label %wait
wait:
  call void @join(ptr %p, i64 %grains)
  br label %out
out:
  store atomic i64 0, ptr %bp release, align 8
  ret void
}
"""

FUNCTIONS = _FUNCTIONS + pool_waiting.FUNCTIONS
