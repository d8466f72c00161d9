"""Times of the front end: starting, parsing, inferring, verifying, printing, and the memory of a rejected text.

    python bench/frontend.py [--rounds 5]

Prints medians over the rounds; nothing is asserted.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import dialects  # noqa: E402, F401  defines the operations
from ir.inference import infer_module  # noqa: E402
from ir.parser import parse_module  # noqa: E402
from ir.printer import print_module  # noqa: E402
from ir.verifier import verify_module  # noqa: E402

OPERATIONS = 10_000


def chain(operations: int, types: bool) -> str:
    """A program of one long chain, with or without written types."""
    suffix = " : f32[B, 64]" if types else ""
    body = "\n".join(f"  %v{i + 1} = add(%v{i}, %v0){suffix}" for i in range(operations))
    return f"graph @main(%v0: f32[B, 64]) -> f32[B, 64] {{\n{body}\n  return %v{operations}\n}}\n"


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def command(*arguments: str) -> float:
    return seconds(lambda: subprocess.run([sys.executable, "-m", "graph_opt.cli", *arguments], cwd=ROOT, capture_output=True, check=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    figures: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)

    plain, typed = chain(OPERATIONS, types=False), chain(OPERATIONS, types=True)
    parse_module(plain)  # builds the tables
    for _ in range(rounds):
        note("graph-opt --help", command("--help"))
        note("graph-opt list ops", command("list", "ops"))
        note("graph-opt samples/mlp.graph", command("samples/mlp.graph"))
        note(f"parse {OPERATIONS} operations", seconds(lambda: parse_module(plain)))
        note(f"parse {OPERATIONS} operations with types", seconds(lambda: parse_module(typed)))
        module = parse_module(plain)
        inferring = seconds(lambda: infer_module(module))  # noqa: B023
        verifying = seconds(lambda: verify_module(module))  # noqa: B023
        printing = seconds(lambda: print_module(module))  # noqa: B023
        note("infer", inferring)
        note("verify", verifying)
        note("print", printing)
        note("infer + verify + print", inferring + verifying + printing)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.graph"
        path.write_text(chain(240_000, types=False).replace("return %v240000", "return %nowhere"))
        note(f"reject {path.stat().st_size / 1e6:.1f} MB", command(str(path)))
    width = max(map(len, figures))
    for name, values in figures.items():
        print(f"{name:<{width}}  {statistics.median(values) * 1e3:9.1f} ms")
    print(f"{'peak memory of a rejected text':<{width}}  {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:9.1f} MB")


if __name__ == "__main__":
    main()
