"""Graphs of the last level as LLVM's assembly language.

A graph becomes one function that all threads call; see :func:`emit_graph` for the interface.  Its top-level loops are
functions of their own, equal ones one function: a deep model is compiled once per kind of layer.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Collection, Mapping

import dialects  # noqa: F401
from codegen.llvm import affine, control, dots, floats, integers, memory, vectors  # noqa: F401
from codegen.llvm.helpers import X86, runtime
from codegen.llvm.main import MainWriter
from codegen.llvm.native import Argument, NativeModule
from codegen.llvm.space import SMALL, SYMBOL_LIMIT
from codegen.llvm.turns import work_function
from codegen.llvm.writer import Unit, Writer
from ir.core import Graph, Module, Operation
from ir.diagnostics import Diagnostic, GraphError
from ir.structure import Copies
from ir.types import MemRefType, TensorType, UnknownType, type_symbols


def mangled(name: str) -> str:
    """A name for symbols: letters, digits and ``_``, short, different for different names."""
    safe = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if safe != name or len(safe) > 64:
        safe = f"{safe[:48]}_{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return f"g_{safe}"


def emit_graph(
    module: Module,
    graph: Graph,
    *,
    attributes: Mapping[str, str] | None = None,
    features: Collection[str] = (),
    clocks: bool = False,
    copies: Copies | None = None,
) -> NativeModule:
    """The native code of a graph, as text.

    ``attributes`` are attributes of LLVM functions (``prefer-vector-width``), ``features`` names of what the processor has, as LLVM
    writes them (``avx512vnni``): an instruction that not every processor of a kind has is used where its feature is named.  With
    ``clocks`` the code adds up how long the first thread is in each top-level loop, and in the function (see
    ``NativeModule.timed``).  The text has these functions::

        i32 @NAME(ptr args, ptr dims, ptr workspace, ptr state, i64 thread, i64 threads)
        i64 @NAME_workspace(ptr dims)
        void @NAME_shapes(ptr dims, ptr out)
        double @NAME_work(ptr dims)

    ``args`` are pointers, one for each of ``NativeModule.arguments``, aligned to their elements, those of stored tensors
    and the workspace to 64 bytes.  ``dims`` are the named dimensions, i64, in the order of ``symbols``; that arrays have
    the parameters' shapes and that the graph's ``where`` clause holds is the caller's business, accesses rely on it.  The
    first function gives 0, or 1 when the run failed.  The second one gives the bytes of workspace, -1 when a dimension
    is negative or sizes are too large; it is called first.  The third one writes the dimensions of all results one after
    the other, the last one tells about how many simple operations threads can share (infinite: not known).

    All ``threads`` threads call the first function with their numbers; a thread may come back before others do, so whether the
    run failed is known when all are back.  When several threads fail, the one that is first says why.

    ``state`` is 64-byte aligned and zero before a run.  It holds the failed site + 1 (i32 at 0) with two numbers (i64 at 8
    and 16), the barrier (i32 at 64 and at 128), and at 192 the function that ``print`` calls:
    ``i32 (i64 site, ptr data, ptr dims)``, whose result ends the run with a failure of that site unless it is 0.  At 200 may be
    the address of a byte that loops look at; when it is not 0, they ask the function at 208, ``i32 (ptr state, i64 thread)``,
    and end the run unless it says 0.

    ``copies`` are operations that are known to be like others, which saves a look at them, or only stand for them: see
    :class:`ir.structure.Copy`.

    Raises GraphError for an operation that native code does not have.
    """
    name = mangled(graph.name)
    unit = Unit(name, features)
    symbols = graph_symbols(graph)
    for symbol in symbols:
        unit.space.symbol(symbol)
    unit.space.constrain(graph.constraints)
    results = [_tensor(v.type, graph.return_op) for v in graph.results]
    main = MainWriter(unit, graph, symbols, clocks, copies)
    main.run(graph.block)
    functions = [
        _main(unit, main),
        _workspace(unit, main, symbols),
        _shapes(unit, results, symbols),
        _guard(unit, symbols),
        work_function(unit, graph, lambda w: _load_symbols(w, symbols), copies or {}),
    ]
    machine = platform.machine().lower()
    pause = f"call void {unit.declare('void', 'llvm.x86.sse2.pause')}()" if machine in X86 else "fence seq_cst"
    support = runtime(unit, pause)
    extra = "".join(f' "{k}"="{v}"' for k, v in sorted((attributes or {}).items()))
    text = "\n".join([
        *functions,
        *main.functions,
        *unit.definitions.values(),
        support,
        *([f"@{name}_clocks = global [{len(main.timed)} x i64] zeroinitializer, align 64"] if clocks else []),
        *unit.declarations,
        "",
        f"attributes #0 = {{ nounwind{extra} }}",
        "attributes #1 = { nounwind cold noinline }",
        "attributes #2 = { nounwind noinline }",
        '!0 = !{!"branch_weights", i32 1, i32 1000000}',
        "!1 = !{i32 1}",
        "",
    ])  # fmt: skip
    outputs = [Argument("result", n, t, True) for n, t in zip(_names(graph), results, strict=True)]
    arguments = [*_parameters(graph), *outputs, *main.stored_arguments()]
    return NativeModule(text, name, symbols, arguments, unit.sites, sorted(unit.externals), unit.parallel, main.timed)


def graph_symbols(graph: Graph) -> list[str]:
    """The named dimensions of a graph's parameters, in order of appearance."""
    found: dict[str, None] = {}
    for parameter in graph.parameters:
        found.update(type_symbols(parameter.type))
    return list(found)


