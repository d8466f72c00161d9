"""Signals during long runs: Ctrl-C ends them at once, other handlers run while they go on, and programs stay usable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals are answered behind runs there")

START = f"""
import os, signal, sys, threading, time
sys.path[:0] = [{str(ROOT)!r}]
os.environ["GRAPH_OPT_PROCESSORS"] = "2"
import numpy as np
import graph_opt
TEXT = "graph @main(%x: f32[N, K], %y: f32[K, N]) -> f32[N] {{\\n  %z = matmul(%x, %y)\\n  %s = max(%z, axes=[1])\\n  return %s\\n}}\\n"
def long_run(threads):
    call = graph_opt.compile(graph_opt.parse(TEXT), threads=threads)
    few, many = np.ones((8, 64), np.float32), np.ones((2000, 2048), np.float32)
    assert call(few, few.T.copy()).tolist() == [64.0] * 8
    return call, few, many, many.T.copy()
def later(seconds, what):
    threading.Timer(seconds, what).start()
"""


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", START + script], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", ["call(x, y)", "call(y=y, x=x)", "call.run([x, y])"])
def test_ctrl_c_ends_a_long_run(threads: int, form: str) -> None:
    out = run(f"""
call, few, x, y = long_run({threads})
later(0.4, lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    for _ in range(1000):
        {form}
    print("no exception")
except KeyboardInterrupt:
    print("interrupted")
for _ in range(3):
    assert call(few, few.T.copy()).tolist() == [64.0] * 8
    assert call(few, y=few.T.copy()).tolist() == [64.0] * 8
print("usable")
""")
    assert out.split("\n")[:2] == ["interrupted", "usable"]


@pytest.mark.parametrize("threads", [1, 2])
def test_one_run_is_cut_short(threads: int) -> None:
    """The interrupt comes in the middle of a single run."""
    out = run(f"""
call, few, x, y = long_run({threads})
x, y = np.tile(x, (3, 1)), np.tile(y, (1, 3))
out = np.full(len(x), np.nan, np.float32)
later(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    while True:
        out[:] = np.nan
        call(x, y, out=out)
except KeyboardInterrupt:
    print("cut short", np.isnan(out).any())
""")
    assert out.strip() == "cut short True"


@pytest.mark.parametrize("threads", [1, 2])
def test_other_handlers_run_during_a_run(threads: int) -> None:
    out = run(f"""
call, few, x, y = long_run({threads})
out = np.full(len(x), np.nan, np.float32)
seen = []
signal.signal(signal.SIGALRM, lambda number, frame: seen.append(bool(np.isnan(out).any())))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
found = call(x, y, out=out)
signal.setitimer(signal.ITIMER_REAL, 0)
assert (found == 2048).all()
print(any(seen))  # before the result was complete
""")
    assert out.strip() == "True"


def test_a_handler_may_raise_anything() -> None:
    out = run("""
call, few, x, y = long_run(2)
def stop(number, frame):
    raise TimeoutError("too long")
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    while True:
        call(x, y)
except TimeoutError as error:
    print(error)
""")
    assert out.strip() == "too long"


def test_the_wakeup_descriptor_stays_what_it_was() -> None:
    """asyncio has signals written to a descriptor of its own."""
    out = run("""
call, few, x, y = long_run(1)
read, write = os.pipe()
os.set_blocking(write, False)
os.set_blocking(read, False)
signal.set_wakeup_fd(write)
signal.signal(signal.SIGUSR1, lambda number, frame: None)
later(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1))
for _ in range(3):
    call(x, y)
assert signal.set_wakeup_fd(-1) == write
print(list(os.read(read, 99)) == [signal.SIGUSR1])
""")
    assert out.strip() == "True"


def test_a_forked_child_is_interrupted_alone() -> None:
    out = run("""
call, few, x, y = long_run(2)
call(x, y)
child = os.fork()
if child == 0:
    later(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        for _ in range(100):
            call(x, y)
    except KeyboardInterrupt:
        os._exit(7)
    os._exit(1)
for _ in range(3):
    assert (call(x, y) == 2048).all()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert out.strip() == "7"


def test_runs_of_other_threads_go_on() -> None:
    """Handlers run in the main thread, so that is what Ctrl-C interrupts."""
    out = run("""
call, few, x, y = long_run(1)
found = []
worker = threading.Thread(target=lambda: found.append(call(x, y)))
worker.start()
later(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    time.sleep(60)
except KeyboardInterrupt:
    pass
worker.join()
print((found[0] == 2048).all())
""")
    assert out.strip() == "True"


def test_threads_of_python_run_meanwhile() -> None:
    """The lock is given up during long runs."""
    out = run("""
call, few, x, y = long_run(1)
count = 0
stop = False
def work():
    global count
    while not stop:
        count += 1
thread = threading.Thread(target=work)
thread.start()
time.sleep(0.05)
before = count
call(x, y)
print(count > before)
stop = True
thread.join()
""")
    assert out.strip() == "True"




def test_handlers_that_are_set_later() -> None:
    """signal.signal puts Python's handler in front again; a long run notices."""
    out = run("""
call, few, x, y = long_run(2)
for handler in (signal.SIG_IGN, signal.SIG_DFL, lambda number, frame: print("seen"), signal.default_int_handler):
    signal.signal(signal.SIGINT, handler)
later(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    for _ in range(1000):
        call(x, y)
except KeyboardInterrupt:
    print(True)
signal.signal(signal.SIGINT, signal.SIG_IGN)
later(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
call(x, y)
print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
""")
    assert out.split() == ["True", "True"]
