"""The larger and the smaller of two floats: the reference's bits for every pair of what is special, in vectors of all lengths."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from codegen.llvm.emit import emit_graph
from codegen.llvm.helpers import X86
from codegen.llvm.jit import assembly, host_attributes, host_features
from ir.core import Module
from ir.types import ELEMENT_DTYPES
from tests.codegen.code_checks import check, main_program

SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3e38, -3e38, 1.5)


def program(dtype: str, lanes: int, kind: str, second: str = "vector.load(%Y[%i:+L]) : vector<T[L]>") -> Module:
    """``lanes`` elements at a time; 0 for one by one."""
    if lanes:
        loads = f"%x = vector.load(%X[%i:+L]) : vector<T[L]>\n%y = {second}"
        body = f"scf.for(%i = 0 to N step L) {{\n{loads}\n%r = arith.{kind}(%x, %y) : vector<T[L]>\nvector.store(%r, %C[%i:+L])\nyield\n}}"
    else:
        loads = "%x = memref.load(%X[%i]) : T\n%y = memref.load(%Y[%i]) : T"
        body = f"scf.for(%i = 0 to N) {{\n{loads}\n%r = arith.{kind}(%x, %y) : T\nmemref.store(%r, %C[%i])\nyield\n}}"
    parameters = ", ".join(f"%{n}: memref<{dtype}[N]>" for n in "XYC")
    for old, new in (("L]", f"{lanes}]"), ("step L", f"step {lanes}"), (" T", f" {dtype}"), ("<T", f"<{dtype}")):
        body = body.replace(old, new)
    return main_program(parameters, body)


@pytest.mark.parametrize("kind", ["maximumf", "minimumf"])
@pytest.mark.parametrize("lanes", [0, 2, 3, 4, 8, 16, 32])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_pairs(dtype: str, lanes: int, kind: str) -> None:
    numpy = ELEMENT_DTYPES[dtype].numpy
    with np.errstate(over="ignore"):
        values = np.array(SPECIAL, np.float64).astype(np.float32 if dtype != "f64" else np.float64).astype(numpy)
    x, y = (np.resize(a.reshape(-1), 192) for a in np.meshgrid(values, values))
    check(program(dtype, lanes, kind), x, y, np.zeros(192, numpy))


@pytest.mark.parametrize("value", ["0.0", "-0.0", "nan", "inf", "1.5"])
def test_a_constant(value: str) -> None:
    x = np.resize(np.array(SPECIAL, np.float32), 192)
    for kind in ("maximumf", "minimumf"):
        check(program("f32", 16, kind, f"arith.constant({value}) : vector<T[L]>"), x, x, np.zeros(192, np.float32))


@pytest.mark.parametrize(("dtype", "lanes", "name"), [("f32", 16, "ps.512"), ("f32", 8, "ps.256"), ("f64", 8, "pd.512"), ("f64", 2, "pd.128")])
def test_the_instruction(dtype: str, lanes: int, name: str) -> None:
    """One that knows zeros is used where the processor has it, and a number that is known is left to LLVM."""
    module = program(dtype, lanes, "maximumf")
    both = ("avx512dq", "avx512vl")
    assert f"mask.range.{name}" in emit_graph(module, module.main, features=both).text
    assert "mask.range" not in emit_graph(module, module.main, features=("avx2",)).text
    assert ("mask.range" in emit_graph(module, module.main, features=("avx512dq",)).text) == name.endswith("512")
    known = program(dtype, lanes, "maximumf", "arith.constant(0.0) : vector<T[L]>")
    assert "mask.range" not in emit_graph(known, known.main, features=both).text


@pytest.mark.skipif(platform.machine().lower() not in X86 or "avx512dq" not in host_features(), reason="AVX-512 is needed")
def test_three_instructions() -> None:
    module = program("f32", 16, "maximumf")
    text = assembly(emit_graph(module, module.main, attributes=host_attributes(), features=host_features()).text)
    assert "vrangeps" in text and "vcmpunordps" in text and "vmaxps" not in text
