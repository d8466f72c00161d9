"""``graph-opt explain-fusion``: which computations became one loop nest, by which rule, and what kept the others apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ir.core import Module
from ir.diagnostics import AnyLocation
from passes.infra.decisions import Decision, Decisions, Group, Rule

Place = tuple[str, int, int]


def operations_by_place(module: Module) -> dict[Place, str]:
    """The name of the operation that is written at each place of a program."""
    return {place: op.definition.text_name for op in module.walk() if (place := _place(op.loc)) is not None}


def report(found: Sequence[Decisions], operations: Mapping[Place, str], *, as_json: bool = False) -> str:
    """The records of some graphs as text for people, or as JSON."""
    records = [_Record(d, operations) for d in found]
    if as_json:
        return json.dumps([r.data() for r in records], indent=2) + "\n"
    return "\n".join(r.text() for r in records)


def _place(loc: AnyLocation | None) -> Place | None:
    return loc.places[-1] if loc is not None and loc.places else None


class _Record:
    """One graph."""

    def __init__(self, found: Decisions, operations: Mapping[Place, str]) -> None:
        self.found = found
        self.operations = operations
        self.fused: dict[int, list[Decision]] = {}
        self.apart = [d for d in found.decisions if not isinstance(d.verdict, Rule)]
        for decision in found.decisions:
            if isinstance(decision.verdict, Rule) and isinstance(decision.reader, int):
                self.fused.setdefault(decision.reader, []).append(decision)

    def _operation(self, step: int) -> str:
        place = _place(self.found.steps[step].loc)
        return self.operations.get(place, "") if place is not None else ""

    def _name(self, reader: int | str) -> str:
        return reader if isinstance(reader, str) else f"%{self.found.steps[reader].name}"

    def _inside(self, step: int, group: Group) -> list[Decision]:
        return [d for d in self.fused.get(step, ()) if d.step in group.steps]

    # -- for people ------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Lines for one graph."""
        groups = self.found.groups
        lines = [f"graph @{self.found.graph}: {_count(len(self.found.steps), 'step')} in {_count(len(groups), self.found.what)}"]
        for number, group in enumerate(groups, 1):
            lines += ["", self._title(number, group), *_table([row for step in group.steps for row in self._rows(step, group)])]
        rows = [(f"{self._name(d.step)} -> {self._name(d.reader)}", str(d.verdict.value)) for d in self.apart]
        if rows:
            lines += ["", "apart:", *_table(rows)]
        return "\n".join(lines) + "\n"

    def _title(self, number: int, group: Group) -> str:
        title = f"{self.found.what.split()[-1]} {number}: {group.loops or 'one element'}"
        if self.found.what != "loop nest":
            return title
        return f"{title}; stores {', '.join(f'%{name}' for name in group.stores) or 'nothing'}"

    def _rows(self, step: int, group: Group) -> list[tuple[str, ...]]:
        place = _place(self.found.steps[step].loc)
        at = f"{place[1]}:{place[2]}" if place is not None else ""
        first: list[str] = [at, self._operation(step), f"%{self.found.steps[step].name}"]
        how = [f"{self._name(d.step)}: {d.verdict.value}" for d in self._inside(step, group)]
        return [(*first, how[0] if how else ""), *(("", "", "", text) for text in how[1:])]

    # -- for tools -------------------------------------------------------------------------------------------------

    def data(self) -> dict[str, Any]:
        """The same as lists and dictionaries."""
        return {
            "graph": self.found.graph,
            "what": self.found.what,
            "groups": [
                {"loops": group.loops, "stores": group.stores, "steps": [self._step(step, group) for step in group.steps]}
                for group in self.found.groups
            ],
            "apart": [
                {"from": self.found.steps[d.step].name, "to": self._name(d.reader).removeprefix("%"), "blocker": _id(d), "why": d.verdict.value}
                for d in self.apart
            ],
        }

    def _step(self, step: int, group: Group) -> dict[str, Any]:
        place = _place(self.found.steps[step].loc)
        file, line, column = place if place is not None else (None, None, None)
        return {
            "tensor": self.found.steps[step].name,
            "operation": self._operation(step),
            "file": file,
            "line": line,
            "column": column,
            "fused": [{"from": self.found.steps[d.step].name, "rule": _id(d), "how": d.verdict.value} for d in self._inside(step, group)],
        }


def _id(decision: Decision) -> str:
    return decision.verdict.name.lower().replace("_", "-")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(len(rows[0]))] if rows else []
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
