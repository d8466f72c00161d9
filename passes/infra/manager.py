"""Running a pipeline: checks, printing, timing and statistics around every pass."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ir.clone import clone_module
from ir.core import Module
from ir.diagnostics import GraphError
from ir.inference import infer_module
from ir.printer import print_module
from ir.structure import Copies
from ir.verifier import verify_module
from passes.infra.base import Pass, PassContext
from passes.infra.pipeline import format_pass, pass_name
from passes.infra.twins import Folding

if TYPE_CHECKING:
    from ir.weights import WeightSource
    from passes.infra.decisions import Decisions
    from passes.infra.verify_exec import KeptRuns


_WORTH_FOLDING = 3
"""Local passes that follow each other, at least: folding and unfolding take about as long as two of them for all nests."""


class PassFault(Exception):
    """A pass did wrong: it broke the module or its numbers.  This is our fault, never the user's.

    ``pass_text`` is the pass with its options; ``before`` the text of the module it was given.
    """

    def __init__(self, pass_text: str, message: str, before: str) -> None:
        super().__init__(f"pass '{pass_text}' {message}")
        self.pass_text = pass_text
        self.before = before


@dataclass
class Instrumentation:
    """What is watched while passes run; the flags of the command line.

    ``print_before`` and ``print_after`` name passes (``all`` stands for every one); ``emit`` receives the texts.
    ``explain`` asks passes to record what they decide (:mod:`passes.infra.decisions`).  ``progress`` hears of every pass
    before it runs, ``done`` when it has run and was checked, also when the check found a fault.
    """

    print_before: tuple[str, ...] = ()
    print_after: tuple[str, ...] = ()
    print_before_changed: bool = False
    print_after_changed: bool = False
    verify_each: bool = False
    verify_exec: bool = False
    verify_exec_budget: float | None = None
    explain: bool = False
    seed: int = 0
    emit: Callable[[str], None] = lambda text: None
    progress: Callable[[str], None] = lambda text: None
    done: Callable[[PassRecord], None] = lambda record: None


@dataclass
class PassRecord:
    """What one pass took and did."""

    text: str
    seconds: float
    changed: bool
    statistics: dict[str, int]
    note: str = ""
    decisions: list[Decisions] = field(default_factory=list)


@dataclass
class PassManager:
    """Runs passes in order.  ``records`` tells afterwards what each took and did.

    With ``fold_twins`` local passes work on one nest of every kind (:mod:`passes.infra.twins`), which is quicker for deep
    models; names inside of the other nests may come out differently, and statistics count what was worked on.  ``behind`` are
    functions that look at the module behind a pass of this identity.  ``copies`` tells afterwards which nests are copies of others.
    In the graph ``stand_in`` the last copies are only stand-ins for code generation, until somebody calls :meth:`complete`.
    """

    passes: Sequence[Pass]
    instrumentation: Instrumentation = field(default_factory=Instrumentation)
    sources: Mapping[str, WeightSource] = field(default_factory=dict)
    records: list[PassRecord] = field(default_factory=list)
    fold_twins: bool = False
    behind: Mapping[int, Callable[[Module], None]] = field(default_factory=dict)
    stand_in: str | None = None
    copies: Copies = field(default_factory=dict)
    _generated: dict[Any, WeightSource] = field(default_factory=dict)
    _kept: KeptRuns | None = None
    _folding: Folding | None = None

    def run(self, module: Module) -> bool:
        """Rewrites the module in place; returns whether anything changed.

        Raises :class:`GraphError` when the program is wrong, :class:`PassFault` when a pass is.
        """
        verify_module(module, sources=self.sources)
        changed = False
        typed = False
        folds = self._marks_folds()
        for pass_, folded in zip(self.passes, folds, strict=True):
            folded = folded or (self._folding is not None and (pass_.is_local() or pass_.beside or pass_.is_idle(module)))
            if not folded:
                self._unfold()
            if pass_.needs_types and not typed:
                infer_module(module, self.sources)
                typed = True
            if folded:
                self._fold(module, pass_.leaves_out)
            self.copies = {}
            did = self._run_one(pass_, module)
            changed |= did
            if id(pass_) in self.behind:
                self.behind[id(pass_)](module)
            typed = typed and (not did or pass_.keeps_types)  # what a pass did may let more be inferred
        if self.stand_in is not None and self._folding is not None:
            self.copies = self._folding.stand_in(self.stand_in)
            if not self._folding.kinds:
                self._folding = None
        else:
            self._unfold()
        return changed

    @property
    def is_complete(self) -> bool:
        """Whether the module is without stand-ins."""
        return self._folding is None

    def complete(self) -> None:
        """Makes the module what it is without stand-ins; code can't be made of it at the same time."""
        self._unfold()

    def _marks_folds(self) -> list[bool]:
        """For every pass whether it sees, or makes, one nest of every kind only.

        It is one of several local passes that follow each other, or leaves out nests in front of them.
        """
        watch = self.instrumentation
        watched = watch.print_before or watch.print_after or watch.print_before_changed or watch.print_after_changed
        if not self.fold_twins or watched or watch.verify_each or watch.verify_exec:
            return [False] * len(self.passes)
        folds: list[bool] = []
        for local, run in itertools.groupby(p.is_local() for p in self.passes):
            count = len(list(run))
            folds += [local and count >= _WORTH_FOLDING] * count
        for n in reversed(range(len(folds) - 1)):
            folds[n] = folds[n] or (self.passes[n].leaves_out and folds[n + 1])
        return folds

    def _fold(self, module: Module, leaves_out: bool) -> None:
        if self._folding is None:
            self._folding = Folding()
        if not leaves_out and not self._folding.whole:
            self._folding.fold(module)

    def _unfold(self) -> None:
        if self._folding is not None:
            self.copies = self._folding.unfold()
            self._folding = None

    def _run_one(self, pass_: Pass, module: Module) -> bool:
        watch = self.instrumentation
        name, text = pass_name(pass_), format_pass(pass_)
        watch.progress(text)
        if name in watch.print_before or "all" in watch.print_before:
            watch.emit(f"// before {text}\n{print_module(module)}")
        reference = clone_module(module) if watch.verify_exec else None
        before = print_module(module) if watch.verify_each or watch.verify_exec or watch.print_before_changed else None
        context = PassContext(self.sources, decisions=[] if watch.explain else None, folding=self._folding if pass_.leaves_out else None)
        start = time.perf_counter()
        try:
            changed = pass_.run(module, context)
        except GraphError:
            raise
        except Exception as error:
            if self._folding is not None:
                self._folding.abandon()
                self._folding = None
            raise PassFault(text, f"failed: {type(error).__name__}: {error}", before or print_module(module)) from error
        record = PassRecord(text, time.perf_counter() - start, changed, context.statistics, decisions=context.decisions or [])
        self.records.append(record)
        if before is not None and (watch.verify_each or watch.verify_exec):
            self._check(text, module, before, changed)
        if watch.print_before_changed and changed:
            watch.emit(f"// before {text}\n{before}")
        if reference is not None and (changed or name == "infer-types"):
            record.note = "wrong"
            try:
                record.note = self._compare(pass_, text, reference, module)
            finally:
                watch.done(record)
        else:
            watch.done(record)
        if name in watch.print_after or "all" in watch.print_after or (watch.print_after_changed and changed):
            watch.emit(f"// after {text}\n{print_module(module)}")
        return changed

    def _check(self, text: str, module: Module, before: str, changed: bool) -> None:
        try:
            verify_module(module, sources=self.sources)
        except GraphError as error:
            raise PassFault(text, f"made a module that does not verify:\n{error}", before) from error
        if not changed and print_module(module) != before:
            raise PassFault(text, "says that it changed nothing, but the text differs", before)

    def _compare(self, pass_: Pass, text: str, reference: Module, module: Module) -> str:
        from passes.infra import verify_exec

        self._kept = self._kept or verify_exec.KeptRuns()
        outcome = verify_exec.compare_modules(
            reference,
            module,
            pass_.preserves,
            tolerance=pass_.tolerance(),
            sources=self.sources,
            seed=self.instrumentation.seed,
            budget=self.instrumentation.verify_exec_budget or verify_exec.DEFAULT_BUDGET,
            generated=self._generated,
            kept=self._kept,
        )
        if outcome.mismatch is not None:
            raise PassFault(text, f"broke the numbers: {outcome.mismatch.describe()}", print_module(reference))
        return outcome.skipped or "verified"
