"""Whether a device computes what ``graph_opt_host.h`` says: every word of the headers, on a device and on the CPU, bit by bit.

``python -m tests.cuda.conformance [--device cuda]`` prints a line for each word, and ends with 1 if one differs.  What may differ: the
payload of NaN; functions of double from the vendor's library, by some steps; products of real numbers by tensor cores, whose order of sums
is the hardware's own, within what that order can change (products of integers are exact in any order, and have to be the same).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from codegen.cuda.driver import Driver, Packed
from codegen.cuda.drivers import open_driver
from ir.diagnostics import GraphError
from tests.cuda.conformance_cases import FLOATS, Array, Case, all_cases, floats

__all__ = ["FLOATS", "all_cases", "differences", "run", "source_of"]

_DEPTH = {"mma_half_real": 16, "mma_bf16_real": 16, "mma_tf32_real": 8}
"""How many products tensor cores add to what there is."""


def source_of(cases: Sequence[Case]) -> str:
    """The text of all kernels."""
    return '#include "graph_opt_device.h"\n#include "graph_opt_math.h"\n\n' + "\n".join(c.source for c in cases)


def run(driver: Driver, cases: Sequence[Case]) -> list[Array]:
    """What a device gives for each case."""
    token = driver.enter()
    try:
        module = driver.load_module(driver.build(source_of(cases)))
        found = [_run_case(driver, driver.function(module, case.name), case) for case in cases]
        driver.unload_module(module)
        return found
    finally:
        driver.leave(token)


def _run_case(driver: Driver, function: int, case: Case) -> Array:
    result = np.zeros(case.count, case.dtype)
    places = [driver.allocate(a.nbytes) for a in (*case.inputs, result)]
    try:
        for place, array in zip(places, (*case.inputs, result), strict=True):
            driver.copy_to_device(place, array.ctypes.data, array.nbytes, 0)
        sizes = [len(case.inputs[0])] if "go_index n" in case.source else []
        arguments = Packed([*places[:-1], *sizes, places[-1]])
        driver.launch(function, case.grid, case.threads, case.shared, 0, arguments)
        driver.synchronize()
        driver.copy_to_host(result.ctypes.data, places[-1], result.nbytes, 0)
        driver.synchronize()
    finally:
        for place in places:
            driver.free(place)
    return result


# -- comparing ---------------------------------------------------------------------------------------------------------


def _steps(x: Array) -> Array:
    """Floats as integers in the same order: neighbours differ by 1."""
    bits = x.view(np.int64)
    return np.where(bits < 0, np.int64(-(2**63)) - bits, bits)


def _same(case: Case, expected: Array, found: Array) -> Array:
    """Which elements are the same."""
    if expected.dtype.kind != "f":
        limit = {"f16": 0x7C00, "bf16": 0x7F80}.get(case.compare)
        equal: Array = expected == found
        return equal if limit is None else equal | ((expected & 0x7FFF > limit) & (found & 0x7FFF > limit))
    same: Array = (expected.view(f"u{expected.itemsize}") == found.view(f"u{found.itemsize}")) | (np.isnan(expected) & np.isnan(found))
    with np.errstate(all="ignore"):
        if case.compare == "near":
            both = np.isfinite(expected) & np.isfinite(found)
            near = np.abs(_steps(expected).astype(np.float64) - _steps(found).astype(np.float64)) <= case.near
            same |= both & near
        if case.compare == "sums":
            magnitudes = np.tile(expected[len(expected) // 2 :], 2)
            same |= np.abs(expected - found) <= (_DEPTH[case.name] + 1) * 2.0**-23 * magnitudes
    return same


def lines(case: Case, expected: Array, found: Array) -> Iterator[tuple[str, str]]:
    """Every word of a case with what differs, "" if nothing does."""
    same = _same(case, expected, found)
    size = len(same) // len(case.words)
    for n, word in enumerate(case.words):
        part = same[size * n : size * (n + 1)]
        if part.all():
            yield word, ""
            continue
        at = int(np.argmin(part))
        first = f"the first at {at}: {expected[size * n + at]!r} on the CPU, {found[size * n + at]!r} on the device"
        yield word, f"{(~part).sum()} of {size} differ, {first}"


def differences(case: Case, expected: Array, found: Array) -> str:
    """What differs, "" if nothing does; one NaN is as good as another."""
    return "; ".join(text for _, text in lines(case, expected, found) if text)


def compare(reference: Driver, device: Driver, cases: Sequence[Case]) -> Iterator[tuple[str, str]]:
    """Every word of the cases with what differs between two devices, "" if nothing does."""
    for case, expected, found in zip(cases, run(reference, cases), run(device, cases), strict=True):
        for word, text in lines(case, expected, found):
            yield f"{case.name}: {word}", text


def main(words: Sequence[str] | None = None) -> int:
    about = "Every word of the kernels' headers: a device beside the CPU."
    parser = argparse.ArgumentParser(prog="python -m tests.cuda.conformance", description=about)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cuda-emulated; default: %(default)s")
    parser.add_argument("--floats", type=int, default=1 << 19, help="how many random floats functions are computed of; default: %(default)s")
    parser.add_argument("--match", default="", help="only kernels with this in their names")
    options = parser.parse_args(words)
    cases = [c for c in all_cases(floats(options.floats)) if options.match in c.name]
    try:
        device = open_driver(options.device)
        found = list(compare(open_driver("cuda-emulated"), device, cases))
    except GraphError as error:
        print(error)
        return 1
    for word, text in found:
        print(f"{word}: {text or 'ok'}")
    failed = sum(bool(text) for _, text in found)
    about = f"{device.properties.name} ({device.properties.target}, {device.name})"
    print(f"{about}: {len(cases)} kernels, {len(found)} words, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
