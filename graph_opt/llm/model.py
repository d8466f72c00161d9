"""A language model that runs: prompt in, tokens out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graph_opt.llm.cache import KeyValueCache
from graph_opt.llm.chat import Message, chat_text
from graph_opt.llm.program import Program, load_program
from graph_opt.llm.tokenizer import MORE, Tokenizer, check_ids
from interop.samplers import TEMPERATURES, check_choice, greedy_text, sampler_text
from ir.diagnostics import Diagnostic, GraphError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from graph_opt.api import Device

PREFILL = 512
"""Tokens of a prompt that are computed at once; how a prompt is split doesn't change a bit of what comes out."""

KEPT = 2
"""Caches that are kept for prompts that go on where an earlier one began."""

SEEDS = 0x9E3779B97F4A7C15
"""Distance of two seeds' random numbers: those of neighbours don't overlap."""

SEED_RANGE = (-(1 << 63), (1 << 64) - 1)
"""Signed or not: seeds that are the same 64 bits are equal."""


@dataclass
class Statistics:
    """What a generation took; it grows while tokens come."""

    prompt_tokens: int = 0
    reused: int = 0
    """Tokens of the prompt that were in the cache already."""
    first_token: float = 0.0
    """Seconds until the first token: the prompt, and choosing."""
    tokens: int = 0
    seconds: float = 0.0
    """For all tokens behind the first, whatever the caller did meanwhile left out."""

    @property
    def prompt_rate(self) -> float:
        """Tokens of the prompt computed in a second."""
        return (self.prompt_tokens - self.reused) / self.first_token if self.first_token else 0.0

    @property
    def rate(self) -> float:
        """Tokens in a second, the first left out."""
        return (self.tokens - 1) / self.seconds if self.tokens > 1 and self.seconds else 0.0


