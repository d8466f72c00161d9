"""Limits of the machine: what bounds a piece of work, and that sampling gives a rate for everything."""

from __future__ import annotations

import pytest

from graph_opt import limits
from graph_opt.limits import Limits, Meter, host_dtypes, level_of

LIMITS = Limits(1, {"f32": 200e9}, {"L1": 300e9, "L2": 100e9, "L3": 50e9, "DRAM": 10e9})


@pytest.mark.parametrize(
    ("nbytes", "level"),
    [(0, "L2"), (512 << 10, "L2"), ((512 << 10) + 1, "L3"), (24 << 20, "L3"), ((24 << 20) + 1, "DRAM"), (1e12, "DRAM")],
)
def test_levels(nbytes: float, level: str) -> None:
    assert level_of(nbytes) == level


def test_the_larger_time_bounds() -> None:
    assert LIMITS.time(200e9, 1000) == (1.0, "f32")
    assert LIMITS.time(200e3, 100e3) == (1e-6, "f32")
    assert LIMITS.time(10, 1e5) == (1e-6, "L2")
    assert LIMITS.time(10, 1e6) == (1e6 / 50e9, "L3")
    assert LIMITS.time(0, 1e9) == (0.1, "DRAM")


@pytest.mark.parametrize("threads", [1, 2])
def test_samples(threads: int) -> None:
    meter = Meter(threads, levels=("L1", "L2"))
    for _ in range(3):
        meter.sample()
    found_limits = meter.limits()
    assert found_limits.threads == threads
    assert set(found_limits.peak) == {"f32"} and set(found_limits.read) == {"L1", "L2"}
    for name, found in meter.samples.items():
        assert len(found) == 3 and min(found) > 0
        assert min(found) <= {**found_limits.peak, **found_limits.read}[name] <= meter.limits(max).peak.get(name, float("inf"))


def test_narrow_types() -> None:
    meter = Meter(1, levels=("L1",), dtypes=host_dtypes())
    meter.sample()
    peak = meter.limits().peak
    assert list(peak) == list(host_dtypes()) and "f32" in peak and min(peak.values()) > 0
    assert Limits(1, {"f32": 1e9, "i8": 4e9}, {"L2": 1e9}).time(5e9, 0, dots={3: 4e9}) == (1.0 + 3.0, "i8")
    assert Limits(1, {"f32": 1e9}, {"L2": 1e9}).time(5e9, 0, dots={3: 4e9}) == (5.0, "f32")
    assert Limits(1, {"f32": 1e9, "bf16": 2e9}, {"L2": 1e9}).time(4e9, 0, "bf16") == (2.0, "bf16")


@pytest.mark.parametrize("shape", [(16, 24, True), (8, 12, True), (4, 24, True), (4, 12, False)])
def test_loops_for_other_vectors(shape: tuple[int, int, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits._Shape, "of_host", classmethod(lambda cls: cls(*shape)))
    limits._kernels.cache_clear()
    try:
        meter = Meter(1, levels=("L1",), dtypes=("f32", limits.LOADS))
        meter.sample()
        assert min(meter.samples["f32"] + meter.samples[limits.LOADS] + meter.samples["L1"]) > 0
    finally:
        limits._kernels.cache_clear()


def test_memory_is_read_window_by_window() -> None:
    meter = Meter(1, levels=("DRAM",))
    windows = []
    for _ in range(40):
        meter.sample()
        windows.append(meter._window)
    assert len(set(windows)) > 25  # hundreds of megabytes lie between two looks at the same place
    assert meter.limits().read["DRAM"] > 0


def test_the_limit_of_memory_is_that_of_a_stream_where_it_is_more() -> None:
    meter = limits.Meter(1, levels=("DRAM",), stream=1 << 20)
    for windows, stream, expected in ((1e9, 3e9, 3e9), (2e9, 1e9, 2e9)):
        meter.samples.update({"f32": [1.0], "DRAM": [windows], "stream": [stream]})
        assert meter.limits().read == {"DRAM": expected}


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_is_read_from_the_first_to_the_last_byte(threads: int) -> None:
    meter = limits.Meter(threads, levels=(), dtypes=(), stream=1 << 20)
    meter.sample()
    meter.sample()
    assert list(meter.samples) == ["stream"] and min(meter.samples["stream"]) > 0
    (probe,) = meter._probes
    assert meter._steps["stream"] * probe.work == probe.nbytes == (1 << 20) // threads
