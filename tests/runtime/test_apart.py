"""Programs with many arrays that are written: two that share memory are found wherever they stand."""

from __future__ import annotations

import numpy as np
import pytest

import graph_opt

MANY = 12


def _program(written: int) -> graph_opt.Executable:
    parameters = ", ".join(f"%x{i}: f32[4]{' inout' if i % 2 and i // 2 < written else ''}" for i in range(MANY))
    updates = "\n".join(f"  %y{i} = cache_update(%x{i}, %one, %zero, axis=0)" for i in range(1, MANY, 2) if i // 2 < written)
    module = graph_opt.parse(f"""graph @main({parameters}) -> (r: f32[4]) {{
  %one = constant([1.0]) : f32[1]
  %zero = constant(0) : i64[]
{updates}
  %r = add(%x0, %x{MANY - 2})
  return %r
}}""")
    return graph_opt.compile(module)


@pytest.mark.parametrize("written", [1, 2, 6])
def test_arrays_in_one_piece_of_memory(written: int) -> None:
    """Neighbours are apart; two windows that overlap by one element go the slow way, which gives what the interpreter gives."""
    program = _program(written)
    slow = []
    original = program._program.run  # type: ignore[attr-defined]

    def run(*args: object, **kwargs: object) -> object:
        slow.append(1)
        return original(*args, **kwargs)

    memory = np.arange(4 * MANY + 4, dtype=np.float32)
    arrays = [memory[4 * i : 4 * i + 4] for i in range(MANY)]
    program(*arrays)
    program._program.run = run  # type: ignore[attr-defined]
    program(*arrays)
    assert not slow
    updated = [i for i in range(1, MANY, 2) if i // 2 < written]
    for i in updated:
        for j in range(MANY):
            if j in updated or j == i:
                continue
            moved = list(arrays)
            moved[j] = memory[4 * i + 3 : 4 * i + 7]
            before = len(slow)
            program(*moved)
            assert len(slow) == before + 1, (i, j)
    for i in updated[1:]:
        moved = list(arrays)
        moved[i] = memory[4 * updated[0] + 1 : 4 * updated[0] + 5]
        with pytest.raises(graph_opt.GraphError, match="share memory"):
            program(*moved)
