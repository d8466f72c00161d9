"""What goes wrong in a command becomes messages and an exit status.

Passes and code generation are not imported here: a model out of the cache needs neither.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from graph_opt.binding import at_location
from ir.diagnostics import Diagnostic, GraphError, MissingPackage, NamedLocation, did_you_mean

if TYPE_CHECKING:
    from codegen.cuda.compilers import CompilerFault
    from passes.infra.manager import PassFault


class UsageError(Exception):
    """A flag whose value has the wrong form; exit status 2."""


def guarded(command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Runs a command and turns what it raises into messages and an exit status."""
    try:
        with _plain_warnings():
            return command(args)
    except UsageError as error:
        print(f"graph-opt: error: {error}", file=sys.stderr)
        return 2
    except GraphError as error:
        located = at_location(error, NamedLocation(shown_name(args.file), 1, 1))
        print(f"graph-opt: {located}" if isinstance(located, MissingPackage) else located, file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except MemoryError as error:
        print(f"{shown_name(args.file)}:1:1: error: not enough memory: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        if (fault := _pass_fault(error)) is not None:
            print(f"graph-opt: {fault}", file=sys.stderr)
            _save_reproducer(fault.before, f"--pipeline '{fault.pass_text}'", args)
            if args.debug:
                sys.excepthook(type(error), error, error.__traceback__)
            return 3
        if (wrong_text := _compiler_fault(error)) is not None:
            print(f"graph-opt: {wrong_text}", file=sys.stderr)
            log = "".join(f"// {line}\n" for line in wrong_text.log.splitlines())
            _save_text(f"// nvcc -cubin -arch={wrong_text.target} -fmad=false THIS-FILE\n\n{wrong_text.source}\n{log}", ".cu")
            print("this is a fault of graph-opt, please report it", file=sys.stderr)
            return 3
        print(f"graph-opt: internal error: {type(error).__name__}: {error}", file=sys.stderr)
        if hasattr(args, "pipeline"):  # the input is a program
            _save_reproducer(_input_text(args), f"--pipeline '{args.pipeline}'" if args.pipeline else "", args)
        if args.debug:
            sys.excepthook(type(error), error, error.__traceback__)
        else:
            print("this is a fault of graph-opt, please report it (--debug shows more)", file=sys.stderr)
        return 3


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings are a line, without where in the toolkit they come from."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"graph-opt: warning: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _pass_fault(error: Exception) -> PassFault | None:
    """The fault of a pass, if that is what it is; passes are not imported for that."""
    manager: Any = sys.modules.get("passes.infra.manager")
    return error if manager is not None and isinstance(error, manager.PassFault) else None


def _compiler_fault(error: Exception) -> CompilerFault | None:
    """Generated CUDA C that a compiler did not take, if that is what it is."""
    compilers: Any = sys.modules.get("codegen.cuda.compilers")
    return error if compilers is not None and isinstance(error, compilers.CompilerFault) else None


def shown_name(file: str) -> str:
    """What messages call a file."""
    return "<stdin>" if file == "-" else file


def _save_reproducer(text: str, flags: str, args: argparse.Namespace) -> None:
    _save_text(f"// graph-opt THIS-FILE {flags}{' --verify-exec' if getattr(args, 'verify_exec', False) else ''}\n\n{text}", ".graph")


def _save_text(text: str, suffix: str) -> None:
    import tempfile

    try:
        handle, path = tempfile.mkstemp(prefix="graph-opt-reproducer-", suffix=suffix)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        print(f"(no reproducer could be written: {error})", file=sys.stderr)
        return
    print(f"reproducer: {path}", file=sys.stderr)


stdin_text: list[str] = []
"""The program that was read from standard input, for a reproducer."""


def _input_text(args: argparse.Namespace) -> str:
    try:
        return stdin_text[0] if args.file == "-" else Path(args.file).read_text(encoding="utf-8", errors="replace")
    except (OSError, IndexError):
        return ""


def standard_input() -> TextIO:
    """Raises GraphError when whoever started us has closed it."""
    if sys.stdin is None:
        raise GraphError(Diagnostic("can't be read: it is closed", NamedLocation("<stdin>", 1, 1)))
    return sys.stdin


def check_device_flag(device: str) -> None:
    """Raises UsageError for a device that is none."""
    from codegen.cuda.drivers import is_cuda
    from graph_opt.api import DEVICES

    if device not in DEVICES and not is_cuda(device):
        hint = did_you_mean("cuda" if device == "gpu" else device, DEVICES) or f"devices: {', '.join(DEVICES)}"
        raise UsageError(f"there is no device '{device}' ({hint})")


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """``name=value`` flags as a dictionary."""
    found: dict[str, str] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        name = name.strip().lstrip("%@")
        if not mark or not name or not value:
            raise UsageError(f"{flag} {text}: expected NAME=VALUE")
        if name in found:
            raise UsageError(f"{flag} {name} is given twice")
        found[name] = value
    return found
