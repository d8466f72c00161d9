"""The examples of the operations on a device, against the interpreter and the CPU; many are built together.

The default run takes one operation of every file of operations, with inputs of all kinds; ``GRAPH_OPT_FUZZ=N`` all of them, with every element
type and for several sizes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from ir.core import Module
from ir.diagnostics import GraphError
from ir.opdef import REGISTRY
from tests.checks import all_examples, baseline, load
from tests.cuda.device import needs_device
from tests.device_checks import OnDevice, check_on_device, check_same_as_cpu, compile_together
from tests.native_checks import has_no_code

pytestmark = needs_device

EVERYTHING = "GRAPH_OPT_FUZZ" in os.environ
EXAMPLES = {f"{name}-{number}": text.replace("@example(", "@main(") for name, number, text in all_examples() if name.startswith("graph.")}
TOGETHER = 16


def sample() -> list[str]:
    """The first example of each file of operations that runs on a device, and of the last operation in it: often another kind of kernel."""
    by_file: dict[str, list[str]] = {}
    for key in EXAMPLES:
        definition = REGISTRY[key.rpartition("-")[0]]
        by_file.setdefault(getattr(definition.infer_function, "__module__", ""), []).append(key)
    return [key for keys in by_file.values() for key in dict.fromkeys((keys[0], keys[-1]))]


def programs(keys: list[str]) -> Iterator[tuple[str, Module]]:
    """Modules of examples, with the element types that they are to be tested with."""
    for key in keys:
        for dtype in ("f32", "f64", "f16", "bf16") if EVERYTHING else ("f32",):
            text = re.sub(r"\bf32\b", dtype, EXAMPLES[key])
            if dtype != "f32" and text == EXAMPLES[key]:
                continue
            try:
                module = load(text)
            except GraphError:
                continue  # the operation takes no such elements
            if not has_no_code(module):
                yield f"{key}-{dtype}", module


KEYS = list(EXAMPLES) if EVERYTHING else sample()
GROUPS = [KEYS[first : first + TOGETHER] for first in range(0, len(KEYS), TOGETHER)]


@pytest.mark.parametrize("keys", GROUPS, ids=[f"{g[0]}..{g[-1]}" for g in GROUPS])
def test_examples(keys: list[str]) -> None:
    modules = dict(programs(keys))
    for (key, module), program in zip(modules.items(), compile_together(list(modules.values())), strict=True):
        assert isinstance(program, OnDevice), f"{key}: {program}"
        runs = baseline(module, limit=None if EVERYTHING else 1)
        assert runs.cases, key
        check_on_device(runs, program, None if EVERYTHING else {0})
        check_same_as_cpu(runs, program)
