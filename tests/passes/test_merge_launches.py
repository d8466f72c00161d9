"""merge-launches: kernels that have nothing to do with each other become one; the others stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_checks import mapped
from pass_checks import apply, load

from ir.core import Module
from ir.interpreter import Interpreter
from ir.printer import print_module
from passes.gpu.merge_launches import MergeLaunches

KERNELS = "map-rows,map-elements,map-serial,merge-launches"


def launches(module: Module) -> list[str]:
    return [str(op.attribute("tag")) for op in module.main.block if op.name == "gpu.launch"]


def program(second: str = "%Y", threads: int = 32, check: str = "", tag: str = "elements", shared: str = "") -> str:
    """Two kernels: ``%P[i] = %X[i]`` and ``%Q[i] = second[i]``; P and Q have memory of their own, or of a common buffer."""
    return f"""graph @main(%x: f32[N], %y: f32[M]) -> (f32[N], f32[M]) {{
      %X = memref.from_tensor(%x) : memref<f32[N]>
      %Y = memref.from_tensor(%y) : memref<f32[M]>
      %P = memref.alloc() : memref<f32[N]>
      gpu.launch(%a = 0 to N ceildiv 32, threads=32, name="p", tag="elements") {{
        %t = gpu.thread_id() : index
        %i = affine.apply(32*%a+%t) : index
        %n = affine.apply(N) : index
        %inside = arith.cmpi(%i, %n, predicate="lt") : bool
        scf.if(%inside) {{
          %v = memref.load(%X[%i]) : f32
          memref.store(%v, %P[%i])
          yield
        }}
        yield
      }}
      %Q = memref.alloc() : memref<f32[M]>
      %m = affine.apply(M) : index
      gpu.launch(%b = 0 to M ceildiv 32, threads={threads}, name="q", tag="{tag}") {{
        {shared}
        %t.1 = gpu.thread_id() : index
        %i.1 = affine.apply(32*%b+%t.1) : index
        %inside.1 = arith.cmpi(%i.1, %m, predicate="lt") : bool
        {check}
        scf.if(%inside.1) {{
          %w = memref.load({second}[%i.1]) : f32
          memref.store(%w, %Q[%i.1])
          yield
        }}
        yield
      }}
      %p = memref.to_tensor(%P) : f32[N]
      %q = memref.to_tensor(%Q) : f32[M]
      return %p, %q
    }}"""


@pytest.mark.parametrize(("n", "m"), [(1, 1), (33, 31), (64, 65), (70, 0), (0, 7), (0, 0)])
def test_two_kernels_become_one(n: int, m: int) -> None:
    module = load(program())
    apply(module, "merge-launches")
    assert launches(module) == ["merged"]
    arrays = [np.arange(n, dtype=np.float32), np.arange(m, dtype=np.float32)]
    for reverse in (False, True):
        found = Interpreter(module, quiet=True, reverse_parallel=reverse).run(module.main, arrays)
        assert all(np.array_equal(a, b) for a, b in zip(found, arrays, strict=True))
    once = print_module(module)
    apply(module, "merge-launches")
    assert print_module(module) == once


@pytest.mark.parametrize(
    "given",
    [
        {"second": "%P"},
        {"threads": 64},
        {"tag": "rows"},
        {"check": 'cf.assert(%inside.1, message="no")'},
        {"shared": "%s = gpu.alloc() : memref<f32[4], shared>"},
    ],
)
def test_others_stay(given: dict[str, object]) -> None:
    module = load(program(**given))  # type: ignore[arg-type]
    apply(module, "merge-launches")
    assert len(launches(module)) == 2


def test_more_than_two_up_to_a_number() -> None:
    names = "abcde"
    parameters = ", ".join(f"%{n}: f32[{n.upper()}, 3]" for n in names)
    body = "".join(f"  %{n}1 = exp(%{n})\n" for n in names)
    text = f"graph @main({parameters}) -> ({', '.join(f'f32[{n.upper()}, 3]' for n in names)}) {{\n{body}"
    text += f"  return {', '.join(f'%{n}1' for n in names)}\n}}\n"
    for options, want in (("", ["merged", "elements"]), ("{most=2}", ["merged", "merged", "elements"])):
        module = mapped(text, KERNELS + options, sizes=((3, 400, 2, 5, 1), (1, 0, 300)), kinds=("real",))
        assert launches(module) == want


def test_options() -> None:
    with pytest.raises(ValueError, match="most: expected 1 or more"):
        MergeLaunches(most=0)
