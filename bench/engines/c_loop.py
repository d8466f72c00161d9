"""Loops written by hand in C, compiled for this machine: what memory-bound work can reach without a framework."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.case import GRAPHS, Array, Case
from bench.engines.base import Engine, Prepared
from bench.workloads.helpers import aligned
from bench.workloads.rows import OPS

COMPILER = "gcc"
FLAGS = ("-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC")


class CLoop(Engine):
    """The functions of ``rows.c``; they repeat themselves, so that a call from Python doesn't count."""

    library: Any

    def start(self) -> None:
        """Compiles them.  Raises ImportError when there is no compiler."""
        if shutil.which(COMPILER) is None:
            raise ImportError(f"there is no {COMPILER}")
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "rows.so"
            subprocess.run([COMPILER, *FLAGS, str(GRAPHS / "rows.c"), "-o", str(target), "-lm"], check=True)
            self.library = ctypes.CDLL(str(target))

    def prepare(self, case: Case) -> Prepared | None:
        """A function with its arrays."""
        if case.c_function is None:
            return None
        data = case.data()
        function = getattr(self.library, case.c_function)
        function.restype = None
        x = next(iter(data.inputs.values()))
        outs = [aligned(np.zeros_like(x)) for _ in range(OPS[case.c_function].results)]
        arrays = [*data.inputs.values(), *data.weights.values(), *outs]
        run = partial(function, ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]), *(ctypes.c_void_p(a.ctypes.data) for a in arrays))

        def results() -> list[Array]:
            run(self.threads, 1)
            return outs

        def times(count: int) -> object:
            run(self.threads, count)
            return arrays  # keeps them

        return Prepared(times, results)
