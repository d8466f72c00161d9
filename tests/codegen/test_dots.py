"""Dot products of bytes: the bits of the reference in every form that the machine has, over all extremes of bytes."""

from __future__ import annotations

import itertools
import platform

import llvmlite.binding as llvm
import numpy as np
import pytest

import graph_opt
from codegen.llvm.dots import forms
from codegen.llvm.emit import emit_graph
from codegen.llvm.helpers import X86
from codegen.llvm.jit import assembly, host_attributes, host_features
from dialects.arith.dot import add4, dot4
from ir.core import Module
from ir.opdef import TypeProblem
from ir.types import ScalarType, VectorType, i32, i64
from tests.codegen.code_checks import main_program, outputs
from tests.codegen.native_graph import NativeGraph

FEATURES = {
    "vnni": ("avx512vnni", "avx512vl", "avx512bw", "avx2", "sse2"),
    "avxvnni": ("avxvnni", "avx2", "sse2"),
    "avx512bw": ("avx512bw", "avx2", "sse2"),
    "avx2": ("avx2", "ssse3", "sse2"),
    "ssse3": ("ssse3", "sse2"),
    "sse2": ("sse2",),
    "none": (),
}
INSTRUCTIONS = {"vnni": "vpdpbusd.512", "avxvnni": "vpdpbusd.256", "avx512bw": "pmaddw.d.512", "avx2": "avx2.pmadd.wd", "sse2": "sse2.pmadd.wd"}
SMALL = {"avx512bw": "pmaddubs.w.512", "avx2": "avx2.pmadd.ub.sw", "ssse3": "ssse3.pmadd.ub.sw"}


def program(lanes: int, small: bool = False) -> Module:
    """All elements: as vectors, of which the last one is read and written in part, or one by one."""
    promise = ", small=true" if small else ""
    if not lanes:
        loads = "".join(f"%{n.lower()} = memref.load(%{n}[%i]) : i32\n" for n in "XYA")
        body = f"scf.for(%i = 0 to N) {{\n{loads}%r = arith.dot4(%x, %y, %a{promise}) : i32\nmemref.store(%r, %C[%i])\nyield\n}}"
    else:
        loads = "".join(f"%{n.lower()} = vector.load(%{n}[%i:+{lanes}], valid=%left) : vector<i32[{lanes}]>\n" for n in "XYA")
        body = (
            f"%n = memref.dim(%C, axis=0) : index\nscf.for(%i = 0 to N step {lanes}) {{\n%left = arith.subi(%n, %i) : index\n{loads}"
            f"%r = arith.dot4(%x, %y, %a{promise}) : vector<i32[{lanes}]>\nvector.store(%r, %C[%i:+{lanes}], valid=%left)\nyield\n}}"
        )
    return main_program(", ".join(f"%{n}: memref<i32[N]>" for n in "XYAC"), body)


