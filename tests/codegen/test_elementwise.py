"""Every elementwise operation of ``arith`` and ``math`` on every element type: scalars, vectors with a remainder, broadcasting."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

import dialects  # noqa: F401
from codegen.llvm.call import NativeGraph
from ir.interpreter import Interpreter
from ir.opdef import REGISTRY, OpDef, TypeProblem
from ir.types import DTYPES, DType, ScalarType
from passes.infra.verify_exec import describe_difference, same_bits
from tests.codegen.native_checks import main_program, special_array

LIBRARY = {"exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "erf", "erfc", "powf", "normcdf", "gelu"}
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
        for dtypes in itertools.product(DTYPES.values(), repeat=len(definition.operand_specs)):
            if len(set(dtypes)) > 1 and name not in ("math.ldexp", "arith.select"):
                continue
            if name == "arith.select" and dtypes[1] != dtypes[2]:
                continue
            for predicate in PREDICATES if "predicate" in definition.attribute_specs else ("",):
                for declared in DTYPES.values() if definition.declared_result else (None,):
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


def scalar_body(name: str, dtypes: tuple[DType, ...], result: DType, attributes: str) -> str:
    loads = "".join(f"  %x{i} = memref.load(%A{i}[%i]) : {d}\n" for i, d in enumerate(dtypes))
    operands = ", ".join(f"%x{i}" for i in range(len(dtypes)))
    return f"scf.for(%i = 0 to N) {{\n{loads}  %r = {name}({operands}{attributes}) : {result}\n  memref.store(%r, %C[%i])\n  yield\n}}"


def vector_body(name: str, dtypes: tuple[DType, ...], result: DType, attributes: str, lanes: int) -> str:
    pad = {"bool": "true", "float": "1.0"}
    loads = "".join(
        f"  %x{i} = vector.load(%A{i}[%i:+{lanes}], valid=%left, pad={pad.get(d.kind, '1')}) : vector<{d}[{lanes}]>\n" for i, d in enumerate(dtypes)
    )
    operands = ", ".join(f"%x{i}" for i in range(len(dtypes)))
    return (
        f"%n = memref.dim(%C, axis=0) : index\nscf.for(%i = 0 to N step {lanes}) {{\n  %left = arith.subi(%n, %i) : index\n{loads}"
        f"  %r = {name}({operands}{attributes}) : vector<{result}[{lanes}]>\n  vector.store(%r, %C[%i:+{lanes}], valid=%left)\n  yield\n}}"
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
    name, dtypes, result, attributes = VARIANTS[key]
    parameters = ", ".join([*(f"%A{i}: memref<{d}[N]>" for i, d in enumerate(dtypes)), f"%C: memref<{result}[N]>"])
    bodies = [scalar_body(name, dtypes, result, attributes), vector_body(name, dtypes, result, attributes, 16)]
    if not dtypes[0].is_float:
        bodies.append(vector_body(name, dtypes, result, attributes, 3))
    wanted: dict[int, np.ndarray] = {}
    for body in bodies:
        module = main_program(parameters, body)
        native = NativeGraph(module, module.main, level=1)
        for count in (259, 1, 0):
            arrays = inputs(name, dtypes, count)
            if count not in wanted:
                target = np.zeros(count, result.numpy)
                Interpreter(module).run(module.main, [*map(np.array, arrays), target])
                wanted[count] = target
            found = np.zeros(count, result.numpy)
            native.run([*map(np.array, arrays), found])
            short = name.split(".")[1]
            if short in LIBRARY and result.name == "f64":
                assert ulps(found, wanted[count]) <= ULP.get(short, 4), describe_difference(wanted[count], found)
            else:
                places = [i for i in range(count) if not same_bits(wanted[count][i : i + 1], found[i : i + 1])][:3]
                shown = [(*(a[i] for a in arrays), wanted[count][i], found[i]) for i in places]
                assert same_bits(wanted[count], found), f"operands, wanted, found: {shown}\n{module}"
