"""What a report says about where it was measured: card, driver, clocks, versions."""

from __future__ import annotations

import shutil
import subprocess
from importlib import metadata

from codegen.cuda.device import Device

_QUERY = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.draw", "power.limit", "temperature.gpu")
PACKAGES = ("torch", "triton", "nvidia-cublas", "nvidia-cuda-nvrtc", "cuda-bindings", "pycuda", "numpy")


def versions() -> dict[str, str]:
    """Packages that take part, as far as they are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def state(number: int) -> dict[str, str]:
    """What nvidia-smi says of a card now; nothing where it is missing or says nothing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--id={number}", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [v.strip() for v in done.stdout.strip().split(",")]
    return dict(zip(_QUERY, values, strict=True)) if done.returncode == 0 and len(values) == len(_QUERY) else {}


def card(device: Device) -> dict[str, str]:
    """What the driver says."""
    properties = device.driver.properties
    return {
        "card": properties.name,
        "target": properties.target,
        "multiprocessors": str(properties.processors),
        "memory": f"{properties.memory / 2**30:.0f} GiB",
        "CUDA of the driver": ".".join(map(str, properties.driver)),
        "through": device.driver.name,
    }
