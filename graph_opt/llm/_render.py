"""Fills in a chat template, in a process of its own: templates come from files that nobody vouches for.

    python -P _render.py < {"template": ..., "values": {...}} > {"text": ...} or {"error": ..., "line": ...}

Jinja's sandbox keeps a template from Python's objects; the limits of the process keep it from all time and memory.  Nothing of this
toolkit is imported.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

SECONDS = 5
MEMORY = 1 << 29
OUTPUT = 1 << 24
"""Letters of text at most."""
MESSAGE = 1000
"""Letters of an error at most."""


def limit() -> None:
    """No more time and memory than that, where the system can say so."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def render(template: str, values: dict[str, Any]) -> str:
    """The text, as the templates of Hugging Face models are filled in."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: time.strftime(form)
    environment.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    parts: list[str] = []
    size = 0
    for part in environment.from_string(template).generate(**values):
        parts.append(part)
        size += len(part)
        if size > OUTPUT:
            raise TemplateError(f"the text has more than {OUTPUT} letters")
    return "".join(parts)


def line_of(error: BaseException) -> int:
    """The line of the template where it went wrong; 1 where that isn't known."""
    line = getattr(error, "lineno", None) or 1
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return int(line)


def main() -> None:
    """One template."""
    limit()
    request = json.loads(sys.stdin.buffer.read())
    answer: dict[str, Any]
    try:
        answer = {"text": render(request["template"], request["values"])}
    except MemoryError:
        answer = {"error": "it takes too much memory", "line": 1}
    except ImportError as error:
        answer = {"missing": str(error)}
    except Exception as error:
        answer = {"error": str(error)[:MESSAGE] or type(error).__name__, "line": line_of(error)}
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
