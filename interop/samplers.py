"""Programs that choose the next token from a model's logits, as text."""

from __future__ import annotations

from numbers import Integral, Real

from ir.diagnostics import Diagnostic, GraphError

TOP_K, TOP_P = 40, 0.95
"""What the sampler of an imported file keeps."""

TEMPERATURES = (1e-6, 1e6)
"""The least and the greatest that is useful; zero means the largest logit."""


def greedy_text(vocabulary: int, name: str = "greedy") -> str:
    """The token of the largest logit; of equal ones the first."""
    return f"""\
graph @{name}(%logits: f32[{vocabulary}]) -> (token: i64[]) {{
  %token = argmax(%logits)
  return %token
}}
"""


def sampler_text(vocabulary: int, top_k: int | None = None, top_p: float | None = None, name: str = "sample") -> str:
    """A token by its probability: logits over temperature, the ``top_k`` largest, softmax, the most probable up to ``top_p``, one by seed.

    None, 0 or the whole vocabulary for ``top_k``, and None or 1 for ``top_p``, keep all.  Equal seeds give equal tokens.  Raises
    GraphError for numbers that make no sense.
    """
    check_choice(top_k, top_p)
    cut = bool(top_k) and top_k is not None and top_k < vocabulary
    lines = ["%scaled = div(%logits, %temperature)"]
    if cut:
        lines += [f"%top, %order = topk(%scaled, k={top_k})", "%probs = softmax(%top)"]
    else:
        lines += ["%probs = softmax(%scaled)"]
    kept = "probs"
    if top_p is not None and top_p < 1:
        lines += [f"%kept = top_p(%probs, p={float(top_p)!r})"]
        kept = "kept"
    lines += [f"%chosen = multinomial(%{kept}, %seed)"]
    if cut:
        lines += ["%picked = gather(%order, %chosen)"]
    lines += [f"%token = reshape(%{'picked' if cut else 'chosen'}, shape=[])", "return %token"]
    body = "".join(f"  {line}\n" for line in lines)
    return f"graph @{name}(%logits: f32[{vocabulary}], %temperature: f32[], %seed: i64[]) -> (token: i64[]) {{\n{body}}}\n"


def samplers_text(vocabulary: int) -> str:
    """The graphs that an imported model has for its logits: ``@greedy`` and ``@sample``."""
    return f"""\
// The next token of the logits: the most probable one.
{greedy_text(vocabulary)}
// Or one by chance: temperature, the {TOP_K} most probable, of these the first that make up {TOP_P:.0%}, one of them by the seed.
{sampler_text(vocabulary, TOP_K, TOP_P)}"""


def check_choice(top_k: int | None, top_p: float | None) -> None:
    """Raises GraphError for a ``top_k`` or ``top_p`` that makes no sense."""
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, Integral) or top_k < 0):
        raise GraphError(Diagnostic(f"top_k: expected an integer from 0 (all) on, found {top_k!r}"))
    if top_p is not None and (isinstance(top_p, bool) or not isinstance(top_p, Real) or not 0 < top_p <= 1):
        raise GraphError(Diagnostic(f"top_p: expected a number above 0, up to 1 (all), found {top_p!r}"))
