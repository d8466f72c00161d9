"""The code of a pool of threads: workers that wait for jobs, and the caller who shares one out.

The memory of a pool, in bytes: at 0 the job (function, args, dims, workspace, state, threads), then what the offsets below
name, and from :data:`BOXES` on a box for each worker: the number of its job (-1: leave), whether it sleeps, its processor
(-1: any), its number in the system (i32 each).
"""

from __future__ import annotations

import ctypes
import platform
import sys

BUSY, WORKERS, SPARE, DONE, LAST, SPINS, FEW_SPINS, SPIN_TIME, HOT, WANTED = 48, 52, 56, 128, 72, 80, 84, 88, 96, 100
"""Whether a run uses the workers, how many there are, a processor that none of them has (-1: not known), how many are done with
the job (i32 each); when the last run ended (i64, nanoseconds); how often a worker looks for a job before it sleeps, when runs follow
each other closely and when they don't (i32 each), how long the former takes (i64, nanoseconds); whether they do, and
whether a run goes on without the workers that are not up yet, though others may follow (i32 each)."""

BOXES, BOX_BYTES = 192, 64
BOX_SLEEPS, BOX_PROCESSOR, BOX_THREAD = 4, 8, 12

LARGE_WORK = 1 << 19
"""Simple operations (about 80 microseconds) from which on it pays to wake workers that sleep."""

