"""``graph-opt import``: the model in a GGUF file as a program that people can read and change."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from graph_opt.commands import write_output
from graph_opt.llm.vocabulary import TOKENS, check_numbered
from interop.gguf import GgufFile
from interop.llama import FILE, import_llama
from ir.diagnostics import Diagnostic, GraphError, NamedLocation


def import_model(args: argparse.Namespace) -> int:
    """Writes the program of a model to ``args.out`` or to standard output."""
    folder = Path(args.out).parent if args.out else Path()
    inside = path_from(args.file, folder)
    try:
        gguf = GgufFile(args.file)
        try:
            if TOKENS in gguf.metadata:
                check_numbered(gguf.metadata)
            text = import_llama(gguf, inside)
        finally:
            gguf.close()
    except GraphError as error:
        raise _without_name(error, args.file) from error
    write_output(text, args)
    if inside is None:
        print(f"{args.file} is not below the program's folder: run the program with --file {FILE}={args.file}", file=sys.stderr)
    return 0


def path_from(file: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str | None:
    """The path that a program in ``folder`` may write for a file; None when the file is not below the folder."""
    target, root = Path(file).resolve(), Path(folder).resolve()
    relative = target.relative_to(root).as_posix() if target.is_relative_to(root) else None
    if relative is not None:
        try:
            relative.encode()
        except UnicodeEncodeError:
            raise GraphError(Diagnostic("the name of the file is not UTF-8", NamedLocation(repr(os.fspath(file)), 1, 1))) from None
    return relative


def _without_name(error: GraphError, file: str) -> GraphError:
    """The same complaints at the file, instead of with its name in front."""
    for diagnostic in error.diagnostics:
        diagnostic.message = diagnostic.message.removeprefix(f"{Path(file)}: ")
        diagnostic.location = diagnostic.location or NamedLocation(file, 1, 1)
    return GraphError(error.diagnostics)
