"""From LLVM's assembly language to code in memory: the one place that talks to llvmlite.

What kills a process is kept away here: every engine has a target machine of its own, an object is loaded only when all
functions that it calls are among those of the C library that are known, and an engine lives as long as something refers
to the :class:`Code` that owns it (which callers keep together with the addresses that they got).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import struct
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from codegen.cache import default_cache, make_key
from codegen.llvm.parts import in_parts

LIBRARY = (
    "exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "erf", "erfc", "pow", "fmod", "ldexp", "sched_yield", "memcpy", "memmove", "memset",
    "floor", "floorf", "ceil", "ceilf", "trunc", "truncf", "roundeven", "roundevenf", "sqrt", "sqrtf", "fma", "fmaf",
)  # fmt: skip
"""Functions of the C library that native code may call."""
_TABLES = frozenset({"_GLOBAL_OFFSET_TABLE_", ""})

_UNNAMED = frozenset({"", "generic", "x86-64"})
"""What LLVM calls processors of x86 that it has no name for."""

_ADDRESS = re.compile(r"inttoptr \(i64 ([0-9]{4,}) to ptr\)")
_NAMED = "graph_opt_address_"


class CompileError(Exception):
    """LLVM refused a text, or an object has something that can't be loaded: a bug of the emitter, or a damaged object."""


_lock = threading.Lock()


@lru_cache(maxsize=1)
def _initialize() -> bool:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return True


@lru_cache(maxsize=1)
def library_addresses() -> dict[str, int]:
    """Addresses of the permitted functions that this system has."""
    libraries: list[Any] = [ctypes.CDLL(None)]
    name = ctypes.util.find_library("m")
    if name is not None:
        libraries.append(ctypes.CDLL(name))
    found: dict[str, int] = {}
    for function in LIBRARY:
        for library in libraries:
            pointer = getattr(library, function, None)
            if pointer is not None:
                found[function] = ctypes.cast(pointer, ctypes.c_void_p).value or 0
                break
    return found


@lru_cache(maxsize=1)
def host() -> tuple[str, str]:
    """The name of this machine's CPU, and its features as LLVM writes them; tiles only where this process may use them."""
    features = llvm.get_host_cpu_features().flatten()
    if "+amx-tile" in features and not _permit_tiles():
        features = features.replace("+amx-", "-amx-")
    return llvm.get_host_cpu_name(), features


def _permit_tiles() -> bool:
    """Asks the system to let this process, all its threads and children use tiles of x86; it keeps memory for them then."""
    request, tile_data = 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    try:
        ask = ctypes.CDLL(None).arch_prctl
    except AttributeError:
        return False
    return bool(ask(ctypes.c_int(request), ctypes.c_ulong(tile_data)) == 0)


def compiler() -> list[str]:
    """All that makes the same text another object: the machine, the versions of LLVM and of its wrapper."""
    return [*host(), llvm.get_default_triple(), ".".join(map(str, llvm.llvm_version_info)), llvmlite.__version__]


def host_features() -> frozenset[str]:
    """What this machine's CPU has, by LLVM's names (``avx512vnni``, ...)."""
    return frozenset(f[1:] for f in host()[1].split(",") if f.startswith("+"))


def host_attributes() -> dict[str, str]:
    """Attributes that functions for this machine should have: all of a vector register is used, and the order suits the registers.

    LLVM orders instructions by a model of the processor, and most models of those with AVX-512 move loads of attention's products, those
    of AMD's all of them, so far up that what they bring is stored and loaded again.  The one that does not is for all of them, so that they
    run the same loops.  The model of processors without a name keeps sums of products in memory, with AVX2, too.
    """
    features = host_features()
    if "avx512f" in features:
        return {"prefer-vector-width": "512", "tune-cpu": "sapphirerapids"}
    return {"tune-cpu": "znver3"} if "avx2" in features and host()[0] in _UNNAMED else {}


def _target_machine(level: int) -> Any:
    cpu, features = host()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=level, reloc="pic", codemodel="small")


def _parse(text: str) -> Any:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refuses the text: {error}") from None
    return module


