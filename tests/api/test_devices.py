"""Machine code behind the public interface: the same answers and the same words as the reference interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graph_opt
from ir.printer import print_module

ROOT = Path(__file__).parents[2]
f = np.float32

SCALE = """// adds %y to every row, each row by one thread
graph @main(%x: f32[B, 4], %y: f32[4]) -> f32[B, 4]
  where B <= 1000 {
  %a = memref.from_tensor(%x) : memref<f32[B, 4]>
  %b = memref.from_tensor(%y) : memref<f32[4]>
  %c = memref.alloc() : memref<f32[B, 4]>
  scf.parallel(%i = 0 to B, mapping="threads") {
    scf.for(%j = 0 to 4) {
      %p = memref.load(%a[%i, %j]) : f32
      %q = memref.load(%b[%j]) : f32
      %s = arith.addf(%p, %q) : f32
      memref.store(%s, %c[%i, %j])
      yield
    }
    yield
  }
  %z = memref.to_tensor(%c) : f32[B, 4]
  return %z
}
"""


def both(text: str, **options: object) -> tuple[graph_opt.Executable, graph_opt.Executable]:
    """The program in the interpreter and as machine code."""
    module = graph_opt.parse(text)
    reference = graph_opt.compile(module, device="reference", pipeline="O0")
    return reference, graph_opt.compile(module, device="cpu", pipeline="O0", **options)  # type: ignore[arg-type]


def outcome(program: graph_opt.Executable, arrays: list[np.ndarray]) -> list[object]:
    """Results and arguments afterwards, or the message."""
    arrays = [a.copy() for a in arrays]
    try:
        return [[r.tobytes() for r in program.run(arrays)], [a.tobytes() for a in arrays]]
    except graph_opt.GraphError as error:
        return [str(error)]


@pytest.mark.parametrize("threads", [0, 1, 2, 3])
def test_same_bits_for_any_number_of_threads(threads: int) -> None:
    reference, native = both(SCALE, threads=threads)
    for rows in (0, 1, 2, 5, 64, 1000):
        x, y = np.random.default_rng(rows).standard_normal((rows, 4)).astype(f), np.ones(4, f)
        np.testing.assert_array_equal(native(x, y), reference(x, y))
        np.testing.assert_array_equal(native(x, y=y[::-1]), reference(x, y=y[::-1]))
    assert native.input_names == reference.input_names == ["x", "y"]
    assert native.output_names == reference.output_names == ["z"]
    assert str(native) == str(reference) and "mapping" in str(native)


@pytest.mark.parametrize(
    "args",
    [
        (),
        (np.ones((2, 4), f),),
        (np.ones((2, 4), f), np.ones(3, f)),
        (np.ones((2, 4), f), np.ones(4)),
        (np.ones((1001, 4), f), np.ones(4, f)),
        (np.ones((2, 4), object), np.ones(4, f)),
        (np.ma.array(np.ones((2, 4), f)), np.ones(4, f)),
        ([[1.0], [1.0, 2.0]], np.ones(4, f)),
    ],
    ids=lambda a: str(len(a)),
)
def test_same_words_for_arguments_that_do_not_fit(args: tuple[object, ...]) -> None:
    words = []
    for program in both(SCALE):
        with pytest.raises(graph_opt.GraphError) as caught:
            program(*args)  # type: ignore[arg-type]
        words.append(str(caught.value))
    assert words[0] == words[1]


PICK = """graph @main(%x: f32[N], %i: i64[]) -> f32[] {
  %a = memref.from_tensor(%x) : memref<f32[N]>
  %j = memref.from_tensor(%i) : memref<i64[]>
  %c = memref.alloc() : memref<f32[]>
  %n = memref.load(%j[]) : i64
  %k = arith.index_cast(%n) : index
  %v = memref.load(%a[%k]) : f32
  memref.store(%v, %c[])
  %z = memref.to_tensor(%c) : f32[]
  return %z
}
"""


def test_same_words_for_errors_of_operations() -> None:
    reference, native = both(PICK)
    x = np.arange(5, dtype=f)
    for i in (0, 4, 5, -1, 2**40):
        assert outcome(native, [x, np.array(i)]) == outcome(reference, [x, np.array(i)])
    with pytest.raises(graph_opt.GraphError, match=r"^<string>:7:8: error: memref.load: index 5 is outside dimension 0 of size 5"):
        native(x, np.array(5))
    assert native(x, np.array(4)) == 4
    assert native(x, i=3) == 3


INOUT = """graph @main(%c: f32[N] inout, %x: f32[2]) -> f32[N] {
  %m = memref.of_inout(%c) : memref<f32[N]>
  %a = memref.from_tensor(%x) : memref<f32[2]>
  scf.for(%i = 0 to 2) {
    %v = memref.load(%a[%i]) : f32
    memref.store(%v, %m[2*%i])
    yield
  }
  %z = memref.to_tensor(%m) : f32[N]
  return %z
}
"""


@pytest.mark.parametrize("layout", ["plain", "strided", "big-endian", "overlapping"])
def test_inout_arrays(layout: str) -> None:
    seen = []
    for program in both(INOUT):
        base = np.arange(12, dtype=">f4" if layout == "big-endian" else f)
        c = base[::2] if layout == "strided" else base[:6]
        x = base[1:3] if layout == "overlapping" else np.array([7, 8], f)
        (z,) = [program(c, x)]
        seen.append((base.tobytes(), z.tobytes()))
        assert not np.shares_memory(z, base)
    assert seen[0] == seen[1]


PRINT = """graph @main(%x: f32[N]) {
  %a = memref.from_tensor(%x) : memref<f32[N]>
  %c = memref.alloc() : memref<f32[N]>
  memref.copy(%a, %c)
  %t = memref.to_tensor(%c) : f32[N]
  print(%t, label="the copy")
  return
}
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_print(threads: int, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for program in both(PRINT, threads=threads):
        for x in (np.arange(5, dtype=f), np.zeros(0, f), np.arange(3000, dtype=f)):
            assert program(x) == ()
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[0].startswith("the copy: f32[5]\n")


LOADED = """file @w = "w.npz"
graph @main(%x: f32[4]) -> f32[4] {
  %a = weight(@w, "a") : f32[4]
  %k = constant([1.0, 2.0, 3.0, 4.0]) : f32[4]
  %d = initial(@main.init, result=0) : f32[4]
  %mx = memref.from_tensor(%x) : memref<f32[4]>
  %ma = memref.from_tensor(%a) : memref<f32[4]>
  %mk = memref.from_tensor(%k) : memref<f32[4]>
  %md = memref.from_tensor(%d) : memref<f32[4]>
  %c = memref.alloc() : memref<f32[4]>
  scf.for(%i = 0 to 4) {
    %p = memref.load(%mx[%i]) : f32
    %q = memref.load(%ma[%i]) : f32
    %r = memref.load(%mk[%i]) : f32
    %s = memref.load(%md[%i]) : f32
    %t = arith.mulf(%p, %q) : f32
    %u = arith.addf(%t, %r) : f32
    %v = arith.addf(%u, %s) : f32
    memref.store(%v, %c[%i])
    yield
  }
  %z = memref.to_tensor(%c) : f32[4]
  return %z
}

graph @main.init() -> f32[4] {
  %a = weight(@w, "a") : f32[4]
  INIT
  return %t
}
"""
INITS = {
    "tensors": "%t = neg(%a) : f32[4]",
    "loops": """%m = memref.from_tensor(%a) : memref<f32[4]>
  %c = memref.alloc() : memref<f32[4]>
  scf.for(%i = 0 to 4) {
    %v = memref.load(%m[%i]) : f32
    %n = arith.negf(%v) : f32
    memref.store(%n, %c[%i])
    yield
  }
  %t = memref.to_tensor(%c) : f32[4]""",
}


@pytest.mark.parametrize("init", INITS)
def test_weights_constants_and_what_is_computed_at_load_time(init: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", a=np.array([1, -2, 3, 0.5], f))
    path = tmp_path / "p.graph"
    path.write_text(LOADED.replace("INIT", INITS[init]))
    x = np.array([2, 3, 4, 5], f)
    wanted = graph_opt.compile(path, device="reference", pipeline="O0")(x)
    program = graph_opt.compile(path, device="cpu", pipeline="O0")
    os.unlink(tmp_path / "w.npz")
    np.testing.assert_array_equal(program(x), wanted)
    np.savez(tmp_path / "w.npz", a=np.ones(3, f))
    for device in ("reference", "cpu"):
        with pytest.raises(graph_opt.GraphError, match=r"f32\[3\]"):
            graph_opt.compile(path, device=device, pipeline="O0")(x)


def test_what_has_no_machine_code() -> None:
    module = graph_opt.parse("%x = input() : f32[4]\n%y = relu(%x)\n")
    with pytest.raises(graph_opt.GraphError, match="relu"):
        graph_opt.compile(module, device="cpu", pipeline="O0")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "abacus"}, "no device 'abacus'"),
        ({"device": "cpu", "threads": -1}, "threads: expected an integer from 0 to 256, found -1"),
        ({"device": "cpu", "threads": 1.0}, "found 1.0"),
        ({"device": "cpu", "threads": True}, "found True"),
        ({"device": "cpu", "threads": 10**9}, "found 1000000000"),
        ({"device": "reference", "threads": 2}, "'reference' has one thread"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, object], words: str) -> None:
    with pytest.raises(graph_opt.GraphError, match=words):
        graph_opt.compile(graph_opt.parse(SCALE), pipeline="O0", **options)  # type: ignore[arg-type]


