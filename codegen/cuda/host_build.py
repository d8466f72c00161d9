"""Building kernels for the CPU with g++, which gets ``graph_opt_host.h`` for the ``graph_opt_device.h`` that the text includes.

A *library* is loaded into this process (:mod:`codegen.cuda.emulation`); a *program* has a sanitizer in it and runs as a process of its own
(:mod:`codegen.cuda.sanitized`).  The compiler is called with a list of arguments, in a folder that only this user can read and that goes
with the process; what was built is remembered by its text.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Literal

from ir.diagnostics import Diagnostic, MissingPackage

Sanitizer = Literal["", "address", "thread"]
"""None; AddressSanitizer with UndefinedBehaviorSanitizer; ThreadSanitizer, for which every CUDA thread is a thread."""

INCLUDE = Path(__file__).parent / "include"
SECONDS = 300.0
"""How long the compiler may take for one program."""

_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\s*\(")
_SANITIZE: dict[Sanitizer, tuple[str, ...]] = {
    "": (),
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1"),
    "thread": ("-fsanitize=thread", "-g1"),
}
_DEFINE: dict[Sanitizer, tuple[str, ...]] = {"": (), "address": ("-DGO_ADDRESS",), "thread": ("-DGO_THREAD",)}
_COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-gnu-unique", "-fno-strict-aliasing", f"-I{INCLUDE}")
_OWN = ("-O2", "-fno-builtin", "-fno-tree-loop-distribute-patterns")
"""For what runs the threads: no call of memcpy may come into it, the sanitizers would take it for one of the kernel."""
_KERNELS = ("-x", "c++", "-O1", "-ffp-contract=off", "-fno-math-errno", "-w")

_lock = threading.RLock()
_built: dict[tuple[str, str, Sanitizer], Path] = {}


class BuildFailed(Exception):
    """g++ did not take kernels that we wrote: our fault, never the user's.  ``log`` is what it said."""

    def __init__(self, log: str) -> None:
        first = next((line for line in log.splitlines() if "error" in line), log.strip()[:200])
        super().__init__(f"g++ does not compile the generated kernels: {first.strip()}")
        self.log = log


def host_compiler() -> str:
    """The path of g++.  Raises MissingPackage."""
    found = shutil.which("g++")
    if found is None:
        hint = "install g++ (Debian, Ubuntu: apt-get install g++); a real device needs none"
        raise MissingPackage(Diagnostic("emulating a CUDA device needs g++, which is not on PATH", hint=hint))
    return found


@functools.cache
def why_not(sanitize: Sanitizer) -> str | None:
    """Why nothing can be built with a sanitizer here; None: it can."""
    try:
        build_program("", sanitize)
    except MissingPackage as error:
        return str(error)
    except BuildFailed as error:
        return f"g++ has no sanitizer '{sanitize}': {error.log.strip()[-200:]}"
    return None


def kernel_names(source: str) -> list[str]:
    """The kernels of a text, in their order."""
    return list(dict.fromkeys(_KERNEL.findall(source)))


def build_library(source: str) -> Path:
    """A shared library with the kernels of a text, for :class:`codegen.cuda.emulation.Kernels`.

    Raises MissingPackage without g++, BuildFailed when it doesn't take the text.
    """
    return _build(source, "library", "")


def build_program(source: str, sanitize: Sanitizer) -> Path:
    """A program with the kernels of a text that does jobs (:mod:`codegen.cuda.sanitized`).  Raises what :func:`build_library` does."""
    return _build(source, "program", sanitize)


def _build(source: str, kind: Literal["library", "program"], sanitize: Sanitizer) -> Path:
    key = (hashlib.sha256(source.encode()).hexdigest(), kind, sanitize)
    with _lock:
        if key in _built:
            return _built[key]
        folder = Path(tempfile.mkdtemp(dir=_folder()))
        parts = [_part("graph_opt_host.cc", sanitize)]
        if kind == "program":
            parts.append(_part("graph_opt_host_main.cc", ""))
    text = folder / "kernels.cu"
    registered = "".join(f"GO_REGISTER({name})\n" for name in kernel_names(source))
    text.write_text(f"{source}\n#include \"graph_opt_device.h\"\n{registered}", encoding="utf-8")
    kernels = folder / "kernels.o"
    _call(*_KERNELS, *_instructions(), *_COMMON, *_SANITIZE[sanitize], "-c", str(text), "-o", str(kernels))
    result = folder / kind
    how = ("-shared", "-Wl,-Bsymbolic") if kind == "library" else ()
    _call(*how, *_SANITIZE[sanitize], *map(str, (kernels, *parts)), "-lm", "-o", str(result))
    kernels.unlink()
    with _lock:
        return _built.setdefault(key, result)


def _part(name: str, sanitize: Sanitizer) -> Path:
    """What runs the threads, compiled once."""
    path = _folder() / f"{name}-{sanitize}.o"
    if not path.exists():
        _call(*_OWN, "-w", *_COMMON, *_DEFINE[sanitize], "-c", str(INCLUDE / name), "-o", str(path))
    return path


@functools.cache
def _instructions() -> tuple[str, ...]:
    """The processor's fused multiply-add where it has one; a call of the C library's does the same, ten times slower."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return ("-mfma",) if re.search(r"^flags\s*:.*\bfma\b", flags, re.MULTILINE) else ()


@functools.cache
def _folder() -> Path:
    """A private folder, until the process ends."""
    path = Path(tempfile.mkdtemp(prefix="graph-opt-kernels-"))
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child ends, too
        shutil.rmtree(path, ignore_errors=True)


def _call(*arguments: str) -> None:
    try:
        done = subprocess.run([host_compiler(), *arguments], capture_output=True, text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"error: it was not done after {SECONDS:.0f} seconds") from None
    if done.returncode != 0:
        raise BuildFailed(done.stderr)
