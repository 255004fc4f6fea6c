"""How many threads of the pool a plan uses, in LLVM IR: it is found by trial where threads wait for each other.

All threads are the fastest choice only while each has a processor of its own. On virtual machines the host may give
processors to others for some milliseconds, or two of them may be one; short steps take longer to share than to do. So a
plan that runs often notes how long its runs take, in its `runtime.steps.TRIAL_FIELDS`. Numbers of threads are *rungs*:
all, 3/4, 1/2, 3/8 and 1/4 of them. These are the turns of a plan's runs, by ``turn``:

- below 0 it *rests*: it uses the rung it has, and nothing is measured;
- in ``WATCHED`` runs from 0 on it notes how long they take, and how long the caller only waits for other threads. If
  that is less than an eighth, and all threads are used, the plan rests again;
- else it *tries* four rungs in turns, ``ROUNDS`` times: its own, the next one with more threads, the next one with
  fewer, and that with half as many, because a single rung may make too little difference to be seen. Each has two runs,
  and the second one is measured: in the first one data move to the caches of other threads. Fewer threads are worth it
  if they take less than 19/20 of the time in all but one of the rounds, more if they take no longer in most rounds.
  (Totals would depend on a single run that was interrupted.) After a change it tries again, else it rests.

Runs of a plan on several threads at once may disturb these notes, which changes no result.

The functions are in one module with those of `pool`, and use its structures.
"""

from __future__ import annotations

FEWEST_TRIED = 8
"""The threads of a pool for which there are trials. With fewer, each is too large a part of the work."""
RESTED = 480
WATCHED = 16
ROUNDS = 5
CANDIDATES = 4
TURNS_OF_RUNG = 2
TURNS_OF_ROUND = CANDIDATES * TURNS_OF_RUNG
LAST_RUNG = 4

CONSTANTS = {
    "FEWEST_TRIED": FEWEST_TRIED,
    "RESTED": RESTED,
    "WATCHED": WATCHED,
    "TURNS_OF_RUNG": TURNS_OF_RUNG,
    "TURNS_OF_ROUND": TURNS_OF_ROUND,
    "TRIED_UNTIL": WATCHED + TURNS_OF_ROUND * ROUNDS,
    "ALL_BUT_ONE": ROUNDS - 1,
    "MOST_ROUNDS": ROUNDS // 2 + 1,
    "LAST_RUNG": LAST_RUNG,
    "OTHER_CANDIDATES": CANDIDATES - 1,
}

