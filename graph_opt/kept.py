"""Programs that were compiled before: when one may be taken from the cache, and how it gets there.

The key holds all that decides what a program becomes: its text, what the caller asked for (graph, pipeline, types), this package's
Python code, the versions of what it uses, the processor, how floats are computed here.  Weights are not in it; what the passes have
looked at in their files (types; values that were folded) is compared instead.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from codegen.cache import PACKAGES, Cache, default_cache, make_key, own_sources
from ir.diagnostics import Source

if TYPE_CHECKING:
    from codegen.runtime.program import NativeProgram
    from graph_opt.executable import Executable
    from graph_opt.image import Image, Observed
    from ir.core import Module
    from ir.weights import WeightSource

POISON = "GRAPH_OPT_POISON"
"""Set to 1, workspaces and memory that is free are filled with NaN, so that reads of what was never written show."""

READING = "reading the program"
"""What is said first of a program that is not in the cache, and will be compiled."""

WEIGHTS = "weights"
"""What is said of a program from the cache when only its weights are still read and packed, by a thread that leaves Python to others."""


def tell_nobody(what: str) -> None:
    """Where nobody wants to know what is being done."""


@dataclass
class Kept:
    """The place of one program in the cache.  ``source`` is its text, ``parts`` what the key is made of."""

    cache: Cache
    source: Source
    parts: tuple[str, ...]
    observed: dict[str, Observed] = field(default_factory=dict)
    given: str | None = None
    """The name of the file that stands for arrays of the caller."""

    @property
    def key(self) -> bytes:
        """The name of the entry."""
        return make_key("program", self.parts)

    def narrowed(self, *parts: str) -> Kept:
        """The place of the same program with something more settled."""
        return replace(self, parts=(*self.parts, *parts), observed={})

    def image(self) -> Image | None:
        """What the cache has."""
        data = self.cache.get(self.key)
        if data is None:
            return None
        from graph_opt.image import BadImage, Image

        try:
            return Image(data, self.source)
        except BadImage:
            self.cache.remove(self.key)
            return None

    def load(
        self,
        image: Image | None,
        sources: Mapping[str, WeightSource],
        threads: int,
        module: Callable[[], Module],
        tell: Callable[[str], None] = tell_nobody,
    ) -> Executable | None:
        """The program of an image if that fits these weights; see :meth:`graph_opt.image.Image.executable`."""
        if image is None or not image.fits(sources):
            return None
        from graph_opt.image import BadImage

        try:
            return image.executable(sources, threads, module, tell)
        except BadImage:
            self.cache.remove(self.key)
            return None

    def observe(self, sources: Mapping[str, WeightSource]) -> Mapping[str, WeightSource]:
        """The sources for the passes; what these look at is noted."""
        from graph_opt.image import Observed

        self.observed = {name: Observed(source) for name, source in sources.items()}
        return self.observed

    def keep(self, module: Module, program: NativeProgram, load_time: Mapping[str, NativeProgram]) -> None:
        """Writes a program that was made, if it can be kept and nothing has changed meanwhile."""
        from graph_opt.image import write_image
        from ir.encoding import NotEncodable

        if own_sources() != self.parts[0]:
            return
        try:
            data = write_image(module, program, load_time, self.observed, self.given)
        except NotEncodable:
            return
        self.cache.put(self.key, data)


def place_in_cache(source: Source, asked: Sequence[str]) -> Kept | None:
    """Where the program with this text is kept, compiled as the caller ``asked``; None when there is no cache for it.

    There is none with ``GRAPH_OPT_CACHE=off``, while memory is poisoned, when this package's files have changed since the process
    began, and when operations were defined elsewhere.
    """
    cache = default_cache()
    if cache is None or os.environ.get(POISON) == "1" or _has_foreign_operations():
        return None
    code = own_sources()
    if code is None:
        return None
    from ir.interpreter import MEMORY_LIMIT

    return Kept(cache, source, (code, *_versions(), *_processor(), str(MEMORY_LIMIT), _floats(), *asked, source.text))


def _has_foreign_operations() -> bool:
    from ir.opdef import REGISTRY

    makers = {getattr(f, "__module__", None) for d in REGISTRY.values() for f in (d.body, d.infer_function, type(d)) if f is not None}
    return any(str(m).partition(".")[0] not in PACKAGES for m in makers)


def _versions() -> tuple[str, ...]:
    """Python and numpy compute what is folded; ml_dtypes does it for bf16, and is known by its file as long as nobody needs it."""
    import numpy as np

    found = importlib.util.find_spec("ml_dtypes")
    file = found.origin if found is not None else None
    try:
        status = os.stat(file) if file else None
    except OSError:
        status = None
    return sys.version, np.__version__, f"{file}:{status.st_size}:{status.st_mtime_ns}" if status is not None else str(file)


def _processor() -> list[str]:
    from codegen.llvm.jit import compiler, host_attributes

    return [*compiler(), str(sorted(host_attributes().items()))]


def _floats() -> str:
    """How this process rounds, and whether it computes with the smallest numbers: other libraries may change that."""
    least, one = 5e-324, 1.0
    results = (least * one, 2.2250738585072014e-308 / (2.0 * one), one + 1.1e-16, -one - 1.1e-16, one / 3.0, -one / 3.0)
    return " ".join(r.hex() for r in results)