class Model:
    """A model with its tokenizer; :func:`load` makes it.

    Several generations may be under way at a time: each has a cache of its own.  ``statistics`` are those of the last one begun.
    """

    def __init__(self, program: Program, tokenizer: Tokenizer, capacity: int) -> None:
        self.program = program
        self.tokenizer = tokenizer
        self.capacity = capacity
        self.vocabulary = program.vocabulary
        self.statistics = Statistics()
        self._idle: list[KeyValueCache] = []
        self._samplers: dict[tuple[int | None, float | None] | None, Any] = {}
        count = len(tokenizer.tokens)
        if count != self.vocabulary:
            raise GraphError(Diagnostic(f"{tokenizer.metadata.where}: the model has logits for {self.vocabulary} tokens, its tokenizer has {count}"))

    # -- generating --------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | None = None,
        prompt_ids: Sequence[int] | None = None,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: bool = True,
        ids: bool = False,
    ) -> Generator[Any, None, None]:
        """Goes on from a prompt: an iterator of pieces of text, or of token ids with ``ids=True``.

        The prompt is text, in which names of control tokens stand for these, or tokens.  It ends after ``max_tokens`` tokens, when the
        cache is full, or with ``stop`` at an end token, which is the last of the ids and no text.  At ``temperature`` 0 the most probable
        token is taken.  Else logits are divided by it, the ``top_k`` largest are kept (None or 0: all), of these the most probable that
        make up ``top_p`` (None: all), and one is taken by chance: equal seeds give equal tokens.  Raises GraphError at once for arguments
        that make no sense, and for prompts that don't fit into the capacity.
        """
        tokens = self._prompt(prompt, prompt_ids)
        room = self.capacity - len(tokens) + 1  # the last one isn't put into the cache
        if room < 1:
            raise GraphError(Diagnostic(f"the prompt has {len(tokens)} tokens, the capacity is {self.capacity}", hint=MORE))
        check_integer("max_tokens", max_tokens, 0, optional=True)
        if max_tokens is not None and max_tokens > room:
            message = f"a prompt of {len(tokens)} tokens and {max_tokens} new ones are more than the capacity of {self.capacity}"
            raise GraphError(Diagnostic(message, hint=MORE))
        choose = self._choice(temperature, top_k, top_p, seed)
        statistics = self.statistics = Statistics(prompt_tokens=len(tokens))
        ends = self.tokenizer.ends if stop else frozenset()
        found = self._tokens(tokens, room if max_tokens is None else max_tokens, choose, ends, statistics)
        return found if ids else self._text(found, ends)

    def chat(self, messages: Sequence[Message], **options: Any) -> Generator[Any, None, None]:
        """The answer to a conversation, a list of ``{"role": "user", "content": "..."}``; options as for :meth:`generate`."""
        return self.generate(prompt_ids=self.chat_ids(messages), **options)

    def chat_ids(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, up to where the answer begins."""
        return self.tokenizer.encode(chat_text(self.tokenizer, messages), bos=False, most=self.capacity)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """The logits of the token behind those, f32[vocabulary]."""
        tokens = self._prompt(None, ids)
        if len(tokens) > self.capacity:
            raise GraphError(Diagnostic(f"{len(tokens)} tokens, the capacity is {self.capacity}", hint=MORE))
        cache = self._take(tokens)
        try:
            return np.asarray(self._forward(cache, tokens, min(cache.common(tokens), len(tokens) - 1)))
        finally:
            self._give_back(cache)

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _prompt(self, prompt: str | None, ids: Sequence[int] | None) -> list[int]:
        if (prompt is None) == (ids is None):
            raise GraphError(Diagnostic("expected a prompt or prompt_ids, one of the two"))
        if ids is None:
            if not isinstance(prompt, str):
                raise GraphError(Diagnostic(f"prompt: expected a string, found {type(prompt).__name__}"))
            tokens = self.tokenizer.encode(prompt, most=self.capacity)
            if not tokens and self.tokenizer.bos is not None:
                tokens = [self.tokenizer.bos]  # a model needs something to begin with
        else:
            tokens = _listed(ids)
        if not tokens:
            raise GraphError(Diagnostic("the prompt is empty"))
        check_ids(tokens, self.vocabulary)
        return tokens

    def _choice(self, temperature: float, top_k: int | None, top_p: float | None, seed: int) -> Callable[[Any, int], int]:
        """A function of logits and the position of the token that is chosen."""
        check_temperature(temperature)
        check_choice(top_k, top_p)
        check_integer("seed", seed, *SEED_RANGE)
        if temperature == 0:
            greedy = self._sampler(None)
            return lambda logits, position: int(np.asarray(greedy(logits)))
        sample = self._sampler((None if not top_k else int(top_k), None if top_p is None else float(top_p)))
        heat = np.float32(temperature)
        first = int(seed)  # numbers of numpy would run over
        return lambda logits, position: int(np.asarray(sample(logits, heat, step_seed(first, position))))

    def _sampler(self, cuts: tuple[int | None, float | None] | None) -> Any:
        """The compiled sampler; None is the greedy one."""
        if cuts not in self._samplers:
            text = greedy_text(self.vocabulary) if cuts is None else sampler_text(self.vocabulary, *cuts)
            self._samplers[cuts] = self.program.sampler(text)
        return self._samplers[cuts]

    def _tokens(
        self, tokens: list[int], count: int, choose: Callable[[Any, int], int], ends: frozenset[int], statistics: Statistics
    ) -> Generator[int, None, None]:
        """The tokens that follow, one by one."""
        if not count:
            return
        start = time.perf_counter()
        cache = self._take(tokens)
        try:
            statistics.reused = min(cache.common(tokens), len(tokens) - 1)
            logits = self._forward(cache, tokens, statistics.reused)
            token = self._chosen(choose, logits, len(tokens))
            statistics.tokens, statistics.first_token = 1, time.perf_counter() - start
            yield token
            while token not in ends and statistics.tokens < count:
                start = time.perf_counter()
                tokens.append(token)
                self._forward(cache, tokens, len(tokens) - 1, logits)
                token = self._chosen(choose, logits, len(tokens))
                statistics.tokens += 1
                statistics.seconds += time.perf_counter() - start
                yield token
        finally:
            self._give_back(cache)

    def _chosen(self, choose: Callable[[Any, int], int], logits: Any, position: int) -> int:
        if np.isnan(np.asarray(logits).max()):
            where = self.tokenizer.metadata.where
            raise GraphError(Diagnostic(f"{where}: the logits of token {position} are no numbers (NaN)", hint="its weights may be damaged"))
        return choose(logits, position)

    def _text(self, tokens: Generator[int, None, None], ends: frozenset[int]) -> Generator[str, None, None]:
        """Their text, whole letters."""
        stream = self.tokenizer.stream()
        for token in tokens:
            piece = "" if token in ends else stream.feed(token)
            if piece:
                yield piece
        if rest := stream.finish():
            yield rest

    def _forward(self, cache: KeyValueCache, tokens: Sequence[int], known: int, out: Any = None) -> Any:
        """The logits behind ``tokens``, of which the cache holds ``known``; it holds all of them afterwards.

        They are an array where the program runs, ``out`` if that is given.
        """
        logits = self.program.new_logits() if out is None else out
        del cache.ids[known:]
        cache.reserve(len(tokens))
        while known < len(tokens):
            part = tokens[known : known + PREFILL]
            self.program.forward(np.array(part, np.int64), known, cache.arrays, logits)
            cache.ids += part
            known += len(part)
        return logits

    def _take(self, tokens: Sequence[int]) -> KeyValueCache:
        """An idle cache, the one that holds most of the tokens; a new one where there is none."""
        try:
            best = max(range(len(self._idle)), key=lambda i: self._idle[i].common(tokens), default=None)
            return self.program.new_cache(self.capacity) if best is None else self._idle.pop(best)
        except IndexError:  # another thread was faster
            return self.program.new_cache(self.capacity)

    def _give_back(self, cache: KeyValueCache) -> None:
        self._idle.append(cache)
        del self._idle[:-KEPT]


def _listed(ids: Any) -> list[Any]:
    """Ids as integers; what is none stays as it is.  Raises GraphError for what can't be gone through."""
    try:
        return [int(i) if isinstance(i, np.integer) else i for i in ids]
    except TypeError:
        raise GraphError(Diagnostic(f"prompt_ids: expected a list of integers, found {ids!r:.80}")) from None


def check_integer(name: str, value: Any, low: int, high: int | None = None, *, optional: bool = False) -> None:
    """Raises GraphError for what is no integer in the range (or None, where it may be)."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low or (high is not None and value > high):
        limits = f"from {low} on" if high is None else f"from {low} to {high}"
        raise GraphError(Diagnostic(f"{name}: expected an integer {limits}, found {value!r}"))


def check_temperature(value: Any) -> None:
    """Raises GraphError for a temperature that makes no sense."""
    low, high = TEMPERATURES
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)) or not (value == 0 or low <= value <= high):
        raise GraphError(Diagnostic(f"temperature: expected 0 or a number from {low:g} to {high:g}, found {value!r}"))


def step_seed(seed: int, position: int) -> np.int64:
    """The seed for the token at a position."""
    mixed = (seed * SEEDS + position) & 0xFFFFFFFFFFFFFFFF
    return np.int64(mixed - (1 << 64) if mixed >> 63 else mixed)


def load(
    path: str | os.PathLike[str],
    threads: int | None = None,
    *,
    capacity: int | None = None,
    precision: str = "f32",
    device: Device = "cpu",
    files: Mapping[str, str | os.PathLike[str]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Model:
    """The model in a GGUF file, or in a ``.graph`` file that was imported from one, compiled.

    ``threads`` is how many may be used, None one for each processor.  ``capacity`` is how many tokens a prompt and its continuation may
    have together (default: what the model was made for, 2048 at most).  ``precision`` names the arithmetic of the quantized products
    (see docs/llm.md); ``device`` and ``files`` are those of :func:`graph_opt.compile` (on a GPU caches and logits stay there);
    ``progress`` is told what is being done.  Raises GraphError for everything that is wrong with the files.
    """
    check_integer("threads", threads, 0, optional=True)
    check_integer("capacity", capacity, 1, optional=True)
    for name, value in (("precision", precision), ("device", device)):
        if not isinstance(value, str):
            raise GraphError(Diagnostic(f"{name}: expected a string, found {value!r:.80}"))
    try:
        file = Path(path)
    except TypeError:
        raise GraphError(Diagnostic(f"path: expected the name of a file, found {path!r:.80}")) from None
    program = load_program(file, threads, precision, device, files, progress)
    return Model(program, program.tokenizer, program.checked_capacity(capacity))
