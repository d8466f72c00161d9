"""What the ``graph-opt`` command does once its flags are read."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graph_opt.api import DEFAULT_DEVICE, find_graph, keep_reachable, parse, read_program
from graph_opt.binding import Sources, at_location, bind_files
from graph_opt.build import default_pipeline, load_or_make, make_executable
from graph_opt.guard import UsageError, check_device_flag, pairs, shown_name, standard_input, stdin_text
from graph_opt.kept import Kept, place_in_cache
from graph_opt.levels import BYTES, CUDA, LEVELS, TARGETS, has_accesses, is_lowered, level_of, preset_of
from graph_opt.progress import Progress
from ir.clone import clone_module
from ir.core import Graph, Module, Operation, Parameter
from ir.diagnostics import Diagnostic, GraphError, Location, NamedLocation, Source, did_you_mean
from ir.inference import infer_module
from ir.inputs import CAUTION_LEVELS, GeneratedWeights, choose_sizes, generate_inputs, kind_words
from ir.literals import LiteralProblem
from ir.parser import decode_text, parse_type
from ir.printer import print_module
from ir.signature import array_type, bind_shapes
from ir.types import TensorType, Type, is_known, type_symbols
from passes.infra.base import Pass
from passes.infra.manager import Instrumentation, PassManager, PassRecord
from passes.infra.pipeline import format_pass, pass_name
from passes.infra.registry import pass_files
from passes.pipelines import load_pipeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from codegen.cuda.targets import Target as GpuTarget
    from graph_opt.executable import Executable


def _read(args: argparse.Namespace) -> Module:
    name = shown_name(args.file)
    if args.file == "-":
        text = decode_text(standard_input().buffer.read(), name)
        stdin_text[:] = [text]
    else:
        text = decode_text(read_program(args.file), name)
    return parse(text, name)


def _folder(args: argparse.Namespace) -> Path | None:
    return None if args.file == "-" else Path(args.file).parent


# -- graph-opt FILE ------------------------------------------------------------------------------------------------


def optimize(args: argparse.Namespace) -> int:
    """Reads a program, runs passes, prints it."""
    passes = load_pipeline(args.pipeline or "")
    for name in (*args.print_ir_before, *args.print_ir_after):
        if name not in pass_files():
            raise UsageError(f"there is no pass '{name}'; {did_you_mean(name, pass_files()) or 'graph-opt list passes shows all'}")
    _check_emit(args)
    target = _gpu_target(args)
    module = _read(args)
    checked = has_accesses(module)
    sources = bind_files(module, pairs(args.files, "--file"), _folder(args), required=False)
    entry = find_graph(module, args.graph) if args.graph is not None or args.emit in TARGETS else None
    if entry is not None:
        keep_reachable(module, entry)
    if args.emit in LEVELS:
        _check_level(module, args)
    if args.emit is not None and args.pipeline is None:
        capability = None if target is None else target.capability
        passes = load_pipeline("O0" if is_lowered(module, args.emit) else preset_of(args.emit, capability))
    _apply_shapes(module, args)
    if args.emit not in (None, "graph") and args.pipeline is None:
        _check_types(module, f"--emit {args.emit} needs")
    _check_watched(args, passes)
    progress = Progress()
    width = max(map(len, map(format_pass, passes)), default=0)
    watch = Instrumentation(
        print_before=(*args.print_ir_before, *(["all"] if args.print_ir_before_all else [])),
        print_after=(*args.print_ir_after, *(["all"] if args.print_ir_after_all else [])),
        print_before_changed=args.print_ir_before_changed,
        print_after_changed=args.print_ir_after_changed,
        verify_each=args.verify_each,
        verify_exec=args.verify_exec,
        seed=args.seed,
        emit=lambda text: print(text, file=sys.stderr),
        progress=progress.show,
        done=lambda record: _report_check(record, width, progress) if args.verify_exec else None,
    )
    manager = PassManager(passes, watch, sources)
    try:
        manager.run(module)
    finally:
        _report_passes(manager, args)
    if entry is not None and args.emit in TARGETS:
        write_output(_emit_target(module, module.graphs[entry.name], args.emit, target, checked), args)
        return 0
    if args.emit in LEVELS:
        _check_level(module, args)
    write_output(print_module(module, locations=args.print_locs), args)
    return 0


def _gpu_target(args: argparse.Namespace) -> GpuTarget | None:
    """The GPU that kernels are for: the one that was named; where machine code of one is wanted, else one that is chosen, which is said."""
    if args.target is None and args.emit not in CUDA:
        return None
    from codegen.cuda.targets import find_target

    if args.target is None:
        from codegen.cuda.toolchain import choose_target

        chosen, why = choose_target()
        print(f"target {chosen.name}: {why}; --target names another one", file=sys.stderr)
        return chosen
    if args.emit not in ("gpu", *CUDA):
        raise UsageError(f"--target is for --emit gpu, {', '.join(CUDA)}")
    try:
        return find_target(args.target)
    except GraphError as error:
        (problem,) = error.diagnostics
        raise UsageError(f"--target: {problem.message}; {problem.hint}") from None


def _emit_target(module: Module, graph: Graph, emit: str, target: GpuTarget | None, checked: bool) -> str | bytes:
    if target is not None:
        from graph_opt.cuda_emit import emit_cuda

        return emit_cuda(module, graph, emit, target, checked=checked)
    from graph_opt.native import emit_target

    return emit_target(module, graph, emit)


def _check_watched(args: argparse.Namespace, passes: Sequence[Pass]) -> None:
    """A pass that is to be watched has to be among those that run."""
    names = list(dict.fromkeys(pass_name(p) for p in passes))
    for flag, watched in (("before", args.print_ir_before), ("after", args.print_ir_after)):
        for name in watched:
            if name not in names:
                raise UsageError(f"--print-ir-{flag} {name}: the pipeline has no such pass; it runs {', '.join(names) or 'none'}")


def _check_emit(args: argparse.Namespace) -> None:
    if args.emit in TARGETS and args.print_locs:
        raise UsageError(f"--print-locs is for programs, not for --emit {args.emit}")
    if args.emit in BYTES and args.out is None and sys.stdout.isatty():
        raise UsageError(f"--emit {args.emit} writes bytes: give a file with -o, or a pipe")


def _check_types(module: Module, who: str) -> None:
    """Below tensors every parameter has a type; those without one are reported all at once.  ``who`` says what needs them."""
    missing = [
        Diagnostic(f"%{p.name} has no known type, which {who}", p.loc, f"--shape {p.name}=f32[4,64] gives it one")
        for graph in module.graphs.values()
        for p in graph.parameters
        if not is_known(p.type)
    ]
    if missing:
        raise GraphError(missing)


def _check_level(module: Module, args: argparse.Namespace) -> None:
    """A program can't be printed at a level that it has left."""
    level = level_of(module)
    if LEVELS.index(level) > LEVELS.index(args.emit):
        message = f"the program is at the level '{level}', it can't be emitted as '{args.emit}'"
        raise GraphError(Diagnostic(message, NamedLocation(shown_name(args.file), 1, 1), f"--emit {level}"))


