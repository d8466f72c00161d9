"""The presets: the one place that says in which order passes run."""

from __future__ import annotations

from passes.infra.base import Pass
from passes.infra.pipeline import parse_pipeline

PRESETS: dict[str, str] = {
    # inferred and verified, otherwise as written
    "O0": "infer-types",
    # a clean graph: calls inlined, dead and repeated work removed, constants folded
    "O1": "infer-types,inline,canonicalize,constant-fold,cse,canonicalize,dce",
}


def load_pipeline(text: str) -> list[Pass]:
    """The passes of a pipeline string, presets expanded.  Raises GraphError located in the string."""
    return parse_pipeline(text, PRESETS)
