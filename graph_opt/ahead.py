"""Work that a thread begins with while the caller does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """A function that runs in a thread of its own; :meth:`result` waits for what it returns or raises."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._results: list[T] = []
        self._raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="graph-opt ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:  # goes on where the result is asked for
            self._raised = error

    def wait(self) -> None:
        """Returns when the function has returned, or raised."""
        self._thread.join()

    def result(self) -> T:
        """What the function returned.  Raises what it raised."""
        self._thread.join()
        if self._raised is not None:
            raise self._raised
        return self._results[0]
