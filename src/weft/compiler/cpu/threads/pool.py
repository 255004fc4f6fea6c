"""The thread pool, in LLVM IR: threads share the units of a step.

One step at a time is shared: it is the pool's *job*, and meanwhile other callers do all their work themselves. The
grains of a job are divided into equal *shares*, one for each thread (or grain, if there are fewer). They are smaller
than those of the step if that makes the shares more equal. A thread takes the grains of its own share one by one, then
those that are left in other shares. So it does the same part of each step, and its caches hold what it wrote in the
step before. The caller waits until all grains are finished. It does not wait for a worker that took no grain, because
it sleeps or has no processor.

Memory that one thread writes while others access it is in cache lines of its own.

- Only the caller writes the line of the job. It makes ``epoch`` odd before it writes and even afterwards. Values that a
  worker reads while ``epoch`` has the same even value belong to one job.
- Each share has a ``claim``: the epoch of its job, and in the lower bits how many grains were taken. If the epoch is an
  older one, none was taken. A thread takes a grain by a compare-and-exchange of the claim for one with the epoch of the
  job and one grain more. A job ends when the grains of all shares are finished; a worker that comes later finds none to
  take.
- Neighbouring shares are a *group*, for which finished grains are counted. The thread that finishes the last one of a
  group sets this count back to 0, and adds one to the groups that are finished; for these the caller waits. If all
  threads added to one count, each would wait for all others at the end of a job.
- A thread adds to that count when it has done its share, before it looks for grains in other shares. It stops looking
  when the job is over: if it read the claims of all shares first, each would come from the cache of another processor.
- A worker that is on the processor of the caller moves to another one before it takes a grain: see `placing`.
- A worker that no job needs watches ``epoch`` for ``SPIN_NANOSECONDS``, and yields its processor from time to time.
  Then it sets ``parked`` and sleeps. If it is needed within ``LONG_SPIN_NANOSECONDS``, it watches for so long from then
  on, until it is needed later than that: so workers stay awake while a program calls short functions in a loop.
- How long the caller has waited at the end of jobs is added up in ``waited``, for `trials`.
- A caller wakes two of the workers for which its job has shares, and each of these wakes two more.
"""

from __future__ import annotations

from weft.compiler.cpu.threads import placing, trials, waiting
from weft.runtime.steps import Fields
from weft.runtime.thread_stack import GIVEN_BYTES

EPOCH_SHIFT = 16
"""A claim has the epoch above this many bits, which hold the number of grains."""
MOST_GRAINS = 1 << (EPOCH_SHIFT - 1)
GROUP_SHARES = 8
"""So many threads add to the same count. With 64 threads, there are as many groups."""

