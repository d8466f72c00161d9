"""Errors of the functions of one number that ``expand-math`` makes, in native code over all floats, and their speed.

    python bench/math_errors.py [exp tanh ...] [--stride 1]

Prints the largest error in ulp, where it is, how many results differ from the exact one in being infinite, NaN or negative
(none should), and nanoseconds per element.  The exact results are numpy's in float64, so a stride of 1 (all floats) takes a
few minutes per function.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import dialects  # noqa: E402, F401  defines the operations
from graph_opt.executable import Executable  # noqa: E402
from graph_opt.native import compile_native  # noqa: E402
from ir.inference import infer_module  # noqa: E402
from ir.opdef import REGISTRY  # noqa: E402
from ir.parser import parse_module  # noqa: E402
from passes.infra.manager import PassManager  # noqa: E402
from passes.pipelines import load_pipeline  # noqa: E402
from passes.vector.expand_math import EXPANSIONS  # noqa: E402

CHUNK = 1 << 20
PIPELINE = "expand-math,unroll-vectors,cse,dce"


def compiled(function: str, pipeline: str = PIPELINE) -> Executable:
    """Native code that computes a buffer of results."""
    module = parse_module(f"""\
graph @main(%A: memref<f32[N]>, %C: memref<f32[N]>) {{
  scf.parallel(%i = 0 to N step 32) {{
    %x = vector.load(%A[%i:+32]) : vector<f32[32]>
    %y = math.{function}(%x) : vector<f32[32]>
    vector.store(%y, %C[%i:+32])
    yield
  }}
  return
}}
""")
    infer_module(module)
    PassManager(load_pipeline(pipeline)).run(module)
    return compile_native(module, module.main, {})


def errors(found: NDArray[Any], exact: NDArray[Any]) -> NDArray[Any]:
    """In units of the last place of the exact results; infinite where one is infinite, NaN or negative and the other not."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        exponent = np.frexp(np.maximum(np.abs(exact), 2.0**-126))[1] - 24
        distance = np.abs(found.astype(np.float64) - exact) / np.ldexp(1.0, exponent)
        same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
        ordinary = np.isfinite(found) & np.isfinite(rounded) & (np.signbit(found) == np.signbit(rounded))
    return np.where(ordinary, distance, np.where(same, 0.0, np.inf))


def measure(function: str, stride: int) -> str:
    """One line about a function."""
    native, body = compiled(function), REGISTRY[f"math.{function}"].body
    assert body is not None
    reference: Callable[..., Any] = body
    worst, place, wrong, spent, count = 0.0, 0.0, 0, 0.0, 0
    found = np.zeros(CHUNK, np.float32)
    for start in range(0, 2**32, CHUNK * stride):
        x = (start + stride * np.arange(CHUNK)).astype(np.uint32).view(np.float32)
        begin = time.perf_counter()
        native.run([x, found])
        spent, count = spent + time.perf_counter() - begin, count + CHUNK
        with np.errstate(all="ignore"):
            error = errors(found, np.asarray(reference(x.astype(np.float64))))
        wrong += int(np.count_nonzero(np.isinf(error)))
        error[np.isinf(error)] = 0.0
        at = int(np.argmax(error))
        if error[at] > worst:
            worst, place = float(error[at]), float(x[at])
    return f"{function:8} {worst:.3f} ulp at {place:.9g}, {wrong} wrong of {count}, {1e9 * spent / count:.2f} ns each"


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("functions", nargs="*", help="all when none is given")
    parser.add_argument("--stride", type=int, default=1, help="every how many floats one is taken")
    arguments = parser.parse_args()
    for function in arguments.functions or [n.removeprefix("math.") for n in EXPANSIONS if n != "math.powf"]:
        print(measure(function, arguments.stride), flush=True)


if __name__ == "__main__":
    main()
