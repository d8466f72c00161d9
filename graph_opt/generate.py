"""``graph-opt generate``: text from a language model, streamed to standard output; a chat."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from graph_opt.collector import fewer_collections
from graph_opt.guard import UsageError, check_device_flag, pairs, standard_input
from graph_opt.progress import Progress
from ir.diagnostics import Diagnostic, GraphError, NamedLocation
from ir.parser import decode_text

if TYPE_CHECKING:
    from graph_opt.llm import Model, Statistics
    from graph_opt.llm.chat import Message

MAX_PROMPT = 1 << 24
"""Bytes of a prompt in a file."""


class _Unwritable(GraphError):
    """Standard output takes nothing more."""


def generate(args: argparse.Namespace) -> int:
    """Loads the model and prints what it says."""
    prompt = _prompt(args)
    if prompt is None and not args.chat:
        raise UsageError("give a --prompt, a --prompt-file, or --chat")
    if prompt is None:
        standard_input()  # is it there?
    for name in ("temperature", "top_k", "top_p", "seed", "max_tokens"):
        _check_option(name, getattr(args, name))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows fewer letters
    check_device_flag(args.device)
    if args.device != "cpu" and args.threads > 1:
        raise UsageError("--threads is for --device cpu")
    with fewer_collections():
        from graph_opt import llm
        from graph_opt.llm.precision import precision_cost
        from passes.graph.quantize_products import PRECISIONS

    if args.precision not in PRECISIONS:
        raise UsageError(f"--precision {args.precision}: expected {', '.join(PRECISIONS)}")
    if (cost := precision_cost(args.precision)) is not None:
        print(f"precision {args.precision}: {cost}", file=sys.stderr)
    progress = Progress()
    with fewer_collections():
        model = llm.load(
            args.file, args.threads, capacity=args.capacity, precision=args.precision, device=args.device,
            files=pairs(args.files, "--file") or None, progress=progress.show,
        )  # fmt: skip
        gc.freeze()  # all of it stays
    progress.clear()
    options = {name: getattr(args, name) for name in ("max_tokens", "temperature", "top_k", "top_p", "seed")}
    if prompt is None:
        return _chat(model, options)
    answer = model.chat([{"role": "user", "content": prompt}], **options) if args.chat else model.generate(prompt, **options)
    try:
        for piece in answer:
            _say(piece)
    finally:
        _say("\n")
        print(_summary(model.statistics), file=sys.stderr)
    return 0


def _prompt(args: argparse.Namespace) -> str | None:
    if args.prompt is not None and args.prompt_file is not None:
        raise UsageError("give a --prompt or a --prompt-file, not both")
    if args.prompt_file is None:
        prompt: str | None = args.prompt
        return prompt
    name = "<stdin>" if args.prompt_file == "-" else args.prompt_file
    try:
        with contextlib.nullcontext(standard_input().buffer) if name == "<stdin>" else open(name, "rb") as file:
            data = file.read(MAX_PROMPT + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise GraphError(Diagnostic(f"can't be read: {reason}", NamedLocation(name, 1, 1))) from None
    if len(data) > MAX_PROMPT:  # a device without end, for instance
        raise GraphError(Diagnostic(f"a prompt has at most {MAX_PROMPT} bytes", NamedLocation(name, 1, 1)))
    return decode_text(data, name)


def _check_option(name: str, value: Any) -> None:
    """What the library refuses is wrong usage here, and is said before the model is loaded."""
    from graph_opt.llm.model import check_integer, check_temperature
    from interop.samplers import check_choice

    try:
        if name == "temperature":
            check_temperature(value)
        elif name in ("top_k", "top_p"):
            check_choice(**{"top_k": None, "top_p": None, name: value})
        elif name == "max_tokens":
            check_integer(name, value, 0, optional=True)
    except GraphError as error:
        raise UsageError(f"--{name.replace('_', '-')}: {error.diagnostics[0].message.partition(': ')[2]}") from None


def _say(text: str) -> None:
    """Text as it comes.  A terminal gets no control characters: a model may have learned what they do there."""
    if sys.stdout.isatty():
        text = "".join(c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _Unwritable(Diagnostic(f"can't be written: {error.strerror}", NamedLocation("<stdout>", 1, 1))) from None


def _summary(statistics: Statistics) -> str:
    """The line at the end."""
    s = statistics
    prompt = f"prompt: {s.prompt_tokens} tokens" + (f" ({s.reused} known)" if s.reused else "")
    if not s.tokens:
        return prompt
    text = f"{prompt}, {s.prompt_rate:.0f} tokens/s, first token after {s.first_token:.3f} s; {s.tokens} token{'s' if s.tokens > 1 else ''}"
    return text + (f", {s.rate:.1f} tokens/s" if s.rate else "")


# -- chat ------------------------------------------------------------------------------------------------------------------


def _chat(model: Model, options: dict[str, Any]) -> int:
    """A conversation: a line of input is a turn.  Ctrl-C ends an answer, Ctrl-D the conversation."""
    messages: list[Message] = []
    for line in _lines():
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line})
        try:
            messages.append({"role": "assistant", "content": _answer(model, messages, options)})
        except _Unwritable:
            raise
        except GraphError as error:  # too long, for instance
            print(error, file=sys.stderr)
            messages.pop()
            continue
        print(_summary(model.statistics), file=sys.stderr)
    return 0


def _lines() -> Iterator[str]:
    """What the user writes, line by line; a terminal shows that it is the user's turn."""
    stdin = standard_input()
    terminal = stdin.isatty()
    if isinstance(stdin, io.TextIOWrapper):
        stdin.reconfigure(errors="surrogateescape")  # what is no text is refused as a turn
    if terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # input() edits lines with it
    while True:
        if not terminal:
            line = stdin.readline(MAX_PROMPT + 1)
            if not line:
                return
            if len(line) > MAX_PROMPT:
                raise GraphError(Diagnostic(f"a line has at most {MAX_PROMPT} letters", NamedLocation("<stdin>", 1, 1)))
            yield line.rstrip("\n")
            continue
        try:
            yield input("> ")
        except EOFError:
            _say("\n")
            return


def _answer(model: Model, messages: list[Message], options: dict[str, Any]) -> str:
    """Prints an answer and returns it, as far as it came."""
    pieces: list[str] = []
    answer = model.chat(messages, **options)
    try:
        for piece in answer:
            pieces.append(piece)
            _say(piece)
    except KeyboardInterrupt:
        pass
    finally:
        answer.close()
        _say("\n")
    return "".join(pieces)
