"""Text to tokens and back, by what a GGUF file says of its tokenizer.

Tokens are turned into bytes here; text is split and merged by the package ``tokenizers``, which is imported when the first text is
encoded.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from graph_opt.ahead import Ahead
from graph_opt.llm.extras import extra, said
from graph_opt.llm.vocabulary import (
    BYTE,
    CONTROL,
    MERGES,
    ORDINARY,
    SCORES,
    TOKENS,
    TYPES,
    UNKNOWN,
    USER_DEFINED,
    check_merges,
    check_vocabulary,
    not_two,
)
from ir.diagnostics import Diagnostic, GraphError, did_you_mean
from ir.weights import quoted

if TYPE_CHECKING:
    from interop._gguf_metadata import Metadata

MORE = "load the model with more: --capacity N, or llm.load(..., capacity=N)"
"""What to do where a prompt and its answer don't fit."""

END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<EOT>", "</s>")
"""Control tokens that end a text or a turn, whatever the metadata calls the end."""

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_ANY_CASE = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut into the parts that merges don't cross: by each pattern in turn; what matches, and what lies between, is a part."""

    patterns: tuple[str, ...]
    whole_parts: bool = False
    """Whether a part that is a token is taken as it is, without merges."""
    bos: bool = False
    """Whether the begin token comes first, where the metadata doesn't say."""


_GPT2 = PreTokenizer((_WORDS,))
_DIGITS = PreTokenizer((r"\p{N}", _WORDS))
_LLAMA3 = PreTokenizer((_ANY_CASE % r"\p{N}{1,3}",), whole_parts=True, bos=True)
_QWEN2 = PreTokenizer((_ANY_CASE % r"\p{N}",))
PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "codeshell": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _QWEN2,
    "stablelm2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
"""By ``tokenizer.ggml.pre``."""


