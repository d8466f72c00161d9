"""The package list in pyproject.toml names every package of the tree."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_package_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    tops = ("graph_opt", "ir", "dialects", "passes", "codegen", "interop")
    found = {".".join(p.parent.relative_to(ROOT).parts) for top in tops for p in (ROOT / top).rglob("__init__.py")}
    assert sorted(listed) == sorted(found)
