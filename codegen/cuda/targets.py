"""The architectures that CUDA C is compiled for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ir.diagnostics import Diagnostic, GraphError, did_you_mean

_NAME = re.compile(r"sm_(\d{1,2})(\d)([af]?)")


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture: ``sm_90``; ``sm_90a`` has instructions besides that no later architecture has.

    ``shared`` are the bytes of shared memory that a block can ask for; 0 where this file doesn't know it.
    """

    name: str
    shared: int = 0

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability: (9, 0)."""
        match = _NAME.fullmatch(self.name)
        assert match is not None
        return int(match[1]), int(match[2])

    @property
    def virtual(self) -> str:
        """The architecture that PTX is for: ``compute_90a``."""
        return self.name.replace("sm_", "compute_")


TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("sm_75", 64 << 10),
        Target("sm_80", 163 << 10),
        Target("sm_90", 227 << 10),
        Target("sm_90a", 227 << 10),
    )
}
"""The targets that all tests compile for (CUDA C++ Programming Guide, technical specifications for the sizes), the oldest first."""

OTHERS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("sm_86", 99 << 10),
        Target("sm_87", 163 << 10),
        Target("sm_89", 99 << 10),
        Target("sm_100", 227 << 10),
        Target("sm_100a", 227 << 10),
        Target("sm_120", 99 << 10),
        Target("sm_120a", 99 << 10),
    )
}
"""Targets that code can be compiled for, too."""

DEFAULT = "sm_80"
"""What code is for where no device says otherwise."""


def find_target(name: str) -> Target:
    """One of :data:`TARGETS` or :data:`OTHERS`.  Raises GraphError for another name."""
    known = {**TARGETS, **OTHERS}
    if name not in known:
        hint = did_you_mean(name, known) or f"targets: {', '.join(known)}"
        raise GraphError(Diagnostic(f"there is no target '{name[:80]}'", hint=hint))
    return known[name]


def any_target(name: str) -> Target:
    """The target of a name as CUDA's compilers know it, also those of devices that nothing was tested for (``sm_120``).

    Raises GraphError for what is no such name, or older than the oldest target.
    """
    if name in TARGETS or name in OTHERS or _NAME.fullmatch(name) is None:
        return find_target(name)
    target = Target(name)
    oldest = next(iter(TARGETS.values()))
    if target.capability < oldest.capability:
        raise GraphError(Diagnostic(f"{name} is older than {oldest.name}, the oldest architecture that kernels are made for"))
    return target


def target_of_device(capability: tuple[int, int]) -> Target:
    """The best target for a device: ``sm_90a`` for (9, 0), else the device's own architecture.

    Raises GraphError for devices that are too old.
    """
    own = f"sm_{capability[0]}{capability[1]}"
    return any_target(f"{own}a" if f"{own}a" in TARGETS else own)
