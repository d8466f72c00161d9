"""Random programs on the emulated device; ``GRAPH_OPT_FUZZ=N`` tries more, ``python -m tests.fuzz --device cuda-emulated`` thousands."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from graph_opt.kept import POISON
from ir.diagnostics import GraphError
from passes.infra.verify_exec import same_bits
from tests.checks import Case, baseline, load
from tests.conftest import COUNT
from tests.cuda.device import needs_device
from tests.device_checks import OnDevice, check_on_device, check_same_as_cpu, compile_together
from tests.device_fuzz import try_on_device
from tests.native_checks import compile_checked

pytestmark = needs_device


@pytest.mark.parametrize("first", range(1, COUNT // 3, 10))
def test_random_programs(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POISON, os.environ.get(POISON, ""))
    for seed, found in enumerate(try_on_device(range(first, first + 10), 12), first):
        assert "error" not in found, f"seed {seed}: {found['report']}"
        assert found.get("compared on the device") or found["programs that never ran"], f"seed {seed}: {found}"


ADD = "graph @main(%x: f32[N], %y: f32[N]) -> f32[N] {\n  %z = add(%x, %y)\n  return %z\n}"
NEAR = """graph @main(%x: f32[N], %y: f32[N]) -> f32[N] {
  %one = constant(1.0000001) : f32[]
  %t = mul(%x, %one)
  %z = add(%t, %y)
  return %z
}"""


def test_wrong_programs_are_noticed() -> None:
    """Kernels that compute something else, and kernels whose last bits are not those of the CPU."""
    right = load(ADD)
    good, near, other = compile_together([right, load(NEAR), load(ADD.replace("add", "sub"))])
    assert isinstance(good, OnDevice) and isinstance(near, OnDevice) and isinstance(other, OnDevice)
    runs = baseline(right, limit=1)
    assert (check_on_device(runs, good), check_same_as_cpu(runs, good)) == (3, 4)
    with pytest.raises(AssertionError, match="is not that of the CPU"):
        check_same_as_cpu(runs, near)
    with pytest.raises(AssertionError, match="output 0"):
        check_on_device(runs, other)


def text(parameters: str, results: str, *lines: str) -> str:
    """A program; what the last line gives is returned."""
    return "\n".join([f"graph @main({parameters}) -> {results} {{", *(f"  {line}" for line in lines), "}"])


def ints(*numbers: int, bits: int = 64) -> np.ndarray[Any, Any]:
    return np.array(numbers, f"int{bits}")


NAN = np.full((2, 40), np.nan, np.float32)
SPECIAL = np.array([0, -0.0, 1.5, -1.5, 2.5, 300, -300, 1e20, -1e20, np.inf, -np.inf, np.nan, 65504, 65520, 1e-45, 3e38], np.float32)
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
MIN32, MIN64 = -(2**31), -(2**63)

EDGES: dict[str, tuple[str, list[list[np.ndarray[Any, Any]]]]] = {
    "parameter": (text("%x: f32[N]", "(f32[N], f32[N])", "return %x, %x"), [[TABLE[0]], [TABLE[0, :0]]]),
    "constant": (text("", "f32[2]", "%c = constant([1.0, 2.0]) : f32[2]", "return %c"), [[]]),
    "nothing": ("graph @main() {\n  return\n}", [[]]),
    "assert": (
        text("%x: i64[N]", "i64[N]", "%z = constant(0) : i64[]", "%c = greater(%x, %z)", "%a = all(%c)", 'assert(%a, message="no")', "return %x"),
        [[ints(1, 2)], [ints(1, -2)], [ints()]],
    ),
    "division": (
        text("%x: i32[N], %y: i32[N]", "(i32[N], i32[N])", "%z = truncdiv(%x, %y)", "%w = rem(%x, %y)", "return %z, %w"),
        [[ints(7, -7, MIN32, bits=32), ints(2, 2, -1, bits=32)], [ints(7, bits=32), ints(0, bits=32)]],
    ),
    "floordiv": (
        text("%x: i64[N], %y: i64[N]", "i64[N]", "%z = floordiv(%x, %y)", "return %z"),
        [[ints(7, -7, MIN64), ints(2, 2, -1)], [ints(7), ints(0)]],
    ),
    "shift": (
        text("%x: i32[N], %y: i32[N]", "i32[N]", "%z = shift_left(%x, %y)", "return %z"),
        [[ints(7, -7, bits=32), ints(2, 31, bits=32)], [ints(7, bits=32), ints(32, bits=32)], [ints(7, bits=32), ints(-1, bits=32)]],
    ),
    "cast": (
        text(
            "%x: f32[N]", "(i8[N], u8[N], i32[N], i64[N], bool[N], f16[N], bf16[N])",
            *(f"%{d} = cast(%x, dtype={d})" for d in ("i8", "u8", "i32", "i64", "bool", "f16", "bf16")),
            "return %i8, %u8, %i32, %i64, %bool, %f16, %bf16",
        ),
        [[SPECIAL]],
    ),
    "gather": (
        text("%w: f32[V, D], %i: i64[S]", "f32[S, D]", "%y = gather(%w, %i)", "return %y"),
        [[TABLE[:v], i] for v, i in ((4, ints(0, 3, 1)), (4, ints(0, 4)), (4, ints(-1)), (4, ints(-5)), (4, ints(2**62)), (0, ints()), (0, ints(0)))],
    ),
    "argmax": (text("%x: f32[M, N]", "i64[M]", "%y = argmax(%x, axis=1)", "return %y"), [[TABLE[:, :0]], [TABLE[:0]], [NAN], [TABLE]]),
    "topk": (
        text("%x: f32[M, N]", "(f32[M, 3], i64[M, 3])", "%y, %i = topk(%x, k=3)", "return %y, %i"),
        [[TABLE], [TABLE[:, :2]], [TABLE[:0]], [NAN]],
    ),
    "cumsum": (text("%x: i32[N]", "i32[N]", "%y = cumsum(%x, axis=0)", "return %y"), [[np.full(77, 2**30, np.int32)]]),
    "constraint": (
        text("%x: f32[N]", "f32[N]\n  where N <= 4, N mod 2 == 0", "%y = neg(%x)", "return %y"),
        [[np.ones(n, np.float32)] for n in (4, 3, 6)],
    ),
}  # fmt: skip


def test_edges() -> None:
    """What is odd or wrong gives what it gives on the CPU: the same bits, or the same message at the same place."""
    modules = [load(program) for program, _ in EDGES.values()]
    for name, module, program in zip(EDGES, modules, compile_together(modules), strict=True):
        assert isinstance(program, OnDevice), f"{name}: {program}"
        native = compile_checked(module)
        for arrays in EDGES[name][1]:
            outcomes = []
            for each in (native, program):
                try:
                    outcomes.append((each.run(Case("main", {}, "special", arrays, [])), ""))
                except GraphError as error:
                    outcomes.append(([], str(error)))
            (wanted, message), (found, said) = outcomes
            assert message == said and all(map(same_bits, wanted, found)), f"{name}: {outcomes}"
