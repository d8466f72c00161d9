"""The Python interface: load, parse, compile, calling, constants, files, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graph_opt

ROOT = Path(__file__).parents[2]
MLP = ROOT / "samples" / "mlp.graph"


def mlp_arrays(batch: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (batch, 64), "w1": (64, 256), "b1": (256,), "w2": (256, 64)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def mlp_reference(x: np.ndarray, w1: np.ndarray, b1: np.ndarray, w2: np.ndarray) -> np.ndarray:
    h = x.astype(np.float64) @ w1 + b1
    return (h / (1 + np.exp(-h))) @ w2.astype(np.float64)


def test_call_by_position_and_name() -> None:
    program = graph_opt.compile(MLP)
    arrays = mlp_arrays()
    y = program(*arrays.values())
    assert isinstance(y, np.ndarray) and y.dtype == np.float32 and y.shape == (3, 64)
    np.testing.assert_allclose(y, mlp_reference(**arrays), rtol=0, atol=1e-3)
    np.testing.assert_array_equal(program(arrays["x"], w2=arrays["w2"], b1=arrays["b1"], w1=arrays["w1"]), y)
    assert program.input_names == ["x", "w1", "b1", "w2"] and program.output_names == ["out"]
    np.testing.assert_array_equal(graph_opt.run(MLP, *arrays.values()), y)


def test_one_artifact_serves_all_batches() -> None:
    program = graph_opt.compile(MLP)
    arrays = mlp_arrays(33)
    whole = program(**arrays)
    for batch in (0, 1, 2, 7, 33):
        np.testing.assert_array_equal(program(**{**arrays, "x": arrays["x"][:batch]}), whole[:batch])


def test_constants_are_bound() -> None:
    arrays = mlp_arrays()
    constants = {n: arrays[n] for n in ("w1", "b1", "w2")}
    program = graph_opt.compile(MLP, constants=constants)
    assert program.input_names == ["x"]
    expected = graph_opt.compile(MLP)(**arrays)
    constants["w1"][:] = 0  # a copy was taken
    np.testing.assert_array_equal(program(arrays["x"]), expected)
    bare = graph_opt.compile(ROOT / "samples" / "mlp_bare.graph", constants={n: mlp_arrays()[n] for n in ("w1", "b1", "w2")})
    np.testing.assert_array_equal(bare(arrays["x"]), expected)
    np.testing.assert_array_equal(graph_opt.compile(MLP, constants={"x": arrays["x"]})(*(mlp_arrays()[n] for n in ("w1", "b1", "w2"))), expected)


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({"w3": np.zeros(3, np.float32)}, "no parameter %w3"),
        ({"w1": np.zeros((64, 255), np.float32)}, "f32[64, 255]"),
        ({"w1": np.zeros((64, 256))}, "f64[64, 256]"),
        ({"w1": np.array([None])}, "object"),
    ],
)
def test_constants_that_do_not_fit(constants: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(graph_opt.GraphError) as caught:
        graph_opt.compile(MLP, constants=constants)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{MLP}:")


def test_several_results_and_none() -> None:
    program = graph_opt.compile(graph_opt.parse("%x = input()\n%v, %i = topk(%x, k=2)\n"))
    values, indices = program(np.float32([3, 1, 2]))
    np.testing.assert_array_equal(values, np.float32([3, 2]))
    np.testing.assert_array_equal(indices, [0, 2])
    assert graph_opt.compile(graph_opt.parse("graph @main() {\n  return\n}\n"))() == ()


def test_module_is_left_alone() -> None:
    module = graph_opt.load(MLP)
    before = str(module)
    graph_opt.compile(module, constants={"w1": mlp_arrays()["w1"]})
    assert str(module) == before == str(graph_opt.parse(before))


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.astype(np.float64),
        lambda a: a[:, :63],
        lambda a: a[0],
        lambda a: a.astype(object),
        lambda a: np.ma.masked_array(a),
        lambda a: "text",
        lambda a: [[1.0], [1.0, 2.0]],
        lambda a: a.astype(np.complex64),
    ],
)
def test_arguments_that_do_not_fit(change: object) -> None:
    arrays = mlp_arrays()
    arrays["x"] = change(arrays["x"])  # type: ignore[operator]
    with pytest.raises(graph_opt.GraphError) as caught:
        graph_opt.compile(MLP)(**arrays)
    assert str(caught.value).startswith(f"{MLP}:2:12: error: %x")


def test_counts_and_names_of_arguments() -> None:
    program = graph_opt.compile(MLP)
    arrays = mlp_arrays()
    for args, kwargs, words in [
        ((), {}, "lacks inputs %x, %w1, %b1, %w2"),
        ((*arrays.values(), 1), {}, "takes 4 inputs, found 5"),
        ((arrays["x"],), {"x": arrays["x"]}, "%x is given twice"),
        ((), {**arrays, "q": 1}, "has no input %q"),
    ]:
        with pytest.raises(graph_opt.GraphError) as caught:
            program(*args, **kwargs)
        assert words in str(caught.value)


def test_any_memory_layout() -> None:
    program = graph_opt.compile(MLP)
    arrays = mlp_arrays(4)
    expected = program(**arrays)
    x = arrays["x"]
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.uint8)
    for form in (
        np.asfortranarray(x),
        x.astype(">f4"),
        np.repeat(x, 2, axis=1)[:, ::2],
        x[::-1][::-1],
        np.ndarray(x.shape, np.float32, unaligned.tobytes()),
    ):
        np.testing.assert_array_equal(program(**{**arrays, "x": form}), expected)
    one_row = np.broadcast_to(x[0], x.shape)
    np.testing.assert_array_equal(program(**{**arrays, "x": one_row}), np.broadcast_to(expected[0], expected.shape))


def test_results_are_the_callers_own() -> None:
    text = "graph @main(%x: f32[2, 2]) -> (f32[2, 2], f32[4]) {\n  %y = reshape(%x, shape=[4])\n  return %x, %y\n}\n"
    program = graph_opt.compile(graph_opt.parse(text))
    x = np.ones((2, 2), np.float32)
    a, b = program(x)
    assert not np.shares_memory(a, x) and not np.shares_memory(a, b)
    program(np.zeros((2, 2), np.float32))
    np.testing.assert_array_equal(a, 1)


def test_inout_arrays_are_updated_in_place() -> None:
    text = "graph @main(%c: f32[N, 2] inout, %n: f32[1, 2], %p: i64[]) -> f32[N, 2] {\n  %u = cache_update(%c, %n, %p)\n  return %c\n}\n"
    program = graph_opt.compile(graph_opt.parse(text))
    cache = np.zeros((4, 2), np.float32)
    before = program(cache, np.ones((1, 2), np.float32), np.int64(2))
    np.testing.assert_array_equal(before, 0)  # the older version, as written
    np.testing.assert_array_equal(cache[2], 1)
    with pytest.raises(graph_opt.GraphError, match="4"):
        program(cache, np.ones((1, 2), np.float32), np.int64(4))
    cache.flags.writeable = False
    with pytest.raises(graph_opt.GraphError, match="read-only"):
        program(cache, np.ones((1, 2), np.float32), np.int64(2))


def test_symbols_and_where() -> None:
    text = "graph @main(%x: f32[B, S], %y: f32[S, 2*B]) -> f32[B, 2*B]\n  where 1 <= B <= 8, S mod 4 == 0 {\n  %z = matmul(%x, %y)\n  return %z\n}\n"
    program = graph_opt.compile(graph_opt.parse(text))
    assert program(np.ones((2, 4), np.float32), np.ones((4, 4), np.float32)).shape == (2, 4)
    for x, y, words in [((2, 4), (4, 5), "2*B is 4"), ((2, 6), (6, 4), "S = 6"), ((9, 4), (4, 18), "B = 9"), ((2, 4), (8, 4), "S")]:
        with pytest.raises(graph_opt.GraphError) as caught:
            program(np.ones(x, np.float32), np.ones(y, np.float32))
        assert words in str(caught.value)


def test_text_errors_are_located_in_string() -> None:
    with pytest.raises(graph_opt.GraphError) as caught:
        graph_opt.parse("%x = input()\n%y = relu(%x)\n%z = ad(%y, %x)\n")
    assert str(caught.value).startswith("<string>:3:6: error: there is no operation 'ad'")
    with pytest.raises(graph_opt.GraphError) as caught:
        graph_opt.compile(MLP, pipeline="O1,nonsense")
    assert str(caught.value).startswith("<pipeline>:1:4: error: ")
    with pytest.raises(graph_opt.GraphError) as caught:
        graph_opt.compile(MLP, device="abacus")
    assert str(caught.value).startswith(f"{MLP}:1:1: error: there is no device")
    with pytest.raises(graph_opt.GraphError, match="no graph @other"):
        graph_opt.compile(MLP, graph="other")


FILE_PROGRAM = 'file @w = "{path}"\ngraph @main(%x: f32[4]) -> f32[4] {{\n  %a = weight(@w, "a") : f32[4]\n  %y = add(%x, %a)\n  return %y\n}}\n'


def test_files_beside_the_program_and_bound(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", a=np.arange(4, dtype=np.float32))
    program = tmp_path / "p.graph"
    program.write_text(FILE_PROGRAM.format(path="w.npz"))
    np.testing.assert_array_equal(graph_opt.compile(program)(np.ones(4, np.float32)), [1, 2, 3, 4])
    np.savez(tmp_path / "v.npz", a=np.zeros(4, np.float32))
    np.testing.assert_array_equal(graph_opt.compile(program, files={"w": tmp_path / "v.npz"})(np.ones(4, np.float32)), 1)
    np.savez(tmp_path / "short.npz", a=np.zeros(3, np.float32))
    np.savez(tmp_path / "other.npz", b=np.zeros(4, np.float32))
    for name, words in [("short.npz", "f32[3]"), ("other.npz", "no tensor 'a'"), ("none.npz", "none.npz")]:
        with pytest.raises(graph_opt.GraphError) as caught:
            graph_opt.compile(program, files={"w": tmp_path / name})
        assert words in str(caught.value) and str(caught.value).startswith(f"{program}:")
    with pytest.raises(graph_opt.GraphError, match="declares no file @v"):
        graph_opt.compile(program, files={"v": tmp_path / "w.npz"})


@pytest.mark.parametrize("path", ["../w.npz", "/etc/passwd", "a/../../w.npz", "link", "https://x/w.npz", ""])
def test_paths_that_leave_the_folder_are_refused(path: str, tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    np.savez(tmp_path / "w.npz", a=np.zeros(4, np.float32))
    os.symlink(tmp_path / "w.npz", folder / "link")
    program = folder / "p.graph"
    program.write_text(FILE_PROGRAM.format(path=path))
    with pytest.raises(graph_opt.GraphError, match="refused") as caught:
        graph_opt.compile(program)
    assert str(caught.value).startswith(f"{program}:1:6: error: ")


def test_shadowed_packages_are_named(tmp_path: Path) -> None:
    (tmp_path / "passes").mkdir()
    (tmp_path / "passes" / "__init__.py").write_text("")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import graph_opt"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert str(tmp_path / "passes" / "__init__.py") in done.stderr.splitlines()[-1]


def test_arrays_of_another_element_type() -> None:
    """What numpy makes by itself is f64; the error says what to write."""
    arrays = {name: array.astype(np.float64) for name, array in mlp_arrays().items()}
    with pytest.raises(graph_opt.GraphError, match=r"but the array is f64\[.*\n.*\n.*\n.*hint: in numpy: array.astype\('float32'\)"):
        graph_opt.compile(MLP)(*arrays.values())
