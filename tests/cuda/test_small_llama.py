"""A small model of the Llama family, whose weights are quantized, through the whole preset: prefill and decoding with caches.

``python -m tests.cuda.test_small_llama`` runs more of it as kernels on the CPU, against machine code bit by bit.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import graph_opt
from interop.llama import import_llama
from passes.infra.verify_exec import same_bits
from tests.cuda.device import DEVICE

sys.path.insert(0, str(Path(__file__).parent.parent / "interop"))

from test_llama import IDS, Case, caches, write  # the makers of small models

PIECES = ([5, 1, 1], [1, 7], [2, 2, 1])


def steps(program: Any, case: Case, pieces: list[int]) -> list[NDArray[Any]]:
    """The logits behind each piece of the tokens, and what the caches hold in the end."""
    memory, found, at = caches(case, 16), [], 0
    for count in pieces:
        found.append(np.array(program(IDS[at : at + count], np.int64(at), *memory)))
        at += count
    return [*found, *memory]


def test_kernels_in_the_interpreter(tmp_path: Path) -> None:
    """The same tokens, and logits of a plain run within the bound of products with digits (docs/quantized.md)."""
    case = Case(layers=1, hidden=64)
    module = graph_opt.parse(import_llama(write(tmp_path / "model.gguf", case)))
    files = {"model": tmp_path / "model.gguf"}
    plain = graph_opt.compile(module, files=files, device="reference")
    kernels = graph_opt.compile(module, files=files, device="reference", pipeline="cuda")
    for a, b in zip(steps(plain, case, [4, 1]), steps(kernels, case, [4, 1]), strict=True):
        assert np.allclose(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert a.ndim > 1 or a.argmax() == b.argmax()


def compare_with_machine_code() -> None:
    """In two layers, every bit of the logits and of the caches, for quantized weights of all kinds."""
    for case in (Case(layers=2), Case(layers=2, kind="q4_0", kv_heads=1, table="q4_0"), Case(layers=1, kind="q8_0", untied="q4_1", table="f32")):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            module = graph_opt.parse(import_llama(write(path, case)))
            native = graph_opt.compile(module, files={"model": path})
            kernels = graph_opt.compile(module, files={"model": path}, device=DEVICE)
            for pieces in PIECES:
                want, found = steps(native, case, pieces), steps(kernels, case, pieces)
                wrong = [n for n, (a, b) in enumerate(zip(want, found, strict=True)) if not same_bits(a, b)]
                print(f"{case.kind}, {case.layers} layers, {pieces}: {len(want) - len(wrong)} of {len(want)} arrays have the same bits")
                assert not wrong, wrong


if __name__ == "__main__":
    compare_with_machine_code()
