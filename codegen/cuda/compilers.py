"""NVRTC and nvcc: where they are, and calling them.

Both are found in what ``CUDA_HOME`` or ``CUDA_PATH`` names, in Python packages (``nvidia-cuda-nvrtc``; ``nvidia-cuda-nvcc`` with ``-crt``,
``nvidia-nvvm``, ``-runtime`` and ``-cccl``), on ``LD_LIBRARY_PATH`` or ``PATH``, and where toolkits usually are.  NVRTC is preferred: it is a
tenth of the download, needs no host compiler and takes a tenth of the time.  It runs in a process of its own (:mod:`codegen.cuda._worker`), which may
crash or hang without harm.  Nothing goes through a shell; files are in private folders, and only for as long as they are needed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

from codegen.cuda.targets import Target
from ir.diagnostics import Diagnostic, MissingPackage

INSTALL_COMPILER = "pip install 'nvidia-cuda-nvrtc>=13,<14' (58 MB, no GPU needed); or set CUDA_HOME to the folder of a CUDA toolkit"
INSTALL_DISASSEMBLER = "pip install 'nvidia-cuda-nvdisasm>=13.2,<14' (5 MB); or set CUDA_HOME to the folder of a CUDA toolkit that has it"

SECONDS = 300.0
"""How long a tool may take for one program; the largest of ours take some seconds."""

SAME_BITS = ("-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true")
"""What arithmetic is to be, also where it is the default: every operation rounds once, as on the CPU."""

SOURCE_NAME = "kernels.cu"
Result = Literal["cubin", "ptx"]

_SYSTEM_LIBRARIES = tuple(map(Path, ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")))
_MISFITS = ("invalid value for --gpu-architecture", "Unsupported gpu architecture", "is not defined for option 'gpu-")
_TEXT_IS_WRONG = re.compile(r"errors? detected in the compilation|^ptxas .*(error|fatal)", re.MULTILINE)  # as nvcc says it
_NVRTC_ERROR_COMPILATION = 6


class CompilerFault(Exception):
    """A compiler did not take CUDA C that we wrote: our fault, never the user's.  ``source`` is all of it in one file, ``log`` what was said."""

    def __init__(self, compiler: str, target: str, source: str, log: str) -> None:
        first = next((line for line in log.splitlines() if "error" in line or "fatal" in line), log.strip()[:200])
        super().__init__(f"{compiler} does not compile the generated CUDA C for {target}: {first.strip()}")
        self.compiler = compiler
        self.target = target
        self.source = source
        self.log = log


class TargetUnknown(Exception):
    """A compiler that is older, or newer, than a target.  ``known`` are the architectures that it has."""

    def __init__(self, compiler: str, known: Sequence[str]) -> None:
        super().__init__(f"{compiler} compiles for {', '.join(known)}")


class ToolFailure(MissingPackage):
    """A tool does not do here what is needed: it can't be started, crashes, takes too long, doesn't know the target.  The program is all right."""


@dataclass(frozen=True)
class Compiler(ABC):
    """A compiler for CUDA C at ``path``."""

    path: Path
    name: ClassVar[str]

    def identity(self) -> str:
        """What tells this compiler from another version of it: its files with sizes and times."""
        lines = []
        for file in self.files():
            try:
                status = file.stat()
            except OSError:
                continue
            lines.append(f"{file}:{status.st_size}:{status.st_mtime_ns}")
        return "\n".join(lines)

    @abstractmethod
    def files(self) -> list[Path]:
        """The files that do the work."""

    @abstractmethod
    def compile(self, source: str, headers: Mapping[str, str], target: Target, result: Result) -> tuple[bytes, str]:
        """The image and the log, in which ptxas says what each kernel needs.  ``headers`` are found by the names in ``#include``.

        Raises ToolFailure, TargetUnknown, and CompilerFault where the text is wrong.
        """


