"""What is being done, on a terminal."""

from __future__ import annotations

import sys
import time


class Progress:
    """One line on a terminal that says what is being done; nothing elsewhere, and nothing in the first half second."""

    def __init__(self) -> None:
        self.active = sys.stderr.isatty()
        self.start = time.monotonic()
        self.shown = 0.0

    def show(self, text: str) -> None:
        """Puts a text there, not too often."""
        now = time.monotonic()
        if self.active and now - self.start > 0.5 and now - self.shown > 0.1:
            self.shown = now
            print(f"\r\033[K{text[:78]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Takes it away."""
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
