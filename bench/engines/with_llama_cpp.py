"""llama.cpp, through llama-cpp-python built for this machine."""

from __future__ import annotations

import ctypes
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.case import Array, Case
from bench.engines.base import Engine, Prepared
from bench.workloads.smollm2 import Step, model_file


class LlamaCpp(Engine):
    """The model's file as it is, and requantized where it is faster so; all of its low-level interface, as its own programs use it."""

    packages = ("llama-cpp-python",)
    llama: Any

    def start(self) -> None:
        """Its library."""
        self.llama = import_module("llama_cpp")
        self._silent = self.llama.llama_log_callback(lambda level, text, data: None)
        self.llama.llama_log_set(self._silent, ctypes.c_void_p(0))
        self.llama.llama_backend_init()

    def prepare(self, case: Case) -> Prepared | None:
        """A context that holds the tokens before; every run puts the same ones behind them."""
        if not isinstance(case, Step):
            return None
        context = self._context(case)
        known, new = case.ids[: case.known], case.ids[case.known :]
        if known:
            self._decode(context, known)
        memory = self.llama.llama_get_memory(context)

        def run(times: int) -> None:
            for _ in range(times):
                self.llama.llama_memory_seq_rm(memory, 0, case.known, -1)
                self._decode(context, new)

        def results() -> list[Array]:
            run(1)
            vocabulary = self.llama.llama_vocab_n_tokens(self.llama.llama_model_get_vocab(self.llama.llama_get_model(context)))
            return [np.ctypeslib.as_array(self.llama.llama_get_logits_ith(context, -1), (vocabulary,)).copy()]

        return Prepared(run, results)

    def _context(self, case: Step) -> Any:
        model = self.llama.llama_model_load_from_file(str(self._file(case)).encode(), self.llama.llama_model_default_params())
        settings = self.llama.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = len(case.ids) + 64, 512, 512
        settings.n_threads = settings.n_threads_batch = self.threads
        return self.llama.llama_init_from_model(model, settings)

    def _file(self, case: Step) -> Path:
        """The model's file; one with other blocks, made here, where the case lets precision go."""
        file = model_file()
        assert file is not None
        if case.precision == "f32":
            return file
        made = Path(tempfile.mkdtemp()) / "q4_0.gguf"
        settings = self.llama.llama_model_quantize_default_params()
        settings.ftype, settings.allow_requantize, settings.nthread = self.llama.LLAMA_FTYPE_MOSTLY_Q4_0, True, self.threads
        failed = self.llama.llama_model_quantize(str(file).encode(), str(made).encode(), ctypes.byref(settings))
        if failed:
            raise RuntimeError(f"llama.cpp can't requantize {file.name}")
        return made

    def _decode(self, context: Any, ids: list[int]) -> None:
        for start in range(0, len(ids), 512):
            part = ids[start : start + 512]
            tokens = (self.llama.llama_token * len(part))(*part)
            if self.llama.llama_decode(context, self.llama.llama_batch_get_one(tokens, len(part))):
                raise RuntimeError("llama.cpp can't decode")
        self.llama.llama_synchronize(context)
