"""Where things stand in the source text, and how we complain about them.

Every rejection is a :class:`GraphError`.  Its text starts with ``file:line:col``, shows the source line with a
caret, and says what was expected and what was found.
"""

from __future__ import annotations

import bisect
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


class Source:
    """A text with a name; turns offsets into lines and columns (both counted from 1)."""

    __slots__ = ("name", "text", "_starts")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self._starts: list[int] | None = None

    def _line_starts(self) -> list[int]:
        if self._starts is None:
            starts = [0]
            position = self.text.find("\n")
            while position >= 0:
                starts.append(position + 1)
                position = self.text.find("\n", position + 1)
            self._starts = starts
        return self._starts

    def line_col(self, offset: int) -> tuple[int, int]:
        """Line and column of a character offset."""
        starts = self._line_starts()
        line = bisect.bisect_right(starts, offset)
        return line, offset - starts[line - 1] + 1

    def line_text(self, line: int) -> str:
        """The text of a line, without its end; empty when there is no such line."""
        starts = self._line_starts()
        if not 1 <= line <= len(starts):
            return ""
        begin = starts[line - 1]
        end = starts[line] - 1 if line < len(starts) else len(self.text)
        return self.text[begin:end].rstrip("\r")


class Location:
    """A place in a source text.  ``offset`` is a character index into ``source.text``."""

    __slots__ = ("source", "offset")

    def __init__(self, source: Source, offset: int) -> None:
        self.source = source
        self.offset = offset

    @property
    def places(self) -> tuple[tuple[str, int, int], ...]:
        """(file, line, column) of every origin; one for a plain location."""
        return ((self.source.name, *self.source.line_col(self.offset)),)


class NamedLocation:
    """A place known only by file, line and column, as ``loc("f.graph":3:5)`` writes it."""

    __slots__ = ("file", "line", "col")

    def __init__(self, file: str, line: int, col: int) -> None:
        self.file, self.line, self.col = file, line, col

    @property
    def places(self) -> tuple[tuple[str, int, int], ...]:
        return ((self.file, self.line, self.col),)


class FusedLocation:
    """The origins of an operation that stands for several."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[AnyLocation]) -> None:
        self.parts = tuple(parts)

    @property
    def places(self) -> tuple[tuple[str, int, int], ...]:
        unique = dict.fromkeys(place for part in self.parts for place in part.places)
        return tuple(unique)


AnyLocation = Location | NamedLocation | FusedLocation


@dataclass
class Diagnostic:
    """One complaint: a message, the place, further hints, and notes that point elsewhere."""

    message: str
    location: AnyLocation | None = None
    hint: str | None = None
    notes: list[tuple[str, AnyLocation | None]] = field(default_factory=list)
    kind: str = "error"

    def sort_key(self) -> tuple[str, int]:
        if isinstance(self.location, Location):
            return (self.location.source.name, self.location.offset)
        return ("", -1)

    def render(self) -> str:
        """``file:line:col: error: message``, the source line, a caret, hint and notes."""
        lines = _render_one(self.kind, self.message, self.location)
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        for message, location in self.notes:
            lines.extend(_render_one("note", message, location))
        return "\n".join(lines)


_MAX_LINE = 160


def _printable(text: str) -> str:
    """Control and direction-changing characters made visible, one character each, so that carets stay right."""
    return "".join(c if c == "\t" or (c.isprintable() and c != "\ufeff") else "\N{REPLACEMENT CHARACTER}" for c in text)


def _render_one(kind: str, message: str, location: AnyLocation | None) -> list[str]:
    if location is None:
        return [f"{kind}: {message}"]
    file, line, col = location.places[0]
    lines = [f"{file}:{line}:{col}: {kind}: {message}"]
    if isinstance(location, Location):
        text = location.source.line_text(line)
        start = 0
        if len(text) > _MAX_LINE:  # show a window of a very long line
            start = max(0, min(col - 1 - _MAX_LINE // 2, len(text) - _MAX_LINE))
            text = text[start : start + _MAX_LINE]
        text = _printable(text)
        lead = "".join("\t" if c == "\t" else " " for c in text[: col - 1 - start])
        lines += [f"  {text}", f"  {lead}^"]
    return lines


class GraphError(Exception):
    """Wrong input.  ``diagnostics`` holds every complaint of the run; ``str()`` is their rendered text."""

    def __init__(self, diagnostics: Sequence[Diagnostic] | Diagnostic | str) -> None:
        if isinstance(diagnostics, str):
            diagnostics = Diagnostic(diagnostics)
        if isinstance(diagnostics, Diagnostic):
            diagnostics = [diagnostics]
        self.diagnostics = list(diagnostics)
        super().__init__("\n".join(d.render() for d in self.diagnostics))


class MissingPackage(GraphError):
    """Nothing is wrong with the input, but a package isn't installed: it is said without a place."""


class Diagnostics:
    """Collects complaints so that one run reports all of them."""

    limit = 100

    def __init__(self) -> None:
        self.items: list[Diagnostic] = []
        self.dropped = 0

    def error(
        self,
        message: str,
        location: AnyLocation | None = None,
        *,
        hint: str | None = None,
        notes: Sequence[tuple[str, AnyLocation | None]] = (),
    ) -> None:
        self.add(Diagnostic(message, location, hint, list(notes)))

    def add(self, diagnostic: Diagnostic) -> None:
        if len(self.items) >= self.limit:
            self.dropped += 1
        else:
            self.items.append(diagnostic)

    def raise_if_any(self) -> None:
        """Raises :class:`GraphError` with everything collected, in source order."""
        if self.items:
            ordered = sorted(self.items, key=Diagnostic.sort_key)
            if self.dropped:
                ordered.append(Diagnostic(f"{self.dropped} more errors are not shown", ordered[-1].location, kind="note"))
            raise GraphError(ordered)


def did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    """A hint naming the nearest of ``candidates``, or None when none is near."""
    near = difflib.get_close_matches(name[:80], list(candidates), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else None
