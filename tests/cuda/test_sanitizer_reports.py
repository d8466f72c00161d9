"""compute-sanitizer on a machine with a card, as far as it can be tried without: its reports are read, faults and refusals are told."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from codegen.cuda.driver import DriverError
from codegen.cuda.emulation import EmulatedDriver
from tests.cuda import sanitizer
from tests.cuda.device import DEVICE, EMULATED, needs_device
from tests.cuda.mutation_programs import SUBJECTS
from tests.cuda.on_device import PLANTED, main, run_planted

MEMCHECK = """========= COMPUTE-SANITIZER
softmax: ok
========= Invalid __global__ write of size 4 bytes
=========     at planted+0x90
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f8 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x3344] in libcuda.so.1
=========
========= Target application returned an error
========= ERROR SUMMARY: 64 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at planted+0x70
=========     and Read access at planted+0x90 [248 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
CLEAN = "========= COMPUTE-SANITIZER\nsoftmax: ok\n========= ERROR SUMMARY: 0 errors\n"
NO_HAZARDS = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
REFUSED = "========= COMPUTE-SANITIZER\n========= Error: Device not supported. Please refer to the documentation\n========= ERROR SUMMARY: 0 errors\n"


def test_reports_are_read() -> None:
    found = sanitizer.read_report(MEMCHECK)
    assert found.errors == 64 and found.findings == ("Invalid __global__ write of size 4 bytes at planted+0x90",) and not found.clean
    found = sanitizer.read_report(RACECHECK)
    assert found.errors == 1 and len(found.findings) == 1 and "and Read access at planted+0x90" in found.findings[0]
    assert sanitizer.read_report(CLEAN).clean and sanitizer.read_report(NO_HAZARDS).clean
    refused = sanitizer.read_report(REFUSED)
    assert refused.refused.startswith("Error: Device not supported") and not refused.findings
    assert sanitizer.read_report("Segmentation fault\n").errors is None and not sanitizer.read_report("").clean


FAKE = """#!{python}
import sys
print({planted!r} if "--planted" in sys.argv else {programs!r})
sys.exit({status} if "--planted" not in sys.argv else 86)
"""


@pytest.mark.parametrize(
    "case",
    [
        (MEMCHECK, CLEAN, 0, 0, "memcheck: ok, 1 programs"),
        (MEMCHECK, MEMCHECK, 86, 1, "Invalid __global__ write of size 4 bytes at planted+0x90"),
        (MEMCHECK, CLEAN, 1, 1, "memcheck: 0 errors, exit status 1"),
        (MEMCHECK, "Segmentation fault", 139, 1, "memcheck: unknown errors, exit status 139"),
        (REFUSED, CLEAN, 0, 0, "NOT CHECKED: it does not find the fault that was planted for it: Error: Device not supported"),
        (CLEAN, CLEAN, 0, 0, "NOT CHECKED: it does not find the fault"),
    ],
)
def test_what_is_told(
    case: tuple[str, str, int, int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a tool says of the planted fault, and of programs, with which status; how the check ends, and what it tells."""
    planted, programs, status, expected, said = case
    program = tmp_path / "compute-sanitizer"
    program.write_text(FAKE.format(python=sys.executable, planted=planted, programs=programs, status=status))
    program.chmod(0o700)
    monkeypatch.setattr(sanitizer, "find_programs", lambda name: iter([program]))
    assert sanitizer.main(["softmax", "--tools", "memcheck"]) == expected
    assert said in capsys.readouterr().out


def test_a_machine_without_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sanitizer, "find_programs", lambda name: iter([]))
    assert sanitizer.main([]) == 0
    assert "NOT CHECKED: there is no compute-sanitizer" in capsys.readouterr().out


def test_each_kind_is_there_once() -> None:
    names = sanitizer.chosen_names()
    assert {"softmax", "attention", "sort", "row", "versions"} <= set(names) <= {s.name for s in SUBJECTS}
    assert sum(n.startswith("tile-") for n in names) == sum(n.startswith("digits-") for n in names) == 1
    assert sum(n.startswith("cores-") for n in names) == 2


@needs_device
def test_programs_on_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", DEVICE, "transposed", "cores-64x64-bf16"] if EMULATED else ["--device", DEVICE]) == 0
    assert "transposed: ok" in capsys.readouterr().out
    assert main(["--device", DEVICE, "none"]) == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_planted_faults_are_some() -> None:
    """What the emulation finds of them: writing beyond a buffer, and threads that don't meet."""
    for tool in PLANTED:
        if tool in ("memcheck", "synccheck"):
            with pytest.raises(DriverError):
                run_planted(tool, EmulatedDriver())
        else:
            run_planted(tool, EmulatedDriver())
