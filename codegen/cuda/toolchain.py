"""From CUDA C to PTX, machine code and its listing, on any machine: no GPU is needed.

    compile_cubin(source, "sm_90a")    machine code, what the compiler said, what each kernel needs
    compile_ptx(source, "sm_90a")      PTX
    disassemble(image)                 SASS

``source`` is what :func:`codegen.cuda.emit.emit_program` writes; the headers that it includes are those in ``codegen/cuda/include``.
Which compilers there are, and where they are looked for, is in :mod:`codegen.cuda.compilers`.

Machine code is kept in the user's cache (:mod:`codegen.cache`): an entry is found by the source, its headers, the target, the compiler's own files
and the options, so nothing runs for a program that was compiled before.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from codegen.cache import Cache, default_cache, make_key
from codegen.cuda.compilers import (
    INSTALL_COMPILER,
    SAME_BITS,
    Compiler,
    CompilerFault,
    Result,
    TargetUnknown,
    ToolFailure,
    ask_worker,
    call_tool,
    find_compilers,
    find_disassembler,
    private_folder,
)
from codegen.cuda.cubin import NotACubin, Usage, kernel_usage
from codegen.cuda.targets import DEFAULT, TARGETS, Target, any_target, target_of_device
from ir.diagnostics import Diagnostic, MissingPackage

__all__ = [
    "TARGETS",
    "Compiled",
    "CompilerFault",
    "choose_target",
    "compile_cubin",
    "compile_ptx",
    "disassemble",
    "self_contained",
]

INCLUDE = Path(__file__).with_name("include")
"""Where the device's headers are."""

_FOR_THE_HOST = "graph_opt_host.h"
"""What a compiler for the CPU includes instead."""

_INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([\w.]+)"[^\n]*$', re.MULTILINE)
_LENGTH = struct.Struct("<Q")
_USE_CACHE = Cache(Path())
"""Stands for the cache that the environment asks for."""


@dataclass(frozen=True)
class Compiled:
    """Machine code for one architecture: an ELF file that the driver loads.

    ``log`` is what the compiler said, warnings among it; ``usage`` what each kernel needs, by its name.
    """

    image: bytes
    log: str
    target: Target
    usage: Mapping[str, Usage] = field(repr=False)


def compile_cubin(source: str, target: str | Target, *, compiler: Compiler | None = None, cache: Cache | None = _USE_CACHE) -> Compiled:
    """Machine code for a target, also for one that is not among :data:`TARGETS` but that the compiler knows (``sm_120``).

    ``compiler`` is the one to take, else all are tried in their order until one knows the target.

    Raises GraphError for what is no target, MissingPackage where there is no compiler, ToolFailure where none knows the target or works, and
    CompilerFault when the text is wrong, which is our fault.
    """
    wanted = any_target(target) if isinstance(target, str) else target
    kept = default_cache() if cache is _USE_CACHE else cache
    headers = headers_of(source)
    known: list[str] = []
    for tool in [compiler] if compiler is not None else find_compilers():
        key = make_key("cubin", _key_parts(source, headers, wanted, tool))
        found = kept.get(key) if kept is not None else None
        compiled = _unpack(found, wanted) if found is not None else None
        if compiled is not None:
            return compiled
        if found is not None and kept is not None:
            kept.remove(key)
        try:
            image, log = _run(tool, source, headers, wanted, "cubin")
        except TargetUnknown as error:
            known.append(str(error))
            continue
        if kept is not None:
            kept.put(key, _LENGTH.pack(len(log.encode())) + log.encode() + image)
        return Compiled(image, log, wanted, kernel_usage(image, log))
    raise _nobody(wanted, known)


def compile_ptx(source: str, target: str | Target, *, compiler: Compiler | None = None) -> str:
    """PTX for a target.  Raises as :func:`compile_cubin` does."""
    wanted = any_target(target) if isinstance(target, str) else target
    known: list[str] = []
    for tool in [compiler] if compiler is not None else find_compilers():
        try:
            return _run(tool, source, headers_of(source), wanted, "ptx")[0].decode("utf-8", "replace")
        except TargetUnknown as error:
            known.append(str(error))
    raise _nobody(wanted, known)


