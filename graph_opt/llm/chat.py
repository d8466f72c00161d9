"""Conversations as text, by the chat template in a model's file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from graph_opt.llm.extras import INSTALL, said
from graph_opt.llm.tokenizer import Tokenizer
from ir.diagnostics import Diagnostic, GraphError, Location, MissingPackage, Source

TEMPLATE = "tokenizer.chat_template"
_RENDER = Path(__file__).with_name("_render.py")
_SECONDS = 15
"""Time for a template in all, with the start of its process."""

Message = Mapping[str, str]
"""A turn: its "role" ("system", "user" or "assistant") and its "content"."""


def chat_text(tokenizer: Tokenizer, messages: Sequence[Message], *, answer: bool = True) -> str:
    """The conversation as the model was taught to read it; with ``answer`` it ends where the assistant's turn begins.

    The template runs in a process of its own, in Jinja's sandbox, with limited time and memory.  Raises GraphError, located in the
    template where that is known.
    """
    if TEMPLATE not in tokenizer.metadata:
        raise GraphError(Diagnostic(f"{tokenizer.metadata.where}: there is no chat template in its metadata", hint="give a prompt without chat"))
    check_messages(messages)
    values = {
        "messages": [dict(m) for m in messages],
        "add_generation_prompt": answer,
        "bos_token": tokenizer.text_of(tokenizer.bos),
        "eos_token": tokenizer.text_of(tokenizer.eos),
    }
    template = tokenizer.metadata.text(TEMPLATE)
    result = _run({"template": template, "values": values})
    if isinstance(result.get("text"), str):
        return str(result["text"])
    source = Source(f"<chat template of {tokenizer.metadata.where}>", template)
    raise GraphError(Diagnostic(f"the chat template can't be filled in: {said(str(result['error']))}", _line(source, int(result["line"]))))


def check_messages(messages: Sequence[Message]) -> None:
    """Raises GraphError for what is no conversation."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise GraphError(Diagnostic(f"messages: expected a list of turns, found {type(messages).__name__}"))
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise GraphError(Diagnostic(f"messages[{number}]: expected a dictionary with the strings 'role' and 'content', found {message!r:.80}"))


def _line(source: Source, line: int) -> Location:
    """The beginning of a line."""
    lines = source.text.splitlines(keepends=True)
    return Location(source, sum(map(len, lines[: min(line, len(lines)) - 1])))


def _run(request: dict[str, Any]) -> dict[str, Any]:
    """What the process says."""
    if find_spec("jinja2") is None:
        raise MissingPackage(Diagnostic("chat templates need the package jinja2", hint=INSTALL))
    import subprocess  # other prompts need no process

    try:
        done = subprocess.run([sys.executable, "-P", str(_RENDER)], input=json.dumps(request).encode(), capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": "it takes too long", "line": 1}
    except OSError as error:
        raise GraphError(Diagnostic(f"a process for the chat template can't be started: {error.strerror}")) from None
    if done.returncode < 0:
        return {"error": "it takes too long", "line": 1}
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return {"error": f"its process ended: {last or done.returncode}", "line": 1}
    if "missing" in answer:
        raise MissingPackage(Diagnostic(f"chat templates need the package jinja2: {said(str(answer['missing']))}", hint=INSTALL))
    return answer
