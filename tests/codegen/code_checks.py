"""Checks of native code against the reference interpreter: the same bits, the same errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ir.core import Module
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from passes.infra.verify_exec import describe_difference, same_bits
from tests.checks import is_written, load
from tests.codegen.native_graph import NativeGraph


def main_program(parameters: str, body: str, result: str = "") -> Module:
    """A verified program of one graph."""
    lines = "".join(f"  {line}\n" for line in body.strip().splitlines())
    returned = "" if "return" in body else f"  return{' %y' if result else ''}\n"
    return load(f"graph @main({parameters}){' -> ' + result if result else ''} {{\n{lines}{returned}}}\n")


def outputs(module: Module, run: Any, arrays: Sequence[Any]) -> list[np.ndarray]:
    """Results, and behind them what the arrays of written parameters hold afterwards."""
    given = [np.array(a) for a in arrays]
    results = run(given)
    graph = module.graphs["main"]
    for parameter, before, after in zip(graph.parameters, arrays, given, strict=True):
        assert is_written(parameter) or same_bits(np.asarray(before), after), f"the array of %{parameter.name} was changed"
    return [*results, *(given[p.index] for p in graph.parameters if is_written(p))]


def check(module: Module, *arrays: Any, threads: Sequence[int] = (1,), native: NativeGraph | None = None) -> list[np.ndarray]:
    """Native code gives the bits of the interpreter, or fails with its message.  Returns the outputs."""
    graph = module.graphs["main"]
    native = native or NativeGraph(module, graph)
    try:
        wanted = outputs(module, lambda given: Interpreter(module).run(graph, given), arrays)
    except GraphError as error:
        for count in threads:
            with pytest.raises(GraphError) as found:
                outputs(module, lambda given, count=count: native.run(given, count), arrays)
            assert str(found.value) == str(error)
        return []
    for count in threads:
        found = outputs(module, lambda given, count=count: native.run(given, count), arrays)
        for position, (a, b) in enumerate(zip(wanted, found, strict=True)):
            assert same_bits(a, b), f"output {position}, {count} threads: {describe_difference(a, b)}\n{module}"
    return wanted


def message_of(module: Module, *arrays: Any) -> str:
    """The error that a program ends with, the same one in native code and in the interpreter."""
    graph = module.graphs["main"]
    with pytest.raises(GraphError) as wanted:
        Interpreter(module).run(graph, [np.array(a) for a in arrays])
    with pytest.raises(GraphError) as found:
        NativeGraph(module, graph).run([np.array(a) for a in arrays])
    assert str(found.value) == str(wanted.value)
    return str(found.value)


_FLOATS = (
    0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 0.1, 1e-8, 127.5, 128.0, 255.0, 256.0, -129.0,
    32767.5, 65504.0, 65519.0, 65520.0, 2.0**31, -(2.0**31), 2.0**31 - 128, 2.0**63, -(2.0**63), 1e-40, -1e-40, 1e-45, 6e-8, 5.96e-8, 3e38, -3e38,
    88.0, 89.0, -87.0, -104.0, 0.25, 10.0, -10.0, 1 + 2.0**-8, 1 + 2.0**-9, 1 + 3 * 2.0**-9, 1 + 2.0**-11, 1 + 2.0**-12, 1e-300, 1e300,
)  # fmt: skip


def special_array(dtype: Any, count: int, seed: int) -> np.ndarray:
    """Numbers of an element type on which operations go wrong, in random order, and random bits."""
    generator = np.random.default_rng(seed)
    numpy = dtype.numpy
    if dtype.kind == "bool":
        return generator.integers(0, 2, count) == 1
    bits = generator.integers(0, 256, (count, dtype.itemsize), np.uint8).view(numpy).reshape(count)
    if not dtype.is_float:
        bounds = np.array([dtype.min_value, dtype.max_value, 0, 1, 2, 3, 7, 100], object)
        signed = [*bounds, -1, -2, -7] if dtype.min_value < 0 else list(bounds)
        special = np.array(signed, object).astype(numpy)
        return np.where(generator.random(count) < 0.6, special[generator.integers(0, len(special), count)], bits)
    with np.errstate(all="ignore"):
        special = np.array(_FLOATS).astype(numpy)
        normal = (generator.standard_normal(count) * 10.0 ** generator.integers(-3, 3, count)).astype(numpy)
    kind = generator.random(count)
    picked = special[generator.integers(0, len(special), count)]
    return np.where(kind < 0.4, picked, np.where(kind < 0.6, bits, normal))
