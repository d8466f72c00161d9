"""Chat templates."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from graph_opt.llm import chat
from graph_opt.llm.chat import chat_text
from graph_opt.llm.tokenizer import Tokenizer
from interop.gguf import GgufFile
from ir.diagnostics import GraphError
from tests.gguf_files import gguf_bytes, tokenizer_metadata
from tests.llm.smollm2 import needed_model

pytest.importorskip("jinja2")

MESSAGES = [{"role": "user", "content": "Hi <b>"}]


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """A tokenizer with a chat template."""

    def make(template: str | None) -> Tokenizer:
        metadata = {"general.architecture": "llama", **tokenizer_metadata(), "tokenizer.chat_template": template}
        path = tmp_path / "t.gguf"
        path.write_bytes(gguf_bytes({k: v for k, v in metadata.items() if v is not None}, {}))
        return Tokenizer(GgufFile(path).metadata)

    return make


def test_a_conversation(made: Any) -> None:
    template = tokenizer_metadata()["tokenizer.chat_template"]
    assert chat_text(made(template), MESSAGES) == "<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\n"
    assert chat_text(made(template), MESSAGES, answer=False) == "<|im_start|>user\nHi <b><|im_end|>\n"


def test_what_templates_may_use(made: Any) -> None:
    template = (
        "{{ bos_token }}{{ eos_token }}\n    {% for m in messages %}\n{% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{{ m | tojson }}{{ m.content | trim }}{% endfor %}{{ strftime_now('%Y') | length }}"
    )
    text = chat_text(made(template), MESSAGES * 2)
    assert text == '<|im_start|><|im_end|>\n{"role": "user", "content": "Hi <b>"}Hi <b>4'


@pytest.mark.parametrize(
    ("template", "line", "message"),
    [
        ("a\n{{ 1 + }}", 2, "unexpected"),
        ("a\nb\n{{ messages[7].role.x }}", 3, "has no element 7"),
        ("a\n{{ raise_exception('roles must alternate') }}", 2, "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", 1, "unsafe"),
        ("{{ messages.append(1) }}", 1, "unsafe"),
        ("{% include '/etc/passwd' %}", 1, "no loader"),
    ],
)
def test_errors_are_located(made: Any, template: str, line: int, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        chat_text(made(template), MESSAGES)
    assert f"t.gguf>:{line}:1: error: the chat template can't be filled in: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% set n = namespace(x='a' * 1000) %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "too much memory"),
        ("{{ 'a'.ljust(9999999999) }}", "too much memory"),
        ("{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}", "letters"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "too long"),
    ],
)
def test_bombs_do_not_go_off(made: Any, monkeypatch: pytest.MonkeyPatch, template: str, message: str) -> None:
    monkeypatch.setattr(chat, "_SECONDS", 2)
    start = time.monotonic()
    with pytest.raises(GraphError, match=message):
        chat_text(made(template), MESSAGES)
    assert time.monotonic() - start < 60


def test_messages_are_safe_and_short(made: Any) -> None:
    with pytest.raises(GraphError) as caught:
        chat_text(made("{{ raise_exception('\x1b[31m\\x1b]0;\\u202e\\x07\nfoo:1:1: error ' ~ 'x' * 5000000) }}"), MESSAGES)
    first, *rest = str(caught.value).splitlines()
    assert "\ufffd[31m\ufffd]0;\ufffd\ufffd\ufffdfoo:1:1: error xxx" in first and first.endswith("xxx...") and len(first) < 600
    assert all(map(str.isprintable, rest))
    with pytest.raises(GraphError, match=r"filled in: \ufffd"):
        chat_text(made("{{ raise_exception('\\ud800') }}"), MESSAGES)


def test_a_file_without_template_says_so(made: Any) -> None:
    with pytest.raises(GraphError, match="there is no chat template"):
        chat_text(made(None), MESSAGES)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "expected a list of turns, found str"),
        (["hello"], r"messages\[0\]: expected a dictionary"),
        ([*MESSAGES, {"role": "user"}], r"messages\[1\]: expected a dictionary"),
        ([{"role": "user", "content": 1}], r"messages\[0\]: expected a dictionary"),
    ],
)
def test_what_is_no_conversation(made: Any, messages: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        chat_text(made("x"), messages)


def test_without_jinja(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "find_spec", lambda name: None)
    with pytest.raises(GraphError, match="pip install tokenizers jinja2"):
        chat_text(made("x"), MESSAGES)


def test_smollm2() -> None:
    tokenizer = Tokenizer(GgufFile(needed_model()).metadata)
    text = chat_text(tokenizer, [{"role": "user", "content": "What is the capital of France?"}])
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert text == f"{system}<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
