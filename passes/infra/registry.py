"""Which passes exist: the files below ``passes/``, listed without being imported."""

from __future__ import annotations

import ast
import importlib
from functools import lru_cache
from pathlib import Path

from ir.diagnostics import GraphError, did_you_mean
from passes.infra.base import Pass

_ROOT = Path(__file__).parent.parent
_NOT_PASSES = ("infra",)


@lru_cache(maxsize=1)
def pass_files() -> dict[str, Path]:
    """Pass name -> file."""
    found: dict[str, Path] = {}
    for path in sorted(_ROOT.glob("*/*.py")):
        if path.parent.name not in _NOT_PASSES and not path.stem.startswith("_"):
            found[path.stem.replace("_", "-")] = path
    return found


def pass_summaries() -> dict[str, str]:
    """Pass name -> first line of its class's docstring, read from the source."""
    summaries: dict[str, str] = {}
    for name, path in pass_files().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        wanted = class_name(name)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == wanted:
                summaries[name] = (ast.get_docstring(node) or "").split("\n")[0]
    return summaries


def class_name(name: str) -> str:
    """``constant-fold`` -> ``ConstantFold``."""
    return "".join(part.capitalize() for part in name.split("-"))


def find_pass(name: str) -> type[Pass]:
    """The class of a pass.  Raises GraphError for an unknown name."""
    files = pass_files()
    if name not in files:
        hint = did_you_mean(name, files)
        raise GraphError(f"there is no pass '{name}'" + (f"; {hint}" if hint else ""))
    path = files[name]
    module = importlib.import_module(f"passes.{path.parent.name}.{path.stem}")
    found = getattr(module, class_name(name))
    assert issubclass(found, Pass)
    return found  # type: ignore[no-any-return]
