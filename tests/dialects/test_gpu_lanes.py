"""Operations for all threads of a block at once give what they give for one: the examples of their docstrings, as kernels."""

import re

import pytest

from dialects.gpu import _execution
from tests.checks import all_examples, assert_same, baseline, execute, load

NEST = re.compile(r"^  linalg\.generic\((\w+) < (\S+), ([^<]*?)\) \{\n(.*?)^    yield (%\S+)\n  \}\n", re.MULTILINE | re.DOTALL)
LOOP = re.compile(r"^  scf\.for\((%\w+) = 0 to (\S+?)(?: step (\d+))?\) \{\n(.*?)^  \}\n", re.MULTILINE | re.DOTALL)
DIALECTS = ("arith", "math", "affine", "vector", "memref", "scf", "cf")


def nest_as_kernel(found: re.Match[str]) -> str:
    """Each element by a thread of its own; the last block has threads too many, which do nothing."""
    name, size, bindings, body, result = found.groups()
    accesses = re.findall(r"(%\w+) = (%\w+\[.*?\])", bindings)
    accesses = [(value, place.replace(f"[{name}]", "[%at]")) for value, place in accesses]
    loads = "".join(f"      {value} = memref.load({place})\n" for value, place in accesses)
    inner = re.sub(rf"(?<![\w%]){name}(?!\w)", "%at", "".join(f"  {line}\n" for line in body.splitlines()))
    return f"""  gpu.launch(%bx = 0 to ({size}) ceildiv 4, threads=4) {{
    %th = gpu.thread_id() : index
    %at = affine.apply(4*%bx+%th) : index
    %size = affine.apply({size}) : index
    %inside = arith.cmpi(%at, %size, predicate="lt") : bool
    scf.if(%inside) {{
{loads}{inner}      memref.store({result}, {accesses[-1][1]})
      yield
    }}
    yield
  }}
"""


def loop_as_kernel(found: re.Match[str]) -> str:
    """Each round by one of a block's threads, so that some have one round more than others."""
    variable, size, step, body = found.groups()
    inner = "".join(f"  {line}\n" for line in body.splitlines())
    by = int(step or 1)
    return f"""  gpu.launch(%bx = 0 to 1, threads=3) {{
    %th = gpu.thread_id() : index
    scf.for({variable} = {by}*%th to {size} step {3 * by}) {{
{inner}    }}
    yield
  }}
"""


def kernels() -> dict[str, tuple[str, str]]:
    found = {}
    for name, number, text in all_examples():
        text = text.replace("@example(", "@main(")
        for pattern, rewrite in ((NEST, nest_as_kernel), (LOOP, loop_as_kernel)):
            kernel, count = pattern.subn(rewrite, text)
            if name.split(".")[0] in DIALECTS and count == 1 and "prefetch" not in name:
                found[f"{name}-{number}"] = (text, kernel)
    return found


KERNELS = kernels()


@pytest.mark.parametrize("key", KERNELS)
def test_threads_together_give_what_one_gives(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, kernel = KERNELS[key]
    runs = baseline(load(text), limit=2)
    module = load(kernel)
    for case in runs.cases:
        for double in (False, True):
            wanted = execute(runs.module, case.graph, case.inputs, case.kind, double=double)
            found = execute(module, case.graph, case.inputs, case.kind, double=double)
            assert_same(found, wanted, f"{case}, double={double}\n{kernel}", module)
    monkeypatch.setattr(_execution, "APART", {k: v for k, v in _execution.APART.items() if not k.startswith("vector.")})
    for case in runs.cases:  # and one thread after the other, where there is nothing faster
        assert_same(execute(module, case.graph, case.inputs, case.kind), case.outputs, f"{case}\n{kernel}", module)


def test_there_are_examples_of_most_operations() -> None:
    assert len(KERNELS) > 85, sorted(KERNELS)
