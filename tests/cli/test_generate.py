"""``graph-opt generate``."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graph_opt import llm
from graph_opt.cli import main
from tests.gguf_files import Tiny, gguf_bytes, tiny_llama, tiny_metadata, tiny_tensors

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    path.write_bytes(tiny_llama())
    return path


@pytest.fixture(scope="module")
def model(file: Path) -> llm.Model:
    return llm.load(file, device="reference")


@pytest.fixture
def run(file: Path, model: llm.Model, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, with the small model already loaded; what it returns and prints."""

    def load(path: Any, threads: Any = None, **options: Any) -> llm.Model:
        return llm.Model(model.program, model.tokenizer, model.program.checked_capacity(options["capacity"]))

    monkeypatch.setattr(llm, "load", load)

    def run(*flags: str, stdin: str | None = None) -> tuple[int, str, str]:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        try:
            status = main(["generate", str(file), *flags])
        except SystemExit as left:
            status = int(str(left.code))
        return (status, *capsys.readouterr())

    return run


def text_of(model: llm.Model, **options: Any) -> str:
    return "".join(llm.Model(model.program, model.tokenizer, model.capacity).generate(**options))


def test_a_prompt(run: Run, model: llm.Model) -> None:
    status, out, err = run("--prompt", "hello world", "--max-tokens", "8")
    assert (status, out) == (0, text_of(model, prompt="hello world", max_tokens=8) + "\n")
    assert err.startswith("prompt: 2 tokens, ") and err.rstrip().endswith("tokens/s")


def test_samples(run: Run, model: llm.Model) -> None:
    flags = ("--prompt", "hello", "--max-tokens", "8", "--temperature", "1.5", "--top-k", "9", "--top-p", "0.9", "--seed", "4")
    wanted = text_of(model, prompt="hello", max_tokens=8, temperature=1.5, top_k=9, top_p=0.9, seed=4)
    assert run(*flags)[1] == wanted + "\n"


def test_a_prompt_in_a_file(run: Run, model: llm.Model, tmp_path: Path) -> None:
    wanted = text_of(model, prompt="hello\n", max_tokens=3) + "\n"
    (tmp_path / "p.txt").write_text("hello\n")
    assert run("--prompt-file", str(tmp_path / "p.txt"), "--max-tokens", "3")[1] == wanted
    assert run("--prompt-file", "-", "--max-tokens", "3", stdin="hello\n")[1] == wanted


def test_one_answer(run: Run, model: llm.Model) -> None:
    ids = model.chat_ids([{"role": "user", "content": "hello"}])
    assert run("--chat", "--prompt", "hello", "--max-tokens", "5")[1] == text_of(model, prompt_ids=ids, max_tokens=5) + "\n"


def test_a_conversation(run: Run, model: llm.Model) -> None:
    messages = [{"role": "user", "content": "hello"}]
    first = text_of(model, prompt_ids=model.chat_ids(messages), max_tokens=3)
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "world"}]
    second = text_of(model, prompt_ids=model.chat_ids(messages), max_tokens=3)
    status, out, err = run("--chat", "--max-tokens", "3", stdin="hello\n\nworld\n")
    assert (status, out) == (0, f"{first}\n{second}\n")
    assert len(err.splitlines()) == 2 and "known)" in err.splitlines()[1]


def test_a_conversation_that_gets_too_long(run: Run) -> None:
    status, out, err = run("--chat", "--max-tokens", "3", "--capacity", "70", stdin=f"hello\n{'x' * 99}\n")
    assert status == 0 and len(out.splitlines()) == 1
    assert "the capacity is 70" in err


def test_ctrl_c_ends_the_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __init__(self) -> None:
            self.left = 2

        def __iter__(self) -> Interrupted:
            return self

        def __next__(self) -> str:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return "a"

        def close(self) -> None:
            pass

    monkeypatch.setattr(llm.Model, "chat", lambda self, messages, **options: Interrupted())
    status, out, _ = run("--chat", stdin="hello\nworld\n")
    assert (status, out) == (0, "aa\naa\n")
    assert run("--chat", "--prompt", "hello")[:2] == (130, "aa\n")


def test_a_terminal_gets_no_control_characters(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.Model, "generate", lambda self, prompt, **options: iter(["a\x1b[2J", "\n\té"]))
    assert run("--prompt", "x")[1] == "a\x1b[2J\n\té\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run("--prompt", "x")[1] == "a\ufffd[2J\n\té\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "give a --prompt, a --prompt-file, or --chat"),
        (("--prompt", "x", "--prompt-file", "y"), "not both"),
        (("--prompt", "x", "--temperature", "-1"), "--temperature: expected 0 or a number"),
        (("--prompt", "x", "--temperature", "nan"), "--temperature: expected"),
        (("--prompt", "x", "--top-k", "-1"), "--top-k: expected an integer from 0 (all) on, found -1"),
        (("--prompt", "x", "--top-p", "2"), "--top-p: expected a number above 0"),
        (("--prompt", "x", "--max-tokens", "-1"), "--max-tokens: expected an integer from 0 on, found -1"),
        (("--prompt", "x", "--max-tokens", "many"), "invalid int value"),
        (("--prompt", "x", "--capacity", "0"), "expected an integer from 1 on, found '0'"),
        (("--prompt", "x", "--seed", "x"), "expected an integer of 64 bits, found 'x'"),
        (("--prompt", "x", "--seed", str(1 << 64)), "expected an integer of 64 bits"),
        (("--prompt", "x", "--file", "model"), "expected NAME=VALUE"),
        (("--prompt", "x", "--colour"), "unrecognized arguments"),
        (("--prompt", "x", "--precision", "int4"), "--precision int4: expected f32, int16, int8, float"),
    ],
)
def test_wrong_usage(run: Run, flags: tuple[str, ...], message: str) -> None:
    status, out, err = run(*flags)
    assert (status, out) == (2, "") and message in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--prompt", ""), None),  # begins with the begin token
        (("--prompt", "x" * 200), "the prompt has 200 tokens, the capacity is 128\n  hint: load the model with more: --capacity N"),
        (("--prompt", "x", "--max-tokens", "1000"), "more than the capacity of 128"),
        (("--prompt", "x", "--capacity", "1000"), "capacity: 1000 tokens, the model was made for 128"),
        (("--prompt-file", "/nowhere/at/all"), "can't be read"),
    ],
)
def test_wrong_input(run: Run, flags: tuple[str, ...], message: str | None) -> None:
    status, _, err = run(*flags)
    assert status == (0 if message is None else 1)
    assert message is None or message in err
    assert "Traceback" not in err


