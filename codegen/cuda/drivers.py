"""Devices by name: ``cuda``, ``cuda:1``, ``cuda-emulated``; which implementation of the driver answers, and what is wrong when none does."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import Any

from codegen.cuda.driver import Driver, DriverError
from codegen.cuda.libcuda import load_library
from ir.diagnostics import Diagnostic, GraphError, MissingPackage, did_you_mean

EMULATED = "cuda-emulated"
CHOICE = "GRAPH_OPT_CUDA_DRIVER"
"""The environment variable that chooses an implementation: pycuda or cuda-core; else the first of them that is installed."""

INSTALL = "pip install cuda-bindings nvidia-cuda-nvrtc; or pip install '.[cuda]' in a checkout of graph-opt"
INSTALL_PYCUDA = "pip install pycuda, which needs the CUDA toolkit and g++; or pip install '.[pycuda]' in a checkout of graph-opt"
"""What to do where the packages are missing."""

LEAST_CAPABILITY = (7, 5)
"""Older devices are not supported: no kernels are made for them."""

_NAME = re.compile(r"cuda(?::(0|[1-9]\d{0,3}))?")
_open: dict[tuple[str, int], Driver] = {}
_lock = threading.Lock()
_forked = False


def is_cuda(device: object) -> bool:
    """Whether a device's name means kernels in CUDA C."""
    return isinstance(device, str) and (device == EMULATED or _NAME.fullmatch(device) is not None)


def open_driver(device: str) -> Driver:
    """The driver of a device; all who ask for one get the same.

    Raises GraphError for a name that is none and for a device that isn't there or can't run our kernels, MissingPackage where the driver
    or a package for it is missing.
    """
    if not is_cuda(device):
        raise GraphError(Diagnostic(f"there is no device '{device}'", hint=did_you_mean(str(device), ["cuda", "cuda:0", EMULATED])))
    found = _NAME.fullmatch(device)
    key = (EMULATED, 0) if found is None else ("cuda", int(found[1] or 0))
    with _lock:
        if _forked:
            raise forked_error()
        if key not in _open:
            _open[key] = _emulated(0) if found is None else _first(key[1])
        return _open[key]


def forked_error() -> GraphError:
    """What is said where a process uses a device that its parent has used."""
    message = "CUDA was used before this process was forked, and its contexts don't survive that"
    return GraphError(Diagnostic(message, hint="use it in the child only, or start processes with multiprocessing.get_context('spawn')"))


def refuse_forked() -> None:
    """Raises GraphError in a process that was forked from one that had opened a device."""
    if _forked:
        raise forked_error()


def _after_fork() -> None:
    global _forked, _lock
    _lock = threading.Lock()  # somebody may have held it
    _forked = _forked or bool(_open)


os.register_at_fork(after_in_child=_after_fork)


# -- implementations ---------------------------------------------------------------------------------------------------


def _emulated(number: int) -> Driver:
    from codegen.cuda.emulation import EmulatedDriver

    driver: Driver = EmulatedDriver(number)
    return driver


def _pycuda(number: int) -> Driver:
    from codegen.cuda.driver_pycuda import PycudaDriver

    return PycudaDriver(number)


def _cuda_core(number: int) -> Driver:
    from codegen.cuda.driver_cuda_core import CudaCoreDriver

    return CudaCoreDriver(number)


IMPLEMENTATIONS: dict[str, Callable[[int], Driver]] = {"pycuda": _pycuda, "cuda-core": _cuda_core}
"""In the order in which they are tried."""


def _first(number: int) -> Driver:
    """The first implementation whose package is there, for a device."""
    chosen = os.environ.get(CHOICE, "")
    if chosen and chosen not in IMPLEMENTATIONS:
        raise GraphError(Diagnostic(f"{CHOICE}={chosen:.40}: expected {' or '.join(IMPLEMENTATIONS)}"))
    load_library()
    missing: list[str] = []
    for name in [chosen] if chosen else IMPLEMENTATIONS:
        try:
            driver = IMPLEMENTATIONS[name](number)
        except ImportError as error:
            missing.append(f"{name} ({error})")
            continue
        except DriverError as error:
            raise _explained(error, number) from None
        _check_capability(driver)
        return driver
    message = f"device 'cuda' needs a package that talks to the driver, and can't import {' or '.join(missing)}"
    raise MissingPackage(Diagnostic(message, hint=INSTALL_PYCUDA if chosen == "pycuda" else INSTALL))


_HINTS = {
    "CUDA_ERROR_NO_DEVICE": "the driver sees no GPU: nvidia-smi lists them, CUDA_VISIBLE_DEVICES may hide them",
    "CUDA_ERROR_INVALID_DEVICE": "nvidia-smi lists the GPUs, CUDA_VISIBLE_DEVICES may hide some",
    "CUDA_ERROR_STUB_LIBRARY": "this libcuda.so.1 is the toolkit's stand-in for linking: install NVIDIA's driver",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver's library and its kernel module are of different versions: install one of them anew",
    "CUDA_ERROR_NOT_INITIALIZED": "a process that was forked can't use CUDA when its parent has",
}


def _explained(error: DriverError, number: int) -> GraphError:
    """Why a device can't be opened."""
    hint = _HINTS.get(error.name)
    if error.name == "CUDA_ERROR_INVALID_DEVICE":
        return GraphError(Diagnostic(f"there is no device 'cuda:{number}': {error.what}: {error.name} ({error.text})", hint=hint))
    return GraphError(Diagnostic(f"device 'cuda:{number}' can't be used: {error.what}: {error.name} ({error.text})", hint=hint))


def _check_capability(driver: Driver) -> None:
    properties = driver.properties
    if properties.capability < LEAST_CAPABILITY:
        have, need = (".".join(map(str, c)) for c in (properties.capability, LEAST_CAPABILITY))
        raise GraphError(Diagnostic(f"{properties.name} has compute capability {have}, kernels are made for {need} and newer"))


def load_error(error: DriverError, driver: Driver, made_by: Any = None) -> GraphError:
    """Why a module can't be loaded: the driver may be older than what compiled it, or the device of another kind."""
    properties = driver.properties
    version = ".".join(map(str, properties.driver))
    about = f"{properties.name} ({properties.target}) with a driver for CUDA {version}"
    text = f"{error.what}: {error.name}{f' ({error.text})' if error.text else ''}"
    if error.name in ("CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "CUDA_ERROR_INVALID_PTX"):
        by = f" compiled by {made_by}" if made_by else ""
        hint = "the driver is older than the compiler, or the kernels are for another device: install a newer driver, or an older nvidia-cuda-nvrtc"
        return GraphError(Diagnostic(f"{about} can't load kernels{by}: {text}", hint=hint))
    return GraphError(Diagnostic(f"{about} can't load the kernels: {text}"))
