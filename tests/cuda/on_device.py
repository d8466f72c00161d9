"""One program of each kind of kernel on a device, every buffer to the byte an allocation of its own, as sanitizers want it.

``python -m tests.cuda.on_device [--device cuda] [NAME ...]`` runs the programs of the mutation test there and compares the results with those
of the same kernels on the CPU: the same bits, but for products by tensor cores, which add in an order of their own.  ``--alone`` compares
nothing, ``--planted TOOL`` runs a kernel with a fault that this tool of compute-sanitizer has to find.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codegen.cuda.driver import STATIC_SHARED, Driver, Packed
from codegen.cuda.drivers import open_driver
from codegen.cuda.host_build import kernel_names
from codegen.cuda.sanitized import Job, Place
from ir.diagnostics import GraphError
from tests.cuda.mutation_programs import SUBJECTS, Subject
from tests.cuda.program_jobs import compile_marked, job_of

CORES = {"bf16": 2.0**-7, "f16": 2.0**-10}
"""How far results of tensor cores may be apart, of the largest: where sums are rounded to the next number."""

PLANTED = {
    "memcheck": "  y[64 + go_thread()] = 1.0f;",
    "racecheck": "  float *s = (float *)go_shared();\n  s[go_thread()] = y[go_thread()];\n  y[go_thread()] = s[63 - go_thread()];",
    "synccheck": "  if (go_thread() % 2 == 0) go_barrier();\n  y[go_thread()] = 1.0f;",
    "initcheck": "  y[go_thread()] = y[go_thread()] + 1.0f;",
}
"""The body of a kernel of 64 threads with 64 floats ``y`` that nobody has written (for racecheck: zeros), by the tool that finds its fault."""


@dataclass
class DriverJob(Job):
    """A job on a device: what it is to do is kept, and done by :meth:`on`."""

    commands: list[tuple[Any, ...]] = field(default_factory=list)
    contents: list[bytes | int] = field(default_factory=list)

    def buffer(self, data: np.ndarray[Any, Any] | bytes) -> Place:
        self.contents.append(data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes())
        return Place(len(self.contents) - 1)

    def garbage(self, size: int) -> Place:
        """Memory that stays as the driver gives it, so that initcheck knows it."""
        self.contents.append(size)
        return Place(len(self.contents) - 1)

    def launch(self, name: str, grid: Sequence[int], threads: int, shared: int, arguments: Sequence[Place | int]) -> None:
        if all(grid):
            self.commands.append(("launch", name, tuple(grid), threads, shared, tuple(arguments)))

    def copy(self, target: Place, source: Place, size: int) -> None:
        self.commands.append(("copy", target, source, size))

    def output(self, place: Place, size: int) -> None:
        self.commands.append(("output", place, size))

    def reverse(self, on: bool = True) -> None:
        """A device runs threads as it likes."""

    def on(self, driver: Driver) -> list[bytes]:
        """Does it; the outputs.  Raises what the driver does."""
        token = driver.enter()
        places = [driver.allocate(max(1, c if isinstance(c, int) else len(c))) for c in self.contents]
        try:
            for place, given in zip(places, self.contents, strict=True):
                if isinstance(given, bytes) and given:
                    held = np.frombuffer(given, np.uint8)
                    driver.copy_to_device(place, held.ctypes.data, len(given), 0)
                    driver.synchronize()
            module = driver.load_module(driver.build(self.source))
            functions = {name: driver.function(module, name) for name in kernel_names(self.source)}
            found = [result for command in self.commands if (result := self._do(driver, functions, places, command)) is not None]
            driver.unload_module(module)
            return found
        finally:
            for place in places:
                driver.free(place)
            driver.leave(token)

    def _do(self, driver: Driver, functions: dict[str, int], places: list[int], command: tuple[Any, ...]) -> bytes | None:
        def address(place: Place) -> int:
            return places[place.index] + place.offset

        if command[0] == "launch":
            _, name, grid, threads, shared, arguments = command
            if shared > STATIC_SHARED:
                driver.allow_shared(functions[name], shared)
            values = Packed([address(a) if isinstance(a, Place) else a for a in arguments])
            driver.launch(functions[name], (*grid, 1, 1)[:3], threads, shared, 0, values)
            driver.synchronize()
        elif command[0] == "copy":
            driver.copy_on_device(address(command[1]), address(command[2]), command[3], 0)
            driver.synchronize()
        elif command[2]:
            result = np.empty(command[2], np.uint8)
            driver.copy_to_host(result.ctypes.data, address(command[1]), command[2], 0)
            driver.synchronize()
            return result.tobytes()
        else:
            return b""
        return None


def run_subject(subject: Subject, driver: Driver, reference: Driver | None) -> str:
    """Runs a program for all its sizes; what is wrong, "" if nothing is."""
    compiled = compile_marked(subject.program, subject.pipeline)
    for sizes in subject.sizes:
        inputs = subject.inputs(compiled.graph, sizes)
        job, types = job_of(compiled, inputs, make=DriverJob)
        assert isinstance(job, DriverJob)
        found = job.on(driver)
        if reference is None:
            continue
        for n, (a, b) in enumerate(zip(job.on(reference), found, strict=True)):
            if a != b and not (n < len(types) and _close(subject, a, b, types[n].dtype)):
                return f"output {n} of sizes {sizes} differs"
    return ""


def _close(subject: Subject, expected: bytes, found: bytes, dtype: Any) -> bool:
    """Whether results are the same but for the order of the sums of tensor cores, or the payload of NaN."""
    a, b = np.frombuffer(expected, dtype.numpy), np.frombuffer(found, dtype.numpy)
    if not dtype.is_float or not np.array_equal(np.isnan(a), np.isnan(b)):
        return False
    if not subject.name.startswith("cores"):
        return bool(((a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a)).all())
    wide, other = a.astype(np.float64), b.astype(np.float64)
    return bool(np.nanmax(np.abs(wide - other), initial=0) <= CORES.get(dtype.name, 2.0**-16) * np.nanmax(np.abs(wide), initial=0))


def run_planted(tool: str, driver: Driver) -> None:
    """A kernel with a fault for a tool."""
    source = '#include "graph_opt_device.h"\n\nextern "C" __global__ void __launch_bounds__(64)\nplanted(float *y)\n{\n' + PLANTED[tool] + "\n}\n"
    job = DriverJob(source)
    job.launch("planted", (1, 1, 1), 64, 256, [job.buffer(bytes(256)) if tool == "racecheck" else job.garbage(256)])
    job.on(driver)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cuda.on_device", description="One program of each kind of kernel on a device.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of programs of the mutation test; default: all")
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--alone", action="store_true", help="compares nothing")
    parser.add_argument("--planted", choices=PLANTED, help="runs this fault instead")
    options = parser.parse_args(words)
    try:
        driver = open_driver(options.device)
        if options.planted:
            run_planted(options.planted, driver)
            return 0
        reference = None if options.alone else open_driver("cuda-emulated")
    except GraphError as error:
        print(error)
        return 1
    failed = 0
    chosen = [s for s in SUBJECTS if not options.names or s.name in options.names]
    for subject in chosen:
        try:
            wrong = run_subject(subject, driver, reference)
        except GraphError as error:
            wrong = str(error)
        failed += bool(wrong)
        print(f"{subject.name}: {wrong or 'ok'}", flush=True)
    print(f"{len(chosen)} programs, {failed} wrong")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
