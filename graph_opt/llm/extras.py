"""Packages that only text generation needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

from ir.diagnostics import Diagnostic, GraphError


def extra(package: Literal["tokenizers", "jinja2"], purpose: str) -> Any:
    """The package; ``purpose`` says what it is needed for.  Raises GraphError when it isn't installed."""
    try:
        return import_module("tokenizers") if package == "tokenizers" else import_module("jinja2")
    except ImportError as error:
        raise GraphError(Diagnostic(f"{purpose} needs the package {package}: {error}", hint="pip install graph-opt[llm]")) from None