def _names(graph: Graph) -> list[str]:
    return [n if n else v.name for n, v in zip([*graph.result_names, *[""] * len(graph.results)], graph.results, strict=False)]


def _parameters(graph: Graph) -> list[Argument]:
    found = []
    for p in graph.parameters:
        if not isinstance(p.type, (TensorType, MemRefType)):
            raise GraphError(Diagnostic(f"codegen: parameter %{p.name} of type {p.type} is no tensor or buffer", p.loc))
        found.append(Argument("parameter", p.name, p.type, p.inout or isinstance(p.type, MemRefType)))
    return found


def _tensor(type_: object, op: Operation) -> TensorType:
    if not isinstance(type_, TensorType):
        hint = "--shape NAME=f32[4,64] gives a parameter its type" if isinstance(type_, UnknownType) else None
        raise GraphError(Diagnostic(f"codegen: a result of type {type_} is no tensor", op.loc, hint))
    return type_


def _load_symbols(writer: Writer, symbols: list[str]) -> None:
    for position, symbol in enumerate(symbols):
        ((number,),) = writer.space.symbol(symbol)
        pointer = writer.set(f"getelementptr i64, ptr %dims, i64 {position}")
        writer.symbols[number] = writer.set(f"load i64, ptr {pointer}, align 8")


def _main(unit: Unit, main: MainWriter) -> str:
    head = f"define i32 @{unit.name}(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %thread, i64 %threads) #0 {{"
    return f"{head}\n{main.body()}\n}}\n"


def _workspace(unit: Unit, main: MainWriter, symbols: list[str]) -> str:
    """Sums up the sizes with checks for overflow."""
    w = Writer(unit)
    w.line(f"%fits = call i1 @{unit.name}.guard(ptr %dims)")
    w.line("br i1 %fits, label %sum, label %large")
    w.place("sum")
    _load_symbols(w, symbols)
    static, total, bad = 0, "0", "false"
    times = unit.declare("{ i64, i1 }", "llvm.umul.with.overflow.i64", "i64", "i64")
    for item, shape in main.pieces:
        if all(not d or set(d) == {()} for d in shape):
            size = item
            for d in shape:
                size *= d.get((), 0)
            static += -(-size // 64) * 64
            continue
        product = str(item)
        for dim in shape:
            if unit.space.magnitude(dim) > SMALL:
                raise GraphError("codegen: a dimension of a buffer is too large an expression")
            number = w.integer(dim)
            pair = w.set(f"call {{ i64, i1 }} {times}(i64 {product}, i64 {number})")
            product = w.set(f"extractvalue {{ i64, i1 }} {pair}, 0")
            over = w.set(f"or i1 {w.set(f'extractvalue {{ i64, i1 }} {pair}, 1')}, {w.set(f'icmp slt i64 {number}, 0')}")
            bad = w.set(f"or i1 {bad}, {over}")
        bad = w.set(f"or i1 {bad}, {w.set(f'icmp ugt i64 {product}, {SYMBOL_LIMIT << 10}')}")
        rounded = w.set(f"and i64 {w.set(f'add i64 {product}, 63')}, -64")
        total = w.set(f"add i64 {total}, {rounded}")
        bad = w.set(f"or i1 {bad}, {w.set(f'icmp ugt i64 {total}, {SYMBOL_LIMIT << 10}')}")
    if static > SMALL:
        raise GraphError("codegen: the buffers of the graph do not fit in memory")
    total = w.set(f"add i64 {total}, {static}")
    result = w.set(f"select i1 {bad}, i64 -1, i64 {total}")
    w.line(f"ret i64 {result}")
    w.place("large")
    w.line("ret i64 -1")
    return f"define i64 @{unit.name}_workspace(ptr %dims) #0 {{\n{w.body()}\n}}\n"


def _shapes(unit: Unit, results: list[TensorType], symbols: list[str]) -> str:
    w = Writer(unit)
    _load_symbols(w, symbols)
    position = 0
    for type_ in results:
        for dim in type_.shape:
            number = w.integer(unit.space.convert(dim))
            pointer = w.set(f"getelementptr i64, ptr %out, i64 {position}")
            w.line(f"store i64 {number}, ptr {pointer}, align 8")
            position += 1
    w.line("ret void")
    return f"define void @{unit.name}_shapes(ptr %dims, ptr %out) #0 {{\n{w.body()}\n}}\n"


def _guard(unit: Unit, symbols: list[str]) -> str:
    """Whether all dimensions and the products of dimensions that occur are so small that index arithmetic can't overflow."""
    w = Writer(unit)
    _load_symbols(w, symbols)
    limit = SYMBOL_LIMIT
    ok = "true"
    for name in symbols:
        ok = w.set(f"and i1 {ok}, {w.set(f'icmp ule i64 {w.integer(unit.space.symbol(name))}, {limit}')}")
    times = unit.declare("{ i64, i1 }", "llvm.umul.with.overflow.i64", "i64", "i64")
    for monomial in unit.space.guarded:
        product = w.symbol(monomial[0])
        for number in monomial[1:]:
            pair = w.set(f"call {{ i64, i1 }} {times}(i64 {product}, i64 {w.symbol(number)})")
            product = w.set(f"extractvalue {{ i64, i1 }} {pair}, 0")
            fits = w.set(f"xor i1 {w.set(f'extractvalue {{ i64, i1 }} {pair}, 1')}, true")
            ok = w.set(f"and i1 {ok}, {w.set(f'and i1 {fits}, ' + w.set(f'icmp ule i64 {product}, {limit}'))}")
    w.line(f"ret i1 {ok}")
    return f"define internal i1 @{unit.name}.guard(ptr %dims) #2 {{\n{w.body()}\n}}\n"

