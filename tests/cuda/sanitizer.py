"""compute-sanitizer over one program of each kind of kernel: memcheck, racecheck, synccheck, initcheck.

``python -m tests.cuda.sanitizer [--tools memcheck,...] [NAME ...]`` runs :mod:`tests.cuda.on_device` under each tool, all at a time, and ends
with 1 if one reports anything.  First each of them has to find a fault that was planted for it: a tool that can't work on a machine (virtual
ones refuse it) finds nothing in programs either.  Where compute-sanitizer is missing or can't work, that is said, and nothing was checked.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from codegen.cuda.compilers import find_programs
from tests.cuda.mutation_programs import SUBJECTS
from tests.cuda.on_device import PLANTED

TOOLS: dict[str, tuple[str, ...]] = {
    "memcheck": ("--padding", "64", "--report-api-errors", "no"),
    "racecheck": (),
    "synccheck": (),
    "initcheck": (),
}
"""The tools with their options: memory behind a buffer is no other buffer's; errors of calls are exceptions here."""
INSTALL = "it belongs to the CUDA toolkit, and to the package nvidia-cuda-sanitizer-api; CUDA_HOME names a toolkit that has it"
SECONDS = 540.0
_ROOT = Path(__file__).parents[2]
_REFUSED = re.compile(r"device not supported|not supported on this|could not be initialized|failed to initialize|internal sanitizer error", re.I)
_HAZARDS = re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
_LEFT_OUT = re.compile(r"COMPUTE-SANITIZER|(ERROR|RACECHECK|LEAK) SUMMARY|Target application returned an error|Error: process didn't terminate")


@dataclass(frozen=True)
class Report:
    """What a tool said: how many errors by its own count (None where it came to no count), the first line of each with its place."""

    errors: int | None
    findings: tuple[str, ...]
    refused: str = ""

    @property
    def clean(self) -> bool:
        """Whether it came to its end and found nothing."""
        return self.errors == 0 and not self.findings


def find_sanitizer() -> Path | None:
    """The program, in a toolkit or a package; None where there is none."""
    return next(find_programs("compute-sanitizer"), None)


def read_report(text: str) -> Report:
    """What compute-sanitizer has written between the lines of the program."""
    said = [line.removeprefix("=========") for line in text.splitlines() if line.startswith("=========")]
    counts = [int(n) for line in said for n in re.findall(r"ERROR SUMMARY: (\d+) error", line)]
    counts += [int(a) + int(b) for line in said for a, b in _HAZARDS.findall(line)]
    findings: list[str] = []
    for number, line in enumerate(said):
        if line.startswith(" ") and not line.startswith("  ") and line.strip() and not _LEFT_OUT.search(line) and not _REFUSED.search(line):
            place = said[number + 1].strip() if number + 1 < len(said) and said[number + 1].startswith("     ") else ""
            findings.append(f"{line.strip()} {place}".strip())
    refused = next((line.strip() for line in said if _REFUSED.search(line)), "")
    return Report(sum(counts) if counts else None, tuple(dict.fromkeys(findings)), refused)


def run_tool(program: Path, tool: str, words: Sequence[str]) -> tuple[Report, int, str]:
    """The report of a tool over ``tests.cuda.on_device`` with these arguments, the exit status, and everything that was written."""
    options = ("--tool", tool, *TOOLS[tool], "--error-exitcode", "86", "--print-limit", "50")
    command = [str(program), *options, sys.executable, "-m", "tests.cuda.on_device", *words]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Report(None, (), f"it was not done after {SECONDS:.0f} seconds"), 1, ""
    text = done.stdout + done.stderr
    return read_report(text), done.returncode, text


def chosen_names() -> list[str]:
    """One program of each kind: of products of each tier, of packed weights and of their types, the first ones."""
    found, kinds = [], set()
    for subject in SUBJECTS:
        first = subject.name.split("-")[0]
        kind = first if first in ("tile", "digits") else re.sub(r"cores-[\w.]+?-(bf16|f16)", r"cores-\1", subject.name)
        if kind not in kinds:
            kinds.add(kind)
            found.append(subject.name)
    return found


def check(program: Path, tool: str, device: str, names: Sequence[str]) -> tuple[bool | None, list[str]]:
    """Whether a tool finds nothing in the programs (None: it can't work here), and lines about it."""
    planted, _, text = run_tool(program, tool, ["--device", device, "--planted", tool])
    if not planted.findings and not planted.errors:
        why = planted.refused or next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
        return None, [f"{tool}: NOT CHECKED: it does not find the fault that was planted for it: {why}"]
    report, status, text = run_tool(program, tool, ["--device", device, "--alone", *names])
    if report.clean and status == 0:
        return True, [f"{tool}: ok, {len(names)} programs (the planted fault was found)"]
    tail = [f"  {line}" for line in text.splitlines()[-5:]] if report.errors is None or status not in (0, 86) else []
    head = f"{tool}: {report.errors if report.errors is not None else 'unknown'} errors, exit status {status} {report.refused}".rstrip()
    return False, [head, *(f"  {line}" for line in report.findings[:50]), *tail]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cuda.sanitizer", description="compute-sanitizer over one program of each kind of kernel.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of programs of the mutation test; default: one of each kind")
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--tools", default=",".join(TOOLS), help="with commas; default: %(default)s")
    options = parser.parse_args(words)
    tools = options.tools.split(",")
    if unknown := set(tools) - set(TOOLS):
        parser.error(f"there is no tool {', '.join(sorted(unknown))}")
    program = find_sanitizer()
    if program is None:
        print(f"NOT CHECKED: there is no compute-sanitizer; {INSTALL}")
        return 0
    names = options.names or chosen_names()
    with ThreadPoolExecutor(len(tools)) as pool:
        found = list(pool.map(lambda tool: check(program, tool, options.device, names), tools))
    print(f"{program} over {', '.join(names)}")
    print(*(line for _, lines in found for line in lines), sep="\n")
    return 1 if any(fine is False for fine, _ in found) else 0


assert set(TOOLS) == set(PLANTED)

if __name__ == "__main__":
    sys.exit(main())
