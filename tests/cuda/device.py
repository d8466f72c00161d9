"""Which device the tests of kernels run on: the emulated one, or, on a machine with a GPU, what ``GRAPH_OPT_TEST_DEVICE`` names (cuda, cuda:1)."""

from __future__ import annotations

import os
import shutil

import pytest

DEVICE = os.environ.get("GRAPH_OPT_TEST_DEVICE", "cuda-emulated")
EMULATED = DEVICE == "cuda-emulated"

needs_device = pytest.mark.skipif(EMULATED and shutil.which("g++") is None, reason="the emulated device needs g++")
"""For tests that run kernels."""
only_emulated = pytest.mark.skipif(not EMULATED, reason="it is about the emulated device")
