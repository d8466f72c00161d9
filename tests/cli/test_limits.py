"""Large and hostile texts: refused with a place, in bounded memory, without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graph_opt

ROOT = Path(__file__).parents[2]
MEASURE = """
import resource, sys
from graph_opt.cli import main
status = main(sys.argv[1:])
try:  # ru_maxrss of a new process starts with what its parent had
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
except (OSError, StopIteration):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print("peak", peak, file=sys.stderr)
sys.exit(status)
"""


def rejected(text: str) -> str:
    with pytest.raises(graph_opt.GraphError) as caught:
        graph_opt.parse(text)
    return str(caught.value)


def measured(path: Path) -> tuple[int, str, int]:
    """Exit status, standard error and peak memory (KiB) of graph-opt on a file."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, env=environment, check=False)
    *lines, last = done.stderr.splitlines()
    return done.returncode, "\n".join(lines), int(last.split()[1])


def long_program(size: int, last: str) -> str:
    lines = ["%v0 = input()"]
    total = 0
    while total < size:
        lines.append(f"%v{len(lines)} = add(%v{len(lines) - 1}, %v0)")
        total += len(lines[-1]) + 1
    return "\n".join([*lines, last]) + "\n"


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("%z = add(%v0, %nope)", "error: %nope is not defined"),
        ("%z = add(%v0, [[[", "error: '[' is never closed"),
    ],
)
def test_ten_megabytes_are_rejected_in_512(last: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "big.graph"
    path.write_text(long_program(10_000_000, last))
    status, err, peak = measured(path)
    assert status == 1
    assert words in err and err.count("error") == 1
    assert peak < 512 * 1024


def test_errors_on_every_line_stay_bounded(tmp_path: Path) -> None:
    path = tmp_path / "bad.graph"
    path.write_text("%a = ad(%b %c)\n" * 100_000)
    status, err, peak = measured(path)
    assert status == 1
    assert "more errors are not shown" in err
    assert len(err) < 100_000 and peak < 256 * 1024


@pytest.mark.parametrize("bracket", ["[", "(", "{"])
def test_nesting_is_limited(bracket: str) -> None:
    assert "<string>:1:" in rejected("%a = constant(" + bracket * 200_000)


def test_deep_regions_are_limited() -> None:
    text = "graph @main(%x: f32[4]) {\n" + "scf.for(%i = 0 to 4) {\n" * 100_000
    assert "brackets are nested deeper than 256" in rejected(text)


def test_a_long_chain_is_no_problem() -> None:
    module = graph_opt.parse(long_program(200_000, "%z = neg(%v0)"))
    assert str(module).count("\n") > 5000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("%x = constant(" + "9" * 5000 + ")", "this integer is too large"),
        ("%x = constant(9223372036854775808) : i64[]", "does not fit in i64"),
        ("%x = constant(-9223372036854775809) : i64[]", "does not fit in i64"),
        ("%x = constant(1e999)", "this number is too large"),
        ("%x = constant(0x)", "unexpected"),
        ("%x = constant(0x10)", "error"),
        ("%x = constant(1_000)", "unexpected '_000'"),
        ("%x = constant(\N{ARABIC-INDIC DIGIT ONE})", "U+0661"),
        ("%x = constant(NaN)", "error"),
        ("%x = constant(1.0p3)", "unexpected"),
        ("%x = constant(+1)", "error"),
        ("%\u202ename = input()", "U+202E"),
        ('%"a\u200bb" = input()', "U+200B"),
        ('%"\\ud800" = input()', "U+D800"),
        ("%x = input() : f32[" + ", ".join(["2"] * 65) + "]", "at most 64 dimensions"),
        ("%x = input() : f32[" + "9" * 30 + "]", "less than 2**63"),
        ("%x = relu(%x)", "used before its definition"),
        ("%x = input()\n%y = print(%x)", "has no result"),
    ],
)
def test_literals_and_names(text: str, words: str) -> None:
    message = rejected(text)
    assert words in message
    assert message.startswith("<string>:")


def test_a_long_name_and_a_long_line() -> None:
    name = "n" * 1_000_000
    assert graph_opt.parse(f"%{name} = input()\n").graphs["main"].parameters[0].name == name
    message = rejected(f"%{name} = inputt()\n")
    assert len(message) < 1000
    many = ", ".join(f"a.k{i}={i}" for i in range(20_000))
    assert "a.k19999=19999" in str(graph_opt.parse(f"%x = input()\n%y = relu(%x, {many})\n"))


def test_sizes_are_checked_before_anything_is_allocated() -> None:
    with pytest.raises(graph_opt.GraphError, match="needs 73786976294838206464 bytes, the limit is"):
        graph_opt.compile(graph_opt.parse("%x = full(shape=[4294967296, 4294967296], value=1.0, dtype=f32)\n%y = relu(%x)\n"))
    text = "graph @main(%x: f32[B]) -> f32[1000000000000, B] {\n  %z = expand(%x, shape=[1000000000000, B])\n  %y = neg(%z)\n  return %y\n}\n"
    program = graph_opt.compile(graph_opt.parse(text))
    with pytest.raises(graph_opt.GraphError, match="the limit is"):
        program(np.ones(8, np.float32))


def test_doubling_sixty_times() -> None:
    lines = ["%a0 = constant([1.0]) : f32[1]", *(f"%a{i + 1} = concat(%a{i}, %a{i}, axis=0)" for i in range(60))]
    with pytest.raises(graph_opt.GraphError, match="the limit is"):
        graph_opt.compile(graph_opt.parse("\n".join(lines) + "\n"))