def disassemble(image: bytes) -> str:
    """The instructions of all kernels, as ``nvdisasm`` prints them.  Raises MissingPackage where there is none, ToolFailure where it fails."""
    tool = find_disassembler()
    with private_folder() as folder:
        (folder / "kernels.cubin").write_bytes(image)
        done = call_tool([tool, "-c", "kernels.cubin"], folder)
    if done.returncode:
        said = (done.stderr + done.stdout).decode("utf-8", "replace").strip()
        hint = "an nvdisasm that is older than the compiler doesn't know its files"
        raise ToolFailure(Diagnostic(f"{tool} fails with status {done.returncode}: {said[:500]}", hint=hint))
    return done.stdout.decode("utf-8", "replace")


# -- parts -------------------------------------------------------------------------------------------------------------


def headers_of(source: str) -> dict[str, str]:
    """The headers of ours that a text includes, and those that they include, by name."""
    found: dict[str, str] = {}
    left = _INCLUDED.findall(source)
    while left:
        name = left.pop()
        path = INCLUDE / name
        if name not in found and name != _FOR_THE_HOST and path.is_file():
            found[name] = path.read_text(encoding="utf-8")
            left += _INCLUDED.findall(found[name])
    return dict(sorted(found.items()))


def self_contained(source: str) -> str:
    """The text with its headers in the places where they are included: one file that any compiler takes."""
    headers = headers_of(source)
    seen: set[str] = set()

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen or name not in headers:
            return "" if name in seen else match[0]
        seen.add(name)
        text = re.sub(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", "", headers[name], flags=re.MULTILINE)
        return f"// {name}\n{_INCLUDED.sub(put, text)}"

    return _INCLUDED.sub(put, source)


def _key_parts(source: str, headers: Mapping[str, str], target: Target, compiler: Compiler) -> Iterator[str]:
    yield from (source, target.name, compiler.name, compiler.identity(), " ".join(SAME_BITS))
    for name, text in headers.items():
        yield from (name, text)


def _run(tool: Compiler, source: str, headers: Mapping[str, str], target: Target, result: Result) -> tuple[bytes, str]:
    """Calls a compiler; what it doesn't take can be compiled from one file."""
    try:
        return tool.compile(source, headers, target, result)
    except CompilerFault as fault:
        raise CompilerFault(fault.compiler, fault.target, self_contained(source), fault.log) from None


def _unpack(entry: bytes, target: Target) -> Compiled | None:
    """What the cache keeps; None for what can't be read."""
    if len(entry) < _LENGTH.size:
        return None
    start = _LENGTH.size + _LENGTH.unpack_from(entry)[0]
    log, image = entry[_LENGTH.size : start].decode("utf-8", "replace"), entry[start:]
    try:
        return Compiled(image, log, target, kernel_usage(image, log))
    except NotACubin:
        return None


def _nobody(target: Target, known: Sequence[str]) -> MissingPackage:
    """What is said when no compiler could be asked, or none knows the target."""
    if not known:
        return MissingPackage(Diagnostic("CUDA C can't be compiled: there is neither NVRTC nor nvcc", hint=INSTALL_COMPILER))
    return ToolFailure(Diagnostic(f"no compiler knows {target.name}: {'; '.join(known)}", hint=f"a newer one may: {INSTALL_COMPILER}"))


# -- devices -----------------------------------------------------------------------------------------------------------


def choose_target() -> tuple[Target, str]:
    """The target for the newest device of this machine, else :data:`~codegen.cuda.targets.DEFAULT`; and why, in words."""
    found = [c for c in device_capabilities() if c >= next(iter(TARGETS.values())).capability]
    if not found:
        return TARGETS[DEFAULT], "there is no device here"
    return target_of_device(max(found)), f"of the newest device here, compute capability {max(found)[0]}.{max(found)[1]}"


@lru_cache(maxsize=1)
def device_capabilities() -> tuple[tuple[int, int], ...]:
    """The compute capabilities of this machine's devices; asked in a process of its own, so ours doesn't open any."""
    from codegen.cuda.libcuda import LIBRARY

    try:
        answer, _ = ask_worker({"do": "devices", "library": LIBRARY}, seconds=60)
    except ToolFailure:  # no driver, or one that crashes
        return ()
    return tuple((major, minor) for major, minor in answer["devices"])
