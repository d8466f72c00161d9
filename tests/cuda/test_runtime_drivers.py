"""The runtime's tests once more through unmodified pycuda and cuda-bindings, on a fake driver that does nothing before it must.

What is said where a driver, a device or a package is missing, or doesn't fit.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda import fake_driver

ROOT = Path(__file__).parents[2]
PACKAGES = {"pycuda": "pycuda", "cuda-core": "cuda"}
ERRORS = """
import os, sys
from codegen.cuda.driver import DriverError
from codegen.cuda.drivers import load_error, open_driver
from ir.diagnostics import GraphError

def attempt(device):
    try:
        return open_driver(device)
    except GraphError as error:
        print(error)
"""

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec({"pycuda": "pycuda", "cuda-core": "cuda.bindings"}[name]) is not None
    except ModuleNotFoundError:
        return False


@needs_gxx
@pytest.mark.parametrize("name", PACKAGES)
def test_the_runtime_through_the_real_packages(name: str) -> None:
    if not is_there(name):
        pytest.skip(f"{name} is not installed")
    environment = fake_driver.environment(GRAPH_OPT_CUDA_DRIVER=name, FAKE_CUDA_EAGER="0", PYTHONPATH=str(ROOT), GRAPH_OPT_TEST_DEVICE="cuda")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.cuda.on_fake_driver", "-p", "no:cacheprovider", "tests/cuda/test_runtime.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr


def said(code: str, **environment: str) -> str:
    """What a process prints that tries to open devices."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-c", ERRORS + code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def has_driver() -> bool:
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="there is a driver")
def test_no_driver() -> None:
    text = said("attempt('cuda')")
    assert "there is no CUDA driver: libcuda.so.1: cannot open shared object file" in text and "nvidia-smi" in text


def fake(**more: str) -> dict[str, str]:
    return {k: v for k, v in fake_driver.environment(**more).items() if k.startswith(("LD_", "FAKE_", "GRAPH_"))}


NO_PACKAGE = """
sys.modules['pycuda.driver'] = sys.modules['cuda.bindings'] = None
for name in ("", "pycuda", "rocm"):
    os.environ["GRAPH_OPT_CUDA_DRIVER"] = name
    attempt("cuda")
"""


@needs_gxx
def test_no_package() -> None:
    text = said(NO_PACKAGE, **fake())
    assert "needs a package that talks to the driver, and can't import pycuda (" in text and "or cuda-core (" in text
    assert "hint: pip install cuda-bindings nvidia-cuda-nvrtc; or pip install '.[cuda]' in a checkout of graph-opt" in text
    assert "hint: pip install pycuda, which needs the CUDA toolkit and g++" in text
    assert "GRAPH_OPT_CUDA_DRIVER=rocm: expected pycuda or cuda-core" in text


BAD_DEVICES = """
attempt("cuda:7")
driver = attempt("cuda")
token = driver.enter()
for image in (b"\\x7fELF no kernels", b""):
    try:
        driver.load_module(image)
    except DriverError as error:
        print(load_error(error, driver))
driver.leave(token)
"""


@needs_gxx
@pytest.mark.parametrize("name", PACKAGES)
def test_no_such_device_and_kernels_that_the_driver_does_not_load(name: str) -> None:
    if not is_there(name):
        pytest.skip(f"{name} is not installed")
    text = said(BAD_DEVICES, **fake(GRAPH_OPT_CUDA_DRIVER=name))
    assert "there is no device 'cuda:7'" in text and "CUDA_ERROR_INVALID_DEVICE" in text and "nvidia-smi lists the GPUs" in text
    assert text.count("with a driver for CUDA") == text.count("CUDA_ERROR_INVALID_IMAGE") == text.count("install a newer driver") == 2, text


@needs_gxx
def test_devices_that_are_too_old() -> None:
    from codegen.cuda.driver import Properties
    from codegen.cuda.drivers import _check_capability, open_driver
    from ir.diagnostics import GraphError

    driver = open_driver("cuda-emulated")
    before, driver.properties = driver.properties, Properties("GTX 1080", (6, 1), 1, 1, 1, (12, 4))
    try:
        with pytest.raises(GraphError, match=r"GTX 1080 has compute capability 6\.1, kernels are made for 7\.5 and newer"):
            _check_capability(driver)
    finally:
        driver.properties = before


@pytest.mark.parametrize("device", ["cuda:", "cuda:-1", "cuda:01", "cuda:99999", "CUDA", "cuda-emulated:1", "gpu"])
def test_names_that_are_no_devices(device: str) -> None:
    from codegen.cuda.drivers import is_cuda, open_driver
    from ir.diagnostics import GraphError

    assert not is_cuda(device)
    with pytest.raises(GraphError, match="there is no device"):
        open_driver(device)


BENCH = """
import tests.cuda.on_fake_driver
from graph_opt.cli import main
sys.exit(main(["bench", "samples/mlp.graph", "--dims", "B=4", "--device", "cuda", "--rounds", "2", *sys.argv[1:]]))
"""


@needs_gxx
def test_bench_reports_what_events_say() -> None:
    """Through cuda-bindings; on a fake driver the numbers mean nothing, their number does."""
    if not is_there("cuda-core"):
        pytest.skip("cuda-bindings is not installed")
    found = json.loads(said(BENCH.replace("*sys.argv[1:]", "'--json'"), **fake(GRAPH_OPT_CUDA_DRIVER="cuda-core")))
    assert (found["label"], found["card"], found["implementation"], found["rounds"]) == ("measured", "Fake GPU", "cuda-core", 2)
    assert found["call"]["seconds"]["median"] > 0 and found["call"]["host_seconds"]["median"] > 0
    assert [row["ops"][0]["op"] for row in found["launches"]] == ["matmul", "matmul"]
    assert all(row["seconds"]["median"] > 0 and row["flops"] > 0 for row in found["launches"])
