"""Comments: which operation, parameter or block each belongs to.

Lines directly above belong to the next operation, one behind to the operation that ends there; after a blank line or
before a closing brace they belong to the block.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir.core import Graph, Trivia
from ir.diagnostics import Location
from ir.tokens import Comment, Token


class CommentKeeper:
    """Comments that the lexer has met and nothing has claimed yet, in order."""

    def __init__(self, pending: list[Comment]) -> None:
        self.pending = pending

    def of_statement(self, start: Token, end: int, boundary: int) -> Trivia | None:
        """Claims what belongs to a statement from ``start`` to offset ``end``, the last token read.

        ``boundary`` is the innermost open brace: comments before it are somebody else's.
        """
        """Comments that belong to what began at ``start`` and ended at the last token read."""
        blank = start.newlines > 1
        if not self.pending:
            return Trivia(True) if blank else None
        first = len(self.pending)
        while first > 0 and self.pending[first - 1].start > boundary:
            first -= 1
        mine = self.pending[first:]
        before = [c for c in mine if c.start < start.start]
        inside = [c for c in mine if start.start < c.start < end]
        behind = [c for c in mine if c.after == end and c.newlines == 0 and c.start >= end]
        taken = {id(c) for c in (*before, *inside, *behind)}
        self.pending[first:] = [c for c in mine if id(c) not in taken]
        if not taken:
            return Trivia(True) if blank else None
        blocks, blank_first = comment_blocks(before)
        leading: tuple[str, ...] = ()
        if blocks and start.newlines <= 1:
            leading = blocks.pop()
        return Trivia(
            blank_first if before else blank, tuple(blocks), leading + tuple(c.text for c in inside), tuple(c.text for c in behind)
        )

    def of_block(self, begin: int, end: int) -> tuple[tuple[str, ...], ...]:
        """Claims what is left between two offsets: the comments at the end of a block."""
        mine = [c for c in self.pending if begin < c.start < end]
        if mine:
            taken = {id(c) for c in mine}
            self.pending[:] = [c for c in self.pending if id(c) not in taken]
        return tuple(comment_blocks(mine)[0])

    def rest(self) -> tuple[tuple[str, ...], ...]:
        """Claims everything that is left."""
        blocks = tuple(comment_blocks(self.pending)[0])
        self.pending.clear()
        return blocks

    def behind(self, end: int) -> tuple[str, ...]:
        """Claims the comment that stands behind offset ``end`` on its line."""
        found = [c for c in self.pending if c.after == end and c.newlines == 0]
        self.pending[:] = [c for c in self.pending if c not in found]
        return tuple(c.text for c in found)

    def of_header(self, graph: Graph, keyword: Token) -> None:
        """Claims what stands above a graph and between its parameters."""
        inside = [c for c in self.pending if c.start > keyword.start]
        taken = {id(c) for c in inside}
        self.pending[:] = [c for c in self.pending if id(c) not in taken]
        blocks, blank = comment_blocks(self.pending)
        self.pending.clear()
        leading = blocks.pop() if blocks and keyword.newlines <= 1 else ()
        graph.trivia = Trivia(blank or keyword.newlines > 1, tuple(blocks), leading)
        for comment in inside:
            _parameter_comment(graph, comment)


def _parameter_comment(graph: Graph, comment: Comment) -> None:
    before = [p for p in graph.parameters if isinstance(p.loc, Location) and p.loc.offset < comment.start]
    behind = [p for p in graph.parameters if isinstance(p.loc, Location) and p.loc.offset > comment.start]
    target = before[-1] if before and (comment.newlines == 0 or not behind) else behind[0] if behind else None
    if target is None:
        assert graph.trivia is not None
        graph.trivia.leading += (comment.text,)
        return
    target.trivia = target.trivia or Trivia()
    if target in before and comment.newlines == 0 and not target.trivia.trailing:  # there is room for one behind a parameter
        target.trivia.trailing += (comment.text,)
    else:
        target.trivia.leading += (comment.text,)


def comment_blocks(comments: Sequence[Comment]) -> tuple[list[tuple[str, ...]], bool]:
    """Comments grouped by blank lines, and whether a blank line stands before the first."""
    blocks: list[list[str]] = []
    for comment in comments:
        if blocks and comment.newlines <= 1:
            blocks[-1].append(comment.text)
        else:
            blocks.append([comment.text])
    return [tuple(b) for b in blocks], bool(comments) and comments[0].newlines > 1
