"""The ``graph-opt`` command.

    graph-opt FILE --pipeline P      read a program, run passes, print it
    graph-opt run FILE               run a program on arrays
    graph-opt bench FILE             measure a program on this machine
    graph-opt list ops|passes        what there is
    graph-opt explain NAME           the reference page of an operation or a pass
    graph-opt explain-fusion FILE    what became one loop nest, and what kept the rest apart
    graph-opt cache                  compiled programs that are kept, and how large they are
    graph-opt import MODEL.gguf      a model's program, from its file
    graph-opt generate MODEL.gguf    text from a language model; a chat

Only argparse is imported here; the work is in :mod:`graph_opt.commands`.
Exit status: 0 done, 1 wrong input, 2 wrong usage, 3 a fault of ours, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

_COMMANDS = ("run", "bench", "list", "explain", "explain-fusion", "cache", "import", "generate")
_LISTS = ("ops", "passes")

_EPILOG = """\
commands:
  graph-opt FILE --pipeline P      read a program, run passes, print it (this command)
  graph-opt run FILE               run a program on arrays; see graph-opt run --help
  graph-opt bench FILE             measure a program on this machine; see graph-opt bench --help
  graph-opt list ops|passes        what there is
  graph-opt explain NAME           the reference page of an operation, a pass or a preset
  graph-opt explain-fusion FILE    what became one loop nest, and what kept the rest apart
  graph-opt cache                  compiled programs that are kept, and how large they are
  graph-opt import MODEL.gguf      a model's program, from its file
  graph-opt generate MODEL.gguf    text from a language model; a chat

examples:
  graph-opt samples/mlp.graph --pipeline O1
  graph-opt samples/mlp.graph --pipeline infer-types,decompose --print-ir-after-all
  graph-opt samples/mlp.graph --emit loops
  graph-opt run samples/mlp.graph --shape x=f32[4,64]
