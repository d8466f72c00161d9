"""cf.assert: a check that stops the program."""

from __future__ import annotations

import numpy as np
import pytest

from dialects.cf import fill_message
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.opdef import REGISTRY
from ir.parser import parse_module
from ir.printer import print_module
from ir.verifier import verify_module

TEXT = """\
graph @main(%A: memref<i64[S]>, %C: memref<i64[S]>) {
  %zero = arith.constant(0) : i64
  scf.for(%i = 0 to S) {
    %a = memref.load(%A[%i]) : i64
    %more = arith.cmpi(%a, %zero, predicate="gt") : bool
    cf.assert(%more, CHECK)
    memref.store(%a, %C[%i])
    yield
  }
  return
}
"""


def run(check: str, values: list[int]) -> np.ndarray:
    module = parse_module(TEXT.replace("CHECK", check))
    verify_module(module)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    result = np.zeros(len(values), np.int64)
    Interpreter(module).run(module.graphs["main"], [np.int64(values), result])
    return result


def test_what_holds_passes() -> None:
    assert run('message="not positive"', [1, 2]).tolist() == [1, 2]
    assert run('message="not positive"', []).tolist() == []


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ('message="not positive"', "not positive"),
        ('v0=%a, message="{0} is not positive"', "-5 is not positive"),
        ('v1=%i, message="{0} at {1}"', "{0} at 1"),
        ('v0=%a, v1=%i, message="{0} at {1}: {0}, {2}"', "-5 at 1: -5, {2}"),
        ('message=""', ""),
        ('v0=%a, message="{0} of {2}, {3}", dims=[S, 2*S+1]', "-5 of 3, 7"),
    ],
)
def test_messages(check: str, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        run(check, [1, -5, -6])
    assert str(caught.value).splitlines()[0] == f"<string>:6:5: error: {message}"


def test_what_comes_before_has_happened() -> None:
    module = parse_module(TEXT.replace("CHECK", 'message="no"'))
    result = np.zeros(3, np.int64)
    with pytest.raises(GraphError):
        Interpreter(module).run(module.graphs["main"], [np.int64([7, 0, 8]), result])
    assert result.tolist() == [7, 0, 0]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ('v0=%more, message=""', "expected an index or i64, found bool"),
        ("v0=%a", "needs attribute 'message'"),
        ('%a, message=""', "expected one operand"),
        ('message="", dims=[T]', "dimension T is in no parameter"),
        ('message="", dims=[?]', "a dimension is '?'"),
    ],
)
def test_refused(check: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        run(check, [])


def test_the_condition_is_a_scalar_of_bool() -> None:
    with pytest.raises(GraphError, match="expected a scalar of bool, found i64"):
        verify_module(parse_module(TEXT.replace("%more, CHECK", '%a, message=""')))
    tensor = 'graph @main(%c: bool[]) {\n  cf.assert(%c, message="")\n  return\n}\n'
    with pytest.raises(GraphError, match="expected a scalar of bool"):
        verify_module(parse_module(tensor))


def test_it_is_an_effect_that_may_fail() -> None:
    definition = REGISTRY["cf.assert"]
    assert not definition.pure and definition.traps and definition.result_count == 0


def test_fill_message() -> None:
    assert fill_message("{0} {1} {0}", [3, None]) == "3 {1} 3"
    assert fill_message("{1}", [None, -7]) == "-7"
