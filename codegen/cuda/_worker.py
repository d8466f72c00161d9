"""A process of its own for NVRTC, and for asking the driver which devices there are: libraries that may crash, or not return.

:mod:`codegen.cuda.compilers` starts it with the path of this file.  It reads a request from standard input, a line of JSON and then bytes,
and answers in the same way on standard output.  It imports nothing of this package and little else, so as to start within milliseconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76  # of enum CUdevice_attribute


def _output(library: ctypes.CDLL, program: ctypes.c_void_p, name: str) -> bytes:
    """What the functions nvrtcGet...Size and nvrtcGet... give together."""
    size = ctypes.c_size_t()
    if getattr(library, f"nvrtcGet{name}Size")(program, ctypes.byref(size)):
        return b""
    data = ctypes.create_string_buffer(max(1, size.value))
    return b"" if getattr(library, f"nvrtcGet{name}")(program, data) else data.raw[: size.value]


def _strings(texts: Iterable[str]) -> Any:
    encoded = [t.encode() for t in texts]
    return (ctypes.c_char_p * max(1, len(encoded)))(*encoded)


def _architectures(library: ctypes.CDLL) -> list[int]:
    count = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    found = (ctypes.c_int * max(1, count.value))()
    library.nvrtcGetSupportedArchs(found)
    return list(found)[: count.value]


def compile_source(request: dict[str, Any], source: bytes) -> tuple[dict[str, Any], bytes]:
    """Compiles ``source``; the answer has NVRTC's status and log, its version, and the architectures that it knows."""
    for path in request["needed"]:
        ctypes.CDLL(path)  # NVRTC 13.0 finds them only if they are loaded
    library = ctypes.CDLL(request["library"])
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    headers, options, log, image = request["headers"], request["options"], b"", b""
    program = ctypes.c_void_p()
    contents = (len(headers), _strings(headers.values()), _strings(headers))
    status = library.nvrtcCreateProgram(ctypes.byref(program), source, request["name"].encode(), *contents)
    if status == 0:
        status = library.nvrtcCompileProgram(program, len(options), _strings(options))
        log = _output(library, program, "ProgramLog").rstrip(b"\0")
        if status == 0:
            image = _output(library, program, request["result"])
    answer = {"version": f"{major.value}.{minor.value}", "architectures": _architectures(library), "log": log.decode("utf-8", "replace")}
    return {**answer, "status": status, "error": library.nvrtcGetErrorString(status).decode()}, image


def list_devices(request: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
    """The compute capabilities of all devices, in the driver's order."""
    library = ctypes.CDLL(request["library"])
    count = ctypes.c_int()
    found = []
    if library.cuInit(0) == 0 and library.cuDeviceGetCount(ctypes.byref(count)) == 0:
        for number in range(count.value):
            device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
            library.cuDeviceGet(ctypes.byref(device), number)
            library.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, device)
            library.cuDeviceGetAttribute(ctypes.byref(minor), COMPUTE_CAPABILITY_MINOR, device)
            found.append([major.value, minor.value])
    return {"devices": found}, b""


def main() -> None:
    """Serves one request."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is not the answer
    request = json.loads(sys.stdin.buffer.readline())
    answer, image = {"compile": compile_source, "devices": list_devices}[request["do"]](request, sys.stdin.buffer.read())
    with os.fdopen(answers, "wb") as out:
        out.write(json.dumps(answer).encode() + b"\n" + image)


if __name__ == "__main__":
    main()
