"""What is in a cubin, and what a disassembly says: the facts that tests judge kernels by, without a GPU.

A cubin is an ELF file.  Sections ``.nv.info`` hold attributes of kernels as records: a byte that says how the value is stored, a byte for
which attribute it is, and two bytes of value, or of length of the value that follows.  ``nvdisasm`` prints the instructions.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FRAME_SIZE, _REGISTERS, _BARRIERS, _MAX_THREADS = 0x11, 0x2F, 0x4C, 0x05
_SIZED = 4  # EIFMT_SVAL: the two bytes are the length of what follows; all other records are four bytes long
_SYMBOL, _NOBITS = 2, 8  # section types
_RESERVED = 1024  # bytes of each block's shared memory that are the system's, since sm_90
_SPILLS = re.compile(r"Function properties for (?P<name>\w+)\n.*? bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+)")
_FUNCTION = re.compile(r"^\s*\.text\.(?P<name>[\w$.]+):\s*$|^\s*Function\s*:\s*(?P<function>[\w$.]+)\s*$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*(?:\S+:)?\s*/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P[T\d]\d*\s+)?(?P<name>[A-Z][A-Z0-9_.]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a kernel needs.

    ``registers`` and ``stack`` (bytes: registers that were spilled, and local arrays that are not in registers) are for each thread,
    ``shared`` bytes of static shared memory and ``barriers`` for each block; ``threads`` is the size of blocks it was compiled for (0: any).
    ``spill_stores`` and ``spill_loads`` are bytes of spilled registers as ptxas says them, None where its log is not at hand; they are 0 when
    ``stack`` is.
    """

    registers: int
    stack: int
    shared: int
    barriers: int
    threads: int = 0
    spill_stores: int | None = None
    spill_loads: int | None = None


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    type: int
    flags: int
    offset: int
    size: int


class NotACubin(ValueError):
    """Bytes that are no cubin, or a damaged one."""


def kernel_usage(image: bytes, log: str = "") -> dict[str, Usage]:
    """What each kernel of a cubin needs, by its name; ``log`` is what ptxas said with ``-v``.  Raises NotACubin."""
    try:
        return _usage(image, log)
    except NotACubin:
        raise
    except (struct.error, UnicodeDecodeError, LookupError, ValueError) as error:
        raise NotACubin(f"damaged: {error}") from None


def _usage(image: bytes, log: str) -> dict[str, Usage]:
    sections = _sections(image)
    symbols = _symbol_names(image, sections)
    of_function: dict[int, dict[str, int]] = {_REGISTERS: {}, _FRAME_SIZE: {}}
    for attribute, value in _records(image, sections.get(".nv.info")):
        if attribute in of_function and len(value) >= 8:
            symbol, number = struct.unpack_from("<II", value)
            of_function[attribute][symbols[symbol]] = number
    spills = {m["name"]: (int(m["stores"]), int(m["loads"])) for m in _SPILLS.finditer(log)}
    reserved = _RESERVED if ".nv.shared.reserved.0" in sections else 0
    found = {}
    for name in kernel_names(image):
        own = dict(_records(image, sections.get(f".nv.info.{name}")))
        code, shared = sections[f".text.{name}"], sections.get(f".nv.shared.{name}")
        stack = of_function[_FRAME_SIZE].get(name, 0)
        stores, loads = spills.get(name, (None, None) if stack else (0, 0))
        threads = struct.unpack_from("<III", own[_MAX_THREADS]) if len(own.get(_MAX_THREADS, b"")) >= 12 else (0, 1, 1)
        found[name] = Usage(
            registers=of_function[_REGISTERS].get(name, 0),
            stack=stack,
            shared=shared.size - reserved if shared is not None else 0,
            barriers=own[_BARRIERS][0] if _BARRIERS in own else code.flags >> 20 & 0x7F,  # CUDA 12 keeps it in the flags
            threads=threads[0] * threads[1] * threads[2],
            spill_stores=stores,
            spill_loads=loads,
        )
    return found


def kernel_names(image: bytes) -> list[str]:
    """The kernels of a cubin, sorted.  Raises NotACubin."""
    return sorted(n.removeprefix(".nv.info.") for n in _sections(image) if n.startswith(".nv.info."))


def _sections(image: bytes) -> dict[str, _Section]:
    if image[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", image, 18)[0] != 190:  # EM_CUDA
        raise NotACubin("no cubin")
    segments, start = struct.unpack_from("<QQ", image, 32)
    segment_size, segment_count, size, count, names_at = struct.unpack_from("<HHHHH", image, 54)
    if segments + segment_size * segment_count > len(image):
        raise NotACubin("its table of segments is cut off")
    headers = [struct.unpack_from("<IIQQQQ", image, start + n * size) for n in range(count)]
    names = headers[names_at]
    found = {}
    for name, type_, flags, _, offset, length in headers:
        text = _text(image, names[4] + name)
        if type_ != _NOBITS and offset + length > len(image):
            raise NotACubin(f"section {text} is cut off")
        found[text] = _Section(text, type_, flags, offset, length)
    return found


def _symbol_names(image: bytes, sections: Mapping[str, _Section]) -> list[str]:
    table, names = sections[".symtab"], sections[".strtab"]
    return [_text(image, names.offset + struct.unpack_from("<I", image, table.offset + n)[0]) for n in range(0, table.size, 24)]


def _text(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode("ascii") if at < len(image) else ""


def _records(image: bytes, section: _Section | None) -> Iterator[tuple[int, bytes]]:
    """Attributes with their values."""
    at, end = (section.offset, section.offset + section.size) if section is not None else (0, 0)
    while at + 4 <= end:
        kind, attribute = image[at], image[at + 1]
        size = struct.unpack_from("<H", image, at + 2)[0] if kind == _SIZED else 0
        yield attribute, image[at + 4 : at + 4 + size] if kind == _SIZED else image[at + 2 : at + 4]
        at += 4 + size


# -- disassembly -------------------------------------------------------------------------------------------------------


def instructions(text: str) -> dict[str, Counter[str]]:
    """How often each instruction (``LDG.E.128.CONSTANT``) stands in each kernel of a disassembly (SASS)."""
    starts = [(m.end(), m["name"] or m["function"]) for m in _FUNCTION.finditer(text)]
    ends = [start for start, _ in starts[1:]] + [len(text)]
    return {name: Counter(m["name"] for m in _INSTRUCTION.finditer(text, start, end)) for (start, name), end in zip(starts, ends, strict=True)}


def count(found: Mapping[str, int], pattern: str) -> int:
    """How many instructions match: ``LDG.E.128`` is one with these parts in this order (others may stand between), ``LDG*`` its beginning.

    ``HMMA.16816`` matches HMMA.16816.F32.BF16, and so does ``HMMA.BF16``; ``LDG`` does not match LDGSTS, but ``LDG*`` does.
    """
    return sum(n for name, n in found.items() if _matches(name.split("."), pattern.split(".")))


def _matches(parts: list[str], wanted: list[str]) -> bool:
    first, *rest = wanted
    if not (parts[0].startswith(first[:-1]) if first.endswith("*") else parts[0] == first):
        return False
    left = iter(parts[1:])
    return all(part in left for part in rest)
