"""What Python does beside a compilation: the search for unreachable cycles less often, turns of threads more often.

Operations, values and uses refer to each other, so a program is one large cycle that is alive.  Python looks through all young
objects after every 700 new ones, and through all objects time and again, and finds next to nothing: up to 45 % of the time of a
compilation.

The thread that reads weights meanwhile needs Python for moments, between copies without it; it would wait 5 ms for each of them.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

OFTEN = 2_000_000
"""New objects after which Python looks, meanwhile; erased operations are no cycles, so there are few that nobody needs."""

TURN = 0.0005
"""Seconds after which a thread that waits for its turn gets it, meanwhile."""

_lock = threading.Lock()
_inside = 0
_before = (0, 0, 0)
_turn_before = 0.0


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Raises the first threshold of :mod:`gc` until the last thread that is inside has left; one that is higher, or 0, stays.

    And lowers the interval after which threads take turns.
    """
    global _inside, _before, _turn_before
    with _lock:
        if _inside == 0:
            _before = gc.get_threshold()
            if 0 < _before[0] < OFTEN:
                gc.set_threshold(OFTEN, *_before[1:])
            _turn_before = sys.getswitchinterval()
            sys.setswitchinterval(min(TURN, _turn_before))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and gc.get_threshold() == (OFTEN, *_before[1:]):  # nobody has changed it
                gc.set_threshold(*_before)
            if _inside == 0:
                sys.setswitchinterval(_turn_before)
