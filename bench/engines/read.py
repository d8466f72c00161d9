"""A plain read, with prefetches, of as many bytes as the work has to read: what no program can beat that reads them from memory."""

from __future__ import annotations

from bench.case import Case
from bench.engines.base import Engine, Prepared
from graph_opt.limits import Meter


class Read(Engine):
    """The toolkit's meter; the memory is read again and again from its beginning."""

    def prepare(self, case: Case) -> Prepared | None:
        """For cases that want it."""
        if case.target.read is None:
            return None
        meter = Meter(self.threads, levels=(), dtypes=(), stream=int(case.nbytes))

        def run(times: int) -> None:
            for _ in range(times):
                meter.sample()

        return Prepared(run, list)