def test_a_program_of_loops_runs_as_it_is() -> None:
    program = graph_opt.compile(graph_opt.parse(SCALE), device="cpu")
    assert str(program) == SCALE


def test_llvm_is_loaded_late() -> None:
    """Neither the command's help nor a run in the interpreter load what generates code."""
    code = (
        "import sys, numpy as np, graph_opt, graph_opt.cli, graph_opt.commands\n"
        f"program = graph_opt.compile({str(ROOT / 'samples' / 'mlp.graph')!r}, device='reference')\n"
        "print(sorted(n for n in sys.modules if n.startswith(('llvmlite', 'codegen.llvm.emit', 'codegen.llvm.jit'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


def test_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """With GRAPH_OPT_POISON=1 a buffer that was never written holds NaN."""
    monkeypatch.setenv("GRAPH_OPT_POISON", "1")
    text = """graph @main() -> f32[4] {
  %c = memref.alloc() : memref<f32[4]>
  %d = memref.alloc() : memref<f32[4]>
  memref.copy(%c, %d)
  %z = memref.to_tensor(%d) : f32[4]
  return %z
}
"""
    _, native = both(text)
    assert np.isnan(native()).all()


def test_poison_in_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """With GRAPH_OPT_POISON=1 a plan that frees memory too early shows, and a right one gives the same bits."""
    right = """graph @main(%x: f32[B, S]) -> f32[B, S] {
  %a = softmax(%x, axis=-1)
  %t = transpose(%a, perm=[1, 0])
  %p = matmul(%a, %t)
  %q = matmul(%p, %p)
  %y = matmul(%q, %a)
  return %y
}
"""
    wrong = """graph @main(%x: f32[4]) -> f32[4] {
  %X = memref.from_tensor(%x) : memref<f32[4]>
  %M = memref.alloc() : memref<u8[16]>
  %A = memref.view(%M, offset=0) : memref<f32[4]>
  %C = memref.view(%M, offset=0) : memref<f32[4]>
  memref.copy(%X, %A)
  %y = memref.to_tensor(%C) : f32[4]
  return %y
}
"""
    x = np.random.default_rng(0).standard_normal((37, 21)).astype(np.float32)
    wanted, small = graph_opt.compile(graph_opt.parse(right))(x), np.ones(4, np.float32)
    assert (graph_opt.compile(graph_opt.parse(wrong), pipeline="poison")(small) == small).sum() == 0
    monkeypatch.setenv("GRAPH_OPT_POISON", "1")
    poisoned = graph_opt.compile(graph_opt.parse(right))
    assert "poison" in print_module(poisoned.module)
    assert np.array_equal(poisoned(x), wanted)
