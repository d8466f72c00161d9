"""The short form of the mutation test: some kinds of kernels, all of their barriers, waits and bounds.  ``make gpu-mutations`` tries all kinds."""

from __future__ import annotations

import pytest

from codegen.cuda.host_build import why_not
from tests.cuda.mutation_programs import SUBJECTS, Subject
from tests.cuda.mutations import SANITIZERS, remove_all

SHORT = [s for s in SUBJECTS if s.short]


@pytest.mark.parametrize("subject", SHORT, ids=lambda s: s.name)
def test_every_removal_is_noticed(subject: Subject) -> None:
    for sanitize in SANITIZERS:
        if (reason := why_not(sanitize)) is not None:
            pytest.skip(reason)
    found = remove_all(subject)
    assert not found.whole, "\n".join(found.whole)
    assert found.marks, "nothing is marked"
    assert not found.missed, "\n".join(map(found.describe, found.missed))