"""


class _Parser(argparse.ArgumentParser):
    """Says what was probably meant by words that it does not know; ``first`` is a first word that is no file: a misspelt command?"""

    first: str | None = None

    def error(self, message: str) -> NoReturn:
        _, found, words = message.partition("unrecognized arguments: ")
        hint = self._meant(words.split()) if found else None
        super().error(message if hint is None else f"{message}\nhint: {hint}")

    def _meant(self, words: Sequence[str]) -> str | None:
        from ir.diagnostics import did_you_mean

        for flag in (word.partition("=")[0] for word in words if word.startswith("-")):
            others = [parser.prog for parser in (make() for make in _parsers().values()) if flag in parser._option_string_actions]
            if others:
                return f"{flag} is a flag of {', '.join(others)}"
            near = did_you_mean(flag, self._option_string_actions)
            if near is not None:
                return near
        return None if self.first is None else did_you_mean(self.first, _COMMANDS)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer from 0 on, found '{text}'")
    return int(text)


def _any_seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        seed = 1 << 64
    if not -(1 << 63) <= seed < 1 << 64:
        raise argparse.ArgumentTypeError(f"expected an integer of 64 bits, found '{text[:80]}'")
    return seed


def _threads(text: str) -> int:
    if not text.isdecimal() or int(text) > 256:
        raise argparse.ArgumentTypeError(f"expected an integer from 0 to 256, found '{text}'")
    return int(text)


def _capacity(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 30:
        raise argparse.ArgumentTypeError(f"expected an integer from 1 on, found '{text}'")
    return int(text)


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"expected an integer from 1 to 10000, found '{text}'")
    return int(text)


def _program_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .graph program; - reads it from standard input")
    parser.add_argument("--pipeline", metavar="P", help="passes, as in infer-types,constant-fold{budget=4096}, or a preset: O0, O1, O2, cpu, cuda")
    parser.add_argument("--shape", metavar="X=TYPE", action="append", default=[], help="the type of a parameter, as x=f32[4,64]; may be repeated")
    parser.add_argument("--file", metavar="W=PATH", dest="files", action="append", default=[], help="the file of weights @W; may be repeated")
    parser.add_argument("--graph", metavar="NAME", help="which graph is meant: it, and what it needs (default: @main, or the only one)")
    parser.add_argument("--seed", metavar="N", type=_seed, default=0, help="seed of generated inputs (default 0)")
    parser.add_argument("--debug", action="store_true", help="show Python's traceback for a fault of graph-opt")


def opt_parser() -> _Parser:
    """The flags of ``graph-opt FILE``."""
    parser = _Parser(
        prog="graph-opt",
        description="Reads a program of tensor operations, runs passes, prints the result.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    _program_flags(parser)
    parser.add_argument("-o", "--output", metavar="OUT", dest="out", help="write the program there instead of to standard output")
    parser.add_argument("--print-locs", action="store_true", help="write where every operation comes from")
    parser.add_argument(
        "--emit",
        metavar="LEVEL",
        choices=("graph", "linalg", "loops", "gpu", "llvm", "asm", "obj", "cuda", "ptx", "cubin", "sass"),
        help="lower the program and print it at this level: graph, linalg, loops, gpu; or as llvm, asm, obj (an object file); or its kernels as "
        "cuda (CUDA C), ptx, cubin (machine code), sass (a listing of that)",
    )
    parser.add_argument(
        "--target",
        metavar="SM",
        help="the GPU for --emit gpu, cuda, ptx, cubin, sass: sm_75, sm_80, sm_90, sm_90a (default: the newest one here, else sm_80)",
    )
    watch = parser.add_argument_group("watching the passes (on standard error)")
    for when in ("before", "after"):
        watch.add_argument(f"--print-ir-{when}", metavar="PASS", action="append", default=[], help=f"print the program {when} this pass")
        watch.add_argument(f"--print-ir-{when}-all", action="store_true", help=f"print the program {when} every pass")
        watch.add_argument(f"--print-ir-{when}-changed", action="store_true", help=f"print the program {when} every pass that changed it")
    watch.add_argument("--timing", action="store_true", help="time taken by every pass")
    watch.add_argument("--statistics", action="store_true", help="what every pass did, counted")
    watch.add_argument("--verify-each", action="store_true", help="check the program after every pass")
    watch.add_argument("--verify-exec", action="store_true", help="run the program before and after every pass on generated inputs and compare")
    return parser


def run_parser() -> _Parser:
    """The flags of ``graph-opt run FILE``."""
    parser = _Parser(
        prog="graph-opt run",
        description="Runs a program. Inputs that are not given are generated, and that is said. The compiled program is kept for the next run.",
    )
    _program_flags(parser)
    parser.add_argument("--dims", metavar="B=4,S=128", action="append", default=[], help="sizes of named dimensions in generated inputs")
    parser.add_argument("--input", metavar="X=X.npy", dest="inputs", action="append", default=[], help="an array for a parameter; may be repeated")
    parser.add_argument("--output", metavar="Y=Y.npy", dest="outputs", action="append", default=[], help="where to write a result; may be repeated")
    parser.add_argument("--device", help="what runs it: cpu (machine code), cuda or cuda:N (a GPU), cuda-emulated, reference (the interpreter)")
    parser.add_argument("--threads", metavar="N", type=_threads, default=1, help="threads of device cpu (default 1; 0: one for each processor)")
    _cache_flag(parser)
    return parser


def bench_parser() -> _Parser:
    """The flags of ``graph-opt bench FILE``."""
    parser = _Parser(
        prog="graph-opt bench",
        description="Measures a program on this machine, loop nest by loop nest, beside what the machine can do. "
        "Inputs and weights that are not given are generated, and that is said.",
    )
    _program_flags(parser)
    parser.add_argument("--dims", metavar="B=4,S=128", action="append", default=[], help="sizes of named dimensions, which stay open in the code")
    parser.add_argument("--input", metavar="X=X.npy", dest="inputs", action="append", default=[], help="an array for a parameter; may be repeated")
    parser.add_argument("--device", help="what is measured: cpu (default), cuda or cuda:N (kernels on a GPU)")
    parser.add_argument("--threads", metavar="N", type=_threads, default=1, help="threads of device cpu (default 1; 0: one for each processor)")
    parser.add_argument("--rounds", metavar="N", type=_rounds, default=15, help="rounds of some tens of milliseconds (default 15)")
    parser.add_argument("--json", action="store_true", help="print all that was measured as JSON")
    _cache_flag(parser)
    return parser


def _cache_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-cache", action="store_true", help="compile anew, and keep nothing in the cache of compiled programs")


def cache_parser() -> _Parser:
    """The flags of ``graph-opt cache``."""
    parser = _Parser(
        prog="graph-opt cache",
        description="Says where compiled programs are kept and how much there is. GRAPH_OPT_CACHE=off keeps nothing, GRAPH_OPT_CACHE=PATH keeps "
        "it elsewhere.",
    )
    parser.add_argument("--clear", action="store_true", help="remove all of it")
    return parser


def list_parser() -> _Parser:
    """The flags of ``graph-opt list``."""
    parser = _Parser(prog="graph-opt list", description="Lists what there is, one line each.")
    parser.add_argument("what", choices=_LISTS)
    return parser


def _suggest_list(args: list[str]) -> None:
    """A misspelt list is wrong usage, with the one that may be meant."""
    if len(args) == 1 and not args[0].startswith("-") and args[0] not in _LISTS:
        from difflib import get_close_matches

        near = get_close_matches(args[0], _LISTS, 1)
        list_parser().error(f"there is no list '{args[0]}'; " + (f"did you mean '{near[0]}'?" if near else f"lists: {', '.join(_LISTS)}"))


def explain_parser() -> _Parser:
    """The flags of ``graph-opt explain``."""
    parser = _Parser(prog="graph-opt explain", description="Prints the reference page of an operation, a pass or a preset.")
    parser.add_argument("name", metavar="NAME")
    return parser


def fusion_parser() -> _Parser:
    """The flags of ``graph-opt explain-fusion FILE``."""
    parser = _Parser(
        prog="graph-opt explain-fusion",
        description="Says which computations of a program became one loop nest and by which rule, and what kept the others apart.",
    )
    _program_flags(parser)
    parser.add_argument("--json", action="store_true", help="the same for tools, as JSON")
    return parser


def import_parser() -> _Parser:
    """The flags of ``graph-opt import MODEL.gguf``."""
    parser = _Parser(
        prog="graph-opt import",
        description="Writes the program of a model in a GGUF file: text that reads its weights from the file.",
    )
    parser.add_argument("file", metavar="MODEL.gguf", help="a model of the Llama family; weights f32, f16, bf16, q8_0, q4_1 or q4_0")
    parser.add_argument("-o", "--output", metavar="OUT", dest="out", help="write the program there instead of to standard output")
    parser.add_argument("--debug", action="store_true", help="show Python's traceback for a fault of graph-opt")
    return parser


def generate_parser() -> _Parser:
    """The flags of ``graph-opt generate MODEL``."""
    parser = _Parser(
        prog="graph-opt generate",
        description="Goes on from a prompt, or chats. The text goes to standard output, what it took to standard error.",
    )
    parser.add_argument("file", metavar="MODEL", help="a GGUF file, or a .graph program that was imported from one")
    parser.add_argument("--prompt", metavar="TEXT", help="the text to go on from; with --chat what the user says")
    parser.add_argument("--prompt-file", metavar="F", help="a file with that text; - reads standard input")
    parser.add_argument("--chat", action="store_true", help="by the model's chat template; without a prompt a conversation, a line a turn")
    parser.add_argument("--max-tokens", metavar="N", type=int, help="at most so many (default: until an end token, or the capacity)")
    parser.add_argument("--temperature", metavar="T", type=float, default=0.0, help="0 (default) takes the most probable token each time")
    parser.add_argument("--top-k", metavar="K", type=int, help="choose among the K most probable tokens")
    parser.add_argument("--top-p", metavar="P", type=float, help="choose among the most probable tokens that make up P")
    parser.add_argument("--seed", metavar="S", type=_any_seed, default=0, help="equal seeds choose equal tokens (default 0)")
    parser.add_argument("--device", default="cpu", help="what computes: cpu (default), cuda or cuda:N (a GPU), reference (the interpreter)")
    parser.add_argument("--threads", metavar="N", type=_threads, default=0, help="threads of device cpu (default 0: one for each processor)")
    parser.add_argument("--capacity", metavar="T", type=_capacity, help="tokens of prompt and answer together (default: 2048, or what the model has)")
    parser.add_argument("--precision", metavar="P", default="f32", help="arithmetic of quantized products: f32 (default), int16, int8, float")
    parser.add_argument("--file", metavar="W=PATH", dest="files", action="append", default=[], help="the file of weights @W of a .graph program")
    parser.add_argument("--debug", action="store_true", help="show Python's traceback for a fault of graph-opt")
    _cache_flag(parser)
    return parser


def _parsers() -> dict[str, Callable[[], _Parser]]:
    """The parsers of commands that work on a program or a model; "" is the one without a command."""
    return {
        "": opt_parser,
        "run": run_parser,
        "bench": bench_parser,
        "explain-fusion": fusion_parser,
        "import": import_parser,
        "generate": generate_parser,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status; usage errors leave through SystemExit(2) as argparse does."""
    args = list(sys.argv[1:] if argv is None else argv)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    status = 0
    try:
        status = _dispatch(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except OSError as error:  # a full disk shows when the rest is written
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if status:  # it was said
            return status
        print(f"graph-opt: error: standard output can't be written: {error.strerror}", file=sys.stderr)
        return 1


def _heed_cache_flag(args: argparse.Namespace) -> None:
    if getattr(args, "no_cache", False):
        os.environ["GRAPH_OPT_CACHE"] = "off"


def _dispatch(args: list[str]) -> int:
    if args and args[0] in _COMMANDS:
        command, rest = args[0], args[1:]
        if command == "list":
            _suggest_list(rest)
            listed = list_parser().parse_args(rest)
            from graph_opt import listing

            return listing.list_names(listed.what)
        if command == "cache":
            asked = cache_parser().parse_args(rest)
            from graph_opt import listing

            return listing.tell_cache(asked.clear)
        if command == "explain":
            explained = explain_parser().parse_args(rest)
            from graph_opt import listing

            return listing.explain(explained.name)
        if command == "import":
            imported = import_parser().parse_args(rest)
            from graph_opt import importing
            from graph_opt.guard import guarded

            return guarded(importing.import_model, imported)
        if command == "generate":
            wanted = generate_parser().parse_args(rest)
            _heed_cache_flag(wanted)
            from graph_opt.collector import fewer_collections

            with fewer_collections():  # what is imported stays
                from graph_opt import generate
                from graph_opt.guard import guarded

            return guarded(generate.generate, wanted)
        parsed = _parsers()[command]().parse_args(rest)
        _heed_cache_flag(parsed)
        from graph_opt import commands
        from graph_opt.guard import guarded

        work = {"run": commands.run_program, "bench": commands.bench_program, "explain-fusion": commands.explain_fusion}
        return guarded(work[command], parsed)
    if "--version" in args:
        from graph_opt import __version__

        print(f"graph-opt {__version__}")
        return 0
    parser = opt_parser()
    if not args:
        parser.print_help()
        return 2
    if not os.path.exists(args[0]):
        parser.first = args[0]
    parsed = parser.parse_args(args)
    from graph_opt import commands
    from graph_opt.guard import guarded

    return guarded(commands.optimize, parsed)


if __name__ == "__main__":
    sys.exit(main())
