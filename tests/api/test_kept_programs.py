"""Programs out of the cache: they do what was compiled does, bit for bit and word for word, or they are compiled again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_opt
from codegen import cache as cache_module
from codegen.cache import VARIABLE, Cache, default_cache
from codegen.llvm import jit
from graph_opt import image as image_module
from graph_opt import kept
from graph_opt.api import find_graph
from graph_opt.executable import Executable
from ir import interpreter
from ir.core import Module
from ir.inputs import choose_sizes, generate_inputs
from ir.opdef import REGISTRY, Tensor, op

ROOT = Path(__file__).resolve().parents[2]
f = np.float32

MLP = """file @w = "w.npz"

graph @main(%x: f32[B, 24]) -> (y: f32[B, 8]) where B <= 40 {
  %w1 = weight(@w, "w1") : f32[24, 16]
  %w2 = weight(@w, "w2") : f32[16, 8]
  %scale = weight(@w, "scale") : f32[1]
  %two = add(%scale, %scale)
  %h = matmul(%x, %w1)
  %r = relu(%h)
  %s = mul(%r, %two)
  %y = matmul(%s, %w2)
  return %y
}
"""
GATHER = """graph @main(%x: f32[N, 4], %i: i64[K], %c: f32[N, 4] inout, %p: i64[]) -> (y: f32[K, 4], z: f32[N, 4]) {
  %y = gather(%x, %i, axis=0)
  %u = cache_update(%c, %y, %p, axis=0)
  %z = add(%u, %x)
  return %y, %z
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "_BEGAN_NS", 1 << 62)  # somebody may work on the files while these tests run
    np.savez(tmp_path / "w.npz", **_weights(0))
    return tmp_path


def _weights(seed: int) -> dict[str, Any]:
    r = np.random.default_rng(seed)
    return {"w1": r.standard_normal((24, 16)).astype(f), "w2": r.standard_normal((16, 8)).astype(f), "scale": np.array([0.75], f)}


def _write(folder: Path, text: str, name: str = "p.graph") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def is_kept(program: Executable) -> bool:
    return not isinstance(program._module, Module)


def _twice(path: str, **options: Any) -> tuple[Executable, Executable]:
    first, second = (graph_opt.compile(path, **options) for _ in range(2))
    assert not is_kept(first) and is_kept(second)
    return first, second


