"""What the tests of single lowerings share: a program as tensor operations and as nests, on the same arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from pass_checks import load, operations, optimize

from ir.core import Module
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from passes.infra.verify_exec import describe_difference, same_bits

NOT_LOWERED = {"constant", "weight", "initial", "print", "call"}


def lowered(text: str) -> tuple[Module, Module]:
    """The program and what it becomes: no tensor operation is left but those that hold data or call back."""
    after = optimize(text, "inline,decompose,lower-to-linalg")
    assert {name for name in operations(after) if "." not in name} <= NOT_LOWERED
    return load(text), after


def run(module: Module, arrays: Sequence[np.ndarray], **options: bool) -> list[np.ndarray]:
    """The results, and what ``inout`` parameters hold afterwards."""
    graph = module.graphs["main"]
    given = [np.array(a) for a in arrays]
    found = Interpreter(module, quiet=True, **options).run(graph, given)
    return [*found, *(given[p.index] for p in graph.parameters if p.inout)]


def assert_same(programs: tuple[Module, Module], *arrays: np.ndarray) -> None:
    """Both give the same bits, in whatever order parallel loops run."""
    before, after = programs
    want = run(before, arrays)
    for reverse in (False, True):
        found = run(after, arrays, reverse_parallel=reverse)
        assert len(want) == len(found)
        for a, b in zip(want, found, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape and same_bits(a, b), describe_difference(a, b)


def error_of(module: Module, *arrays: np.ndarray) -> str:
    """The message of the error that a run ends with."""
    with pytest.raises(GraphError) as caught:
        run(module, arrays)
    return re.sub(r"^.*error: ", "", str(caught.value).splitlines()[0])


def assert_same_error(programs: tuple[Module, Module], *arrays: np.ndarray) -> str:
    """Both end with the same message; returns it."""
    want, found = (error_of(m, *arrays) for m in programs)
    assert want == found
    return want