def compile_object(text: str, *, level: int = 2, optimize: int = 0, known: Collection[str] = ()) -> bytes:
    """Machine code for this machine, as the bytes of an object file.

    ``level`` is that of LLVM's code generator, 0 to 3; ``optimize`` that of its passes over the text, 0 for none.  ``known``
    are functions of other objects that it may call.  Raises :class:`CompileError` for a text that is wrong, or that calls
    unknown functions.
    """
    with _lock:
        _initialize()
        machine = _target_machine(level)
        module = _parse(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        if optimize:
            options = llvm.create_pipeline_tuning_options(speed_level=optimize)
            builder = llvm.create_pass_builder(machine, options)
            builder.getModulePassManager().run(module, builder)
        data = bytes(machine.emit_object(module))
    refuse_unknown_symbols(data, known)
    return data


def assembly(text: str, *, level: int = 2) -> str:
    """The machine code of a text in the assembly language of this machine."""
    with _lock:
        _initialize()
        machine = _target_machine(level)
        module = _parse(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        return str(machine.emit_assembly(module))


def without_addresses(text: str) -> tuple[str, dict[str, int]]:
    """The text with names for the addresses in it, which are those of this process, and what each name stands for."""
    names: dict[str, str] = {}

    def named(found: re.Match[str]) -> str:
        return f"@{_NAMED}{names.setdefault(found[1], str(len(names)))}"

    text = _ADDRESS.sub(named, text)
    declared = [f"@{_NAMED}{number} = external global [{1 << 30} x i8], align 1" for number in names.values()]
    return "\n".join([text, *declared, ""]), {f"{_NAMED}{number}": int(address) for address, number in names.items()}


def refuse_unknown_symbols(data: bytes, known: Collection[str] = ()) -> list[str]:
    """The functions that an object defines.

    Raises CompileError when it is not one of this system, or needs a function that is neither permitted nor ``known``.
    """
    needed, defined = object_symbols(data)
    unknown = [name for name in needed if name not in library_addresses() and name not in known]
    if unknown:
        raise CompileError(f"the code calls unknown functions: {', '.join(sorted(unknown))}")
    return defined


def object_symbols(data: bytes) -> tuple[list[str], list[str]]:
    """Names that an ELF object of 64 bits needs from elsewhere, and those that others can use.

    Raises CompileError when the data is no such object.
    """
    try:
        return _elf_symbols(data)
    except (struct.error, IndexError, ValueError) as error:
        raise CompileError(f"the object file is damaged: {error}") from None


_ELF, _SYMBOLS, _NO_BITS = b"\x7fELF\x02\x01", 2, 8  # 64 bits, little-endian; two kinds of sections


def _elf_symbols(data: bytes) -> tuple[list[str], list[str]]:
    if data[:6] != _ELF:
        raise ValueError("no ELF file of 64 bits")
    (sections,) = struct.unpack_from("<Q", data, 0x28)
    entry, count = struct.unpack_from("<HH", data, 0x3A)
    if entry != 64 or sections + 64 * count > len(data):
        raise ValueError("sections end behind the file")
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + 64 * i) for i in range(count)]
    if any(h[1] not in (0, _NO_BITS) and h[4] + h[5] > len(data) for h in headers):
        raise ValueError("a section ends behind the file")
    needed, defined = [], []
    for _, kind, _, _, offset, size, link, _, _, _ in headers:
        if kind != _SYMBOLS:
            continue
        names = headers[link][4]
        for at in range(offset, offset + size, 24):
            name, info, _, section = struct.unpack_from("<IBBH", data, at)
            text = data[names + name : data.index(b"\0", names + name)].decode()
            if section == 0 and text not in _TABLES:
                needed.append(text)
            elif section != 0 and info >> 4 == 1:
                defined.append(text)
    return needed, defined


class Code:
    """Loaded machine code.  Addresses are good as long as this object lives, so keep it with every function pointer."""

    def __init__(self, *objects: bytes, addresses: Mapping[str, int] | None = None) -> None:
        """Loads object files, which may call functions of those in front of them; ``addresses`` are what other names stand for.

        Raises CompileError when one is not for this system or calls unknown functions.
        """
        defined: list[str] = []
        given = {**library_addresses(), **(addresses or {})}
        for data in objects:
            defined += refuse_unknown_symbols(data, [*defined, *(addresses or ())])
        self.objects = objects
        with _lock:
            _initialize()
            self._engine = llvm.create_lljit_compiler(_target_machine(2), use_jit_link=True, suppress_errors=True)
            builder = llvm.JITLibraryBuilder()
            for data in objects:
                builder.add_object_img(data)
            for name in dict.fromkeys(n for data in objects for n in object_symbols(data)[0] if n not in defined):
                builder.import_symbol(name, given[name])
            for name in defined:
                builder.export_symbol(name)
            try:
                self._library = builder.link(self._engine, "graph")
            except RuntimeError as error:
                raise CompileError(f"the objects can't be loaded: {error}") from None
            self._addresses = {name: int(self._library[name]) for name in defined}

    @classmethod
    def from_text(cls, text: str, *, level: int = 2, optimize: int = 0) -> Code:
        """Compiles and loads; see :func:`compile_object`.  What the text became may come from the cache."""
        text, addresses = without_addresses(text)
        cache = default_cache()
        if cache is None:
            return cls(compile_object(text, level=level, optimize=optimize, known=addresses), addresses=addresses)
        key = make_key("object", [text, str(level), str(optimize), *compiler()])
        data = cache.get(key)
        if data is not None:
            with suppress(CompileError):  # then it is made again
                return cls(data, addresses=addresses)
        data = compile_object(text, level=level, optimize=optimize, known=addresses)
        cache.put(key, data)
        return cls(data, addresses=addresses)

    @classmethod
    def from_program(cls, text: str, function: str) -> Code:
        """The same for a program with a main function, each part of it with the effort that it is worth."""
        objects: list[bytes] = []
        for part, level in in_parts(text, function):
            known = {name for data in objects for name in object_symbols(data)[1]}
            objects.append(compile_object(part, level=level, known=known))
        return cls(*objects)

    def address(self, name: str) -> int:
        """The address of a function.  Raises KeyError when there is none."""
        return self._addresses[name]
