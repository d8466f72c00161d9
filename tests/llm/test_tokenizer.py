"""Text to tokens and back, by what GGUF files say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graph_opt.llm.tokenizer import PRE_TOKENIZERS, Tokenizer, byte_letters
from interop.gguf import GgufFile
from ir.diagnostics import GraphError
from tests import gguf_files
from tests.gguf_files import Typed, gguf_bytes, tokenizer_metadata
from tests.llm.smollm2 import needed_model

pytest.importorskip("tokenizers")


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """A tokenizer from metadata that went through a file."""

    def make(metadata: dict[str, Any]) -> Tokenizer:
        path = tmp_path / "t.gguf"
        path.write_bytes(gguf_bytes({"general.architecture": "llama", **metadata}, {}))
        return Tokenizer(GgufFile(path).metadata)

    return make


def test_merges_make_words(made: Any) -> None:
    tokenizer = made(tokenizer_metadata())
    ids = tokenizer.encode("hello world")
    assert [tokenizer.tokens[i] for i in ids] == ["hello", "Ġworld"]
    assert tokenizer.decode(ids) == "hello world"
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos, tokenizer.ends) == (1, 2, False, {0, 2})


def test_control_tokens_are_names_or_text(made: Any) -> None:
    tokenizer = made(tokenizer_metadata())
    assert tokenizer.encode("<|im_end|>") == [2]
    assert 2 not in tokenizer.encode("<|im_end|>", special=False)
    assert tokenizer.encode("<|im_end|>") == [2]
    assert tokenizer.decode(tokenizer.encode("<|im_end|>", special=False)) == "<|im_end|>" == tokenizer.decode([2])


def test_digits_stand_alone_where_the_model_wants_it(made: Any) -> None:
    metadata = {**tokenizer_metadata(), "tokenizer.ggml.merges": ["1 2"]}
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "12"]
    metadata["tokenizer.ggml.token_type"] = Typed("i32", [*metadata["tokenizer.ggml.token_type"].value, 1])
    assert len(made(metadata).encode("12")) == 2
    assert len(made({**metadata, "tokenizer.ggml.pre": "gpt-2"}).encode("12")) == 1


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_any_text_comes_back(made: Any, pre: str) -> None:
    tokenizer = made(tokenizer_metadata(pre))
    for text in ("", " ", "héllo  wörld\n\n", "日本 🙂 a\u0301", "\x00\t\r\n", "it's 123,456.7", "<|im_start|>user\nhi<|im_end|>"):
        assert tokenizer.decode(tokenizer.encode(text, bos=False)) == text


def test_the_begin_token(made: Any) -> None:
    assert made({**tokenizer_metadata(), "tokenizer.ggml.add_bos_token": True}).encode("a")[0] == 1
    metadata = tokenizer_metadata("llama-bpe")
    del metadata["tokenizer.ggml.add_bos_token"]
    tokenizer = made(metadata)
    assert tokenizer.encode("a")[0] == 1  # models of this kind want it unless they say otherwise
    assert tokenizer.encode("a", bos=False)[0] != 1


def test_letters_wait_for_their_last_byte(made: Any) -> None:
    tokenizer = made(tokenizer_metadata())
    stream = tokenizer.stream()
    ids = tokenizer.encode("é🙂!")
    assert [stream.feed(i) for i in ids] == ["", "é", "", "", "", "🙂", "!"]
    assert stream.finish() == ""
    stream = tokenizer.stream()
    assert stream.feed(ids[2]) == "" and stream.finish() == "\ufffd"


def test_letters_of_bytes() -> None:
    letters = byte_letters()
    assert len(set(letters)) == 256 and letters == gguf_files.byte_letters()
    assert (letters[ord(" ")], letters[ord("\n")], letters[ord("a")]) == ("Ġ", "Ċ", "a")


def scored() -> dict[str, Any]:
    """A vocabulary with scores."""
    pieces = ["▁h", "el", "lo", "▁hel", "▁hello", *"▁helowrd"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces, "<|user|>"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": Typed("f32", [0.0] * 259 + [-float(i) for i in range(len(pieces))] + [0.0]),
        "tokenizer.ggml.token_type": Typed("i32", [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [4]),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def test_pieces_with_scores(made: Any) -> None:
    tokenizer = made(scored())
    assert [tokenizer.tokens[i] for i in tokenizer.encode("hello wé")] == ["<s>", "▁hello", "▁", "w", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("hello wé", bos=False)) == "hello wé"
    assert tokenizer.decode(tokenizer.encode("<|user|>", bos=False)) == "<|user|>"
    stream = tokenizer.stream()
    assert stream.feed(tokenizer.ids["▁hello"]) == " hello"  # the space belongs to what goes on


def test_space_prefix(made: Any) -> None:
    tokenizer = made({**scored(), "tokenizer.ggml.add_space_prefix": False})
    assert [tokenizer.tokens[i] for i in tokenizer.encode("lo", bos=False)] == ["lo"]
    assert tokenizer.decode(tokenizer.encode(" lo", bos=False)) == " lo"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "'tokenizer.ggml.model': there is no tokenizer 'bert', known are gpt2 and llama"),
        ({"tokenizer.ggml.model": 3}, "expected a string"),
        ({"tokenizer.ggml.pre": "smolm"}, "there is no pre-tokenizer 'smolm'; did you mean 'smollm'?"),
        ({"tokenizer.ggml.pre": "tekken"}, "there is no pre-tokenizer 'tekken'; known are default, gpt-2"),
        ({"tokenizer.ggml.tokens": "abc"}, "expected an array of strings"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, "token 'a' stands there twice"),
        ({"tokenizer.ggml.token_type": Typed("i32", [1, 1])}, "2 numbers for 272 tokens"),
        ({"tokenizer.ggml.eos_token_id": 999}, "'tokenizer.ggml.eos_token_id': 999, but there are 272 tokens"),
        ({"tokenizer.ggml.eot_token_id": 272}, "'tokenizer.ggml.eot_token_id': 272, but there are 272 tokens"),
        ({"tokenizer.ggml.eom_token_id": "x"}, "expected an integer, found the string 'x'"),
        ({"tokenizer.ggml.bos_token_id": 1.0}, "expected an integer, found 1.0"),
        ({"tokenizer.ggml.token_type": Typed("f32", [1.0] * 272)}, "'tokenizer.ggml.token_type': expected integers, found an array of float32"),
        ({"tokenizer.ggml.token_type": "x"}, "expected an array of numbers, found the string 'x'"),
        ({"tokenizer.ggml.tokens": []}, "'tokenizer.ggml.tokens': there are none"),
        ({"tokenizer.ggml.tokens": ["a", "b" * 1025, "c"]}, "token 1 has 1025 bytes, at most 1024 are allowed"),
        ({"tokenizer.ggml.merges": 1}, "'tokenizer.ggml.merges': expected an array of strings, found 1"),
        ({"tokenizer.ggml.model": "\x1b[2J" + "x" * 10**5}, "there is no tokenizer '\\x1b[2Jxxx"),
        ({"tokenizer.ggml.merges": ["abc"]}, "merge 0, 'abc': expected two tokens with a space between"),
        ({"tokenizer.ggml.merges": ["a zz"]}, "its tokens and merges make no tokenizer"),
    ],
)
def test_what_does_not_fit_is_refused(made: Any, change: dict[str, Any], message: str) -> None:
    metadata = {**tokenizer_metadata(), **change}
    if "tokenizer.ggml.tokens" in change:
        del metadata["tokenizer.ggml.token_type"]
    with pytest.raises(GraphError) as caught:
        made(metadata).encode("a")
    assert message in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("key", ["tokens", "merges", "scores"])
def test_lists_that_are_missing(made: Any, key: str) -> None:
    metadata = scored() if key == "scores" else tokenizer_metadata()
    del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(GraphError, match=f"the metadata have no 'tokenizer.ggml.{key}'"):
        made(metadata)


def test_scores_that_are_no_numbers(made: Any) -> None:
    metadata = scored()
    metadata["tokenizer.ggml.scores"].value[260] = float("nan")
    with pytest.raises(GraphError, match=r"'tokenizer\.ggml\.scores': one of them is no number"):
        made(metadata)


def test_names_that_take_all_memory_are_refused(made: Any) -> None:
    tokens = [f"{i:1024d}" for i in range(1025)]
    metadata = {**tokenizer_metadata(), "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": Typed("i32", [1] * 1025)}
    made(metadata)
    with pytest.raises(GraphError, match="control and user-defined tokens have 1049600 bytes together, at most 1048576"):
        made({**metadata, "tokenizer.ggml.token_type": Typed("i32", [3, 4] * 512 + [3])})


def test_vocabularies_that_take_long_are_refused(made: Any) -> None:
    tokens = [f"{i:1000d}" for i in range(8389)]
    metadata = {**tokenizer_metadata(), "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": Typed("i32", [1] * 8389)}
    with pytest.raises(GraphError, match="they have 8389000 bytes together, at most 8388608 are allowed"):
        made(metadata)
    with pytest.raises(GraphError, match=r"'tokenizer\.ggml\.merges': there are 2097153, at most 2097152 are allowed"):
        made({**tokenizer_metadata(), "tokenizer.ggml.merges": ["h e"] * ((1 << 21) + 1)})


@pytest.mark.parametrize(
    ("merge", "message"),
    [("a zz", "merge 0, 'a zz': 'zz' is no token"), ("h l", "merge 0, 'h l': 'hl' is no token"), ("abc", "expected two tokens with a space")],
)
def test_merges_are_looked_at_before_anything_is_compiled(made: Any, merge: str, message: str) -> None:
    made(tokenizer_metadata()).check()
    made(scored()).check()
    with pytest.raises(GraphError, match=message):
        made({**tokenizer_metadata(), "tokenizer.ggml.merges": [merge]}).check()


def test_sizes_of_strings(made: Any) -> None:
    for count in (3, 101, 5000):
        tokens = [f"é{i}" * (i % 90) for i in range(count)]
        found = made({**tokenizer_metadata(), "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": Typed("i32", [1] * count)})
        assert found.metadata.sizes("tokenizer.ggml.tokens").tolist() == [len(t.encode()) for t in tokens]


def test_a_file_without_tokenizer_says_so(made: Any) -> None:
    with pytest.raises(GraphError, match=r"have no 'tokenizer\.ggml\.model'"):
        made({})


def test_numbers_that_are_no_tokens(made: Any) -> None:
    for number in (-1, 272):
        with pytest.raises(GraphError, match="there are 272 tokens"):
            made(tokenizer_metadata()).decode([number])


def test_smollm2() -> None:
    tokenizer = Tokenizer(GgufFile(needed_model()).metadata)
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert tokenizer.decode([7042, 30, 2]) == " Paris.<|im_end|>"
    assert tokenizer.encode("Hello 1234 world, it's <|im_start|>\n\n  x") == [19556, 216, 33, 34, 35, 36, 905, 28, 357, 506, 216, 1, 8866, 1792]
    assert tokenizer.ends == {0, 2} and not tokenizer.adds_bos
