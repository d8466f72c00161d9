"""What an engine is for the harness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import repeat
from typing import Any

import numpy as np

from bench.case import Array, Case, Work

Times = Callable[[int], object]


@dataclass(frozen=True)
class Prepared:
    """A case, ready to run: ``run(n)`` does it n times; ``results`` gives what one time computes."""

    run: Times
    results: Callable[[], Sequence[Array]]


class Engine(ABC):
    """Makes cases ready to run.  It is started once, in a process of its own that has the threads' settings in its environment."""

    packages: tuple[str, ...] = ()
    """What it is made of, as package registries name it."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def start(self) -> None:  # noqa: B027
        """Imports what is needed."""

    def versions(self) -> str:
        """The packages with their versions."""
        return ", ".join(f"{package} {metadata.version(package)}" for package in self.packages)

    @abstractmethod
    def prepare(self, case: Case) -> Prepared | None:
        """The case, ready to run; None when there are no words for it."""


def calls(work: Work) -> Times:
    """Runs ``work`` so many times, with the least that Python can add to it."""

    def run(times: int) -> None:
        for _ in repeat(None, times):
            work()

    return run


def as_arrays(results: Any) -> list[Array]:
    """An array, or several, as a list of numpy's."""
    several = results if isinstance(results, (tuple, list)) else [results]
    return [np.array(a) for a in several]


def prepared(work: Work) -> Prepared:
    """Work that returns its results as something that numpy takes."""
    return Prepared(calls(work), lambda: as_arrays(work()))
