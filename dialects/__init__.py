"""What a program can say.  Importing this package defines every operation: the folders are the registry.

A module or package here is loaded by its name alone; one that starts with an underscore holds no operations.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import ir.builtin  # noqa: F401  return and yield


def _load(package: str, folder: Path) -> None:
    for entry in sorted(pkgutil.iter_modules([str(folder)]), key=lambda e: e.name):
        if entry.name.startswith("_"):
            continue
        name = f"{package}.{entry.name}"
        importlib.import_module(name)
        if entry.ispkg:
            _load(name, folder / entry.name)


_load(__name__, Path(__file__).parent)
