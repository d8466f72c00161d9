"""Runs on several threads: the pool, callers at the same time, forked children."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from native_text import PARALLEL, PARALLEL_GRAPH, add_program, native, parallel_program

from codegen.llvm.jit import Code
from codegen.runtime.processors import PROCESSORS, available_processors
from codegen.runtime.program import NativeProgram, threads_for
from codegen.runtime.threads import Pool, shared_pool

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _many_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs have as many threads as they ask for."""
    monkeypatch.setenv(PROCESSORS, "5")


def the_pool() -> Pool:
    return shared_pool(Code.from_text)


def check(program: NativeProgram, size: int) -> None:
    x = np.random.default_rng(size).integers(0, 1000, size)
    np.testing.assert_array_equal(program.run([x])[0], x + x[::-1])


@pytest.mark.parametrize("threads", [0, 1, 2, 3, 5])
def test_any_number_of_threads(threads: int) -> None:
    program = parallel_program(threads=threads, pool=the_pool)
    for size in (0, 1, 2, 3, 7, 1000, 100_000):
        check(program, size)
    for _ in range(200):
        check(program, 10)


def test_workers_start_when_they_are_needed() -> None:
    pool = Pool(Code.from_text)
    try:
        program = parallel_program(threads=1, pool=lambda: pool)
        check(program, 10)
        assert pool.workers == 0
        program.threads = 2
        check(program, 10)
        check(program, 10)
        assert pool.workers == 1
        program.threads = 4
        check(program, 10)
        assert pool.workers == 3
        check(parallel_program(threads=0, pool=lambda: pool), 10)
        assert pool.workers == available_processors() - 1 == 4
    finally:
        pool.close()
    assert pool.workers == 0
    check(program, 10)  # on the caller's thread
    assert pool.workers == 0


def test_workers_that_have_gone_to_sleep() -> None:
    program = parallel_program(threads=2, pool=the_pool)
    for _ in range(5):
        check(program, 100)
        time.sleep(0.01)
    names = [t for t in threading.enumerate() if t.name.startswith("graph-opt-")]
    assert names and all(t.daemon for t in names)
    before = time.process_time()
    time.sleep(0.1)
    assert time.process_time() - before < 0.05


@pytest.mark.parametrize("threads", [1, 2])
def test_callers_at_the_same_time(threads: int) -> None:
    """Several Python threads, two programs, one pool; nobody waits for ever, and nobody sees another's workspace."""
    programs = [parallel_program(threads=threads, pool=the_pool) for _ in range(2)]
    wrong: list[BaseException] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            start.wait(10)
            for i in range(150):
                check(programs[(seed + i) % 2], 1 + (seed * 37 + i * 91) % 3000)
        except BaseException as error:
            wrong.append(error)

    callers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not any(c.is_alive() for c in callers)
    assert not wrong


def test_a_forked_child_has_threads_of_its_own() -> None:
    program = parallel_program(threads=2, pool=the_pool)
    check(program, 50)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for size in (1, 50, 3000):
                check(program, size)
            status = 0 if the_pool().workers == 1 else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0
    check(program, 50)


def test_a_fork_while_others_run() -> None:
    program = parallel_program(threads=2, pool=the_pool)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            check(program, 2000)

    runner = threading.Thread(target=work)
    runner.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    check(program, 500)
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        runner.join(30)
    assert not runner.is_alive()


SCRIPT = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests" / "runtime")!r}]
import numpy as np
from codegen.llvm.jit import Code
from native_text import parallel_program
from codegen.runtime.threads import shared_pool
program = parallel_program(threads=2, pool=lambda: shared_pool(Code.from_text))
assert (program.run([np.arange(100)])[0] == 99).all()
"""


@pytest.mark.parametrize("end", ["", "del program", "raise SystemExit(0)", "import time; time.sleep(0.2)", "import os; os._exit(0)"])
def test_a_process_ends_with_workers_alive(end: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT + end], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_thread_needs_no_pool() -> None:
    x = np.ones((2, 3), np.float32)
    assert add_program().run([x, x])[0].tolist() == [[2.0] * 3] * 2


def test_a_worker_makes_room_for_the_caller() -> None:
    """A worker is bound to a processor; when the caller comes there, it goes where the caller was."""
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(processors) < 2:
        pytest.skip("needs two processors")
    pool = Pool(Code.from_text)
    program = parallel_program(threads=2, pool=lambda: pool)
    try:
        os.sched_setaffinity(0, {processors[0]})
        pool._processors = processors
        check(program, 10)
        (thread,) = [t for t in threading.enumerate() if t in pool._workers]
        assert thread.native_id is not None
        for here in (processors[1], processors[0], processors[1]):
            os.sched_setaffinity(0, {here})
            check(program, 10)
            assert here not in os.sched_getaffinity(thread.native_id)
            assert os.sched_getaffinity(thread.native_id) <= set(processors)
    finally:
        os.sched_setaffinity(0, set(processors))
        pool.close()


def test_workers_stay_within_the_mask() -> None:
    script = SCRIPT.replace("import numpy", "import os\nmask = set(sorted(os.sched_getaffinity(0))[:1])\nos.sched_setaffinity(0, mask)\nimport numpy")
    end = """
import threading
names = [t for t in threading.enumerate() if t.name.startswith("graph-opt-")]
assert all(os.sched_getaffinity(t.native_id) <= mask for t in names)
print(program.threads, len(names))
"""
    for word, wanted in (("", "1 0"), ("2", "2 1")):
        environment = {k: v for k, v in os.environ.items() if k != PROCESSORS} | ({PROCESSORS: word} if word else {})
        done = subprocess.run([sys.executable, "-c", script + end], capture_output=True, text=True, timeout=60, check=False, env=environment)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, wanted, "")


@pytest.mark.parametrize(("work", "threads"), [(0, 1), (36863, 1), (36864, 3), (50_000, 4), (1e9, 5), (float("inf"), 5)])
def test_little_work_has_few_threads(work: float, threads: int) -> None:
    assert threads_for(work, 5) == threads and threads_for(work, 1) == 1


def test_small_programs_do_not_wake_the_pool() -> None:
    pool = Pool(Code.from_text)
    try:
        code = PARALLEL + "define double @f_work(ptr %dims) {\n  %n = load i64, ptr %dims\n  %work = sitofp i64 %n to double\n  ret double %work\n}\n"
        program = native(PARALLEL_GRAPH, code, ["N"], threads=2, pool=lambda: pool)
        check(program, 36863)
        assert pool.workers == 0
        check(program, 36864)
        assert pool.workers == 1
    finally:
        pool.close()


def test_runs_that_are_far_apart() -> None:
    """Small ones don't wake workers, large ones do, and those that follow each other closely find them awake."""
    for work in ("40000.0", "1.0e9"):
        code = PARALLEL + f"define double @f_work(ptr %dims) {{\n  ret double {work}\n}}\n"
        program = native(PARALLEL_GRAPH, code, ["N"], threads=2, pool=the_pool)
        for pause in (0.0, 0.002, 0.0, 0.0001):
            for _ in range(20):
                check(program, 100)
                time.sleep(pause)
