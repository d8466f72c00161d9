"""``graph-opt list`` and ``graph-opt explain``.

Listing reads the sources instead of importing them: it answers before numpy could be loaded.  A test holds the list
against the loaded definitions.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ir.types import DType

_ROOT = Path(__file__).resolve().parent.parent
_OP = re.compile(r'^@op\((?P<flags>.*?)\)\ndef (?P<name>\w+)\(.*?"""(?P<summary>.+?)(?:\n\s*\n|""")', re.MULTILINE | re.DOTALL)
_NAME_FLAG = re.compile(r'\bname="(\w+)"')
_DIALECT_FLAG = re.compile(r'\bdialect="(\w+)"')
_REGION_OP = re.compile(
    r'^class [A-Z]\w*\(\w*OpDef\):\n\s+"""(?P<summary>.+?)(?:\n\s*\n|""").*?super\(\).__init__\("(?P<name>\w+)", "(?P<dialect>\w+)"',
    re.MULTILINE | re.DOTALL,
)


def op_summaries() -> dict[str, str]:
    """Operation -> first sentence of its docstring, sorted by name."""
    found: dict[str, str] = {}
    for path in [_ROOT / "ir" / "builtin.py", *sorted((_ROOT / "dialects").rglob("*.py"))]:
        for name, summary in _ops_in(path.read_text(encoding="utf-8")):
            found[name] = " ".join(summary.split())
    return dict(sorted(found.items()))


def _ops_in(text: str) -> Iterator[tuple[str, str]]:
    for match in _OP.finditer(text):
        flags = match["flags"]
        given, dialect = _NAME_FLAG.search(flags), _DIALECT_FLAG.search(flags)
        name = given[1] if given else match["name"].rstrip("_")
        yield (f"{dialect[1]}.{name}" if dialect else name), match["summary"]
    for match in _REGION_OP.finditer(text):
        yield f"{match['dialect']}.{match['name']}", match["summary"]


def list_names(what: str) -> int:
    """Prints the operations or passes, one line each."""
    if what == "ops":
        rows = op_summaries()
    else:
        from passes.infra.registry import pass_summaries

        rows = pass_summaries()
    width = max(map(len, rows))
    for name, summary in rows.items():
        print(f"{name:<{width}}  {summary}")
    return 0


def explain(name: str) -> int:
    """Prints a reference page; 1 when there is none of that name."""
    from passes.infra.registry import pass_files
    from passes.pipelines import OTHER_GPUS, OTHER_TARGETS, PRESETS, TARGETS

    presets = {**PRESETS, **OTHER_TARGETS, **OTHER_GPUS}
    if name in presets:
        lines = ",\n  ".join(re.split(r",(?![^{]*})", presets[name]))  # commas between passes, not those of their options
        print(f"{name} is the pipeline\n\n  {lines}")
        if name in TARGETS:
            from graph_opt.levels import preset_of

            print(f"\nThis processor gets {preset_of('loops')}.")
        return 0
    if name in pass_files():
        print(pass_page(name), end="")
        return 0
    import dialects  # noqa: F401  defines the operations
    from ir.docs import reference_page
    from ir.opdef import REGISTRY

    definition = REGISTRY.get(name if "." in name else f"graph.{name}")
    if definition is None:
        from ir.diagnostics import did_you_mean
        from ir.types import DTYPES

        if name in DTYPES:
            print(_type_line(DTYPES[name]))
            return 0

        known = [*pass_files(), *presets, *(d.text_name for d in REGISTRY.values())]
        hint = did_you_mean(name, known)
        print(f"graph-opt: error: there is no operation or pass '{name}'" + (f"\n  hint: {hint}" if hint else ""), file=sys.stderr)
        return 1
    print(reference_page(definition), end="")
    return 0


def _type_line(dtype: DType) -> str:
    """What an element type is, in a line, and where more is said."""
    if dtype.is_block:
        what = f"blocks of {dtype.block} numbers of {dtype.bits} bits along the last axis of a tensor, {dtype.block_bytes} bytes each"
        return f"{dtype} is an element type: {what}; see docs/quantized.md"
    kinds = {"float": "a float", "int": "a signed integer", "uint": "an unsigned integer", "bool": "true or false", "index": "an index"}
    return f"{dtype} is an element type: {kinds[dtype.kind]}, {dtype.bits} bits; see docs/language.md"


def pass_page(name: str) -> str:
    """The reference page of a pass: its docstring, options and defaults."""
    import dataclasses
    import typing

    from ir.opdef import describe_annotation
    from passes.infra.registry import find_pass

    cls = find_pass(name)
    lines = [name, "", inspect.getdoc(cls) or "", ""]
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    for field in fields:
        lines.append(f"  {field.name}  {describe_annotation(hints[field.name])}, default {field.default!r}")
        about = _field_doc(inspect.getsource(cls), field.name)
        lines += [f"      {about}"] if about else []
    lines += [""] if fields else []
    kept = {"bits": "every bit of the results", "values": "the results up to rounding", "approximate": "the results up to approximation"}
    lines.append(f"Preserves: {kept[cls.preserves]}")
    return "\n".join(lines) + "\n"


def _field_doc(source: str, field: str) -> str:
    match = re.search(rf'^    {field}: [^\n]*\n    """(.+?)"""', source, re.MULTILINE | re.DOTALL)
    return " ".join(match[1].split()) if match else ""


def tell_cache(clear: bool) -> int:
    """Prints where compiled programs are kept, and how much there is; removes them where that is asked for."""
    from codegen.cache import default_cache

    cache = default_cache()
    if cache is None:
        print("nothing is kept")
        return 0
    if clear:
        count = cache.clear()
        print(f"{cache.folder}: {count} entries removed")
        return 0
    count, size = cache.size()
    print(f"{cache.folder}: {count} entries, {size / 2**20:.1f} MiB of at most {cache.limit / 2**20:.0f}")
    return 0
