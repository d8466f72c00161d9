"""Every elementwise operation of ``arith`` and ``math`` on every element type: scalars, vectors with a remainder, broadcasting."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

import dialects  # noqa: F401
from ir.interpreter import Interpreter
from ir.opdef import REGISTRY, OpDef, TypeProblem
from ir.types import ELEMENT_DTYPES, DType, ScalarType
from passes.infra.verify_exec import describe_difference, same_bits
from tests.codegen.code_checks import main_program, special_array
from tests.codegen.native_graph import NativeGraph

LIBRARY = {"exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "erf", "erfc", "powf", "normcdf", "gelu", "sigmoid", "silu", "gelu_tanh"}
"""In f64 numpy's functions and those of the C library are both within a few units of the last place, but not equal; f32 and
narrower are rounded from double, where that does not show."""
ULP = {"normcdf": 16, "gelu": 16, "erf": 8, "erfc": 16}
PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


def variants() -> list[tuple[str, tuple[DType, ...], DType, str]]:
    """(operation, operand types, result type, attributes) of all elementwise operations."""
    found = []
    for name, definition in sorted(REGISTRY.items()):
        if definition.dialect not in ("arith", "math") or not definition.elementwise:
            continue
        for dtypes in itertools.product(ELEMENT_DTYPES.values(), repeat=len(definition.operand_specs)):
            if len(set(dtypes)) > 1 and name not in ("math.ldexp", "arith.select"):
                continue
            if name == "arith.select" and dtypes[1] != dtypes[2]:
                continue
            for predicate in PREDICATES if "predicate" in definition.attribute_specs else ("",):
                for declared in ELEMENT_DTYPES.values() if definition.declared_result else (None,):
                    result = infer(definition, dtypes, predicate, declared)
                    if result is not None:
                        found.append((name, dtypes, result, f', predicate="{predicate}"' if predicate else ""))
    return found


def infer(definition: OpDef, dtypes: tuple[DType, ...], predicate: str, declared: DType | None) -> DType | None:
    """The result's element type; None where the operands don't fit."""
    try:
        attributes = {"predicate": predicate} if predicate else {}
        types = [ScalarType(d) for d in dtypes]
        names = [o.name for o in definition.operand_specs]
        inferred = definition.infer(types, names, attributes, [ScalarType(declared)] if declared else ())
    except TypeProblem:
        return None
    assert inferred is not None
    return inferred[0].dtype  # type: ignore[union-attr]


VARIANTS = {f"{n}{re.sub('[^a-z]', '', a.partition('=')[2])}-{'-'.join(d.name for d in ds)}-{r}": (n, ds, r, a) for n, ds, r, a in variants()}


def scalar_loop(name: str, dtypes: tuple[DType, ...], result: DType, attributes: str) -> str:
    """All elements, one by one, into %C0."""
    loads = "".join(f"  %x{i} = memref.load(%A{i}[%i]) : {d}\n" for i, d in enumerate(dtypes))
    operands = ", ".join(f"%x{i}" for i in range(len(dtypes)))
    return f"scf.for(%i = 0 to N) {{\n{loads}  %r = {name}({operands}{attributes}) : {result}\n  memref.store(%r, %C0[%i])\n  yield\n}}\n"


def vector_loop(name: str, dtypes: tuple[DType, ...], result: DType, attributes: str, lanes: int) -> str:
    """All elements, as vectors of which the last one is read and written in part, into %C and the number of lanes."""
    pad, n = {"bool": "true", "float": "1.0"}, lanes
    loads = "".join(
        f"  %x{n}.{i} = vector.load(%A{i}[%i{n}:+{n}], valid=%left{n}, pad={pad.get(d.kind, '1')}) : vector<{d}[{n}]>\n" for i, d in enumerate(dtypes)
    )
    operands = ", ".join(f"%x{n}.{i}" for i in range(len(dtypes)))
    return (
        f"%n{n} = memref.dim(%C{n}, axis=0) : index\nscf.for(%i{n} = 0 to N step {n}) {{\n  %left{n} = arith.subi(%n{n}, %i{n}) : index\n{loads}"
        f"  %r{n} = {name}({operands}{attributes}) : vector<{result}[{n}]>\n  vector.store(%r{n}, %C{n}[%i{n}:+{n}], valid=%left{n})\n  yield\n}}\n"
    )


def inputs(name: str, dtypes: tuple[DType, ...], count: int) -> list[np.ndarray]:
    """Arrays of special numbers that the operation does not refuse."""
    arrays = [special_array(d, count, 17 * i + len(name)) for i, d in enumerate(dtypes)]
    if re.search(r"div|rem[su]i|mods", name) and not dtypes[0].is_float:
        arrays[1] = np.where(arrays[1] == 0, 3, arrays[1]).astype(arrays[1].dtype)
    if "sh" in name.split(".")[1][:2]:
        arrays[1] = np.abs(arrays[1].astype(np.int64) % dtypes[1].bits).astype(arrays[1].dtype)
    return arrays


def ulps(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest distance in units of the last place, of f64."""
    with np.errstate(all="ignore"):
        distance = np.abs(found - wanted) / np.spacing(np.maximum(np.abs(wanted), np.finfo(np.float64).tiny))
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        return float(np.max(np.where(same, 0.0, distance), initial=0.0))


