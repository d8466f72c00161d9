"""The wrapper of LLVM: what it refuses, and that code stays as long as something refers to it."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys

import pytest

from codegen.llvm.jit import Code, CompileError, assembly, compile_object, host_attributes, library_addresses, object_symbols, without_addresses

ADD = "define i64 @add(i64 %x, i64 %y) {\n  %s = add i64 %x, %y\n  ret i64 %s\n}\n"
ROOT = "declare double @exp(double)\ndefine double @f(double %x) {\n  %y = call double @exp(double %x)\n  ret double %y\n}\n"
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def test_code_runs() -> None:
    code = Code.from_text(ADD)
    assert SIGNATURE(code.address("add"))(40, 2) == 42
    with pytest.raises(KeyError):
        code.address("sub")


def test_functions_of_the_library() -> None:
    code = Code.from_text(ROOT)
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(code.address("f"))(0.0) == 1.0
    assert object_symbols(code.objects[0]) == (["exp"], ["f"])


@pytest.mark.parametrize(
    "text", ["nonsense", "define i64 @f() {\n  ret i32 0\n}\n", "define i64 @f(i64 %x) {\n  %y = add i64 %z, 1\n  ret i64 %y\n}\n"]
)
def test_wrong_texts(text: str) -> None:
    with pytest.raises(CompileError, match="LLVM refuses"):
        Code.from_text(text)


@pytest.mark.parametrize("name", ["system", "nobody_has_this", "PyErr_Clear"])
def test_unknown_functions_are_refused(name: str) -> None:
    text = f"declare void @{name}()\ndefine void @f() {{\n  call void @{name}()\n  ret void\n}}\n"
    with pytest.raises(CompileError, match=f"unknown functions: {name}"):
        Code.from_text(text)


def test_damaged_objects_are_refused() -> None:
    data = compile_object(ADD)
    for bad in (b"", b"\x7fELF", data[:100], data[: len(data) // 2], data[:-200], b"\0" * 1000, data[:0x28] + b"\xff" * 8 + data[0x30:]):
        with pytest.raises(CompileError):
            Code(bad)
    assert SIGNATURE(Code(data).address("add"))(1, 2) == 3


def test_codes_do_not_depend_on_each_other() -> None:
    codes = [Code.from_text(ADD.replace("%x, %y\n", f"%x, {i}\n")) for i in range(8)]
    functions = [SIGNATURE(c.address("add")) for c in codes]
    kept = codes[5]
    codes.clear()
    gc.collect()
    assert functions[5](10, 0) == 15
    assert SIGNATURE(kept.address("add"))(1, 0) == 6


def test_levels() -> None:
    for level in range(4):
        for optimize in range(4):
            assert SIGNATURE(Code.from_text(ADD, level=level, optimize=optimize).address("add"))(40, 2) == 42


def test_assembly_is_shown() -> None:
    assert "add" in assembly(ADD)


def test_all_functions_are_found() -> None:
    assert {"exp", "erfc", "fmod", "memcpy", "sched_yield"} <= set(library_addresses())
    assert set(host_attributes()) <= {"prefer-vector-width", "tune-cpu"}


def test_a_process_ends_well_with_code_loaded() -> None:
    program = f"from codegen.llvm.jit import Code\ncodes = [Code.from_text({ADD!r}) for _ in range(3)]\ndel codes[1]\nprint(len(codes))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_addresses_have_names_in_what_is_kept() -> None:
    word = ctypes.c_int64(41)
    place = f"inttoptr (i64 {ctypes.addressof(word)} to ptr)"
    text, addresses = without_addresses(f"define i64 @f() {{\n  %x = load i64, ptr {place}\n  store i64 7, ptr {place}\n  ret i64 %x\n}}\n")
    assert list(addresses.values()) == [ctypes.addressof(word)] and "inttoptr" not in text
    code = Code.from_text(f"define i64 @f() {{\n  %x = load i64, ptr {place}\n  store i64 7, ptr {place}\n  ret i64 %x\n}}\n")
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("f"))() == 41
    assert word.value == 7


def test_functions_at_addresses_are_called() -> None:
    function = SIGNATURE(lambda a, b: a * b)
    address = ctypes.cast(function, ctypes.c_void_p).value
    code = Code.from_text(
        f"define i64 @f(i64 %x) {{\n  %y = call i64 inttoptr (i64 {address} to ptr)(i64 %x, i64 3)\n"
        f"  %same = icmp eq ptr inttoptr (i64 {address} to ptr), null\n  %z = select i1 %same, i64 0, i64 %y\n  ret i64 %z\n}}\n"
    )
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("f"))(5) == 15
