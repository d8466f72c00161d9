"""Every sample parses, verifies, and prints as something that reads back as itself."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import dialects  # noqa: F401  defines the operations
from ir.inference import infer_module
from ir.interpreter import Interpreter
from ir.parser import parse_module
from ir.printer import print_module
from ir.verifier import verify_module

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.mark.parametrize("path", sorted(SAMPLES.rglob("*.graph")), ids=lambda p: p.stem)
def test_sample(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    module = parse_module(text, path.name)
    printed = print_module(module)
    assert print_module(parse_module(printed, path.name)) == printed
    # only the space before a comment may be written otherwise
    assert re.sub(r" +//", "  //", printed) == re.sub(r" +//", "  //", text)
    infer_module(module)
    verify_module(module)


def test_bare_and_written_out_mlp_agree() -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 64), (64, 256), (256,), (256, 64))]
    found = []
    for name in ("mlp.graph", "mlp_bare.graph"):
        module = parse_module((SAMPLES / name).read_text(encoding="utf-8"), name)
        infer_module(module)
        found.append(Interpreter(module).run(module.main, arrays)[0])
    assert found[0].shape == (3, 64) and found[0].tobytes() == found[1].tobytes()
    x, w1, b1, w2 = (a.astype(np.float64) for a in arrays)
    h = x @ w1 + b1
    assert np.allclose(found[0], h / (1 + np.exp(-h)) @ w2, rtol=1e-5, atol=1e-5)


def _block_by_hand(x: np.ndarray, positions: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    """The transformer block in float64, one head at a time."""
    norm1, wq, wk, wv, wo, norm2, gate, up, down = weights

    def rms(value: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return value / np.sqrt(np.mean(value**2, axis=-1, keepdims=True) + 1e-5) * scale

    angle = positions[:, None] * 10000.0 ** (-np.arange(32) / 32)

    def turn(value: np.ndarray) -> np.ndarray:
        a, b = value[..., :32], value[..., 32:]
        return np.concatenate((a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)), -1)

    a = rms(x, norm1)
    heads = []
    for head in range(8):
        rows, shared = slice(head * 64, head * 64 + 64), slice(head // 4 * 64, head // 4 * 64 + 64)
        q, k, v = turn(a @ wq[rows].T), turn(a @ wk[shared].T), a @ wv[shared].T
        scores = np.tril(np.exp(q @ k.swapaxes(1, 2) / 8))
        heads.append(scores / scores.sum(-1, keepdims=True) @ v)
    x = x + np.concatenate(heads, -1) @ wo.T
    f = rms(x, norm2)
    g = f @ gate.T
    return x + (g / (1 + np.exp(-g)) * (f @ up.T)) @ down.T


def test_transformer_block() -> None:
    module = parse_module((SAMPLES / "transformer_block.graph").read_text(encoding="utf-8"), "transformer_block.graph")
    infer_module(module)
    rng = np.random.default_rng(2)
    arrays: list[np.ndarray] = []
    for parameter in module.main.parameters:
        shape = [{"B": 2, "S": 9}.get(str(d), d) for d in parameter.type.shape]
        if parameter.name == "positions":
            arrays.append(np.arange(3, 12))
        else:
            arrays.append((rng.standard_normal(shape) * (1 if len(shape) != 2 else shape[-1] ** -0.5)).astype(np.float32))
    (found,) = Interpreter(module).run(module.main, arrays)
    want = _block_by_hand(arrays[0].astype(np.float64), arrays[1], *(a.astype(np.float64) for a in arrays[2:]))
    assert found.shape == (2, 9, 512) and np.abs(found - want).max() < 1e-5
