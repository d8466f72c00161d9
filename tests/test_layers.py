"""Who may import whom; imports in functions and for type checking count like any other."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("ir", "dialects", "passes", "codegen", "interop", "reports", "graph_opt")
ALLOWED = {
    "ir": {"numpy", "lark", "ml_dtypes"},
    "dialects": {"ir", "numpy", "ml_dtypes"},
    "passes": {"dialects", "ir", "numpy", "ml_dtypes"},
    "codegen": {"dialects", "ir", "numpy", "ml_dtypes", "llvmlite", "pycuda", "cuda"},
    "interop": {"dialects", "ir", "numpy", "ml_dtypes", "safetensors"},
    "reports": {"dialects", "ir", "numpy"},
    "graph_opt": {*LAYERS, "numpy", "ml_dtypes", "jinja2", "tokenizers"},
}
DYNAMIC = {"dialects/__init__.py", "passes/infra/registry.py", "graph_opt/__init__.py"}
"""Files that import by a computed name: the registries, of their own layer, and the public face."""
FILES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]


def imported(source: str) -> Iterator[tuple[int, str]]:
    """(line, module) of all imports in a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, ("." * node.level) + (node.module or "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")) and node.args:
            first = node.args[0]
            yield node.lineno, first.value if isinstance(first, ast.Constant) else f"computed:{ast.unparse(first)}"


def problems(layer: str, relative: str, source: str) -> list[str]:
    """Imports of a file that its layer may not make."""
    found = []
    for line, name in imported(source):
        top = name.split(".")[0]
        if name.startswith("computed:"):
            if relative not in DYNAMIC:
                found.append(f"{relative}:{line}: imports by a computed name, {name}")
        elif top == "":
            found.append(f"{relative}:{line}: a relative import")
        elif top != layer and top not in sys.stdlib_module_names and top not in ALLOWED[layer]:
            found.append(f"{relative}:{line}: {layer} may not import {name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    assert not problems(relative.split("/")[0], relative, path.read_text(encoding="utf-8"))


def test_all_layers_are_looked_at() -> None:
    seen = {path.relative_to(ROOT).parts[0] for path in FILES}
    assert {"ir", "dialects", "passes", "interop", "graph_opt"} <= seen


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("ir", "import dialects"),
        ("ir", "def f():\n    from passes.pipelines import PRESETS"),
        ("ir", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from graph_opt import api"),
        ("dialects", "import passes.graph.dce"),
        ("passes", "from interop import open_weights"),
        ("interop", "import graph_opt as g"),
        ("codegen", "from passes.infra.base import Pass"),
        ("ir", "import importlib\nimportlib.import_module('dialects')"),
        ("passes", "import importlib\nimportlib.import_module(name)"),
        ("ir", "import torch"),
        ("passes", "from . import x"),
    ],
)
def test_wrong_imports_are_seen(layer: str, source: str) -> None:
    assert problems(layer, f"{layer}/example.py", source)


def test_registries_load_their_own_layer_only() -> None:
    for name in DYNAMIC - {"graph_opt/__init__.py"}:
        source = (ROOT / name).read_text(encoding="utf-8")
        computed = [module for _, module in imported(source) if module.startswith("computed:")]
        layer = name.split("/")[0]
        assert computed and all(module in ("computed:name",) or module.startswith(f"computed:f'{layer}.") for module in computed)
