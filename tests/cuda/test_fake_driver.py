"""Whole programs over the fake driver, through unmodified pycuda and cuda-bindings: what graphs are captured and replayed for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda import fake_driver
from tests.cuda.test_runtime_drivers import PACKAGES, is_there

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.mark.parametrize("eager", ["0", "1"])
@pytest.mark.parametrize("name", PACKAGES)
def test_programs_run_through_the_real_packages(name: str, eager: str) -> None:
    if not is_there(name):
        pytest.skip(f"{name} is not installed")
    environment = fake_driver.environment(GRAPH_OPT_CUDA_DRIVER=name, FAKE_CUDA_EAGER=eager, PYTHONPATH=str(ROOT))
    command = [sys.executable, "-m", "tests.cuda.fake_session", name]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout + done.stderr
