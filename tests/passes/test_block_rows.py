"""block-rows: blocks of rows around the loops over panels, and the same bits."""

from __future__ import annotations

import pytest
from loop_programs import assert_same_runs
from pass_checks import load, optimize
from test_prefetch import panels

from codegen.llvm.emit import emit_graph
from ir.diagnostics import GraphError
from ir.printer import print_module
from passes.pipelines import load_pipeline

PEELED = "peel{loop=m.tile, sizes=[4, 2, 1]},vectorize{loops=[m, n]},"


def blocked(text: str, options: str = "size=48") -> str:
    return print_module(optimize(text, f"{PEELED}block-rows{{{options}}}"))


def loops(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if "scf.parallel(" in line]


BLOCKS = [
    'scf.parallel(%itb = 0 to {} step 48, tag="m.block") {{',
    'scf.parallel(%jt.1 = 0 to 96 step 48, tag="n.tile") {{',
    'scf.parallel(%it.{} = %itb to %itb+48 step 8, tag="m.tile") {{',
]


def test_whole_blocks() -> None:
    """Rows that fill their blocks leave nothing behind."""
    assert loops(blocked(panels("96"))) == [line.format(n) for line, n in zip(BLOCKS, (96, "", 1), strict=True)]


def test_last_block() -> None:
    """The last block has what is left, too: 160 rows are 48, 48 and 64, not three times 48 and 16."""
    text = panels("167")
    *found, first = loops(blocked(text))[:5]
    assert found == [*(line.format(n) for line, n in zip(BLOCKS, (96, "", 4), strict=True)), BLOCKS[1].format().replace("jt.1", "jt")]
    assert first == 'scf.parallel(%it = 96 to 160 step 8, tag="m.tile") {'
    after = optimize(text, PEELED + "block-rows{size=48}")
    assert_same_runs(load(text), after, [((167, 5), (2, 5, 48), (167, 96))])


def test_what_is_left_has_company() -> None:
    """Rows that fill their blocks, and some behind them: the last block stays with these, which would read all panels for themselves."""
    text = panels("99")
    found = loops(blocked(text))
    assert found[:3] == [line.format(n) for line, n in zip(BLOCKS, (48, "", 3), strict=True)]
    assert found[3] == BLOCKS[1].replace("jt.1", "jt").format() and found[4] == 'scf.parallel(%it = 48 to 96 step 8, tag="m.tile") {'
    after = optimize(text, PEELED + "block-rows{size=48}")
    assert_same_runs(load(text), after, [((99, 5), (2, 5, 48), (99, 96))])


def test_rows_known_when_it_runs() -> None:
    after = optimize(panels("M", "K"), PEELED + "block-rows{size=48}")
    text = print_module(after)
    assert "%itb = 0 to 48*max(" in text and "step 48" in text
    assert_same_runs(load(panels("M", "K")), after, [((m, k), (2, k, 48), (m, 96)) for m in (0, 1, 47, 48, 95, 96, 97, 151, 200) for k in (0, 3)])


def test_no_checks() -> None:
    """What the emitter knows about steps and ends proves all accesses: there are no more checks than without blocks."""

    def checks(blocks: str) -> int:
        module = optimize(panels("M", "K"), f"{PEELED}{blocks}prefetch{{across=n.tile}},unroll-vectors")
        return emit_graph(module, module.main).text.count("@g_main.fail(")

    assert checks("block-rows{size=48},") == checks("")


def test_bytes() -> None:
    """Long rows make blocks smaller, but not smaller than six tiles."""
    assert "step 64, tag=\"m.block\"" in blocked(panels("256", "1000"), "size=128, bytes=260000")
    assert "step 48, tag=\"m.block\"" in blocked(panels("256", "1000"), "size=128, bytes=2600")
    with pytest.raises(GraphError, match="a row and a byte"):
        load_pipeline("block-rows{size=0}")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('tag="n.tile"', 'tag="x.tile"'),
        ('tag="m.tile"', 'tag="x.tile"'),
        ("scf.parallel(%it", "memref.prefetch(%A[0, 0])\n    scf.parallel(%it"),
        ("%it = 0 to 96", "%it = %jt to 96"),
    ],
)
def test_what_stays(old: str, new: str) -> None:
    text = panels("96")
    assert old in text and "m.block" not in blocked(text.replace(old, new))
    assert "m.block" not in blocked(panels("48")), "one block is all"