_TEXT = """
declare void @llvm.x86.sse2.pause()

define internal void @pause() alwaysinline {
  PAUSE
  ret void
}

define internal ptr @box(ptr %pool, i64 %worker) alwaysinline {
  %offset = mul i64 %worker, 64
  %place = add i64 %offset, 128
  %box = getelementptr i8, ptr %pool, i64 %place
  ret ptr %box
}

define internal i64 @now() {
  %time = alloca i64, i64 2, align 16
  %status = call i32 inttoptr (i64 CLOCK_GETTIME to ptr)(i32 MONOTONIC, ptr %time)
  %seconds = load i64, ptr %time
  %second = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %second
  %product = mul i64 %seconds, 1000000000
  %sum = add i64 %product, %rest
  ret i64 %sum
}

define void @graph_opt_pool_wake(ptr %box) {
  WAKE
  ret void
}

define i64 @graph_opt_pool_pauses(i64 %count) {
; How many nanoseconds so many looks for a job take.
entry:
  %place = alloca i32, align 4
  store i32 0, ptr %place
  %start = call i64 @now()
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %more, %next ]
  %value = load atomic i32, ptr %place acquire, align 4
  call void @pause()
  %more = add i64 %i, 1
  %on = icmp slt i64 %more, %count
  br i1 %on, label %next, label %end
end:
  %stop = call i64 @now()
  %time = sub i64 %stop, %start
  ret i64 %time
}

define void @graph_opt_pool_work(ptr %pool, i64 %me) {
entry:
  %box = call ptr @box(ptr %pool, i64 %me)
  %sleeps = getelementptr i8, ptr %box, i64 4
  %done = getelementptr i8, ptr %pool, i64 128
  %many_place = getelementptr i8, ptr %pool, i64 80
  %few_place = getelementptr i8, ptr %pool, i64 84
  %hot_place = getelementptr i8, ptr %pool, i64 96
  %wanted_place = getelementptr i8, ptr %pool, i64 100
  br label %wait

wait:
  ; Where waiting was in vain the last time it would only keep others, such as the threads of other libraries, from this processor.
  %seen = phi i32 [ 0, %entry ], [ %number, %work ]
  %hope = phi i1 [ true, %entry ], [ %hopeful, %work ]
  %many = load atomic i32, ptr %many_place monotonic, align 4
  %few = load atomic i32, ptr %few_place monotonic, align 4
  %patience = select i1 %hope, i32 %many, i32 %few
  br label %spin

spin:
  %round = phi i32 [ 0, %wait ], [ %next, %again ], [ 0, %stay ], [ 0, %awake ]
  %spins = phi i32 [ %patience, %wait ], [ %spins, %again ], [ %spins, %stay ], [ %many, %awake ]
  %hopeful = phi i1 [ true, %wait ], [ %hopeful, %again ], [ %hopeful, %stay ], [ %is_hot, %awake ]
  %number = load atomic i32, ptr %box acquire, align 4
  %new = icmp ne i32 %number, %seen
  br i1 %new, label %go, label %still

still:
  %next = add i32 %round, 1
  %tired = icmp sgt i32 %next, %spins
  br i1 %tired, label %ask, label %again

ask:
  %wanted = load atomic i32, ptr %wanted_place monotonic, align 4
  %unwanted = icmp eq i32 %wanted, 0
  br i1 %unwanted, label %sleep, label %stay

stay:
  call void @pause()
  br label %spin

again:
  call void @pause()
  br label %spin

sleep:
  store atomic i32 1, ptr %sleeps seq_cst, align 4
  %last = load atomic i32, ptr %box seq_cst, align 4
  %late = icmp ne i32 %last, %seen
  br i1 %late, label %awake, label %down

down:
  WAIT
  br label %awake

awake:
  store atomic i32 0, ptr %sleeps seq_cst, align 4
  %hot = load atomic i32, ptr %hot_place monotonic, align 4
  %is_hot = icmp ne i32 %hot, 0
  br label %spin

go:
  %leave = icmp eq i32 %number, -1
  br i1 %leave, label %end, label %work

work:
  %function = load ptr, ptr %pool, align 8
  %p1 = getelementptr i8, ptr %pool, i64 8
  %args = load ptr, ptr %p1, align 8
  %p2 = getelementptr i8, ptr %pool, i64 16
  %dims = load ptr, ptr %p2, align 8
  %p3 = getelementptr i8, ptr %pool, i64 24
  %workspace = load ptr, ptr %p3, align 8
  %p4 = getelementptr i8, ptr %pool, i64 32
  %state = load ptr, ptr %p4, align 8
  %p5 = getelementptr i8, ptr %pool, i64 40
  %threads = load i64, ptr %p5, align 8
  %status = call i32 %function(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %me, i64 %threads)
  %before = atomicrmw add ptr %done, i32 1 release
  br label %wait

end:
  ret void
}

define i32 @graph_opt_pool_take(ptr %pool) {
  %busy = getelementptr i8, ptr %pool, i64 48
  %pair = cmpxchg ptr %busy, i32 0, i32 1 acq_rel monotonic
  %got = extractvalue { i32, i1 } %pair, 1
  %taken = zext i1 %got to i32
  ret i32 %taken
}

define i32 @graph_opt_pool_leave(ptr %pool) {
  %busy = getelementptr i8, ptr %pool, i64 48
  store atomic i32 0, ptr %busy release, align 4
  ret i32 0
}

define internal void @move(ptr %pool, ptr %box) noinline {
; The caller runs on the processor that a worker is bound to: neither would get on.  The worker goes to the one that no worker has.
entry:
  %spare_place = getelementptr i8, ptr %pool, i64 56
  %spare = load i32, ptr %spare_place
  %some = icmp ult i32 %spare, 1024
  br i1 %some, label %try, label %end
try:
  %mask = alloca [128 x i8], align 8
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 128, i1 false)
  %word = lshr i32 %spare, 3
  %byte = getelementptr i8, ptr %mask, i32 %word
  %low = and i32 %spare, 7
  %bits = shl i32 1, %low
  %bit = trunc i32 %bits to i8
  store i8 %bit, ptr %byte
  %thread_place = getelementptr i8, ptr %box, i64 12
  %thread = load i32, ptr %thread_place
  %status = call i32 inttoptr (i64 SETAFFINITY to ptr)(i32 %thread, i64 128, ptr %mask)
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %moved, label %refused
moved:
  %own_place = getelementptr i8, ptr %box, i64 8
  %own = load i32, ptr %own_place
  store i32 %own, ptr %spare_place
  store i32 %spare, ptr %own_place
  br label %end
refused:
  store i32 -1, ptr %spare_place
  br label %end
end:
  ret void
}

define internal i32 @look(ptr %pool, i64 %threads) {
; Makes sure that no worker is bound to the caller's processor; returns how many sleep.
entry:
  %here = GETCPU
  br label %one
one:
  %who = phi i64 [ 1, %entry ], [ %following, %seen ]
  %before = phi i32 [ 0, %entry ], [ %count, %seen ]
  %box = call ptr @box(ptr %pool, i64 %who)
  %sleeps = getelementptr i8, ptr %box, i64 4
  %asleep = load atomic i32, ptr %sleeps seq_cst, align 4
  %count = add i32 %before, %asleep
  %own_place = getelementptr i8, ptr %box, i64 8
  %own = load i32, ptr %own_place
  %same = icmp eq i32 %own, %here
  br i1 %same, label %collide, label %seen
collide:
  call void @move(ptr %pool, ptr %box)
  br label %seen
seen:
  %following = add i64 %who, 1
  %further = icmp slt i64 %following, %threads
  br i1 %further, label %one, label %end
end:
  ret i32 %count
}

define internal i32 @sleeping(ptr %pool, i64 %threads) {
; How many workers sleep.
entry:
  br label %one
one:
  %who = phi i64 [ 1, %entry ], [ %following, %one ]
  %before = phi i32 [ 0, %entry ], [ %count, %one ]
  %box = call ptr @box(ptr %pool, i64 %who)
  %sleeps = getelementptr i8, ptr %box, i64 4
  %asleep = load atomic i32, ptr %sleeps acquire, align 4
  %count = add i32 %before, %asleep
  %following = add i64 %who, 1
  %further = icmp slt i64 %following, %threads
  br i1 %further, label %one, label %end
end:
  ret i32 %count
}

define internal void @rouse(ptr %pool, i64 %threads) noinline {
; Workers that sleep look for jobs again.
entry:
  br label %one
one:
  %who = phi i64 [ 1, %entry ], [ %following, %next ]
  %box = call ptr @box(ptr %pool, i64 %who)
  %sleeps = getelementptr i8, ptr %box, i64 4
  %asleep = load atomic i32, ptr %sleeps seq_cst, align 4
  %wake = icmp ne i32 %asleep, 0
  br i1 %wake, label %up, label %next
up:
  call void @graph_opt_pool_wake(ptr %box)
  br label %next
next:
  %following = add i64 %who, 1
  %further = icmp slt i64 %following, %threads
  br i1 %further, label %one, label %end
end:
  ret void
}

define internal void @answer(ptr %state) noinline {
; The caller, who waits for others, sees to signals; see codegen.runtime.calls.
entry:
  %place = getelementptr i8, ptr %state, i64 200
  %stop = load ptr, ptr %place, align 8
  %nobody = icmp eq ptr %stop, null
  br i1 %nobody, label %end, label %look
look:
  %flag = load atomic i8, ptr %stop monotonic, align 1
  %raised = icmp ne i8 %flag, 0
  br i1 %raised, label %ask, label %end
ask:
  %known = load atomic i32, ptr %state acquire, align 4
  %over = icmp ne i32 %known, 0
  br i1 %over, label %end, label %call
call:
  %check_place = getelementptr i8, ptr %state, i64 208
  %check = load ptr, ptr %check_place, align 8
  %answer = call i32 %check(ptr %state, i64 0)
  br label %end
end:
  ret void
}

define i32 @graph_opt_pool_run(ptr %pool, ptr %function, ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %threads, double %work) {
entry:
  %last_place = getelementptr i8, ptr %pool, i64 72
  %patience = getelementptr i8, ptr %pool, i64 80
  %spins = load i32, ptr %patience
  %small = fcmp olt double %work, LARGE
  %sleeping = call i32 @look(ptr %pool, i64 %threads)
  %some_sleep = icmp ne i32 %sleeping, 0
  br i1 %some_sleep, label %asleep_yet, label %post

asleep_yet:
  %last = load i64, ptr %last_place, align 8
  %begun = call i64 @now()
  %gap = sub i64 %begun, %last
  %spin_place = getelementptr i8, ptr %pool, i64 88
  %spin_time = load i64, ptr %spin_place, align 8
  %soon = icmp slt i64 %gap, %spin_time
  %hot = zext i1 %soon to i32
  %hot_place = getelementptr i8, ptr %pool, i64 96
  store atomic i32 %hot, ptr %hot_place monotonic, align 4
  br i1 %small, label %hurry, label %rise

rise:
  ; Others may run where a worker should: the caller waits for it half as long as the run may take, then goes on alone.
  call void @rouse(ptr %pool, i64 %threads)
  %doubled = fmul double LARGE, 2.0
  %times = fdiv double %work, %doubled
  %few = fcmp olt double %times, 64.0
  %wait_times = select i1 %few, double %times, double 64.0
  %per_time = sitofp i32 %spins to double
  %wait_spins = fmul double %wait_times, %per_time
  %limit = fptosi double %wait_spins to i32
  br label %look_again
look_again:
  %looks = phi i32 [ 0, %rise ], [ %looked, %wait_on ]
  %still = call i32 @sleeping(ptr %pool, i64 %threads)
  %up_now = icmp eq i32 %still, 0
  br i1 %up_now, label %post, label %wait_on
wait_on:
  call void @pause()
  %looked = add i32 %looks, 1
  %out_of_time = icmp sgt i32 %looks, %limit
  br i1 %out_of_time, label %busy, label %look_again
busy:
  br label %alone

hurry:
  ; Waking takes longer than what it would save.  But when such runs follow each other closely the workers should be awake.
  br i1 %soon, label %awaken, label %alone
awaken:
  call void @rouse(ptr %pool, i64 %threads)
  br label %alone

alone:
  ; Who comes too late for this run is in time for the next one.
  %wanted_place = getelementptr i8, ptr %pool, i64 100
  store atomic i32 %hot, ptr %wanted_place monotonic, align 4
  %status1 = call i32 %function(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 0, i64 1)
  store atomic i32 0, ptr %wanted_place monotonic, align 4
  %ended1 = call i64 @now()
  store i64 %ended1, ptr %last_place, align 8
  ret i32 %status1

post:
  store ptr %function, ptr %pool, align 8
  %p1 = getelementptr i8, ptr %pool, i64 8
  store ptr %args, ptr %p1, align 8
  %p2 = getelementptr i8, ptr %pool, i64 16
  store ptr %dims, ptr %p2, align 8
  %p3 = getelementptr i8, ptr %pool, i64 24
  store ptr %workspace, ptr %p3, align 8
  %p4 = getelementptr i8, ptr %pool, i64 32
  store ptr %state, ptr %p4, align 8
  %p5 = getelementptr i8, ptr %pool, i64 40
  store i64 %threads, ptr %p5, align 8
  %done = getelementptr i8, ptr %pool, i64 128
  store atomic i32 0, ptr %done seq_cst, align 4
  br label %call

call:
  %who = phi i64 [ 1, %post ], [ %following, %called ]
  %box = call ptr @box(ptr %pool, i64 %who)
  %sleeps = getelementptr i8, ptr %box, i64 4
  %number = load atomic i32, ptr %box monotonic, align 4
  %more = add i32 %number, 1
  %next = and i32 %more, 2147483647
  %old = atomicrmw xchg ptr %box, i32 %next seq_cst
  %asleep = load atomic i32, ptr %sleeps seq_cst, align 4
  %wake = icmp ne i32 %asleep, 0
  br i1 %wake, label %up, label %called

up:
  call void @graph_opt_pool_wake(ptr %box)
  br label %called

called:
  %following = add i64 %who, 1
  %further = icmp slt i64 %following, %threads
  br i1 %further, label %call, label %own

own:
  %status = call i32 %function(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 0, i64 %threads)
  %others = sub i64 %threads, 1
  %wanted = trunc i64 %others to i32
  br label %join

join:
  %round = phi i32 [ 0, %own ], [ %count, %waiting ], [ %count, %yield ]
  %finished = load atomic i32, ptr %done acquire, align 4
  %all = icmp eq i32 %finished, %wanted
  br i1 %all, label %end, label %not_yet

not_yet:
  %count = add i32 %round, 1
  %long = icmp ugt i32 %count, %spins
  br i1 %long, label %yield, label %waiting

waiting:
  call void @pause()
  br label %join

yield:
  %ignored = call i32 inttoptr (i64 YIELD to ptr)()
  call void @answer(ptr %state)
  br label %join

end:
  %ended = call i64 @now()
  store i64 %ended, ptr %last_place, align 8
  ret i32 %status
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


def pool_text() -> str:
    """The code for this process."""
    libc = ctypes.CDLL(None)

    def address(name: str) -> int:
        return ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0

    machine, linux = platform.machine(), sys.platform == "linux"
    text = _TEXT.replace("LARGE", f"{LARGE_WORK}.0").replace("YIELD", str(address("sched_yield")))
    text = text.replace("CLOCK_GETTIME", str(address("clock_gettime"))).replace("MONOTONIC", "1" if linux else "6")
    if machine in ("x86_64", "AMD64"):
        text = text.replace("PAUSE", "call void @llvm.x86.sse2.pause()")
    else:
        text = text.replace("declare void @llvm.x86.sse2.pause()", "").replace("PAUSE", 'call void asm sideeffect "yield", ""()')
    futex = {"x86_64": 202, "aarch64": 98}.get(machine) if linux else None
    if futex is not None:
        call = f"call i64 (i64, ...) inttoptr (i64 {address('syscall')} to ptr)(i64 {futex}, ptr %box, "
        text = text.replace("WAIT", f"%w = {call}i64 128, i32 %seen, ptr null)").replace("WAKE", f"%w = {call}i64 129, i64 1)")
    else:
        text = text.replace("WAIT", f"%w = call i32 inttoptr (i64 {address('usleep')} to ptr)(i32 100)").replace("WAKE", "")
    if linux:
        text = text.replace("SETAFFINITY", str(address("sched_setaffinity")))
        return text.replace("GETCPU", f"call i32 inttoptr (i64 {address('sched_getcpu')} to ptr)()")
    text = text.replace("call i32 inttoptr (i64 SETAFFINITY to ptr)(i32 %thread, i64 128, ptr %mask)", "add i32 0, 1")
    return text.replace("GETCPU", "add i32 0, -2")
