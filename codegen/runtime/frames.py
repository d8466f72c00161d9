"""The memory of one run besides its arrays: pointers, state and workspace, kept from run to run."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from codegen.runtime.abi import STATE_BYTES
from codegen.runtime.pages import aligned_bytes

if TYPE_CHECKING:
    pass

_KEPT = 4
"""Frames that a program holds on to; only as many callers at the same time need them."""


class Frame:
    """What one run writes besides its results.  Only one run uses it at a time."""

    __slots__ = ("args", "args_address", "state", "state_address", "workspace", "workspace_address")

    def __init__(self, pointers: int) -> None:
        self.args = (ctypes.c_void_p * max(pointers, 1))()
        self.args_address = ctypes.addressof(self.args)
        self.state = aligned_bytes(STATE_BYTES)
        self.state_address = int(self.state.ctypes.data)
        self.workspace = aligned_bytes(0)
        self.workspace_address = int(self.workspace.ctypes.data)

    def reserve(self, size: int) -> None:
        """Makes the workspace at least ``size`` bytes large.  Raises MemoryError."""
        if self.workspace.size < size:
            self.workspace = aligned_bytes(0)  # the old one goes before the new one comes
            self.workspace = aligned_bytes(size + size // 4)  # sizes often grow step by step; what is not touched costs nothing
            self.workspace_address = int(self.workspace.ctypes.data)


class Frames:
    """The frames of a program that no run uses at the moment."""

    def __init__(self, pointers: int) -> None:
        self._pointers = pointers
        self._idle: list[Frame] = []

    def take(self) -> Frame:
        """A frame for the caller alone."""
        try:
            return self._idle.pop()
        except IndexError:
            return Frame(self._pointers)

    def give_back(self, frame: Frame) -> None:
        """Says that a run is over."""
        if len(self._idle) < _KEPT:
            self._idle.append(frame)