def byte_letters() -> list[str]:
    """The letter that byte-level vocabularies write for each byte: itself where it can be seen, else one from U+0100 on."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


class Tokenizer:
    """The tokenizer that a file's metadata describes: byte-level BPE ("gpt2"), or SentencePiece's BPE by scores ("llama").

    Raises GraphError for one of another kind, and for metadata that don't fit together.
    """

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.model = metadata.text("tokenizer.ggml.model")
        if self.model not in ("gpt2", "llama"):
            raise metadata.fail("tokenizer.ggml.model", f"there is no tokenizer {quoted(self.model)}, known are gpt2 and llama")
        self._pre = self._pre_tokenizer()
        check_vocabulary(metadata, scored=self.model == "llama")
        default = self.model == "llama" or self._pre.bos
        self.bos = self._number("bos")
        self.eos = self._number("eos")
        self._ahead: Ahead[Any] | None = None
        self._space_prefix = self.model == "llama" and metadata.flag("tokenizer.ggml.add_space_prefix", True)
        self.adds_bos = self.bos is not None and metadata.flag("tokenizer.ggml.add_bos_token", default)

    def _number(self, name: str) -> int | None:
        """The token that the metadata call so; None where they don't name one."""
        key = f"tokenizer.ggml.{name}_token_id"
        return self.metadata.integer(key) if key in self.metadata else None

    def _pre_tokenizer(self) -> PreTokenizer:
        if self.model == "llama":
            return PreTokenizer(())
        pre = self.metadata.text("tokenizer.ggml.pre", "default")
        if pre not in PRE_TOKENIZERS:
            hint = did_you_mean(pre, PRE_TOKENIZERS) or f"known are {', '.join(PRE_TOKENIZERS)}"
            raise self.metadata.fail("tokenizer.ggml.pre", f"there is no pre-tokenizer {quoted(pre)}; {hint}")
        return PRE_TOKENIZERS[pre]

    @cached_property
    def tokens(self) -> list[str]:
        """The tokens as the file writes them."""
        return self.metadata.strings(TOKENS)

    @cached_property
    def longest(self) -> int:
        """The bytes of the longest token as the file writes it: no token stands for more of a text."""
        return int(self.metadata.sizes(TOKENS).max(initial=1))

    @cached_property
    def types(self) -> list[int]:
        """The type of each token."""
        types: list[int] = self.metadata.numbers(TYPES).tolist() if TYPES in self.metadata else [ORDINARY] * len(self.tokens)
        return types

    def check(self) -> None:
        """Raises GraphError for all that is wrong with the lists of tokens; what is quickly found out was when this object was made."""
        ids = self.ids  # no token stands there twice
        if self.model == "gpt2":
            check_merges(self.metadata, ids)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The number of each token."""
        ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(ids) != len(self.tokens):
            twice = next(token for i, token in enumerate(self.tokens) if ids[token] != i)
            raise self.metadata.fail(TOKENS, f"token {quoted(twice)} stands there twice")
        return ids

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text or a turn."""
        named = [self._number(name) for name in ("eos", "eot", "eom")]
        known = {i for i in named if i is not None}
        return frozenset(known | {i for i, type_ in enumerate(self.types) if type_ == CONTROL and self.tokens[i] in END_NAMES})

    def text_of(self, token: int | None) -> str:
        """A token as the file writes it; empty for None."""
        return "" if token is None else self.tokens[token]

    # -- to tokens ---------------------------------------------------------------------------------------------------------

    def encode(self, text: str, *, special: bool = True, bos: bool = True, most: int | None = None) -> list[int]:
        """The tokens of a text.

        With ``special`` names of control tokens in it stand for these, as in chat templates; without they are text like any other.  With
        ``bos`` the begin token comes first, if this tokenizer wants one.  A text that is longer than ``most`` of the longest tokens is
        refused without a look at it.
        """
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise GraphError(Diagnostic(f"the text is not valid Unicode at letter {error.start}")) from None
        if most is not None and size > most * self.longest:
            message = f"the prompt has {size} bytes: more than the capacity of {most} tokens, of which none has more than {self.longest} bytes"
            raise GraphError(Diagnostic(message, hint=MORE))
        backend = self._backend
        backend.encode_special_tokens = not special
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return [self.bos, *ids] if bos and self.adds_bos and self.bos is not None else ids

    def prepare(self) -> None:
        """Begins to make what the first text needs, in a thread."""
        self._ahead = Ahead(self._new_backend)

    @cached_property
    def _backend(self) -> Any:
        return self._new_backend() if self._ahead is None else self._ahead.result()

    def _new_backend(self) -> Any:
        package = extra("tokenizers", "turning text into tokens")
        try:
            made = package.Tokenizer(self._bytes_model(package) if self.model == "gpt2" else self._score_model(package))
        except GraphError:
            raise
        except Exception as error:  # the package has no exceptions of its own
            raise GraphError(Diagnostic(f"{self.metadata.where}: its tokens and merges make no tokenizer: {said(str(error))}")) from None
        if self.model == "gpt2":
            pre = package.pre_tokenizers
            cuts = [pre.Split(package.Regex(pattern), behavior="isolated") for pattern in self._pre.patterns]
            made.pre_tokenizer = pre.Sequence([*cuts, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
        else:
            normal = package.normalizers
            prefix = [normal.Prepend("▁")] if self._space_prefix else []
            made.normalizer = normal.Sequence([*prefix, normal.Replace(" ", "▁")])
        added = [(self.tokens[i], t) for i, t in enumerate(self.types) if t in (CONTROL, USER_DEFINED) and self.tokens[i]]
        made.add_special_tokens([package.AddedToken(text, normalized=False) for text, t in added if t == CONTROL])
        made.add_tokens([package.AddedToken(text, normalized=False) for text, t in added if t == USER_DEFINED])
        return made

    def _bytes_model(self, package: Any) -> Any:
        pairs = [tuple(merge.split(" ", 1)) for merge in self.metadata.strings(MERGES)]
        if not all(len(pair) == 2 for pair in pairs):
            number, pair = next((n, p) for n, p in enumerate(pairs) if len(p) != 2)
            raise not_two(self.metadata, number, pair[0])
        return package.models.BPE(vocab=self.ids, merges=pairs, ignore_merges=self._pre.whole_parts)

    def _score_model(self, package: Any) -> Any:
        """Two neighbours are joined where that makes a token, the one of the highest score first."""
        scores, ids = self.metadata.numbers(SCORES).tolist(), self.ids
        joined = [i for i, t in enumerate(self.types) if t not in (UNKNOWN, CONTROL, BYTE)]
        joined.sort(key=scores.__getitem__, reverse=True)
        pairs = [
            (token[:cut], token[cut:])
            for token in (self.tokens[i] for i in joined)
            for cut in range(1, len(token))
            if token[:cut] in ids and token[cut:] in ids
        ]
        unknown = next((self.tokens[i] for i, t in enumerate(self.types) if t == UNKNOWN), None)
        return package.models.BPE(vocab=ids, merges=pairs, byte_fallback=True, unk_token=unknown, fuse_unk=True)

    # -- to text -----------------------------------------------------------------------------------------------------------

    @cached_property
    def _byte_of_letter(self) -> dict[str, int]:
        return {letter: byte for byte, letter in enumerate(byte_letters())}

    def bytes_of(self, token: int) -> bytes:
        """What a token stands for; control tokens for their names.  Raises GraphError for a number that is no token."""
        if not 0 <= token < len(self.tokens):
            raise GraphError(Diagnostic(f"token {token}: there are {len(self.tokens)} tokens"))
        text, type_ = self.tokens[token], self.types[token]
        if type_ in (CONTROL, USER_DEFINED):
            return text.encode()
        if self.model == "llama":
            if type_ == BYTE and (byte := re.fullmatch("<0x([0-9A-F]{2})>", text)):
                return bytes.fromhex(byte[1])
            return text.replace("▁", " ").encode()
        try:
            return bytes(map(self._byte_of_letter.__getitem__, text))
        except KeyError:  # no byte-level token
            return text.encode()

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
        stream = self.stream()
        text = "".join(map(stream.feed, ids)) + stream.finish()
        return text.removeprefix(" ") if self._space_prefix else text  # the one that encoding puts there

    def stream(self) -> TextStream:
        """Turns tokens into text one by one."""
        return TextStream(self)


class TextStream:
    """Text that grows with every token.  A letter whose bytes are not all there yet is held back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that this token completes; often with nothing held back, sometimes empty."""
        return self._decoder.decode(self._tokenizer.bytes_of(token))

    def finish(self) -> str:
        """What is left: U+FFFD where a letter was not completed."""
        return self._decoder.decode(b"", final=True)


def check_ids(ids: Sequence[int], vocabulary: int) -> None:
    """Raises GraphError for token ids that are none, with their place."""
    for place, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            raise GraphError(Diagnostic(f"prompt_ids[{place}] is {token!r}: expected an integer from 0 to {vocabulary - 1}"))
