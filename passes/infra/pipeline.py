"""Pipeline strings: ``infer-types,canonicalize,constant-fold{budget=4096}``, or a preset's name among the passes."""

from __future__ import annotations

import dataclasses
import json
import re
import types as python_types
import typing
from collections.abc import Sequence
from typing import Any, Literal, Union

from ir.diagnostics import Diagnostic, GraphError, Location, Source, did_you_mean
from passes.infra.base import Pass
from passes.infra.registry import find_pass, pass_files

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def parse_pipeline(text: str, presets: dict[str, str] | None = None) -> list[Pass]:
    """The passes a pipeline string names.  Raises :class:`GraphError` located in the string."""
    return _PipelineParser(text, presets or {}).run()


def format_pipeline(passes: Sequence[Pass]) -> str:
    """The string that :func:`parse_pipeline` reads back; options that have their default are left out."""
    return ",".join(map(format_pass, passes))


def format_pass(pass_: Pass) -> str:
    """One pass with its options."""
    name = pass_name(pass_)
    options = []
    for field in dataclasses.fields(pass_):
        value = getattr(pass_, field.name)
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if value != default:
            options.append(f"{field.name}={_format_option(value)}")
    return f"{name}{{{', '.join(options)}}}" if options else name


def pass_name(pass_: Pass | type[Pass]) -> str:
    """The name in pipelines: the file's, with dashes."""
    cls = pass_ if isinstance(pass_, type) else type(pass_)
    return cls.__module__.rpartition(".")[2].replace("_", "-")


def _format_option(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_option, value))}]"
    return str(value)


class _PipelineParser:
    def __init__(self, text: str, presets: dict[str, str]) -> None:
        self.source = Source("<pipeline>", text)
        self.text = text
        self.presets = presets
        self.position = 0

    def run(self) -> list[Pass]:
        passes: list[Pass] = []
        self._space()
        if self.position == len(self.text):
            return passes
        while True:
            passes.extend(self._one())
            self._space()
            if self.position == len(self.text):
                return passes
            if self.text[self.position] != ",":
                raise self._error(f"expected ',' or the end, found '{self.text[self.position]}'", self.position)
            self.position += 1
            self._space()
            if self.position == len(self.text):
                raise self._error("expected a pass after ','", self.position)

    def _one(self) -> list[Pass]:
        start = self.position
        match = _NAME.match(self.text, start)
        if match is None:
            raise self._error("expected the name of a pass", start)
        name = match.group()
        self.position = match.end()
        if name in self.presets:
            return parse_pipeline(self.presets[name], {k: v for k, v in self.presets.items() if k != name})
        if name not in pass_files():
            hint = did_you_mean(name, [*pass_files(), *self.presets])
            shown = f"graph-opt list passes shows all; presets: {', '.join(self.presets)}"
            raise self._error(f"there is no pass '{name[:80]}'", start, hint or shown)
        cls = find_pass(name)
        options = self._options(cls, name) if self.text[self.position : self.position + 1] == "{" else {}
        try:
            return [cls(**options)]
        except (ValueError, TypeError) as error:
            raise self._error(f"{name}: {error}", start) from None

    def _options(self, cls: type[Pass], name: str) -> dict[str, Any]:
        hints = typing.get_type_hints(cls)
        fields = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
        options: dict[str, Any] = {}
        self.position += 1
        while True:
            self._space()
            if self.text[self.position : self.position + 1] == "}":
                self.position += 1
                return options
            start = self.position
            match = _FIELD.match(self.text, start)
            if match is None:
                raise self._error("expected an option or '}'", start)
            key = match.group()
            if key not in fields:
                known = ", ".join(fields) or "none"
                raise self._error(f"pass '{name}' has no option '{key}'", start, did_you_mean(key, fields) or f"its options: {known}")
            if key in options:
                raise self._error(f"option '{key}' is given twice", start)
            self.position = match.end()
            self._space()
            if self.text[self.position : self.position + 1] != "=":
                raise self._error(f"expected '=' after '{key}'", self.position)
            self.position += 1
            self._space()
            at = self.position
            value, ok = _convert_option(self._value(), fields[key])
            if not ok:
                raise self._error(f"option '{key}' of '{name}' is {_describe(fields[key])}", at)
            options[key] = value
            self._space()
            if self.text[self.position : self.position + 1] == ",":
                self.position += 1

    def _value(self) -> Any:
        """A raw option value: JSON string, list, number, true, false, or a bare word up to the next delimiter."""
        self._space()
        start = self.position
        head = self.text[start : start + 1]
        if head == '"':
            match = re.compile(r'"(\\.|[^"\\])*"').match(self.text, start)
            if match is None:
                raise self._error("this string is not closed", start)
            self.position = match.end()
            try:
                return json.loads(match.group())
            except ValueError:
                raise self._error("bad escape in this string", start) from None
        if head == "[":
            return self._list()
        match = re.compile(r"[^\s,{}\[\]\"=][^\s,{}\[\]\"]*").match(self.text, start)
        if match is None:
            raise self._error("expected a value", start)
        self.position = match.end()
        return _Word(match.group())

    def _list(self) -> tuple[Any, ...]:
        start = self.position
        self.position += 1
        items: list[Any] = []
        while True:
            self._space()
            if self.position >= len(self.text):
                raise self._error("'[' is never closed", start)
            if self.text[self.position] == "]":
                self.position += 1
                return tuple(items)
            if self.text[self.position] == "[":
                raise self._error("lists of lists are not known here", self.position)
            items.append(self._value())
            self._space()
            if self.text[self.position : self.position + 1] == ",":
                self.position += 1

    def _space(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    def _error(self, message: str, offset: int, hint: str | None = None) -> GraphError:
        return GraphError(Diagnostic(message, Location(self.source, offset), hint))


class _Word(str):
    """An unquoted option value."""


def _convert_option(value: Any, annotation: Any) -> tuple[Any, bool]:
    origin = typing.get_origin(annotation)
    if origin in (Union, python_types.UnionType):
        for option in typing.get_args(annotation):
            converted, ok = _convert_option(value, option)
            if ok:
                return converted, True
        return value, False
    if origin is Literal:
        return str(value), value in typing.get_args(annotation)
    if origin is tuple:
        element = typing.get_args(annotation)[0]
        items = [_convert_option(v, element) for v in (value if isinstance(value, tuple) else (value,))]
        return tuple(v for v, _ in items), all(ok for _, ok in items)
    if annotation is type(None):
        return None, value == "none"
    if isinstance(value, tuple):
        return value, False
    if annotation is str:
        return str(value), True
    if annotation is bool:
        return value == "true", isinstance(value, _Word) and value in ("true", "false")
    if not isinstance(value, _Word):
        return value, False
    try:
        return (int(value), True) if annotation is int else (float(value), True)
    except (ValueError, OverflowError):
        return value, False


def _describe(annotation: Any) -> str:
    from ir.opdef import describe_annotation

    return describe_annotation(annotation)