CONSTANTS = {
    **waiting.CONSTANTS,
    **placing.CONSTANTS,
    **trials.CONSTANTS,
    "STACK_BYTES": GIVEN_BYTES,
    "EPOCH_SHIFT": EPOCH_SHIFT,
    "MOST_GRAINS": MOST_GRAINS,
    "GROUP_SHARES": GROUP_SHARES,
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
    "processor": "i64",
    "finished": "i64",
    "waiting": "i64",
    "end_of_finished": "[6 x i64]",
    "busy": "i64",
    "waited": "i64",
    "end_of_busy": "[6 x i64]",
    "threads": "i64",
    "clock": "i64",
    "stop": "i64",
    "end_of_constants": "[5 x i64]",
    "mutex": "[128 x i8]",
    "done": "[128 x i8]",
}
# The fields of a thread. The first element is for all callers, and only its claim is used.
_THREAD_FIELDS: Fields = {
    "claim": "i64",
    "end_of_claim": "[7 x i64]",
    "finished": "i64",
    "end_of_finished": "[7 x i64]",
    "pool": "ptr",
    "index": "i64",
    "parked": "i64",
    "moved": "i64",
    "end_of_parked": "[4 x i64]",
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
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
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

; A number divided by another one, rounded up.
define internal i64 @ratio_up(i64 %number, i64 %divisor) {
  %most = add i64 %number, %divisor
  %sum = sub i64 %most, 1
  %ratio = udiv i64 %sum, %divisor
  ret i64 %ratio
}

; The first grain of share %s, if the %longer first shares have a grain more than %even.
define internal i64 @first_of(i64 %s, i64 %even, i64 %longer) {
  %is_longer = icmp ult i64 %s, %longer
  %longer_before = select i1 %is_longer, i64 %s, i64 %longer
  %product = mul i64 %s, %even
  %first = add i64 %product, %longer_before
  ret i64 %first
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

; Do grains of a job, until none is left to take, or until it is over: %word is %number then (or, if %wanted, it is
; another one). %mine is the share to begin with.
define internal void @work(ptr %p, i64 %mine, i64 %epoch, ptr %f, ptr %numbers, ptr %table, i64 %units, i64 %grain,
    i64 %shares, ptr %word, i64 %number, i1 %wanted) {
entry:
  %grains = call i64 @ratio_up(i64 %units, i64 %grain)
  %even = udiv i64 %grains, %shares
  %longer = urem i64 %grains, %shares
  br label %share
share:
  %s = phi i64 [%mine, %entry], [%after_s, %again]
  %first = call i64 @first_of(i64 %s, i64 %even, i64 %longer)
  %s1 = add i64 %s, 1
  %end_of_share = call i64 @first_of(i64 %s1, i64 %even, i64 %longer)
  %count = sub i64 %end_of_share, %first
  %t = call ptr @thread_of(ptr %p, i64 %s)
  %claim = field thread.claim %t
  br label %take
take:
  %did = phi i64 [0, %share], [%did1, %grain_of_share]
  %taken = call i64 @take(ptr %claim, i64 %epoch, i64 %count)
  %got = icmp slt i64 %taken, %count
  br i1 %got, label %grain_of_share, label %taken_all
grain_of_share:
  %position = add i64 %first, %taken
  %begin = mul i64 %position, %grain
  %after = add i64 %begin, %grain
  %beyond = icmp sgt i64 %after, %units
  %end = select i1 %beyond, i64 %units, i64 %after
  call void %f(ptr %numbers, ptr %table, i64 %begin, i64 %end)
  %did1 = add i64 %did, 1
  br label %take
taken_all:
  %some = icmp ne i64 %did, 0
  br i1 %some, label %finish, label %next
finish:
  call void @finish(ptr %p, i64 %did, i64 %s, i64 %even, i64 %longer, i64 %shares)
  br label %next
next:
  %last = icmp eq i64 %s1, %shares
  %after_s = select i1 %last, i64 0, i64 %s1
  %round = icmp eq i64 %after_s, %mine
  br i1 %round, label %out, label %again
again:
  %found = load atomic i64, ptr %word acquire, align 8
  %same = icmp eq i64 %found, %number
  %over = icmp ne i1 %same, %wanted
  br i1 %over, label %out, label %share
out:
  ret void
}

; Add to the finished grains of a share's group. The thread that finishes the last one of a group adds one to the
; finished groups; if all are, it wakes the caller.
define internal void @finish(ptr %p, i64 %did, i64 %s, i64 %even, i64 %longer, i64 %shares) {
entry:
  %group = udiv i64 %s, GROUP_SHARES
  %first = mul i64 %group, GROUP_SHARES
  %behind = add i64 %first, GROUP_SHARES
  %beyond = icmp sgt i64 %behind, %shares
  %end = select i1 %beyond, i64 %shares, i64 %behind
  %grains_before = call i64 @first_of(i64 %first, i64 %even, i64 %longer)
  %grains_then = call i64 @first_of(i64 %end, i64 %even, i64 %longer)
  %grains = sub i64 %grains_then, %grains_before
  %t = call ptr @thread_of(ptr %p, i64 %group)
  %gp = field thread.finished %t
  %before = atomicrmw add ptr %gp, i64 %did acq_rel
  %finished = add i64 %before, %did
  %all_of_group = icmp eq i64 %finished, %grains
  br i1 %all_of_group, label %count, label %out
count:
  store atomic i64 0, ptr %gp monotonic, align 8
  %groups = call i64 @ratio_up(i64 %shares, i64 GROUP_SHARES)
  %fp = field pool.finished %p
  %groups_before = atomicrmw add ptr %fp, i64 1 seq_cst
  %finished_groups = add i64 %groups_before, 1
  %all = icmp eq i64 %finished_groups, %groups
  br i1 %all, label %look, label %out
look:
  %wp = field pool.waiting %p
  %waiting = load atomic i64, ptr %wp seq_cst, align 8
  %asleep = icmp ne i64 %waiting, 0
  br i1 %asleep, label %signal, label %out
signal:
  %m = field pool.mutex %p
  %d = field pool.done %p
  call void @signal(ptr %m, ptr %d)
  br label %out
out:
  ret void
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
  %cp = field pool.processor %p
  br label %needed
needed:
  %seen_needed = phi i64 [0, %entry], [%seen, %asleep], [%epoch, %share]
  %most = phi i64 [SPIN_NANOSECONDS, %entry], [%most_after_sleep, %asleep], [%most, %share]
  %now = call i64 @now(ptr %p)
  br label %idle
idle:
  %seen = phi i64 [%seen_needed, %needed], [%epoch, %awake], [%epoch, %job]
  %since = phi i64 [%now, %needed], [%since, %awake], [%since, %job]
  %soon = call i1 @awaited(ptr %p, ptr %ep, i64 %seen, i1 false, i64 %since, i64 %most)
  br i1 %soon, label %awake, label %asleep
asleep:
  call void @sleep(ptr %p, ptr %t, i64 %seen)
  %after = call i64 @now(ptr %p)
  %idle_for = sub i64 %after, %since
  %short = icmp slt i64 %idle_for, LONG_SPIN_NANOSECONDS
  %most_after_sleep = select i1 %short, i64 LONG_SPIN_NANOSECONDS, i64 SPIN_NANOSECONDS
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
  %processor = load atomic i64, ptr %cp monotonic, align 8
  fence acquire
  %epoch_then = load atomic i64, ptr %ep monotonic, align 8
  %still = icmp eq i64 %epoch, %epoch_then
  %odd = trunc i64 %epoch to i1
  %even = xor i1 %odd, true
  %whole = and i1 %still, %even
  br i1 %whole, label %job, label %idle
job:
  %for_this = icmp slt i64 %index, %shares
  br i1 %for_this, label %share, label %idle
share:
  call void @wake_next(ptr %p, i64 %index, i64 %shares)
  call void @leave(ptr %p, ptr %t, i64 %processor)
  call void @work(ptr %p, i64 %index, i64 %epoch, ptr %f, ptr %numbers, ptr %table, i64 %units, i64 %grain,
      i64 %shares, ptr %ep, i64 %epoch, i1 true)
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

; Do the units of a step, in grains of about %wanted, on no more than %threads threads.
define internal void @share(ptr %p, ptr %f, ptr %numbers, ptr %table, i64 %units, i64 %wanted, i64 %threads) {
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
  %most = select i1 %enough, i64 %wanted, i64 %least
  %fewest = call i64 @ratio_up(i64 %units, i64 %most)
  %few = icmp slt i64 %fewest, %threads
  %shares = select i1 %few, i64 %fewest, i64 %threads
  ; If all shares have as many grains as the largest one, grains are smaller.
  %of_share = call i64 @ratio_up(i64 %fewest, i64 %shares)
  %of_shares = mul i64 %of_share, %shares
  %grain = call i64 @ratio_up(i64 %units, i64 %of_shares)
  %processor = call i64 @processor()
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
  %cp = field pool.processor %p
  store atomic i64 %processor, ptr %cp monotonic, align 8
  store atomic i64 %epoch, ptr %ep seq_cst, align 8
  call void @wake_next(ptr %p, i64 0, i64 %shares)
  %groups = call i64 @ratio_up(i64 %shares, i64 GROUP_SHARES)
  call void @work(ptr %p, i64 0, i64 %epoch, ptr %f, ptr %numbers, ptr %table, i64 %units, i64 %grain, i64 %shares,
      ptr %dp, i64 %groups, i1 false)
  %finished = load atomic i64, ptr %dp acquire, align 8
  %all = icmp eq i64 %finished, %groups
  br i1 %all, label %out, label %wait
wait:
  call void @join(ptr %p, i64 %groups)
  br label %out
out:
  store atomic i64 0, ptr %bp release, align 8
  ret void
}
"""

FUNCTIONS = _FUNCTIONS + waiting.FUNCTIONS + placing.FUNCTIONS + trials.FUNCTIONS
