"""Where programs and weights come from: readers of other tools' files.

:func:`open_weights` opens a file of weights of any known format.  The formats' modules are imported when needed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ir.diagnostics import Diagnostic, GraphError

if TYPE_CHECKING:
    from ir.weights import WeightSource

KNOWN_FORMATS = "safetensors, GGUF, .npz, .npy"
_PICKLE_SUFFIXES = (".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def open_weights(path: str | os.PathLike[str], *, sha256: str | None = None, follow_symlinks: bool = True) -> WeightSource:
    """The weights in a file, whose format is told by its first bytes, else by the end of its name.

    With ``sha256`` the file's digest is checked first, on the descriptor that is then read from.  With
    ``follow_symlinks=False`` a path that ends in a symbolic link is refused.  Raises GraphError.
    """
    from interop._files import RegularFile

    file = RegularFile(path, follow_symlinks=follow_symlinks)
    try:
        if sha256 is not None:
            from interop.digest import check_digest

            check_digest(file, sha256)
        format_ = _format_of(file.read_at(0, min(9, file.size)), file.path.name.lower(), file.path)
    except BaseException:
        file.close()
        raise
    if format_ == "safetensors":
        from interop.safetensors import SafetensorsFile

        return SafetensorsFile(file)
    if format_ == "gguf":
        from interop.gguf import GgufFile

        return GgufFile(file)
    from interop.npz import NpyFile, NpzFile

    return NpzFile(file) if format_ == "npz" else NpyFile(file)


def _format_of(lead: bytes, name: str, path: os.PathLike[str]) -> str:
    """"safetensors", "gguf", "npz" or "npy".  No valid safetensors file starts like one of the others (the length would be absurd)."""
    if lead[8:9] == b"{" and lead[5:8] == b"\0\0\0":
        return "safetensors"
    if lead[:4] == b"GGUF":
        return "gguf"
    if lead[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "npz"
    if lead[:6] == b"\x93NUMPY":
        return "npy"
    if (lead[:1] == b"\x80" and lead[1:2] in (b"\2", b"\3", b"\4", b"\5")) or name.endswith(_PICKLE_SUFFIXES):
        from interop.npz import pickle_refusal

        raise pickle_refusal(str(path))
    for known in ("safetensors", "gguf", "npz", "npy"):
        if name.endswith("." + known):
            return known
    raise GraphError(Diagnostic(f"{path}: not a known format of weights", hint=f"known are: {KNOWN_FORMATS}"))
