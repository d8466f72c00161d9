"""Kernels on a GPU beside torch (cuBLAS, torch.compile) and the driver's copy, in one run.

    python -m bench.gpu [--device cuda] [--part rows,products,mlp,launch,decode] [--match TEXT] [--quick]

Results are compared before anything is timed.  Reports are written to ``--out`` after every line: gpu.md, gpu.json, and gpu-paragraph.md for
docs/performance.md (``--name`` is another name than gpu).

Ends with 1 where a result is wrong, something broke, or there is no card; what is wanted and missed is only reported.
``--device cuda-emulated --tiny`` runs everything in tiny sizes beside numpy, and tells no times.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.gpu import card, report
from bench.gpu.decode import decode_rows, measure_decode
from bench.gpu.launches import launch_rows, measure_launches
from bench.gpu.measure import Bench, measure_work, work_row
from bench.gpu.peer import Torch
from bench.gpu.row import Row
from bench.gpu.timing import Plan
from bench.gpu.works import all_works
from codegen.cuda.device import Device, open_device
from ir.diagnostics import GraphError

PARTS = ("rows", "products", "mlp", "launch", "decode")
FULL, QUICK = Plan(), Plan(rounds=3, seconds=0.005)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cuda-emulated with --tiny; default: %(default)s")
    parser.add_argument("--tiny", action="store_true", help="sizes for the emulated device; on a card to see whether everything runs")
    parser.add_argument("--part", default=",".join(PARTS), help="with commas; default: %(default)s")
    parser.add_argument("--match", default="", help="only work whose name has this in it")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK.rounds} rounds of {QUICK.seconds * 1e3:g} ms")
    parser.add_argument("--no-torch", action="store_true", help="without torch")
    parser.add_argument("--name", default="gpu", help="of the reports; default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for the reports; default: %(default)s")
    return parser.parse_args(words)


def torch_or_none(device: Device, wanted: bool) -> Torch | None:
    """torch, where it is there."""
    if not wanted:
        return None
    try:
        return Torch(device)
    except ImportError as error:
        print(f"torch is left out: {error}")
        return None


def todo(bench: Bench, options: argparse.Namespace) -> list[tuple[list[Row], Callable[[Row], None]]]:
    """Rows with what fills them, in their order."""
    parts = options.part.split(",")
    found: list[tuple[list[Row], Callable[[Row], None]]] = []
    for work in all_works(options.tiny):
        if work.part in parts and options.match in work.name:
            found.append(([work_row(work)], lambda row, work=work: measure_work(bench, work, row)))  # type: ignore[misc]
    if "launch" in parts and any(options.match in r.name for r in launch_rows()):
        rows = launch_rows()
        found.append((rows, lambda _, rows=rows: measure_launches(bench, rows)))  # type: ignore[misc]
    if "decode" in parts:
        for row, dtype in zip(decode_rows(options.tiny), ("f32", "bf16"), strict=True):
            if options.match in row.name:
                found.append(([row], lambda row, dtype=dtype: measure_decode(bench, row, dtype, options.tiny)))  # type: ignore[misc]
    return found


def write(run: report.Run, folder: Path, name: str) -> None:
    """All three reports."""
    (folder / f"{name}.md").write_text(report.text(run), encoding="utf-8")
    (folder / f"{name}.json").write_text(report.as_json(run), encoding="utf-8")
    if not run.emulated:
        (folder / f"{name}-paragraph.md").write_text(report.paragraph(run), encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    """Measures and reports."""
    options = arguments(words)
    unknown = set(options.part.split(",")) - set(PARTS)
    if unknown or (options.device == "cuda-emulated" and not options.tiny):
        print(f"there is no part {', '.join(sorted(unknown))}" if unknown else "--device cuda-emulated is for --tiny")
        return 2
    try:
        device = open_device(options.device)
    except GraphError as error:
        print(error)
        print("bench.gpu needs a card; --device cuda-emulated --tiny tries everything but the times without one")
        return 1
    bench = Bench(device, torch_or_none(device, not options.no_torch), QUICK if options.quick else FULL)
    number = device.driver.number
    label = "emulated" if bench.emulated else "measured"
    run = report.Run(label, card.card(device), card.versions(), bench.plan, {} if bench.emulated else card.state(number))
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    for rows, fill in todo(bench, options):
        bench.run(rows[0], fill)
        run.rows += rows
        run.after = {} if bench.emulated else card.state(number)
        write(run, options.out, options.name)
        for row in rows:
            tell(row, bench.emulated)
    print(f"\n{report.text(run)}")
    where = f"{options.out}/{options.name}.*"
    print(where if bench.emulated else f"{time.perf_counter() - start:.0f} s; {where}")
    if run.failed or not run.rows:
        print(f"{len(run.failed)} of {len(run.rows)} are wrong or broken: {', '.join(r.name for r in run.failed)}")
        return 1
    return 0


def tell(row: Row, emulated: bool) -> None:
    """A line for what is finished."""
    times = "" if emulated else ", ".join(f"{name} {report.mark(row, name)}" for name in row.timings) + "; "
    said = [row.check, *row.notes, *([f"{row.wanted.text}: {report.reached(row)} {report.verdict(row)}"] if row.wanted and not emulated else [])]
    print(f"{row.name}: {times}{'; '.join(filter(None, said))}{' WRONG' if row.bad else ''}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
