"""Thousands of random programs through all checks: ``python -m tests.fuzz --count 5000 --seed 0``.

Prints how many were tried, how many ran, and how many mismatches there were; the text of a program that fails is
written to ``fuzz-failure-SEED.graph`` together with what is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from ir.core import Module
from ir.parser import parse_module
from ir.printer import print_module
from tests.checks import check_program
from tests.generators import random_module
from tests.texts import forget_comments, rewrite_text


def check_rewritten(module: Module, seed: int) -> None:
    """The program written in another way is the same program; its comments stay, and its text is a fixpoint too."""
    text = print_module(module)
    rewritten, comments = rewrite_text(text, seed)
    again = parse_module(rewritten)
    printed = print_module(again)
    assert print_module(parse_module(printed)) == printed, f"written as:\n{rewritten}\nprinted:\n{printed}"
    for comment in comments:
        assert printed.count(comment) == 1, f"'{comment}' is printed {printed.count(comment)} times:\n{rewritten}\nprinted:\n{printed}"
    forget_comments(again)
    assert print_module(again) == text, f"written as:\n{rewritten}\nis another program:\n{print_module(again)}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; the others follow")
    parser.add_argument("--steps", type=int, default=12, help="the most steps that a program is grown by")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for programs that fail")
    parser.add_argument("--stop", type=int, default=20, help="stop after so many mismatches")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    seen: Counter[str] = Counter()
    done = 0
    for seed in range(options.seed, options.seed + options.count):
        done += 1
        module: Module | None = None
        try:
            module = random_module(seed, options.steps)
            check_rewritten(module, seed)
            runs = check_program(module, seed)
        except Exception as error:
            seen["mismatches"] += 1
            _report(seed, module, error, options.out)
            if seen["mismatches"] >= options.stop:
                break
            continue
        seen["operations"] += sum(1 for _ in module.walk())
        seen["runs"] += len(runs.cases)
        seen["runs that failed"] += len(runs.failed)
        seen["programs that never ran"] += not runs.cases
    seconds = time.perf_counter() - start
    print(f"{done} programs, {seen['mismatches']} mismatches, {seconds:.1f} s, {done / seconds:.1f} programs/s")
    print(", ".join(f"{seen[k]} {k}" for k in ("operations", "runs", "runs that failed", "programs that never ran")))
    return 1 if seen["mismatches"] else 0


def _report(seed: int, module: Module | None, error: Exception, folder: Path) -> None:
    path = folder / f"fuzz-failure-{seed}.graph"
    reason = "".join(traceback.format_exception(error))
    text = "".join(f"// {line}\n" for line in reason.splitlines())
    path.write_text(text + "\n" + (print_module(module) if module is not None else ""), encoding="utf-8")
    print(f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}  -> {path}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
