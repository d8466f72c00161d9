"""Random programs on the emulated device; ``GRAPH_OPT_FUZZ=N`` tries more, ``python -m tests.fuzz --device cuda-emulated`` thousands."""

from __future__ import annotations

import os

import pytest

from tests.checks import baseline, load
from tests.conftest import COUNT
from tests.cuda.device import DEVICE, needs_device
from tests.device_checks import OnDevice, check_on_device, check_same_as_cpu, compile_together
from tests.device_fuzz import try_on_device

pytestmark = needs_device


@pytest.mark.parametrize("first", range(1, COUNT // 3, 10))
def test_random_programs(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRAPH_OPT_POISON", "GRAPH_OPT_TEST_DEVICE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    for seed, found in enumerate(try_on_device(range(first, first + 10), 12, DEVICE), first):
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
