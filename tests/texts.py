"""Other ways of writing the same program: comments and line breaks anywhere, quoted names."""

from __future__ import annotations

import random
import re

from ir.core import Module

_PARTS = re.compile(r'"(?:\\.|[^"\\])*"|\s+|[^\s"]+')
_NAME = re.compile(r"%[A-Za-z0-9_][A-Za-z0-9_.]*")


def rewrite_text(text: str, seed: int, comments: bool = True) -> tuple[str, list[str]]:
    """The program with other white space, some names quoted that need not be, and comments; and these comments."""
    choose = random.Random(seed)
    parts: list[str] = []
    written: list[str] = []
    for part in _PARTS.findall(text):
        if not part.isspace():
            parts.append(part if part.startswith('"') else _NAME.sub(lambda m: f'%"{m.group()[1:]}"' if choose.random() < 0.1 else m.group(), part))
            continue
        form = choose.random()
        if comments and form < 0.08:
            written.append(f"// note {len(written)} of %x @f \"{'(' * choose.randint(0, 2)}")
            space = choose.choice([" ", "\n", "\n\n", "  "])
            parts.append(f"{space}{written[-1]}{choose.choice(['', ' ', '  '])}\n{choose.choice(['', ' ', chr(10)])}")
        elif form < 0.2:
            parts.append(choose.choice(["\n", "\n\n", "\t", "   ", " \r\n"]))
        else:
            parts.append(part)
    return "".join(parts), written


def forget_comments(module: Module) -> None:
    """Removes comments and blank lines."""
    module.comments, module.version_trivia = (), None
    for weights in module.files.values():
        weights.trivia = None
    for graph in module.graphs.values():
        graph.trivia, graph.block.comments = None, ()
        for parameter in graph.parameters:
            parameter.trivia = None
        for op in graph.walk():
            op.trivia = None
            for region in op.regions:
                for block in region.blocks:
                    block.comments = ()
