"""share-checks: the same check once, others as often as they are different."""

from __future__ import annotations

import numpy as np
from lowering_checks import error_of, run
from pass_checks import apply, load

from ir.core import Module
from passes.infra.verify_exec import same_bits


def program(first: str = "%p", second: str = "%p", sizes: str = "TT") -> tuple[Module, Module]:
    text = f"""graph @main(%a: f32[{sizes[0]}, 4] inout, %b: f32[{sizes[1]}, 4] inout, %x: f32[S, 4], %p: i64[], %o: i64[]) -> f32[S, 4] {{
      %a1 = cache_update(%a, %x, {first}, axis=0)
      %b1 = cache_update(%b, %x, {second}, axis=0)
      return %x
    }}"""
    before, after = load(text), load(text)
    apply(before, "O1,lower-to-linalg,fuse,collapse")
    apply(after, "O1,lower-to-linalg,fuse,collapse,share-checks")
    return before, after


def checks(module: Module) -> int:
    return sum(op.name == "cf.assert" for op in module.main.block)


def test_checks_of_one_position_and_size_are_shared() -> None:
    before, after = program()
    assert checks(after) * 2 == checks(before) > 0
    arrays = [np.zeros((6, 4), np.float32), np.zeros((6, 4), np.float32), np.ones((2, 4), np.float32), np.array(3), np.array(0)]
    assert all(same_bits(a, b) for a, b in zip(run(before, arrays), run(after, arrays), strict=True))
    for position in (-1, 5):
        arrays[3] = np.array(position)
        assert error_of(before, *arrays) == error_of(after, *arrays)


def test_others_are_not() -> None:
    for given in ({"second": "%o"}, {"sizes": "TU"}):
        before, after = program(**given)
        assert 0 < checks(before) - checks(after) < checks(before) / 2 or checks(before) == checks(after)
        arrays = [np.zeros((6, 4), np.float32), np.zeros((3, 4), np.float32), np.ones((2, 4), np.float32), np.array(3), np.array(-5)]
        if "sizes" not in given:
            arrays[1] = arrays[0].copy()
        assert error_of(before, *arrays) == error_of(after, *arrays)
