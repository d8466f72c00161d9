"""A program in two texts: the function that only calls the others, and the others.

The main function of a deep model is thousands of calls and waits in one piece, which LLVM's register allocator takes seconds for,
and nothing in it is worth that.
"""

from __future__ import annotations

import re

LONG = 2000
"""Lines from which on a main function is translated by itself, with the least effort."""

_NAME = re.compile(r"@[A-Za-z0-9_.]+")
_DEFINED = re.compile(r"^define (?:internal )?(.*?(@[A-Za-z0-9_.]+)\(.*\)) (?:#\d+ )?\{$", re.MULTILINE)


def in_parts(text: str, function: str) -> list[tuple[str, int]]:
    """Texts of LLVM's assembly language that together are ``text``, with the effort that each is worth (0 to 3).

    ``function`` is the name of the main function.  What one text uses of another one is visible outside of it then.
    """
    begin = text.find(f"define i32 @{function}(")
    end = text.find("\n}\n", begin) + 3
    main = text[begin:end]
    if begin < 0 or main.count("\n") < LONG:
        return [(text, 2)]
    rest = text[:begin] + text[end:]
    used = set(_NAME.findall(main)) - {f"@{function}"}
    defined = {name: head for head, name in _DEFINED.findall(rest)}
    declared = [line for line in rest.split("\n") if line.startswith("declare ")]
    known = {*defined, *(name for line in declared for name in _NAME.findall(line))}
    if not used <= known:
        return [(text, 2)]  # it uses a variable
    shared = [name for name in defined if name in used]
    for name in shared:
        rest = rest.replace(f"define internal {defined[name]}", f"define {defined[name]}")
    ends = [line for line in rest.split("\n") if line.startswith(("attributes ", "!"))]
    alone = "\n".join([main, *(f"declare {defined[n]}" for n in shared), *declared, *ends, ""])
    return [(rest, 2), (alone, 0)]
