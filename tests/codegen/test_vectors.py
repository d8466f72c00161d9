"""Vectors of several dimensions: blocks of memory, orders of elements, reductions; every element type."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ir.types import ELEMENT_DTYPES as DTYPES
from tests.codegen.code_checks import check, main_program, special_array
from tests.codegen.native_graph import NativeGraph

ALL = list(DTYPES)
NUMBERS = [d for d in ALL if d != "bool"]


def block(dtype: str, *shape: int, seed: int = 3) -> np.ndarray:
    return special_array(DTYPES[dtype], int(np.prod(shape)), seed).reshape(shape)


@pytest.mark.parametrize("dtype", ALL)
def test_blocks(dtype: str) -> None:
    """Runs along one dimension, several, and with the last one cut off."""
    runs = ["%i, 1, 0:+5", "%i:+2, 1, 2", "%i:+2, 0:+3, 1:+4", "0:+2, %i, %j:+1", "%j, %i, 2:+3", "%i:+1, 0:+2, 0:+5", "0:+3, %j:+3, %i"]
    for access in runs:
        shape = ", ".join(part.partition(":+")[2] or "1" for part in access.split(", "))
        full = f"%a = vector.load(%A[{access}]) : vector<{dtype}[{shape}]>\nvector.store(%a, %C[{access}])"
        part = f"%v = memref.load(%J[2]) : index\n%b = vector.load(%A[{access}], valid=%v) : vector<{dtype}[{shape}]>\n"
        part += f"vector.store(%b, %D[{access}], valid=%v)"
        whole = f"vector.store(%b, %E[{access}])"
        body = f"%i = memref.load(%J[0]) : index\n%j = memref.load(%J[1]) : index\n{full}\n{part}\n{whole}"
        buffers = ", ".join(f"%{n}: memref<{dtype}[3, 3, 5]>" for n in "ACDE")
        module = main_program(f"{buffers}, %J: memref<index[3]>", body)
        native = NativeGraph(module, module.main, level=1)
        for i, j, v in [(0, 0, 1), (1, 1, 2), (1, 0, 9), (0, 1, 0), (0, 0, -1)]:
            arrays = [block(dtype, 3, 3, 5, seed=s) for s in range(4)]
            check(module, *arrays, np.array([i, j, v]), native=native)


@pytest.mark.parametrize("dtype", ALL)
def test_orders_of_elements(dtype: str) -> None:
    body = f"""
    %a = vector.load(%A[0:+2, 0:+3, 0:+4]) : vector<{dtype}[2, 3, 4]>
    %t = vector.transpose(%a, perm=[2, 0, 1]) : vector<{dtype}[4, 2, 3]>
    %row = vector.extract(%t, position=[3, 1]) : vector<{dtype}[3]>
    %x = vector.extract(%a, position=[1, 2, 3]) : {dtype}
    %r = vector.reshape(%t) : vector<{dtype}[2, 12]>
    %p = vector.extract(%r, position=[0]) : vector<{dtype}[12]>
    %q = vector.insert(%p, %r, position=[1]) : vector<{dtype}[2, 12]>
    %q.1 = vector.insert(%x, %q, position=[0, 5]) : vector<{dtype}[2, 12]>
    %b = vector.broadcast(%row) : vector<{dtype}[2, 2, 3]>
    %e = vector.reshape(%b) : vector<{dtype}[12]>
    %c = vector.broadcast(%x) : vector<{dtype}[12]>
    %s = vector.shuffle(%e, %c, mask=[23, 0, 11, 12, 4, 4, 4, 1, 2, 3, 5, 6]) : vector<{dtype}[12]>
    %s.1 = vector.insert(%s, %q.1, position=[1]) : vector<{dtype}[2, 12]>
    vector.store(%q.1, %C[0:+2, 0:+12])
    vector.store(%s.1, %D[0:+2, 0:+12])"""
    module = main_program(f"%A: memref<{dtype}[2, 3, 4]>, %C: memref<{dtype}[2, 12]>, %D: memref<{dtype}[2, 12]>", body)
    check(module, block(dtype, 2, 3, 4), block(dtype, 2, 12), block(dtype, 2, 12))


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_reductions(dtype: str, kind: str) -> None:
    shape = (2, 3, 4)
    for count in (1, 2, 3):
        for axes in itertools.combinations(range(3), count):
            left = ", ".join(str(s) for a, s in enumerate(shape) if a not in axes)
            result = f"vector<{dtype}[{left}]>" if left else dtype
            runs = ", ".join(f"0:+{s}" for a, s in enumerate(shape) if a not in axes)
            store = f"vector.store(%s, %C[{runs}])" if left else "memref.store(%s, %C[])"
            body = f"%a = vector.load(%A[0:+2, 0:+3, 0:+4]) : vector<{dtype}[2, 3, 4]>\n"
            body += f'%s = vector.multi_reduction(%a, kind="{kind}", axes={list(axes)}) : {result}\n{store}'
            module = main_program(f"%A: memref<{dtype}[2, 3, 4]>, %C: memref<{dtype}[{left}]>", body)
            native = NativeGraph(module, module.main, level=1)
            for seed in range(4):
                source = block(dtype, *shape, seed=seed)
                if dtype == "f64" and kind in ("add", "mul"):  # numpy leaves the order open, so let it not matter
                    source = np.round(np.clip(np.nan_to_num(source), -3, 3))
                check(module, source, block(dtype, *(s for a, s in enumerate(shape) if a not in axes)), native=native)


@pytest.mark.parametrize("dtype", ALL)
def test_broadcasting(dtype: str) -> None:
    body = f"""
    %k = arith.constant(true) : bool
    %x = memref.load(%A[1, 2]) : {dtype}
    %m = vector.load(%A[0:+2, 0:+3]) : vector<{dtype}[2, 3]>
    %row = vector.load(%A[1, 0:+3]) : vector<{dtype}[1, 3]>
    %column = vector.load(%A[0:+2, 1]) : vector<{dtype}[2, 1]>
    %c = arith.COMPARE(%row, %column, predicate="eq") : vector<bool[2, 3]>
    %s = arith.select(%c, %x, %column) : vector<{dtype}[2, 3]>
    %t = arith.select(%k, %s, %row) : vector<{dtype}[2, 3]>
    %u = arith.select(%c, %row, %x) : vector<{dtype}[2, 3]>
    vector.store(%t, %C[0:+2, 0:+3])
    vector.store(%u, %D[0:+2, 0:+3])"""
    body = body.replace("COMPARE", "cmpf" if DTYPES[dtype].is_float else "cmpi")
    module = main_program(f"%A: memref<{dtype}[2, 3]>, %C: memref<{dtype}[2, 3]>, %D: memref<{dtype}[2, 3]>", body)
    check(module, block(dtype, 2, 3), block(dtype, 2, 3), block(dtype, 2, 3))


def test_constants_keep_their_bits() -> None:
    body = """
    %a = arith.constant([bits(0x7fc00001), bits(0xffc12345), nan, -0.0]) : vector<f32[4]>
    %b = arith.bitcast(%a) : vector<i32[4]>
    vector.store(%b, %C[0:+4])
    %c = arith.constant(bits(0x7fc00001)) : f32
    %d = arith.bitcast(%c) : i32
    memref.store(%d, %C[4])
    %e = arith.constant(bits(0x7fc00001)) : vector<f32[3]>
    %f = arith.bitcast(%e) : vector<i32[3]>
    vector.store(%f, %C[5:+3])"""
    module = main_program("%C: memref<i32[8]>", body)
    check(module, np.zeros(8, np.int32))


@pytest.mark.parametrize("dtype", ALL)
def test_constants(dtype: str) -> None:
    values = {"bool": "[true, false, true]", "u8": "[0, 127, 255]"}.get(dtype, "[1, -2, 100]" if not DTYPES[dtype].is_float else "[0.1, -inf, 6e-8]")
    body = f"%a = arith.constant({values}) : vector<{dtype}[3]>\nvector.store(%a, %C[0:+3])"
    module = main_program(f"%C: memref<{dtype}[3]>", body)
    check(module, np.zeros(3, DTYPES[dtype].numpy))


@pytest.mark.parametrize("dtype", ALL)
def test_carried_values(dtype: str) -> None:
    body = f"""
    %a = vector.load(%A[0:+3]) : vector<{dtype}[3]>
    %b = memref.load(%A[3]) : {dtype}
    %c, %d, %e = scf.for(%i = 0 to N, %x = %a, %y = %b, %z = %b) {{
      %m = vector.broadcast(%z) : vector<{dtype}[3]>
      %v = vector.extract(%x, position=[1]) : {dtype}
      yield %m, %v, %y
    }} : vector<{dtype}[3]>, {dtype}, {dtype}
    vector.store(%c, %C[0:+3])
    memref.store(%d, %C[3])
    memref.store(%e, %C[4])"""
    module = main_program(f"%A: memref<{dtype}[4]>, %C: memref<{dtype}[5]>, %N: memref<i8[N]>", body)
    native = NativeGraph(module, module.main)
    for count in (0, 1, 2, 3):
        check(module, block(dtype, 4), block(dtype, 5), np.zeros(count, np.int8), native=native)
