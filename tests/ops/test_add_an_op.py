"""The page docs/add-an-op.md is true: its operation, put as one file into a copy of the project, is covered by the tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from passes.infra.registry import pass_files

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-an-op.md").read_text(encoding="utf-8")
CODE, NEST, USE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NAME = re.findall(r"^def ([a-z]\w*)\(", CODE, re.MULTILINE)[0]
TESTS = {
    "test_is_documented": 1,
    "test_text_is_a_fixpoint": 2,
    "test_all_types_are_inferred": 2,
    "test_declared_types_are_the_inferred_ones": 2,
    "test_runs_on_generated_inputs": 2,
    "test_inference_agrees_with_execution": 2,
    "test_rounds_once": 2,
    "test_other_float_types": 3,
    "test_pass_preserves_it": 2 * len(pass_files()),
}


@dataclass
class Report:
    passed: Counter[str]
    failed: Counter[str]
    text: str


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("project")
    leave_out = shutil.ignore_patterns("__pycache__", ".*", Path(__file__).name)
    for folder in ("ir", "dialects", "passes", "codegen", "interop", "graph_opt", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=leave_out)
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def python(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=project, env=environment, capture_output=True, text=True)


def run_tests(project: Path, code: str) -> Report:
    """Writes the operation's file and runs the table-driven tests of it."""
    (project / "dialects" / "graph" / f"{NAME}.py").write_text(code, encoding="utf-8")
    done = python(project, "-m", "pytest", "tests/ops", "-k", NAME, "--junitxml=report.xml", "-p", "no:cacheprovider")
    passed: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for case in ElementTree.parse(project / "report.xml").getroot().iter("testcase"):
        name = case.attrib["name"].split("[")[0]
        if case.find("failure") is not None or case.find("error") is not None:
            failed[name] += 1
        elif case.find("skipped") is None:
            passed[name] += 1
    return Report(passed, failed, done.stdout + done.stderr)


def changed(changes: dict[str, str]) -> str:
    code = CODE
    for old, new in changes.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


def test_it_is_new() -> None:
    from ir.opdef import REGISTRY

    assert not any(d.name == NAME for d in REGISTRY.values())


def test_one_file_is_enough(project: Path) -> None:
    report = run_tests(project, CODE)
    assert not report.failed, report.text
    assert report.passed == TESTS, report.text


def test_the_use_on_the_page_works(project: Path) -> None:
    run_tests(project, CODE)
    assert python(project, "-c", USE).returncode == 0
    assert python(project, "-c", USE.replace("[3.0]", "[6.0]")).returncode == 1


def test_random_programs_use_it(project: Path) -> None:
    run_tests(project, CODE)
    script = f"""
from tests.checks import check_program
from tests.generators import random_module
seeds = [s for s in range(400) if any(op.name == "graph.{NAME}" for op in random_module(s).walk())]
for seed in seeds[:3]:
    check_program(random_module(seed), seed)
print(len(seeds))
"""
    done = python(project, "-c", script)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3


RUN = """
import numpy as np, dialects, graph_opt
from ir.docs import example_texts
from ir.opdef import REGISTRY
rng = np.random.default_rng(0)
for text in example_texts(REGISTRY["graph.NAME"].doc):
    for shape in ((5, 7), (1, 6), (0, 6), (64, 130)):
        shape = (shape[0], 6) if "i32" in text else shape
        x = (100 * rng.standard_normal(shape)).astype(np.int32 if "i32" in text else np.float32)
        module = graph_opt.parse(text)
        found, wanted = (graph_opt.compile(module, device=d)(x) for d in ("cpu", "reference"))
        assert found.shape == wanted.shape and found.tobytes() == wanted.tobytes()
print("same")
"""


def test_the_nest_on_the_page_gives_machine_code(project: Path) -> None:
    (project / "dialects" / "graph" / f"{NAME}.py").write_text(CODE, encoding="utf-8")
    script = RUN.replace("NAME", NAME)
    assert f"no native code for '{NAME}'" in python(project, "-c", script).stderr
    table = project / "passes" / "linalg" / "lower_to_linalg.py"
    before = table.read_text(encoding="utf-8")
    try:
        (table.parent / f"_{NAME}.py").write_text(NEST, encoding="utf-8")
        line = re.findall(r'`("\w+": \w+\.\w+)`', PAGE)[0]
        text = before.replace('    "pow":', f'    {line},\n    "pow":').replace("import _carried,", f"import _{NAME}, _carried,")
        table.write_text(text, encoding="utf-8")
        done = python(project, "-c", script)
        assert done.stdout == "same\n", done.stderr
    finally:
        table.write_text(before, encoding="utf-8")


def test_the_command_line_knows_it(project: Path) -> None:
    run_tests(project, CODE)
    assert NAME in python(project, "-m", "graph_opt.cli", "list", "ops").stdout
    assert f"{NAME}(%x, axis=-1)" in python(project, "-m", "graph_opt.cli", "explain", NAME).stdout


WRONG = {
    "inference rounds up": (
        "test_declared_types_are_the_inferred_ones",
        {"shape[along] = shape[along] // 2": "shape[along] = (shape[along] + 1) // 2"},
    ),
    "inference forgets the axis": ("test_inference_agrees_with_execution", {"along = normalize_axis(axis, x.rank)": "along = -1"}),
    "inference gives another element type": (
        "test_text_is_a_fixpoint",
        {"TensorType(x.dtype, tuple(shape))": 'TensorType(DTYPES["f64"], tuple(shape))', "import TensorType": "import DTYPES, TensorType"},
    ),
    "the body rounds up": ("test_inference_agrees_with_execution", {"pairs = last.shape[-1] // 2": "pairs = (last.shape[-1] + 1) // 2"}),
    "the body rounds more than once": (
        "test_rounds_once",
        {"exact=True": "exact_bits=True", "    return np": "    last = last * 0.3 / 0.7\n    return np"},
    ),
    "an example is not in the printer's form": ("test_text_is_a_fixpoint", {"%y = pair_sum(%x)\n": "%y = pair_sum(%x, axis=-1)\n"}),
    "the body changes its operand": (
        "test_runs_on_generated_inputs",
        {"exact=True": "exact_bits=True", "    pairs = ": "    last[...] = 1\n    pairs = "},
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_definition_fails(project: Path, what: str) -> None:
    test, changes = WRONG[what]
    report = run_tests(project, changed(changes))
    assert report.failed[test], report.text


def test_wrong_inference_that_agrees_with_the_declared_types_fails(project: Path) -> None:
    """Inference and example agree with each other, but not with the body: only running it can tell."""
    code = changed({"shape[along] = shape[along] // 2": "shape[along] = (shape[along] + 1) // 2"}).replace("S floordiv 2", "(S+1) floordiv 2")
    report = run_tests(project, code)
    assert report.failed["test_inference_agrees_with_execution"] or report.failed["test_runs_on_generated_inputs"], report.text


def test_without_an_example_it_fails(project: Path) -> None:
    code = re.sub(r"\n    Example::.*?(?=    \"\"\")", "", CODE, flags=re.DOTALL)
    assert "Example" not in code
    assert run_tests(project, code).failed["test_is_documented"] == 1
