"""Texts about op definitions: the form of a call, the reference page, the example in a docstring."""

from __future__ import annotations

import textwrap
from typing import Any

from ir.opdef import OpDef, describe_annotation


def signature_text(definition: OpDef) -> str:
    """The form of a call: ``topk(%x, k=..., axis=-1)``."""
    from ir.printer import format_attribute

    parts = [f"{a.name}" for a in definition.positional_attributes]
    parts += [f"%{o.name}" for o in definition.required_operands]
    if definition.variadic is not None:
        parts.append(f"%{definition.variadic.name}...")
    parts += [f"[{o.name}=%{o.name}]" for o in definition.optional_operands]
    for spec in definition.attribute_specs.values():
        if not spec.positional:
            parts.append(f"{spec.name}=..." if spec.required else f"{spec.name}={format_attribute(spec.default)}")
    return f"{definition.text_name}({', '.join(parts)})"


def example_texts(doc: str) -> list[str]:
    """The ``.graph`` programs in a docstring: every block indented below a line that ends in ``::``."""
    lines = doc.splitlines()
    examples: list[str] = []
    i = 0
    while i < len(lines):
        if lines[i].rstrip().endswith("::"):
            i += 1
            block: list[str] = []
            while i < len(lines) and (not lines[i].strip() or lines[i].startswith((" ", "\t"))):
                block.append(lines[i])
                i += 1
            text = textwrap.dedent("\n".join(block)).strip("\n")
            if text:
                examples.append(text + "\n")
        else:
            i += 1
    return examples


def reference_page(definition: OpDef) -> str:
    """What ``graph-opt explain`` prints: form, docstring, operands, attributes, properties."""
    lines = [signature_text(definition), "", definition.doc.rstrip(), ""]
    rows: list[tuple[str, str]] = []
    for operand in definition.operand_specs:
        extra = " (optional)" if operand.optional else " (any number)" if operand.variadic else ""
        rows.append((f"%{operand.name}", operand.kind.name + extra))
    for spec in definition.attribute_specs.values():
        rows.append((spec.name, _attribute_text(spec)))
    if rows:
        width = max(len(name) for name, _ in rows)
        lines += [f"  {name:<{width}}  {text}" for name, text in rows] + [""]
    flags = ("pure", "elementwise", "commutative", "exact", "composite", "traps")
    kept = [f for f in flags if getattr(definition, f)]
    lines.append(f"Properties: {', '.join(kept) if kept else 'none'}")
    return "\n".join(lines) + "\n"


def _attribute_text(spec: Any) -> str:
    from ir.printer import format_attribute

    default = "required" if spec.required else f"default {format_attribute(spec.default)}"
    return f"{describe_annotation(spec.annotation)}, {default}"