@dataclass(frozen=True)
class Nvrtc(Compiler):
    """The library ``libnvrtc.so``."""

    name: ClassVar[str] = "NVRTC"

    def files(self) -> list[Path]:
        return [self.path, *sorted(self.path.parent.glob("libnvrtc-builtins.so*"))]

    def compile(self, source: str, headers: Mapping[str, str], target: Target, result: Result) -> tuple[bytes, str]:
        architecture = target.name if result == "cubin" else target.virtual
        options = [f"--gpu-architecture={architecture}", "--std=c++17", *SAME_BITS, "--ptxas-options=-v"]
        request = {
            "do": "compile",
            "library": str(self.path),
            "needed": [str(p) for p in self.files()[1:]],
            "name": SOURCE_NAME,
            "headers": dict(headers),
            "options": options,
            "result": result.upper(),
        }
        answer, image = ask_worker(request, source.encode())
        name = f"{self.name} {answer['version']}"
        if answer["status"] == 0 and image:
            return image.rstrip(b"\0") if result == "ptx" else image, answer["log"]
        if any(text in answer["log"] for text in _MISFITS):
            raise TargetUnknown(name, [f"sm_{n}" for n in answer["architectures"]])
        if answer["status"] == _NVRTC_ERROR_COMPILATION:
            raise CompilerFault(name, target.name, source, answer["log"])
        raise ToolFailure(Diagnostic(f"{name} ({self.path}) fails: {answer['error']}: {answer['log'].strip()[:500]}"))


@dataclass(frozen=True)
class Nvcc(Compiler):
    """The program ``nvcc`` of a toolkit; ``path`` is in the toolkit's own ``bin`` folder."""

    name: ClassVar[str] = "nvcc"

    def files(self) -> list[Path]:
        folder = self.path.parent
        return [self.path, folder / "ptxas", folder.parent / "nvvm" / "bin" / "cicc", folder / "cicc"]

    def compile(self, source: str, headers: Mapping[str, str], target: Target, result: Result) -> tuple[bytes, str]:
        code = target.name if result == "cubin" else target.virtual
        options = [f"-{result}", f"-gencode=arch={target.virtual},code={code}", "-std=c++17", *SAME_BITS, "-allow-unsupported-compiler"]
        with private_folder() as folder:
            for name, text in {SOURCE_NAME: source, **headers}.items():
                (folder / name).write_text(text, encoding="utf-8")
            done = call_tool([self.path, *options, "-Xptxas", "-v", "-o", "out", SOURCE_NAME], folder)
            log = (done.stderr + done.stdout).decode("utf-8", "replace")
            if done.returncode == 0:
                return (folder / "out").read_bytes(), log
        if any(text in log for text in _MISFITS):
            raise TargetUnknown(f"nvcc ({self.path})", self._architectures())
        if "Failed to preprocess host compiler properties" in log or "cannot execute" in log:
            hint = "install g++; or " + INSTALL_COMPILER.partition(";")[0] + ", which needs none"
            raise MissingPackage(Diagnostic("nvcc needs a host compiler, which is not on PATH", hint=hint))
        if done.returncode < 0 or _TEXT_IS_WRONG.search(log) is None:
            raise ToolFailure(Diagnostic(f"nvcc ({self.path}) fails with status {done.returncode}: {log.strip()[:500]}"))
        raise CompilerFault("nvcc", target.name, source, log)

    def _architectures(self) -> list[str]:
        with private_folder() as folder:
            return call_tool([self.path, "--list-gpu-code"], folder).stdout.decode("utf-8", "replace").split()


