"""Kernels of a program as several texts, for compilers that run at the same time: compiling is most of what a large program waits for."""

from __future__ import annotations

from codegen.cuda.module import CudaProgram, Kernel

KERNELS = 4
"""Kernels for which a compiler of its own is started, at least: it takes a tenth of a second to begin."""


def parts_of(program: CudaProgram, most: int) -> list[tuple[str, tuple[Kernel, ...]]]:
    """At most so many texts with about the same amount of work, and the kernels in each; the same program gives the same ones."""
    count = min(most, len(program.kernels) // KERNELS)
    if count < 2:
        return [(program.source, program.kernels)]
    head = program.source[: program.source.index(program.kernels[0].source)]
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for number in sorted(range(len(program.kernels)), key=lambda n: -len(program.kernels[n].source)):
        least = loads.index(min(loads))
        parts[least].append(number)
        loads[least] += len(program.kernels[number].source)
    chosen = [tuple(program.kernels[n] for n in sorted(part)) for part in parts]
    return [(head + "\n".join(k.source for k in kernels), kernels) for kernels in chosen]
