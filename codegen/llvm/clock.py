"""The processor's clock, which code with clocks reads."""

from __future__ import annotations

import platform

from codegen.llvm.helpers import X86


def tick() -> str:
    """The intrinsic that reads a clock of constant speed; the counter of cycles of other machines is not for everybody."""
    return "llvm.readcyclecounter" if platform.machine().lower() in X86 else "llvm.readsteadycounter"


def tick_function(name: str) -> str:
    """A function without parameters that returns what the clock says, as i64."""
    return f"define i64 @{name}() {{\n  %now = call i64 @{tick()}()\n  ret i64 %now\n}}\ndeclare i64 @{tick()}()\n"
