"""Whether what a GGUF file says of its tokenizer fits together, found out before anything is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from interop._gguf_metadata import Metadata
from ir.weights import quoted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ir.diagnostics import GraphError

TOKENS, TYPES, SCORES, MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores", "merges"))

ORDINARY, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
"""Types of tokens in the metadata; others are treated as ordinary ones."""

NUMBERED = ("bos", "eos", "eot", "eom")
"""Tokens that the metadata give by number, and that mean something here."""

MAX_TOKEN = 1024
"""Bytes of a token.  Those of known models have at most 256: a line of 128 spaces, two bytes each in a byte-level vocabulary."""

MAX_TOKENS = 1 << 23
"""Bytes of all tokens; a vocabulary of 256k takes about 2 MB."""

MAX_MERGES = 1 << 21
"""Merges; a vocabulary of 256k has about twice as many."""

MAX_NAMES = 1 << 20
"""Bytes of all tokens that are looked for in a text as they are: an automaton takes a hundred times the memory."""


def check_numbered(metadata: Metadata) -> None:
    """Raises GraphError for a token by number that the vocabulary doesn't have."""
    count = metadata.length(TOKENS)
    for key in (f"tokenizer.ggml.{name}_token_id" for name in NUMBERED):
        if key in metadata and (token := metadata.integer(key)) >= count:
            raise metadata.fail(key, f"{token}, but there are {count} tokens")


def check_vocabulary(metadata: Metadata, *, scored: bool) -> None:
    """Raises GraphError, which names the key, for lists of tokens that are missing, too long, or don't fit together.

    ``scored`` says that tokens are joined by their scores, not by a list of merges.  No string is decoded.
    """
    for key in (TOKENS, SCORES if scored else MERGES):
        if key not in metadata:
            raise metadata.missing(key)
    sizes = metadata.sizes(TOKENS)
    _check_sizes(metadata, sizes)
    check_numbered(metadata)
    if TYPES in metadata:
        types = _numbers(metadata, TYPES, len(sizes))
        if types.dtype.kind not in "iu":
            raise metadata.fail(TYPES, f"expected integers, found an array of {types.dtype}")
        names = int(sizes[(types == CONTROL) | (types == USER_DEFINED)].sum())
        if names > MAX_NAMES:
            raise metadata.fail(TOKENS, f"control and user-defined tokens have {names} bytes together, at most {MAX_NAMES} are allowed")
    if scored and np.isnan(_numbers(metadata, SCORES, len(sizes))).any():
        raise metadata.fail(SCORES, "one of them is no number (NaN)")
    if not scored:
        if (count := len(metadata.sizes(MERGES))) > MAX_MERGES:
            raise metadata.fail(MERGES, f"there are {count}, at most {MAX_MERGES} are allowed")


def _check_sizes(metadata: Metadata, sizes: NDArray[np.int64]) -> None:
    """Joining by scores looks at every cut of every token, so that long ones would take forever."""
    if not len(sizes):
        raise metadata.fail(TOKENS, "there are none")
    longest = int(sizes.argmax())
    if sizes[longest] > MAX_TOKEN:
        raise metadata.fail(TOKENS, f"token {longest} has {sizes[longest]} bytes, at most {MAX_TOKEN} are allowed")
    if (total := int(sizes.sum())) > MAX_TOKENS:
        raise metadata.fail(TOKENS, f"they have {total} bytes together, at most {MAX_TOKENS} are allowed")


def _numbers(metadata: Metadata, key: str, count: int) -> NDArray[np.generic]:
    """A number for each token."""
    found = metadata.numbers(key)
    if len(found) != count:
        raise metadata.fail(key, f"{len(found)} numbers for {count} tokens")
    return found


def check_merges(metadata: Metadata, ids: dict[str, int]) -> None:
    """Raises GraphError for a merge that doesn't join two tokens to one."""
    for number, merge in enumerate(metadata.strings(MERGES)):
        first, space, second = merge.partition(" ")
        if not space:
            raise not_two(metadata, number, merge)
        for part in (first, second, first + second):
            if part not in ids:
                raise metadata.fail(MERGES, f"merge {number}, {quoted(merge)}: {quoted(part)} is no token")


def not_two(metadata: Metadata, number: int, merge: str) -> GraphError:
    """The complaint about a merge without a space."""
    return metadata.fail(MERGES, f"merge {number}, {quoted(merge)}: expected two tokens with a space between")
