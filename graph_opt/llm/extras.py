"""Packages that only text generation needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

from ir.diagnostics import Diagnostic, MissingPackage

INSTALL = "pip install tokenizers jinja2; or pip install -e '.[llm]' in a checkout of graph-opt"
"""What to do where one is missing."""


def extra(package: Literal["tokenizers", "jinja2"], purpose: str) -> Any:
    """The package; ``purpose`` says what it is needed for.  Raises MissingPackage when it isn't installed."""
    try:
        return import_module("tokenizers") if package == "tokenizers" else import_module("jinja2")
    except ImportError as error:
        raise MissingPackage(Diagnostic(f"{purpose} needs the package {package}: {error}", hint=INSTALL)) from None


def said(text: str, limit: int = 300) -> str:
    """What a package or a template says, safe and short enough for a message: some of it may come from a file."""
    short = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in short)