# -- processes ---------------------------------------------------------------------------------------------------------


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder that nobody else can read (mode 0700), removed at the end."""
    with tempfile.TemporaryDirectory(prefix="graph-opt-cuda-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def call_tool(args: Sequence[str | Path], folder: Path, given: bytes = b"", seconds: float | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs a program in a folder, which is also its folder for temporary files.  Raises ToolFailure when it can't be run, or doesn't end.

    All processes that it has started end with it, and when we are interrupted.
    """
    seconds = SECONDS if seconds is None else seconds
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NVCC_")}  # options that could change results
    environment.update(TMPDIR=str(folder), LC_ALL="C")
    try:
        process = subprocess.Popen(
            [str(a) for a in args],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolFailure(Diagnostic(f"{args[0]} can't be started: {error.strerror}")) from None
    with process:
        try:
            out, err = process.communicate(given, seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            raise ToolFailure(Diagnostic(f"{args[0]} has not finished after {seconds:g} seconds")) from None
        except BaseException:
            _end(process)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and what it has started; it leads a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def ask_worker(request: Mapping[str, Any], data: bytes = b"", seconds: float | None = None) -> tuple[dict[str, Any], bytes]:
    """What :mod:`codegen.cuda._worker` answers in a process of its own.  Raises ToolFailure when it dies or takes too long."""
    worker = Path(__file__).with_name("_worker.py")
    library = request["library"]
    with private_folder() as folder:
        done = call_tool([sys.executable, "-I", "-S", worker], folder, json.dumps(request).encode() + b"\n" + data, seconds)
    head, newline, rest = done.stdout.partition(b"\n")
    if done.returncode or not newline:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = f"signal {-done.returncode}" if done.returncode < 0 else (lines[-1] if lines else f"status {done.returncode}")
        raise ToolFailure(Diagnostic(f"{library} does not work: {reason[:500]}"))
    return json.loads(head), rest


# -- where they are ----------------------------------------------------------------------------------------------------


def find_compilers() -> Iterator[Compiler]:
    """All that there are, in the order of preference: NVRTC, then nvcc.  Nobody looks further than for the first one that will do."""
    seen: set[Path] = set()
    for compiler in chain(_nvrtcs(), _nvccs()):
        if (real := compiler.path.resolve()) not in seen:
            seen.add(real)
            yield compiler


def find_disassembler() -> Path:
    """``nvdisasm``.  Raises MissingPackage when there is none."""
    found = next(find_programs("nvdisasm"), None)
    if found is None:
        raise MissingPackage(Diagnostic("machine code can't be shown: there is no nvdisasm", hint=INSTALL_DISASSEMBLER))
    return found


def _nvrtcs() -> Iterator[Compiler]:
    for folder in _library_folders():
        libraries = [p for p in folder.glob("libnvrtc.so.*") if re.fullmatch(r"libnvrtc\.so\.\d+(\.\d+)*", p.name)]
        yield from map(Nvrtc, sorted(libraries, key=_version, reverse=True))


def _nvccs() -> Iterator[Compiler]:
    for path in find_programs("nvcc"):
        own = _toolkit_nvcc(path)
        if own is not None:
            yield Nvcc(own)


def _toolkit_nvcc(path: Path) -> Path | None:
    """The nvcc in the ``bin`` folder of the toolkit: some systems have a script on PATH that calls it, without the tools beside it."""
    if (path.parent / "nvcc.profile").exists():
        return path
    try:
        with private_folder() as folder:
            said = call_tool([path, "--dryrun", "-cubin", "-x", "cu", "/dev/null"], folder, seconds=20).stderr.decode("utf-8", "replace")
    except ToolFailure:
        return None
    here = re.search(r"^#\$ _HERE_=(/.*)$", said, re.MULTILINE)
    real = Path(here[1]) / "nvcc" if here else path
    return real if real.exists() else None


def _toolkits() -> Iterator[Path]:
    """Folders of toolkits: those that were named, those of Python packages, the usual places."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.path.isabs(named := os.environ.get(variable, "")):
            yield Path(named)
    yield from _package_folders()


def _usual_places() -> list[Path]:
    places = [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), key=_version, reverse=True), Path("/opt/cuda")]
    return [p for p in places if p.is_dir()]


def _version(path: Path) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", path.name)]


def _package_folders() -> Iterator[Path]:
    """Where NVIDIA's Python packages put things: ``nvidia/cu13`` since CUDA 13, ``nvidia/cuda_nvrtc`` and the like before."""
    for entry in sys.path:
        base = Path(entry) / "nvidia"
        if os.path.isabs(entry) and base.is_dir():
            yield from sorted(p for p in base.iterdir() if re.fullmatch(r"cu\d+", p.name))[::-1]
            yield from sorted(p for p in base.iterdir() if p.name.startswith("cuda_"))


def _library_folders() -> Iterator[Path]:
    searched = [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if os.path.isabs(p)]
    yield from (t / lib for t in _toolkits() for lib in ("lib64", "lib"))
    yield from searched
    yield from (t / lib for t in _usual_places() for lib in ("lib64", "lib"))
    yield from _SYSTEM_LIBRARIES


def find_programs(name: str) -> Iterator[Path]:
    """Executable files of a name, in the order in which they are to be tried."""
    searched = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(p)]
    for folder in (*(t / "bin" for t in _toolkits()), *searched, *(t / "bin" for t in _usual_places())):
        path = folder / name
        if path.is_file() and os.access(path, os.X_OK):
            yield path