def _error(call: Callable[[], object]) -> str:
    with pytest.raises(graph_opt.GraphError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_and_products(folder: Path, threads: int) -> None:
    first, second = _twice(_write(folder, MLP), threads=threads)
    assert second.input_names == ["x"] and second.output_names == ["y"]
    for rows in (0, 1, 5, 40):
        x = np.random.default_rng(rows).standard_normal((rows, 24)).astype(f)
        np.testing.assert_array_equal(second(x), first(x))
        np.testing.assert_array_equal(second(np.asfortranarray(x)), first(x))
    for bad in (np.zeros((41, 24), f), np.zeros((3, 23), f), np.zeros((3, 24))):
        assert _error(lambda bad=bad: second(bad)) == _error(lambda bad=bad: first(bad))
    assert _error(lambda: second()) == _error(lambda: first())
    assert str(second) == str(first) and not is_kept(second)


def test_updates_and_errors_of_a_run(folder: Path) -> None:
    first, second = _twice(_write(folder, GATHER))
    x = np.arange(24, dtype=f).reshape(6, 4)

    def call(program: Executable, indices: list[int], position: int) -> list[Any]:
        c = np.ones((6, 4), f)
        return [*program(x, np.array(indices), c, np.array(position)), c]

    for a, b in zip(call(second, [3, 0, 5], 1), call(first, [3, 0, 5], 1), strict=True):
        np.testing.assert_array_equal(a, b)
    for indices, position in (([3, 6], 0), ([-9], 0), ([1, 2], 5), ([0], -1)):
        message = _error(lambda i=indices, p=position: call(second, i, p))
        assert message == _error(lambda i=indices, p=position: call(first, i, p))
        assert message.startswith(f"{folder / 'p.graph'}:") and "^" in message


def test_the_file_may_have_another_name(folder: Path) -> None:
    first = graph_opt.compile(_write(folder, GATHER))
    moved = graph_opt.compile(_write(folder, GATHER, "other.graph"))
    assert is_kept(moved)
    arguments = np.zeros((6, 4), f), np.array([7]), np.ones((6, 4), f), np.array(0)
    assert _error(lambda: moved(*arguments)) == _error(lambda: first(*arguments)).replace("p.graph", "other.graph")


@pytest.mark.parametrize("name", ["mlp.graph", "mlp_bare.graph", "transformer_block.graph"])
def test_samples(name: str) -> None:
    """Types that come with the arrays are settled at the first call, and kept then."""
    path = str(ROOT / "samples" / name)
    first, second = graph_opt.compile(path), graph_opt.compile(path)
    module = graph_opt.load(path)
    entry = find_graph(module, None)
    if name == "mlp_bare.graph":
        arrays = [np.ones(s, f) for s in ((3, 8), (8, 6), (6,), (6, 4))]
    else:
        arrays = generate_inputs(module, entry, choose_sizes(entry, None), "real", 0, 2)
    results = [program.run([a.copy() for a in arrays]) for program in (first, second)]
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_types_that_come_with_the_arrays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(folder, "graph @main(%x: f32[?, 3], %y: ?) -> (z: ?) {\n  %z = add(%x, %y)\n  return %z\n}\n")
    x, y = np.ones((2, 3), f), np.ones(3, f)
    expected = graph_opt.compile(path)(x, y)

    def refuse(*_: object) -> None:
        raise AssertionError("a pass runs")

    program = graph_opt.compile(path)
    monkeypatch.setattr("passes.infra.manager.PassManager.run", refuse)
    np.testing.assert_array_equal(program(x, y), expected)
    with pytest.raises(AssertionError):
        program(np.ones((4, 3), f), y)


def test_other_weights_of_the_same_types(folder: Path) -> None:
    path = _write(folder, MLP)
    graph_opt.compile(path)
    np.savez(folder / "w.npz", **{**_weights(1), "scale": np.array([0.75], f)})
    again = graph_opt.compile(path)
    assert is_kept(again)
    x = np.ones((2, 24), f)
    np.testing.assert_array_equal(again(x), graph_opt.compile(path, cache=False)(x))


def test_weights_that_were_folded(folder: Path) -> None:
    path = _write(folder, MLP)
    first = graph_opt.compile(path)
    weights = {**_weights(0), "scale": np.array([1.5], f)}
    np.savez(folder / "w.npz", **weights)
    again = graph_opt.compile(path)
    x = np.ones((2, 24), f)
    assert not is_kept(again)
    np.testing.assert_array_equal(again(x), 2 * first(x))
    assert is_kept(graph_opt.compile(path))


def test_weights_of_another_type(folder: Path) -> None:
    path = _write(folder, MLP.replace('weight(@w, "w1") : f32[24, 16]', 'weight(@w, "w1")'))
    graph_opt.compile(path)
    assert is_kept(graph_opt.compile(path))
    np.savez(folder / "w.npz", **{**_weights(0), "w1": np.ones((24, 17), f)})
    cached = _error(lambda: graph_opt.compile(path))
    assert cached == _error(lambda: graph_opt.compile(path, cache=False)) and "17" in cached
    for broken in ({"w1": _weights(0)["w1"]}, {}):
        np.savez(folder / "w.npz", **broken)
        assert _error(lambda: graph_opt.compile(path)) == _error(lambda: graph_opt.compile(path, cache=False))
    (folder / "w.npz").unlink()
    assert _error(lambda: graph_opt.compile(path)) == _error(lambda: graph_opt.compile(path, cache=False))


def test_arrays_of_the_caller(folder: Path) -> None:
    path = _write(folder, "graph @main(%x: f32[N, 8], %w: f32[8, M], %k: f32[1]) -> (y: f32[N, M]) {\n"
                          "  %h = matmul(%x, %w)\n  %y = mul(%h, %k)\n  return %y\n}\n")  # fmt: skip
    x, w, k = np.ones((2, 8), f), np.ones((8, 5), f), np.array([2], f)
    first, second = _twice(path, constants={"w": w, "k": k})
    assert second.input_names == ["x"]
    np.testing.assert_array_equal(second(x), first(x))
    assert str(second) == str(first)
    third = graph_opt.compile(path, constants={"w": 3 * w, "k": k})
    assert is_kept(third)
    np.testing.assert_array_equal(third(x), 3 * first(x))
    for other in ({"w": np.ones((8, 6), f), "k": k}, {"w": w}, {}, {"k": k}):
        assert not is_kept(graph_opt.compile(path, constants=other))
    for bad in ({"w": np.ma.masked_array(w), "k": k}, {"w": w.astype(np.float64), "k": k}, {"nobody": w}):
        assert _error(lambda bad=bad: graph_opt.compile(path, constants=bad)) == _error(
            lambda bad=bad: graph_opt.compile(path, constants=bad, cache=False)
        )


@pytest.mark.parametrize(
    "change",
    ["text", "comment", "graph", "pipeline", "code", "python", "numpy", "ml_dtypes", "processor", "features", "llvm", "memory", "floats", "level"],
)
def test_whatever_changes_is_another_key(folder: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    text = "graph @main(%x: f32[N]) -> (y: f32[N]) {\n  %y = relu(%x)\n  return %y\n}\n"
    path = _write(folder, text)
    graph_opt.compile(path)
    assert is_kept(graph_opt.compile(path))
    options: dict[str, str] = {}
    versions, compiler = kept._versions(), jit.compiler()
    if change == "text":
        _write(folder, text.replace("relu", "neg"))
    elif change == "comment":
        _write(folder, "// places have moved\n" + text)
    elif change == "graph":
        options["graph"] = "main"
    elif change == "pipeline":
        from graph_opt.levels import preset_of

        options["pipeline"] = preset_of("loops")
    elif change == "code":
        listed = cache_module.own_sources()
        assert listed is not None
        monkeypatch.setattr(kept, "own_sources", lambda: listed.replace("passes", "passed", 1))
    elif change in ("python", "numpy", "ml_dtypes"):
        at = ("python", "numpy", "ml_dtypes").index(change)
        monkeypatch.setattr(kept, "_versions", lambda: tuple(v + "x" if i == at else v for i, v in enumerate(versions)))
    elif change in ("processor", "features", "llvm"):
        at = {"processor": 0, "features": 1, "llvm": 3}[change]
        monkeypatch.setattr(jit, "compiler", lambda: [v + "x" if i == at else v for i, v in enumerate(compiler)])
    elif change == "memory":
        monkeypatch.setattr(interpreter, "MEMORY_LIMIT", interpreter.MEMORY_LIMIT - 1)
    elif change == "floats":
        monkeypatch.setattr(kept, "_floats", lambda: "flushed")
    else:
        monkeypatch.setattr(jit, "host_attributes", lambda: {"prefer-vector-width": "128"})
    assert not is_kept(graph_opt.compile(path, **options))


def test_no_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(folder, MLP)
    graph_opt.compile(path)
    assert not is_kept(graph_opt.compile(path, cache=False))
    assert not is_kept(graph_opt.compile(graph_opt.load(path)))
    assert not is_kept(graph_opt.compile(path, device="reference"))
    monkeypatch.setenv("GRAPH_OPT_POISON", "1")
    assert not is_kept(graph_opt.compile(path))
    monkeypatch.delenv("GRAPH_OPT_POISON")
    with monkeypatch.context() as within:
        within.setenv(VARIABLE, "off")
        assert not is_kept(graph_opt.compile(path))
    with monkeypatch.context() as within:
        within.setattr(cache_module, "_BEGAN_NS", 0)  # files have changed since then
        assert not is_kept(graph_opt.compile(path))

    @op(infer=lambda x: x, name="kept_test_op")
    def foreign(x: Tensor) -> Tensor:
        """Nothing.

        Example::

            none
        """
        return x

    try:
        assert not is_kept(graph_opt.compile(path))
    finally:
        del REGISTRY["graph.kept_test_op"]
    assert is_kept(graph_opt.compile(path))


def _entries(folder: Path) -> list[Path]:
    return [p for p in (folder / "cache").iterdir() if p.stat().st_size > 0]


def test_damaged_entries_heal(folder: Path) -> None:
    path = _write(folder, MLP)
    x = np.ones((3, 24), f)
    expected = graph_opt.compile(path)(x)
    for entry in _entries(folder):
        good = entry.read_bytes()
        for at in range(0, len(good), max(1, len(good) // 12)):
            entry.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
            np.testing.assert_array_equal(graph_opt.compile(path)(x), expected)
            entry.write_bytes(good[:at])
            np.testing.assert_array_equal(graph_opt.compile(path)(x), expected)
        assert entry.exists()
    assert is_kept(graph_opt.compile(path))


def test_contents_of_no_sense_heal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a right digest, as a version that writes something else would leave it; also object files that can't be loaded."""
    path = _write(folder, MLP)
    x = np.ones((3, 24), f)
    expected = graph_opt.compile(path)(x)
    cache = default_cache()
    assert cache is not None
    for entry in _entries(folder):
        key = bytes.fromhex(entry.name)
        good = cache.get(key)
        assert good is not None
        step = max(1, len(good) // 40)
        cuts = [] if good.startswith(b"\x7fELF") else [good[:at] + good[at + step :] for at in range(0, len(good), step * 3)]
        for bad in (b"", b"\0" * 8, b"\xff" * 200, good[:-1], good + b"x", *cuts):
            cache.put(key, bad)
            np.testing.assert_array_equal(graph_opt.compile(path)(x), expected)
    assert is_kept(graph_opt.compile(path))


def test_an_image_of_anything(folder: Path) -> None:
    from ir.diagnostics import Source

    one, two = ((n).to_bytes(8, "little") for n in (1, 2))
    for data in (b"", one, two + two + two + b"{}{}", one + (1 << 60).to_bytes(8, "little")):
        with pytest.raises(image_module.BadImage):
            image_module.Image(data, Source("x", ""))


def test_a_program_that_prints(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = _twice(_write(folder, 'graph @main(%x: f32[N]) -> (y: f32[N]) {\n  print(%x, label="here")\n  %y = neg(%x)\n  return %y\n}\n'))
    first(np.ones(2, f))
    said = capsys.readouterr().out
    second(np.ones(2, f))
    assert capsys.readouterr().out == said and "here" in said


def test_a_written_buffer(folder: Path) -> None:
    text = """graph @main(%A: memref<f32[8]>, %B: memref<f32[8]>) {
  scf.parallel(%i = 0 to 8) {
    %a = memref.load(%A[%i]) : f32
    memref.store(%a, %B[%i])
    yield
  }
  return
}
"""
    first, second = _twice(_write(folder, text))
    a, b = np.arange(8, dtype=f), np.zeros(8, f)
    second(a, b)
    np.testing.assert_array_equal(a, b)
    b.setflags(write=False)
    assert _error(lambda: second(a, b)) == _error(lambda: first(a, b))


def test_what_runs_at_load_time_as_machine_code(folder: Path) -> None:
    """A graph for load time that was lowered to loops is kept as code."""
    text = """graph @main.init() -> (f32[4]) {
  %m = memref.alloc() : memref<f32[4]>
  %v = arith.constant(2.5) : f32
  scf.parallel(%i = 0 to 4) {
    memref.store(%v, %m[%i])
    yield
  }
  %r = memref.to_tensor(%m) : f32[4]
  return %r
}

graph @main(%A: memref<f32[4]>) {
  %t = initial(@main.init, result=0) : f32[4]
  %T = memref.from_tensor(%t) : memref<f32[4]>
  scf.parallel(%i = 0 to 4) {
    %a = memref.load(%T[%i]) : f32
    memref.store(%a, %A[%i])
    yield
  }
  return
}
"""
    first, second = _twice(_write(folder, text), pipeline="O0")
    for program in (first, second):
        a = np.zeros(4, f)
        program(a)
        np.testing.assert_array_equal(a, np.full(4, 2.5, f))


def test_a_cache_that_can_not_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(folder, MLP)
    (folder / "file").write_text("")
    x = np.ones((2, 24), f)
    expected = graph_opt.compile(path, cache=False)(x)
    for where in (str(folder / "file"), "/proc/nowhere", str(folder / "file" / "x")):
        monkeypatch.setenv(VARIABLE, where)
        np.testing.assert_array_equal(graph_opt.compile(path)(x), expected)


_PROCESS = """
import os, sys, hashlib
import numpy as np
import codegen.cache
codegen.cache._BEGAN_NS = 1 << 62
import graph_opt
program = graph_opt.compile(sys.argv[1])
kept = not isinstance(program._module, graph_opt.parse("graph @g() { return }").__class__)
x = np.random.default_rng(3).standard_normal((9, 24)).astype(np.float32)
y = program(x)
if os.fork() == 0:
    same = program(x).tobytes() == y.tobytes()
    again = graph_opt.compile(sys.argv[1])(x).tobytes() == y.tobytes()
    os._exit(0 if same and again else 1)
assert os.wait()[1] == 0
print(kept, hashlib.sha256(y.tobytes()).hexdigest())
"""


def test_processes(folder: Path) -> None:
    """Several at once, cold and warm, with other hash seeds, and their forked children: all compute the same bits."""
    path = _write(folder, MLP)
    command = [sys.executable, "-c", _PROCESS, path]

    def start(seed: int) -> subprocess.Popen[str]:
        return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": str(seed)}, stdout=subprocess.PIPE, text=True)

    cold = [start(seed) for seed in range(2)]
    lines = [p.communicate()[0].split() for p in cold]
    warm = [start(seed) for seed in range(2, 4)]
    lines += [p.communicate()[0].split() for p in warm]
    assert [kept for kept, _ in lines[2:]] == ["True", "True"]
    assert len({digest for _, digest in lines}) == 1


def test_the_cache_stays_small(folder: Path) -> None:
    cache = Cache(folder / "cache")
    graph_opt.compile(_write(folder, MLP))
    count, size = cache.size()
    assert 2 <= count <= 8 and size < 200_000
    assert cache.clear() == count