@pytest.mark.parametrize("key", VARIANTS)
def test_same_bits(key: str) -> None:
    name, dtypes, result, _ = variant = VARIANTS[key]
    widths = (0, 16) if dtypes[0].is_float else (0, 16, 3)  # lanes; 0 is for scalars
    body = "".join(vector_loop(*variant, lanes) if lanes else scalar_loop(*variant) for lanes in widths)
    parameters = [*(f"%A{i}: memref<{d}[N]>" for i, d in enumerate(dtypes)), *(f"%C{n}: memref<{result}[N]>" for n in widths)]
    module = main_program(", ".join(parameters), body)
    native = NativeGraph(module, module.main, level=1)
    judge = main_program(", ".join(parameters[: len(dtypes) + 1]), scalar_loop(*variant))
    for count in (259, 1, 0):
        arrays = inputs(name, dtypes, count)
        wanted = np.zeros(count, result.numpy)
        Interpreter(judge).run(judge.main, [*map(np.array, arrays), wanted])
        outputs = [np.zeros(count, result.numpy) for _ in widths]
        native.run([*map(np.array, arrays), *outputs])
        for lanes, found in zip(widths, outputs, strict=True):
            compare(key, arrays, wanted, found, f"{lanes} lanes\n{module}")


@pytest.mark.parametrize("name", ["sigmoid", "silu"])
def test_tails_of_gates_in_f64(name: str) -> None:
    """Down to denormal results."""
    module = main_program("%A0: memref<f64[N]>, %C0: memref<f64[N]>", scalar_loop(f"math.{name}", ((f64 := ELEMENT_DTYPES["f64"]),), f64, ""))
    x = np.concatenate([np.linspace(-760, 760, 997), [np.inf, -np.inf, np.nan, 0.0, -0.0]])
    wanted, found = np.zeros_like(x), np.zeros_like(x)
    Interpreter(module).run(module.main, [x, wanted])
    NativeGraph(module, module.main, level=1).run([x, found])
    assert ulps(found, wanted) <= 4
    assert np.array_equal(np.signbit(found[:-3]), np.signbit(wanted[:-3])) and np.signbit(found[-1]) == np.signbit(wanted[-1])


def compare(key: str, arrays: list[np.ndarray], wanted: np.ndarray, found: np.ndarray, where: str) -> None:
    """The same bits; functions of f64 within some units of the last place."""
    name, _, result, _ = VARIANTS[key]
    short = name.split(".")[1]
    if short in LIBRARY and result.name == "f64":
        assert ulps(found, wanted) <= ULP.get(short, 4), f"{describe_difference(wanted, found)}; {where}"
        return
    places = [i for i in range(len(wanted)) if not same_bits(wanted[i : i + 1], found[i : i + 1])][:3]
    assert not places, f"operands, wanted, found: {[(*(a[i] for a in arrays), wanted[i], found[i]) for i in places]}; {where}"
