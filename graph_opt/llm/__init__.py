"""Text generation: a model of the Llama family from its GGUF file, its tokenizer, and its chat template.

    from graph_opt import llm
    model = llm.load("model.gguf")
    for piece in model.generate("Once upon a time", max_tokens=64):
        print(piece, end="", flush=True)

The extra packages (``pip install -e '.[llm]'`` in a checkout) are imported when text is turned into tokens or a chat template is filled in.
"""

from __future__ import annotations

from graph_opt.llm.model import Model, Statistics, load

__all__ = ["Model", "Statistics", "load"]