def test_a_prompt_that_is_no_text(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"a\xff")
    status, _, err = run("--prompt-file", str(tmp_path / "p.txt"))
    assert status == 1 and "p.txt:1:2" in err
    status, _, err = run("--prompt", "\udcff")
    assert status == 1 and "not valid Unicode" in err


def test_a_model_without_chat_template(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tiny_metadata(Tiny())
    del metadata["tokenizer.chat_template"]
    file = tmp_path / "t.gguf"
    file.write_bytes(gguf_bytes(metadata, tiny_tensors(Tiny(), metadata["llama.vocab_size"])))
    made = partial(llm.load, device="reference")
    monkeypatch.setattr(llm, "load", lambda path, threads, **options: made(path))
    assert main(["generate", str(file), "--chat", "--prompt", "x"]) == 1
    assert "there is no chat template" in capsys.readouterr().err


def test_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(tmp_path / "none.gguf"), "--prompt", "x"]) == 1
    assert "none.gguf:1:1: error: there is no such file" in capsys.readouterr().err


def test_without_the_extra_packages(file: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizers.py").write_text("raise ImportError('not there')")
    code = (
        "from graph_opt import llm, cli; from graph_opt.llm.model import load\n"
        "llm.load = lambda path, threads, **o: load(path, device='reference')\n"
        f"raise SystemExit(cli.main(['generate', {str(file)!r}, '--prompt', 'x']))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "graph-opt: error: turning text into tokens needs the package tokenizers: not there\n  hint: pip install tokenizers jinja2" in done.stderr


def test_import_refuses_end_tokens_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metadata = {**tiny_metadata(Tiny()), "tokenizer.ggml.eos_token_id": 272}
    (tmp_path / "t.gguf").write_bytes(gguf_bytes(metadata, tiny_tensors(Tiny(), 272)))
    assert main(["import", str(tmp_path / "t.gguf")]) == 1
    assert "t.gguf:1:1: error: metadata 'tokenizer.ggml.eos_token_id': 272, but there are 272 tokens" in capsys.readouterr().err


def test_seeds_below_zero(run: Run, model: llm.Model) -> None:
    wanted = text_of(model, prompt="x", seed=-1, temperature=1.5, max_tokens=8) + "\n"
    for seed in ("-1", str((1 << 64) - 1)):
        assert run("--prompt", "x", "--temperature", "1.5", "--max-tokens", "8", "--seed", seed)[:2] == (0, wanted)


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``graph-opt generate`` with the small model through the interpreter, and redirections."""
    code = "from graph_opt import llm, cli; from graph_opt.llm.model import load; import sys; "
    code += "llm.load = lambda path, threads, **o: load(path, device='reference'); sys.exit(cli.main(['generate', *sys.argv[1:]]))"
    command = f"{sys.executable} -c \"{code}\" {line}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env={**os.environ, **environment}, check=False, timeout=100)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--chat <&-", "<stdin>:1:1: error: can't be read: it is closed"),
        ("--prompt-file - <&-", "<stdin>:1:1: error: can't be read: it is closed"),
        ("--prompt-file - </dev/zero", "<stdin>:1:1: error: a prompt has at most 16777216 bytes"),
        ("--prompt-file /dev/zero", "/dev/zero:1:1: error: a prompt has at most 16777216 bytes"),
        ("--prompt x --max-tokens 2 >/dev/full", "<stdout>:1:1: error: can't be written: No space left on device"),
        ("--chat --max-tokens 2 >/dev/full <<<hello", "<stdout>:1:1: error: can't be written: No space left on device"),
    ],
)
def test_streams_that_give_or_take_nothing(file: Path, line: str, message: str) -> None:
    done = shell(f"{file} {line}")
    assert (done.returncode, done.stderr.strip()) == (1, message)


def test_a_turn_that_is_no_text(file: Path) -> None:
    done = shell(f"{file} --chat --max-tokens 2 < <(printf 'a\\xff\\nhello\\n')")
    assert done.returncode == 0 and "error: the text is not valid Unicode at letter" in done.stderr
    assert done.stdout.count("\n") >= 1 and "Traceback" not in done.stderr


def test_a_cache_folder_that_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    command = [sys.executable, "-m", "graph_opt.cli", "run", "samples/mlp.graph", "--shape", "x=f32[4,64]"]
    environment = {**os.environ, "GRAPH_OPT_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2], check=False)
    warned = [line for line in done.stderr.splitlines() if "cache folder" in line]
    assert done.returncode == 0 and warned == [f"graph-opt: warning: the cache folder {tmp_path / 'cache'} is not used: its mode is 0777, not 0700"]
    assert "warnings.warn" not in done.stderr