FUNCTIONS = """
; The rung of a run: that of the plan, or one beside it.
define internal i64 @rung_of_run(ptr %trial) {
  %rp = field trial.rung %trial
  %rung = load atomic i64, ptr %rp monotonic, align 8
  %tp = field trial.turn %trial
  %turn = load atomic i64, ptr %tp monotonic, align 8
  %candidate = call i64 @candidate_of(i64 %turn)
  %by = call i64 @offset_of(i64 %candidate)
  %beside = add i64 %rung, %by
  %found = call i64 @a_rung(i64 %beside)
  ret i64 %found
}

; What a run tries: 0 is the plan's own rung, 1 the next one with more threads, 2 the next one with fewer, 3 the half.
define internal i64 @candidate_of(i64 %turn) {
  %tries = icmp sge i64 %turn, WATCHED
  %of_trial = sub i64 %turn, WATCHED
  %of_round = urem i64 %of_trial, TURNS_OF_ROUND
  %number = udiv i64 %of_round, TURNS_OF_RUNG
  %found = select i1 %tries, i64 %number, i64 0
  ret i64 %found
}

; How many rungs lie between the plan's own and that of a candidate.
define internal i64 @offset_of(i64 %candidate) {
  %is_more = icmp eq i64 %candidate, 1
  %below = sub i64 %candidate, 1
  %fewer = call i64 @llvm.smax.i64(i64 %below, i64 0)
  %found = select i1 %is_more, i64 -1, i64 %fewer
  ret i64 %found
}

define internal i64 @a_rung(i64 %number) {
  %not_above = call i64 @llvm.smin.i64(i64 %number, i64 LAST_RUNG)
  %found = call i64 @llvm.smax.i64(i64 %not_above, i64 0)
  ret i64 %found
}

; The threads that a run of a plan uses, of those that the pool has.
define i64 @weft_threads_of_run(ptr %trial, i64 %threads) {
  %rung = call i64 @rung_of_run(ptr %trial)
  %halvings = lshr i64 %rung, 1
  %halved = lshr i64 %threads, %halvings
  %odd = trunc i64 %rung to i1
  %thrice = mul i64 %halved, 3
  %reduced = lshr i64 %thrice, 2
  %found = select i1 %odd, i64 %reduced, i64 %halved
  ret i64 %found
}

; Note that a run took %spent nanoseconds, in which its caller only waited for %waited.
define void @weft_note_run(ptr %trial, i64 %spent, i64 %waited) {
entry:
  %tp = field trial.turn %trial
  %turn = load atomic i64, ptr %tp monotonic, align 8
  %next = add i64 %turn, 1
  store atomic i64 %next, ptr %tp monotonic, align 8
  %rests = icmp slt i64 %turn, 0
  br i1 %rests, label %out, label %measured
measured:
  %watches = icmp slt i64 %turn, WATCHED
  br i1 %watches, label %watch, label %try
watch:
  %sp = field trial.spent %trial
  call void @add_to(ptr %sp, i64 %spent)
  %wp = field trial.waited %trial
  call void @add_to(ptr %wp, i64 %waited)
  %watched_all = icmp eq i64 %next, WATCHED
  br i1 %watched_all, label %judge, label %out
judge:
  call void @judge_waiting(ptr %trial)
  ret void
try:
  call void @compare(ptr %trial, i64 %turn, i64 %spent)
  %tried_all = icmp sge i64 %next, TRIED_UNTIL
  br i1 %tried_all, label %choose, label %out
choose:
  call void @choose_rung(ptr %trial)
  ret void
out:
  ret void
}

define internal void @add_to(ptr %total, i64 %number) {
  %before = load atomic i64, ptr %total monotonic, align 8
  %after = add i64 %before, %number
  store atomic i64 %after, ptr %total monotonic, align 8
  ret void
}

; Rest if runs with all threads waited little; else go on with trials.
define internal void @judge_waiting(ptr %trial) {
entry:
  %sp = field trial.spent %trial
  %spent = load atomic i64, ptr %sp monotonic, align 8
  %wp = field trial.waited %trial
  %waited = load atomic i64, ptr %wp monotonic, align 8
  %eightfold = shl i64 %waited, 3
  %little = icmp slt i64 %eightfold, %spent
  %rp = field trial.rung %trial
  %rung = load atomic i64, ptr %rp monotonic, align 8
  %uses_all = icmp eq i64 %rung, 0
  %calm = and i1 %little, %uses_all
  call void @forget(ptr %trial)
  br i1 %calm, label %rest, label %out
rest:
  %tp = field trial.turn %trial
  store atomic i64 -RESTED, ptr %tp monotonic, align 8
  br label %out
out:
  ret void
}

; Keep the time of the plan's own rung, and count which of the others were faster. The last run of a rung is measured.
define internal void @compare(ptr %trial, i64 %turn, i64 %spent) {
entry:
  %of_trial = sub i64 %turn, WATCHED
  %of_rung = urem i64 %of_trial, TURNS_OF_RUNG
  %left = sub i64 TURNS_OF_RUNG, %of_rung
  %measured = icmp eq i64 %left, 1
  br i1 %measured, label %keep, label %out
keep:
  %candidate = call i64 @candidate_of(i64 %turn)
  %own = icmp eq i64 %candidate, 0
  %op = field trial.with_own %trial
  br i1 %own, label %set, label %count
set:
  store atomic i64 %spent, ptr %op monotonic, align 8
  ret void
count:
  %with_own = load atomic i64, ptr %op monotonic, align 8
  %no_longer = icmp sle i64 %spent, %with_own
  %spent_20 = mul i64 %spent, 20
  %own_19 = mul i64 %with_own, 19
  %shorter = icmp slt i64 %spent_20, %own_19
  %is_more = icmp eq i64 %candidate, 1
  %won = select i1 %is_more, i1 %no_longer, i1 %shorter
  %count_of_it = call ptr @count_of(ptr %trial, i64 %candidate)
  %one = zext i1 %won to i64
  call void @add_to(ptr %count_of_it, i64 %one)
  br label %out
out:
  ret void
}

; Where it is counted in how many rounds a candidate other than the plan's own rung was faster.
define internal ptr @count_of(ptr %trial, i64 %candidate) {
  %first = field trial.won_by_more %trial
  %behind = sub i64 %candidate, 1
  %place = getelementptr i64, ptr %first, i64 %behind
  ret ptr %place
}

; Whether a candidate was faster in so many rounds.
define internal i1 @won_in(ptr %trial, i64 %candidate, i64 %rounds) {
  %place = call ptr @count_of(ptr %trial, i64 %candidate)
  %won = load atomic i64, ptr %place monotonic, align 8
  %enough = icmp sge i64 %won, %rounds
  ret i1 %enough
}

define internal void @choose_rung(ptr %trial) {
entry:
  %more = call i1 @won_in(ptr %trial, i64 1, i64 MOST_ROUNDS)
  %less = call i1 @won_in(ptr %trial, i64 2, i64 ALL_BUT_ONE)
  %half = call i1 @won_in(ptr %trial, i64 3, i64 ALL_BUT_ONE)
  %or_more = select i1 %more, i64 1, i64 0
  %or_less = select i1 %less, i64 2, i64 %or_more
  %candidate = select i1 %half, i64 3, i64 %or_less
  %by = call i64 @offset_of(i64 %candidate)
  %rp = field trial.rung %trial
  %rung = load atomic i64, ptr %rp monotonic, align 8
  %moved = add i64 %rung, %by
  %chosen = call i64 @a_rung(i64 %moved)
  store atomic i64 %chosen, ptr %rp monotonic, align 8
  call void @forget(ptr %trial)
  %stays = icmp eq i64 %chosen, %rung
  %then = select i1 %stays, i64 -RESTED, i64 WATCHED
  %tp = field trial.turn %trial
  store atomic i64 %then, ptr %tp monotonic, align 8
  ret void
}

define internal void @forget(ptr %trial) {
  %sp = field trial.spent %trial
  store atomic i64 0, ptr %sp monotonic, align 8
  %wp = field trial.waited %trial
  store atomic i64 0, ptr %wp monotonic, align 8
  %won = field trial.won_by_more %trial
  store [OTHER_CANDIDATES x i64] zeroinitializer, ptr %won
  ret void
}
"""
