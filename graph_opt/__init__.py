"""graph-opt: programs of tensor operations as readable text, analysed, rewritten, and run.

    import graph_opt
    mlp = graph_opt.compile("samples/mlp.graph")
    y = mlp(x, w1, b1, w2)

Everything that is wrong with an input is reported as a :class:`GraphError` whose text starts with ``file:line:col``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph_opt import cuda, llm
    from graph_opt.api import compile, load, parse, run
    from graph_opt.executable import Executable
    from ir.diagnostics import GraphError

__version__ = "0.1.0"
__all__ = ["Executable", "GraphError", "compile", "cuda", "llm", "load", "parse", "run"]

_OWN_PACKAGES = ("ir", "dialects", "passes", "codegen", "interop")
_HOMES = {
    "compile": "graph_opt.api",
    "load": "graph_opt.api",
    "parse": "graph_opt.api",
    "run": "graph_opt.api",
    "Executable": "graph_opt.executable",
    "GraphError": "ir.diagnostics",
    "cuda": "graph_opt.cuda",
    "llm": "graph_opt.llm",
}
_PACKAGES = {"cuda", "llm"}


def _check_packages() -> None:
    """Our packages have common names: refuses to start when another ``ir`` or ``passes`` comes first on the path."""
    from importlib.util import find_spec

    root = Path(__file__).resolve().parent.parent
    for name in _OWN_PACKAGES:
        spec = find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None or origin.parent.parent != root:
            found = f"{origin} is imported instead" if origin else "it is not found"
            raise ImportError(f"graph_opt needs its own package '{name}' beside {root / 'graph_opt'}, but {found}; rename or move the other one")


_check_packages()


def __getattr__(name: str) -> Any:
    """Loads the public names when they are first used, so that ``graph-opt --help`` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'graph_opt' has no attribute '{name}'")
    import importlib

    home = importlib.import_module(_HOMES[name])
    return home if name in _PACKAGES else getattr(home, name)
