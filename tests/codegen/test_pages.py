"""Memory that is taken where something is written, and goes to large pages later."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.runtime.pages import LARGE_PAGE, Untouched


@pytest.mark.parametrize("size", [0, 1, 4097, LARGE_PAGE - 1, LARGE_PAGE, 5 * LARGE_PAGE + 4097])
@pytest.mark.parametrize("written", [0, 1, 3])
def test_untouched(size: int, written: int) -> None:
    memory = Untouched(size)
    found = memory.bytes
    assert found.shape == (size,) and found.dtype == np.uint8 and found.flags.writeable and (not size or found.ctypes.data % LARGE_PAGE == 0)
    found[::4096][:: max(written, 1)] = written
    want = np.zeros(size, np.uint8)
    want[::4096][:: max(written, 1)] = written
    for _ in range(2):
        memory.enlarge()
        assert memory.bytes is found and (found == want).all()
        found[-1:] = want[-1:] = 7


def test_arrays_outlive_it() -> None:
    found = Untouched(3 * LARGE_PAGE).bytes
    found[:] = 5
    assert (found == 5).all()


def test_too_much() -> None:
    with pytest.raises(MemoryError):
        Untouched(1 << 60)
