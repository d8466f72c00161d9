"""Names of a program as names in CUDA C, and its text as comments: nothing of it can become code."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

from ir.core import DROPPED
from ir.diagnostics import AnyLocation, FusedLocation, Location

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl concept const consteval
    constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast else enum explicit
    export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
    """
_TAKEN = """
    fma fmaf fmax fmaxf fmin fminf fmod fmodf sqrt sqrtf rsqrt rsqrtf floor floorf ceil ceilf trunc truncf rint rintf fabs fabsf copysign
    copysignf ldexp exp expm1 log log1p sin cos tan tanh erf erfc pow isnan isinf signbit min max abs
    assert errno linux unix i386 stdin stdout stderr environ main threadIdx blockIdx blockDim gridDim warpSize
    """
"""Functions that kernels call, and names that headers may define as macros."""

_RESERVED = frozenset((*_KEYWORDS.split(), *_TAKEN.split()))

_LONGEST = 60


def identifier(name: str) -> str:
    """A name for a variable in a kernel: letters, digits and ``_``; not unique, and no word of the language or of a header."""
    plain = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_]", "_", name)).strip("_")
    if name == DROPPED or not plain:
        plain = "unused" if name == DROPPED else "v"
    if not plain[0].isalpha():
        plain = f"v{plain}"
    if len(plain) > _LONGEST:
        plain = f"{plain[: _LONGEST - 9]}_{hashlib.sha256(plain.encode()).hexdigest()[:8]}"
    shouting = len(plain) > 2 and plain.upper() == plain  # macros are written so
    if plain in _RESERVED or plain.lower().startswith("go_") or shouting:
        plain += "_"
    return plain


def unique(name: str, taken: Collection[str]) -> str:
    """``name``, or ``name_1`` and so on, so that it is not among ``taken``."""
    if name not in taken:
        return name
    stem = name.rstrip("_")
    number = 1
    while f"{stem}_{number}" in taken:
        number += 1
    return f"{stem}_{number}"


def kernel_identifier(graph: str, name: str) -> str:
    """The name of a kernel: ``k_`` keeps it apart from all that libraries define."""
    return f"k_{identifier(f'{graph}_{name}').rstrip('_')}"


def comment(text: str) -> str:
    """Text as (a part of) a comment of one line: plain ASCII, without what would end it or go on with it on the next line."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text.expandtabs(1))
    plain = plain.replace("\\", "|").replace("*/", "* /").replace("/*", "/ *")
    while "??" in plain:
        plain = plain.replace("??", "? ?")
    return plain if len(plain) <= 120 else f"{plain[:117]}..."


def origins(location: AnyLocation | None) -> list[Location | object]:
    """The places that an operation comes from, those of one that stands for several one by one."""
    if location is None:
        return []
    if isinstance(location, FusedLocation):
        return [place for part in location.parts for place in origins(part)]
    return [location]


def statement_at(place: object) -> str:
    """The line of the program at a place as a comment, or the place where the text isn't known."""
    if isinstance(place, Location):
        line, _ = place.source.line_col(place.offset)
        return comment(place.source.line_text(line).strip())
    name, line, column = place.places[0]  # type: ignore[attr-defined]
    return comment(f"{name}:{line}:{column}")