def extremes(largest: int = 255) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every combination of extreme bytes in all four places, and random words."""
    pairs = np.array(list(itertools.product(sorted({0, 1, 127, min(128, largest), largest}), (-128, -127, -1, 0, 127))), np.int16)
    places = np.array(list(itertools.product(range(len(pairs)), repeat=4)))
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 256, (2, 4099, 4))
    x = np.concatenate([pairs[places, 0], noise[0] & largest]).astype(np.uint8).view("<i4")[:, 0]
    y = np.concatenate([pairs[places, 1], noise[1]]).astype(np.uint8).view("<i4")[:, 0]
    acc = rng.choice(np.array([0, 1, -1, 2**31 - 1, -(2**31), 12345], np.int32), x.size)
    return x, y, acc


def test_the_reference() -> None:
    x, y, acc = extremes()
    shifts = np.array([0, 8, 16, 24])
    a = (x[:, None].astype(np.int64) & 0xFFFFFFFF) >> shifts & 255
    b = (y[:, None].astype(np.int64) & 0xFFFFFFFF) >> shifts & 255
    total = acc + (a * (b - 256 * (b > 127))).sum(axis=1)
    assert np.array_equal(dot4(x, y, acc), ((total + 2**31) % 2**32 - 2**31).astype(np.int32))
    assert dot4(np.int32(-1), np.int32(-2139062144), np.int32(7)) == 7 - 4 * 255 * 128
    assert dot4(x[:6].reshape(2, 3), np.int32(0x01010101), np.zeros((3, 1, 1), np.int32)).shape == (3, 2, 3)


def test_types() -> None:
    names = ["x", "y", "acc"]
    vector = VectorType(i32, (4,))
    assert dot4.infer([vector, ScalarType(i32), ScalarType(i32)], names, {}) == (vector,)
    with pytest.raises(TypeProblem, match="expected i32"):
        dot4.infer([ScalarType(i64)] * 3, names, {})
    with pytest.raises(TypeProblem, match="element types differ"):
        dot4.infer([ScalarType(i64), ScalarType(i32), ScalarType(i32)], names, {})


@pytest.mark.parametrize("lanes", [16, 8, 0, 3, 20, 29])
@pytest.mark.parametrize("small", [False, True], ids=["", "small"])
@pytest.mark.parametrize("kind", FEATURES)
def test_same_bits(kind: str, small: bool, lanes: int) -> None:
    features = FEATURES[kind]
    missing = set(features) - host_features()
    if missing:
        pytest.skip(f"this machine has no {', '.join(sorted(missing))}")
    module = program(lanes, small)
    native = NativeGraph(module, module.main, features=features, level=1)
    x, y, acc = extremes(127 if small else 255)
    (found,) = outputs(module, native.run, [x, y, acc, np.zeros_like(acc)])[-1:]
    assert np.array_equal(found, dot4(x, y, acc))
    wanted = {**INSTRUCTIONS, **(SMALL if small else {})}
    if lanes >= 16 and kind in wanted:
        assert wanted[kind] in native.native.text
        assert small or not any(name in native.native.text for name in SMALL.values())


@pytest.mark.parametrize("kind", ["vnni", "avx2", "none"])
@pytest.mark.parametrize("lanes", [16, 0, 3])
def test_sums_of_bytes(lanes: int, kind: str) -> None:
    """Every byte with every other one: nothing is carried."""
    missing = set(FEATURES[kind]) - host_features()
    if missing:
        pytest.skip(f"this machine has no {', '.join(sorted(missing))}")
    module = graph_opt.parse(str(program(lanes)).replace("arith.dot4(%x, %y, %a)", "arith.add4(%x, %y)"))
    a, b = np.arange(65536) // 256, np.arange(65536) % 256
    x, y = (np.stack([v, np.roll(v, 77), v, 255 - v], axis=1).astype(np.uint8).view("<i4")[:, 0] for v in (a, b))
    native = NativeGraph(module, module.main, features=FEATURES[kind], level=1)
    (found,) = outputs(module, native.run, [x, y, np.zeros_like(x), np.zeros_like(x)])[-1:]
    expected = ((x.view(np.uint8).astype(int) + y.view(np.uint8)) % 256).astype(np.uint8).view("<i4")
    assert np.array_equal(found, expected) and np.array_equal(add4(x, y), expected)


def test_types_of_sums_of_bytes() -> None:
    vector = VectorType(i32, (4,))
    assert add4.infer([ScalarType(i32), vector], ["x", "y"], {}) == (vector,)
    assert add4(np.int32(-1), np.zeros((2, 3), np.int32)).shape == (2, 3) and add4(np.int32(0x01FF7F80), np.int32(0x01017F80)) == 0x0200FE00
    with pytest.raises(TypeProblem, match="expected i32"):
        add4.infer([ScalarType(i64)] * 2, ["x", "y"], {})


def test_forms_of_processors() -> None:
    assert [f.lanes for f in forms(FEATURES["vnni"], "x86_64")] == [16, 8, 4]
    assert [f.lanes for f in forms(FEATURES["avx2"], "AMD64")] == [8, 4]
    assert [f.lanes for f in forms(["dotprod"], "aarch64")] == [4]
    assert not forms([], "x86_64") and not forms(FEATURES["vnni"], "aarch64")


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(("features", "instruction"), [(["dotprod"], "sdot"), (["dotprod", "i8mm"], "usdot")])
def test_arm(features: list[str], instruction: str, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written for another machine is code there."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    module = program(8, small)
    text = emit_graph(module, module.main, features=features).text
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    machine = target.create_target_machine(features=",".join(f"+{f}" for f in features))
    parsed = llvm.parse_assembly(text)
    parsed.triple = "aarch64-unknown-linux-gnu"
    assert f"\t{instruction}\t" in machine.emit_assembly(parsed)
    assert text.count(f"call <4 x i32> @llvm.aarch64.neon.{instruction}.") == (2 if small or instruction == "usdot" else 4)


def test_the_signed_form_of_arm() -> None:
    """x - 128 has a sign: its products and those of 128 are the products of x."""
    x, y, _ = extremes()
    a, b = x.view(np.uint8).astype(np.int64), y.view(np.int8).astype(np.int64)
    less = (x ^ np.int32(-2139062144)).view(np.int8)
    assert np.array_equal(less * b - (np.int64(-128) * b), a * b)


@pytest.mark.skipif(platform.machine().lower() not in X86, reason="an instruction of other processors")
def test_one_instruction() -> None:
    """A word of memory for all lanes is an operand of the instruction."""
    features = FEATURES["vnni"]
    if set(features) - host_features():
        pytest.skip("this machine has no vnni")
    module = main_program(
        "%X: memref<i32[N, 16]>, %Y: memref<i32[N]>, %C: memref<i32[16]>",
        """
        %a = vector.load(%C[0:+16]) : vector<i32[16]>
        %s = scf.for(%i = 0 to N, %acc = %a) {
          %x = vector.load(%X[%i, 0:+16]) : vector<i32[16]>
          %y = memref.load(%Y[%i]) : i32
          %y16 = vector.broadcast(%y) : vector<i32[16]>
          %r = arith.dot4(%x, %y16, %acc) : vector<i32[16]>
          yield %r
        } : vector<i32[16]>
        vector.store(%s, %C[0:+16])""",
    )
    text = assembly(emit_graph(module, module.main, attributes=host_attributes(), features=features).text)
    assert "{1to16}" in next(line for line in text.splitlines() if "vpdpbusd" in line)