def _report_passes(manager: PassManager, args: argparse.Namespace) -> None:
    rows = manager.records
    width = max((len(r.text) for r in rows), default=0)
    if args.timing and rows:
        total = sum(r.seconds for r in rows)
        for r in rows:
            share = r.seconds / total if total else 0.0
            print(f"{r.text:<{width}}  {r.seconds * 1e3:9.3f} ms  {share:6.1%}", file=sys.stderr)
        print(f"{'total':<{width}}  {total * 1e3:9.3f} ms", file=sys.stderr)
    if args.statistics:
        for r in rows:
            counts = ", ".join(f"{n} {what}" for what, n in sorted(r.statistics.items()) if n) or "nothing to do"
            print(f"{r.text:<{width}}  {counts}", file=sys.stderr)


def _report_check(record: PassRecord, width: int, progress: Progress) -> None:
    """What the check of a pass came to, as soon as it is known: checks of loops take long."""
    progress.clear()
    print(f"{record.text:<{width}}  {record.note or 'unchanged'}", file=sys.stderr, flush=True)


def write_output(content: str | bytes, args: argparse.Namespace) -> None:
    """To standard output, or whole to the file ``args.out``, which may not be ``args.file``.

    A temporary file beside it is renamed, so nothing is left half written.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    if args.out is None:
        try:
            if isinstance(content, bytes):
                sys.stdout.buffer.write(content)
            else:
                sys.stdout.write(content)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise GraphError(Diagnostic(f"can't be written: {error.strerror}", NamedLocation("<stdout>", 1, 1))) from None
        return
    if not args.out:
        raise UsageError("-o: expected a file name")
    target = Path(args.out)
    place = NamedLocation(args.out, 1, 1)
    if args.file != "-" and target.exists() and target.samefile(args.file):
        raise GraphError(Diagnostic("the output is the input", place, "write to another file"))
    if target.is_char_device() or target.is_fifo():
        try:
            target.write_bytes(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise GraphError(Diagnostic(f"can't be written: {error.strerror}", place)) from None
        return
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise GraphError(Diagnostic("the output is not a regular file", place))
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise GraphError(Diagnostic(f"can't be written: {error.strerror}", place)) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# -- graph-opt bench -----------------------------------------------------------------------------------------------


def bench_program(args: argparse.Namespace) -> int:
    """Measures a program, loop nest by loop nest, on given and generated arrays."""
    device = DEFAULT_DEVICE if args.device is None else args.device
    check_device_flag(device)
    if device == "reference":
        raise UsageError("--device reference is the interpreter, whose speed says nothing")
    if device != "cpu" and args.threads != 1:
        raise UsageError("--threads is for --device cpu")
    module = _read(args)
    entry = find_graph(module, args.graph)
    keep_reachable(module, entry)
    given = {n: _load_array(path, n, entry) for n, path in pairs(args.inputs, "--input").items()}
    prints = [Diagnostic("a program that prints can't be measured", op.loc) for op in module.walk() if op.definition.full_name == "graph.print"]
    if prints:
        raise GraphError(prints)
    sources = bind_files(module, pairs(args.files, "--file"), _folder(args), required=False)
    generated = [name for name in module.files if name not in sources]
    _bind_input_types(module, entry, given, args)
    sizes = _bench_sizes(entry, args)
    if generated:
        infer_module(module, sources)
    for name in generated:
        sources[name] = GeneratedWeights(module, name, args.seed)
        print(f"generated weights @{name}: small random numbers", file=sys.stderr)
    written = clone_module(module)
    passes = load_pipeline(args.pipeline if args.pipeline is not None else default_pipeline(module, device))
    if device == "cpu":
        _bench_cpu(args, module, entry, sources, passes, sizes, given, written)
    else:
        _bench_cuda(args, module, entry, sources, passes, sizes, given, written, device)
    return 0


def _bench_cpu(
    args: argparse.Namespace, module: Module, entry: Graph, sources: Sources, passes: Sequence[Pass], sizes: dict[str, int],
    given: dict[str, NDArray[Any]], written: Module,
) -> None:  # fmt: skip
    from codegen.runtime.processors import available_processors
    from graph_opt import bench, bench_report

    progress = Progress()
    threads = min(args.threads or available_processors(), available_processors())
    subject = bench.prepare(module, entry, sources, passes, threads, sizes, Instrumentation(progress=progress.show))
    arrays, _ = _run_with_inputs(subject.plain, given, args.seed, written, None, sizes)
    progress.clear()
    inputs = {p.name: _array_text(a) for p, a in zip(subject.graph.parameters, arrays, strict=True)}
    report = bench.measure(subject, arrays, inputs, args.rounds)
    if args.json:
        print(json.dumps(bench_report.to_json(report), indent=2))
    else:
        sys.stdout.write(bench_report.to_text(report))


def _bench_cuda(
    args: argparse.Namespace, module: Module, entry: Graph, sources: Sources, passes: Sequence[Pass], sizes: dict[str, int],
    given: dict[str, NDArray[Any]], written: Module, device: str,
) -> None:  # fmt: skip
    from graph_opt import cuda_bench
    from graph_opt.cuda import open_device

    opened = open_device(device)
    progress = Progress()
    subject = cuda_bench.prepare(module, entry, sources, passes, opened, sizes, Instrumentation(progress=progress.show))
    arrays, _ = _run_with_inputs(subject.executable, given, args.seed, written, None, sizes)
    progress.clear()
    inputs = {p.name: _array_text(a) for p, a in zip(subject.executable.graph.parameters, arrays, strict=True)}
    report = cuda_bench.measure(subject, arrays, inputs, args.rounds)
    if args.json:
        print(json.dumps(cuda_bench.to_json(report), indent=2))
    else:
        sys.stdout.write(cuda_bench.to_text(report))


def _named_sizes(entry: Graph, args: argparse.Namespace) -> dict[str, int]:
    """What --dims says."""
    sizes: dict[str, int] = {}
    needed = list(dict.fromkeys(n for p in entry.parameters for n in type_symbols(p.type)))
    for name, text in pairs(",".join(args.dims).split(",") if args.dims else (), "--dims").items():
        if not text.strip().isdecimal():
            raise UsageError(f"--dims {name}={text}: expected an integer from 0 on")
        if name not in needed:
            hint = did_you_mean(name, needed) or (f"its dimensions: {', '.join(needed)}" if needed else "all its sizes are fixed")
            raise UsageError(f"--dims {name}: graph @{entry.name} has no dimension {name} ({hint})")
        sizes[name] = int(text)
    return sizes


def _bench_sizes(entry: Graph, args: argparse.Namespace) -> dict[str, int]:
    """What the named dimensions are; a time means nothing for sizes that nobody has chosen."""
    sizes = _named_sizes(entry, args)
    missing = [
        Diagnostic(f"%{p.name} has no size to be measured with: it is {p.type}", p.loc, _size_hint(p, sizes))
        for p in entry.parameters
        if not is_known(p.type) or any(n not in sizes for n in type_symbols(p.type))
    ]
    if missing:
        raise GraphError(missing)
    return sizes


def _size_hint(parameter: Parameter, sizes: dict[str, int]) -> str:
    missing = [n for n in type_symbols(parameter.type) if n not in sizes]
    if not is_known(parameter.type) or not missing:
        return f"--shape {parameter.name}=f32[4,64] or --input {parameter.name}=FILE.npy gives it one"
    return f"--dims {','.join(f'{n}=64' for n in missing)} gives it one; --shape makes code for that size alone"


# -- flags ---------------------------------------------------------------------------------------------------------


def _shapes(args: argparse.Namespace) -> dict[str, TensorType]:
    shapes: dict[str, TensorType] = {}
    for name, text in pairs(args.shape, "--shape").items():
        source = Source("<--shape>", text)
        try:
            type_: Type = parse_type(text)
        except LiteralProblem as problem:
            hint = problem.hint or f"write {name}=f32[4,64]"
            raise GraphError(Diagnostic(problem.message, Location(source, problem.offset), hint)) from None
        if not isinstance(type_, TensorType):
            raise GraphError(Diagnostic(f"expected a tensor type, found {type_}", Location(source, 0), f"write {name}=f32[4,64]"))
        shapes[name] = type_
    return shapes


def _apply_shapes(module: Module, args: argparse.Namespace) -> None:
    shapes = _shapes(args)
    if shapes:
        from passes.graph.specialize import specialize_graph

        specialize_graph(module, find_graph(module, args.graph), shapes, {})


# -- graph-opt explain-fusion --------------------------------------------------------------------------------------


def explain_fusion(args: argparse.Namespace) -> int:
    """Prints what became one loop nest, and what kept the rest apart."""
    from graph_opt import fusion_report

    passes = load_pipeline(args.pipeline if args.pipeline is not None else preset_of("linalg"))
    module = _read(args)
    sources = bind_files(module, pairs(args.files, "--file"), _folder(args), required=False)
    if args.graph is not None:
        keep_reachable(module, find_graph(module, args.graph))
    _apply_shapes(module, args)
    _check_types(module, "loop nests need")
    operations = fusion_report.operations_by_place(module)
    manager = PassManager(passes, Instrumentation(explain=True), sources)
    manager.run(module)
    found = [d for record in manager.records for d in record.decisions if args.graph in (None, d.graph)]
    if not found:
        print("no loop nests: the pipeline has no pass 'fuse' that met any", file=sys.stderr)
    sys.stdout.write(fusion_report.report(found, operations, as_json=args.json))
    return 0


# -- graph-opt run -------------------------------------------------------------------------------------------------


def run_program(args: argparse.Namespace) -> int:
    """Runs a program on given and generated arrays."""
    device = DEFAULT_DEVICE if args.device is None else args.device
    check_device_flag(device)
    if device != "cpu" and args.threads != 1:
        raise UsageError("--threads is for --device cpu")
    passes = load_pipeline(args.pipeline) if args.pipeline is not None else None
    module = _read(args)
    outputs = pairs(args.outputs, "--output")
    entry = find_graph(module, args.graph)
    keep_reachable(module, entry)
    _check_outputs(entry, outputs)
    given = {n: _load_array(path, n, entry) for n, path in pairs(args.inputs, "--input").items()}
    sources = bind_files(module, pairs(args.files, "--file"), _folder(args), required=True)
    _bind_input_types(module, entry, given, args)
    sizes = _named_sizes(entry, args)
    written = clone_module(module)
    progress = Progress()
    if passes is None:
        passes = load_pipeline(default_pipeline(module, device))
    watch = Instrumentation(progress=progress.show)
    if device == "cpu":
        program = load_or_make(module, entry, sources, args.threads, passes, watch, _kept(module, entry, args))
    else:
        program = make_executable(module, entry, sources, device, args.threads, passes, watch)
    entry = program.graph
    total = len(entry.block)
    done = [0]

    def tell(op: Operation, results: Sequence[Any]) -> None:
        done[0] += 1
        progress.show(f"{done[0]}/{total} {op.definition.text_name} %{op.results[0].name if op.results else ''}")

    arrays, results = _run_with_inputs(program, given, args.seed, written, tell, sizes)
    progress.clear()
    _save_outputs(entry, arrays, results, outputs)
    return 0


def _kept(module: Module, entry: Graph, args: argparse.Namespace) -> Kept | None:
    """Where the program is kept."""
    if module.source is None:
        return None
    types = [f"{p.name}: {p.type}" for p in entry.parameters]
    return place_in_cache(module.source, ["run", repr(args.graph), repr(args.pipeline), *types])


def _check_outputs(entry: Graph, outputs: dict[str, str]) -> None:
    known = [*entry.result_names, *(p.name for p in entry.parameters if p.inout)]
    for name in outputs:
        if name not in known:
            hint = did_you_mean(name, known) or f"its results: {', '.join(known)}"
            raise GraphError(Diagnostic(f"graph @{entry.name} has no result '{name}'", entry.loc, hint))


def _load_array(path: str, name: str, entry: Graph) -> NDArray[Any]:
    from interop import open_weights

    if name not in [p.name for p in entry.parameters]:
        known = [p.name for p in entry.parameters]
        hint = did_you_mean(name, known) or f"its inputs: {', '.join(known)}"
        raise GraphError(Diagnostic(f"graph @{entry.name} has no input '{name}'", entry.loc, hint))
    try:
        source = open_weights(path)
        names = source.names()
        if len(names) != 1:
            raise GraphError(Diagnostic(f"expected one array, found {len(names)}"))
        return source.read(names[0])
    except GraphError as error:
        raise at_location(error, NamedLocation(path, 1, 1)) from error


def _bind_input_types(module: Module, entry: Graph, given: dict[str, NDArray[Any]], args: argparse.Namespace) -> None:
    """Gives parameters without a type the type of their array; checks --shape against arrays."""
    from passes.graph.specialize import specialize_graph

    shapes = _shapes(args)
    for parameter in entry.parameters:
        if parameter.name in given:
            type_ = array_type(given[parameter.name], parameter)
            if parameter.name in shapes and shapes[parameter.name] != type_:
                raise GraphError(Diagnostic(f"%{parameter.name}: --shape says {shapes[parameter.name]}, the array is {type_}", parameter.loc))
            shapes[parameter.name] = type_
    if shapes:
        specialize_graph(module, entry, shapes, {})


def _run_with_inputs(
    program: Executable,
    given: dict[str, NDArray[Any]],
    seed: int,
    written: Module,
    tell: Callable[[Operation, Sequence[Any]], None] | None,
    sizes: dict[str, int],
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """The arrays and what the program makes of them.

    Those that are not given are generated, as ``written`` wants them (the program before passes, which says what is an index).
    """
    entry = written.graphs[program.graph.name]
    missing = [p for p in entry.parameters if p.name not in given]
    if not missing:
        arrays = [np.array(given[p.name]) for p in entry.parameters]
        return arrays, program.run(arrays, tell)
    sizes = choose_sizes(entry, sizes)
    failure: GraphError | None = None
    for caution in range(CAUTION_LEVELS):
        generated = generate_inputs(written, entry, sizes, "real", seed, caution)
        arrays = [np.array(given.get(p.name, a)) for p, a in zip(entry.parameters, generated, strict=True)]
        bind_shapes(entry, [array_type(a, p) for a, p in zip(arrays, entry.parameters, strict=True)])
        try:
            inputs = [a.copy() for a in arrays]
            results = program.run(inputs, tell)
        except GraphError as error:
            failure = failure or error
            continue
        _tell_generated({p.name: array_type(a, p) for p, a in zip(entry.parameters, arrays, strict=True) if p.name not in given}, caution, seed)
        return inputs, results
    assert failure is not None
    raise failure


def _tell_generated(types: dict[str, TensorType], caution: int, seed: int) -> None:
    """What was generated; many of one type, as the caches of a model, in one line."""
    for type_, group in groupby(types, types.__getitem__):
        names = list(group)
        what = f"{type_} ({kind_words(type_.dtype, caution)}, seed {seed})"
        if len(names) > 4:
            print(f"generated %{names[0]} ... %{names[-1]}, {len(names)} inputs: each {what}", file=sys.stderr)
        else:
            print("\n".join(f"generated %{name}: {what}" for name in names), file=sys.stderr)


def _save_outputs(entry: Graph, arrays: Sequence[NDArray[Any]], results: Sequence[NDArray[Any]], outputs: dict[str, str]) -> None:
    from ir.blocks import dequantize
    from ir.types import f32

    named = dict(zip(entry.result_names, results, strict=True))
    for parameter, array in zip(entry.parameters, arrays, strict=True):
        if parameter.inout:
            named.setdefault(parameter.name, array)
    for name, array in named.items():
        if name in outputs:
            _save_array(outputs[name], array)
            print(f"{name}: {_array_text(array)} -> {outputs[name]}")
        else:
            numbers = dequantize(array, f32) if array.dtype.names is not None else array
            print(f"{name}: {_array_text(array)}\n{np.array2string(numbers, threshold=64, edgeitems=3, max_line_width=110)}")


def _array_text(array: NDArray[Any]) -> str:
    from ir.types import dtype_from_numpy, tensor_shape

    dtype = dtype_from_numpy(array.dtype)
    assert dtype is not None, array.dtype
    return str(TensorType(dtype, tensor_shape(dtype, array.shape)))


def _save_array(path: str, array: NDArray[Any]) -> None:
    try:
        with open(path, "wb") as out:
            np.save(out, array, allow_pickle=False)
    except OSError as error:
        raise GraphError(Diagnostic(f"can't be written: {error.strerror}", NamedLocation(path, 1, 1))) from None


