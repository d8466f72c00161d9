"""A CUDA driver without a device (``libcuda.cc``): ``libcuda.so.1`` in a folder, for processes that are started with it on LD_LIBRARY_PATH.

Unmodified pycuda and cuda-bindings talk to it.  What it takes for a cubin is a library of :mod:`codegen.cuda.host_build`; see
:func:`fake_cubin`.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
from pathlib import Path

from codegen.cuda import host_build

SOURCE = Path(__file__).with_name("libcuda.cc")

LINKED = """
cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayDestroy cuArrayGetDescriptor_v2 cuCtxDisablePeerAccess
cuCtxEnablePeerAccess cuCtxGetCacheConfig cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxSetCacheConfig cuCtxSetLimit cuCtxSetSharedMemConfig
cuDeviceCanAccessPeer cuDeviceGetByPCIBusId cuIpcCloseMemHandle cuIpcGetEventHandle
cuIpcGetMemHandle cuIpcOpenEventHandle cuIpcOpenMemHandle_v2 cuLaunch cuLaunchGrid cuLaunchGridAsync cuLinkAddData_v2 cuLinkAddFile_v2
cuLinkComplete cuLinkCreate_v2 cuLinkDestroy cuMemAllocManaged cuMemAllocPitch_v2 cuMemGetAddressRange_v2 cuMemHostGetDevicePointer_v2
cuMemHostGetFlags cuMemHostRegister_v2 cuMemHostUnregister cuMemcpy2DAsync_v2 cuMemcpy2DUnaligned_v2 cuMemcpy2D_v2 cuMemcpy3DAsync_v2
cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3D_v2 cuMemcpyAtoA_v2 cuMemcpyAtoD_v2 cuMemcpyAtoH_v2 cuMemcpyDtoA_v2 cuMemcpyHtoA_v2
cuMemcpyPeer cuMemcpyPeerAsync cuMemsetD16Async cuMemsetD16_v2 cuMemsetD2D16Async cuMemsetD2D16_v2 cuMemsetD2D32Async cuMemsetD2D32_v2
cuMemsetD2D8Async cuMemsetD2D8_v2 cuModuleGetGlobal_v2 cuModuleGetSurfRef cuModuleGetTexRef cuModuleLoad cuParamSetSize cuParamSetTexRef
cuParamSetf cuParamSeti cuParamSetv cuProfilerInitialize cuProfilerStart cuProfilerStop cuStreamAttachMemAsync cuSurfRefGetArray
cuSurfRefSetArray cuTexRefCreate cuTexRefDestroy cuTexRefGetAddressMode cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetFilterMode
cuTexRefGetFlags cuTexRefGetFormat cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode cuTexRefSetAddress_v2 cuTexRefSetArray
cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat
""".split()  # noqa: SIM905  # a list of so many names fills a page
"""What pycuda is linked with besides: they become stubs."""


@functools.cache
def library_folder() -> Path:
    """A folder with the driver's library.  Raises MissingPackage without g++."""
    folder = Path(tempfile.mkdtemp(dir=host_build._folder()))
    stubs = folder / "stubs.cc"
    own = set(re.findall(r"^API (\w+)\(", SOURCE.read_text(encoding="utf-8"), re.MULTILINE))
    lines = [f'extern "C" __attribute__((visibility("default"))) int {name}() {{ return 801; }}' for name in LINKED if name not in own]
    stubs.write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"]
    host_build._call(*options, str(SOURCE), str(stubs), "-o", str(folder / "libcuda.so.1"), "-ldl")
    return folder


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that is to find this driver first."""
    paths = [str(library_folder()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths), **more}


def fake_cubin(source: str) -> bytes:
    """The kernels of a text as something that this driver loads.  Raises MissingPackage without g++, BuildFailed."""
    return host_build.build_library(source).read_bytes()
