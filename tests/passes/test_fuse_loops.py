"""fuse-loops: one loop of neighbours where no dependence is broken; same bits, and the reasons why loops stay apart."""

from __future__ import annotations

import random

import pytest
from memory_programs import assert_same_memory, changed, left, program
from pass_checks import apply, load, optimize

from ir.clone import clone_module
from ir.core import Module
from passes.loops._loops import is_loop

FUSE = "fuse-loops{loop=[i, j]}"
SIZES = [{"M": m, "N": n} for m, n in [(4, 3), (1, 1), (0, 2), (7, 2)]]


def pair(first: str, second: str, kind: str = "parallel", between: str = "", bounds: str = "0 to M") -> str:
    """Two loops over a buffer that is no parameter."""
    return program(f"""
  %T = memref.alloc() : memref<f32[M+2]>
  %X = memref.alloc() : memref<f32[M, N]>
  memref.copy(%A, %X)
  %one = arith.constant(1.0) : f32
  scf.for(%z = 0 to M+2) {{
    memref.store(%one, %T[%z])
    yield
  }}
  scf.{kind}(%i = 0 to M, tag="i") {{
    %a = memref.load(%X[%i, 0]) : f32
    {first}
    yield
  }}
  {between}
  scf.{kind}(%p = {bounds}, tag="i") {{
    {second}
    memref.store(%t, %C[%p, 0])
    yield
  }}""")


def loops(module: Module) -> int:
    return sum(map(is_loop, module.walk()))


STORE = "memref.store(%a, %T[%i+{}])"
LOAD = "%t = memref.load(%T[%p+{}]) : f32"


@pytest.mark.parametrize(
    ("kind", "stored", "read", "fused"),
    [
        ("parallel", 0, 0, True),
        ("parallel", 1, 1, True),
        ("parallel", 1, 0, False),
        ("parallel", 0, 1, False),
        ("for", 0, 0, True),
        ("for", 1, 0, True),  # a round reads what an earlier one stored
        ("for", 0, 1, False),
        ("for", 0, 2, False),
    ],
)
def test_distances(kind: str, stored: int, read: int, fused: bool) -> None:
    text = pair(STORE.format(stored), LOAD.format(read), kind)
    if fused:
        assert loops(changed(text, FUSE, SIZES)) == 2
    else:
        assert left(text, FUSE) == ["loops not fused: a dependence would be broken"]


def test_what_stands_between() -> None:
    moved = "%S = memref.alloc() : memref<f32[M]>\n%two = arith.addf(%one, %one) : f32"
    load_ = "%u = memref.load(%T[%p]) : f32\n%t = arith.mulf(%u, %two) : f32\nmemref.store(%t, %S[%p])"
    assert loops(changed(pair(STORE.format(0), load_, between=moved), FUSE, SIZES)) == 2
    text = pair(STORE.format(0), LOAD.format(0), between="memref.store(%one, %T[0])")
    assert left(text, FUSE) == ["loops not fused: something stands between them"]


def test_ranges() -> None:
    assert left(pair(STORE.format(0), LOAD.format(0), bounds="1 to M"), FUSE) == ["loops not fused: their ranges differ"]
    assert left(pair(STORE.format(0), LOAD.format(0)).replace('%p = 0 to M, tag="i"', '%p = 0 to M, tag="x"'), FUSE) == []


def test_reductions() -> None:
    """Serial loops that carry values, and the one that needs the other's result."""
    text = program("""
  %zero = arith.constant(0.0) : f32
  %s = scf.for(%i = 0 to M, %acc = %zero, tag="i") {
    %a = memref.load(%A[%i, 0]) : f32
    %b = arith.addf(%acc, %a) : f32
    yield %b
  } : f32
  %p, %q = scf.for(%k = 0 to M, %x = {}, %y = %zero, tag="i") {
    %c = memref.load(%A[%k, 0]) : f32
    %d = arith.maximumf(%x, %c) : f32
    %e = arith.subf(%y, %x) : f32
    yield %d, %e
  } : f32, f32
  memref.store(%s, %C[0, 0])
  memref.store(%p, %C[0, 1])
  memref.store(%q, %C[0, 2])""").replace("M, N", "M, 3")
    text = text.replace("%C: memref<f32[M, 3]>", "%C: memref<f32[1, 3]>")
    after = changed(text.replace("{}", "%zero"), FUSE, SIZES)
    assert """\
  %s, %p, %q = scf.for(%i = 0 to M, %acc = %zero, %x = %zero, %y = %zero, tag="i") {
    %a = memref.load(%A[%i, 0]) : f32
    %b = arith.addf(%acc, %a) : f32
    %c = memref.load(%A[%i, 0]) : f32
    %d = arith.maximumf(%x, %c) : f32
    %e = arith.subf(%y, %x) : f32
    yield %b, %d, %e
  } : f32, f32, f32
""" in str(after)
    assert left(text.replace("{}", "%s"), FUSE) == ["loops not fused: the second one needs the result of the first"]


def test_only_inside_of_a_loop() -> None:
    text = program("""
  %T = memref.alloc() : memref<f32[M, N]>
  %X = memref.alloc() : memref<f32[M, N]>
  memref.copy(%A, %X)
  scf.parallel(%r = 0 to M, tag="row") {
    scf.parallel(%i = 0 to N, tag="i") {
      %a = memref.load(%X[%r, %i]) : f32
      memref.store(%a, %T[%r, %i])
      yield
    }
    scf.parallel(%p = 0 to N, tag="i") {
      %c = memref.load(%T[%r, %p]) : f32
      %t = arith.addf(%c, %c) : f32
      memref.store(%t, %C[%r, %p])
      yield
    }
    yield
  }""")
    assert loops(load(text)) == 3
    assert loops(changed(text, "fuse-loops{loop=[i], inside=row}", SIZES)) == 2
    assert loops(optimize(text, "fuse-loops{loop=[i], inside=m}")) == 3
    assert loops(optimize(pair(STORE.format(0), LOAD.format(0)), "fuse-loops{loop=[i], inside=i}")) == 3


def test_a_serial_and_a_parallel_loop() -> None:
    """An element-wise loop and the sum over it, in both orders, as in a softmax."""
    text = program("""
  %X = memref.alloc() : memref<f32[M]>
  %E = memref.alloc() : memref<f32[M]>
  memref.copy(%A, %X)
  %zero = arith.constant(0.0) : f32
  scf.parallel(%i = 0 to M, tag="i") {
    %x = memref.load(%X[%i]) : f32
    %e = math.exp(%x) : f32
    memref.store(%e, %E[%i])
    yield
  }
  %s = scf.for(%k = 0 to M, %acc = %zero, tag="j") {
    %a = memref.load(%E[%k]) : f32
    %t = arith.addf(%acc, %a) : f32
    yield %t
  } : f32
  scf.parallel(%p = 0 to M, tag="i") {
    %y = memref.load(%E[%p]) : f32
    %q = arith.mulf(%y, {}) : f32
    memref.store(%q, %C[%p])
    yield
  }""", "%A: memref<f32[M]>, %C: memref<f32[M]>").replace("  return", "memref.store(%s, %C[0])\n  return")
    sizes = [{"M": m} for m in (1, 2, 5)]
    after = changed(text.replace("{}", "%s"), f"{FUSE},forward-stores", sizes)
    assert [op.name for op in after.walk() if is_loop(op)] == ["scf.for", "scf.parallel"]
    assert """\
  %s = scf.for(%i = 0 to M, %acc = %zero, tag="j") {
    %x = memref.load(%X[%i]) : f32
    %e = math.exp(%x) : f32
    memref.store(%e, %E[%i])
    %t = arith.addf(%acc, %e) : f32
    yield %t
""" in str(after)
    assert [op.name for op in changed(text.replace("{}", "%zero"), FUSE, sizes).walk() if is_loop(op)] == ["scf.for"]
    threads = text.replace('%i = 0 to M, tag="i"', '%i = 0 to M, tag="i", mapping="threads"').replace("{}", "%s")
    assert left(threads, FUSE)[0] == "loops not fused: their kinds differ"


def test_nests() -> None:
    """Outer loops first, then what has become neighbours inside; three of them."""
    one = """
  scf.parallel(%i{n} = 0 to M, tag="i") {
    scf.parallel(%j{n} = 0 to N, tag="j") {
      %a{n} = memref.load(%{read}[%i{n}, %j{n}]) : f32
      %b{n} = arith.addf(%a{n}, %a{n}) : f32
      memref.store(%b{n}, %{write}[%i{n}, %j{n}])
      yield
    }
    yield
  }"""
    text = "".join(one.replace("{n}", str(n)).replace("{read}", r).replace("{write}", w) for n, (r, w) in enumerate(("XT", "TU", "UC")))
    buffers = "".join(f"%{name} = memref.alloc() : memref<f32[M, N]>\n" for name in "XTU")
    text = program(f"{buffers}memref.copy(%A, %X){text}")
    assert loops(changed(text, FUSE, SIZES)) == 2
    assert loops(changed(text, "fuse-loops{loop=i}", SIZES)) == 4
    both = changed(text, f"{FUSE},shrink-buffers,forward-stores", SIZES)
    assert [op.name for op in both.walk() if op.name.startswith("memref")] == ["memref.alloc", "memref.copy", "memref.load", "memref.store"]


def test_comments() -> None:
    text = pair(STORE.format(0), LOAD.format(0)).replace("  scf.parallel(%p", "  // the second\n  scf.parallel(%p")
    assert "// the second\n    %t = memref.load(%T[%i])" in str(optimize(text, FUSE))


# -- random programs ---------------------------------------------------------------------------------------------------

PASSES = ("fuse-loops{loop=i}", "interchange{outer=i, inner=j}", "hoist-accumulators", "forward-stores", "shrink-buffers")


def random_access(rng: random.Random, names: list[str]) -> str:
    """A place in the buffer %T<f32[12, 12]> or its reshape; most are near the diagonal of the loops."""
    def index() -> str:
        if not names or rng.random() < 0.15:
            return str(rng.randint(0, 3))
        name = rng.choice(names)
        return rng.choice([f"%{name}", f"%{name}", f"%{name}", f"%{name}+1", f"%{name}+2", f"-%{name}+4", f"%{name} floordiv 2", f"2*%{name}"])

    if rng.random() < 0.2:
        return f"%R[12*({index()})+{index()}]"
    return f"{rng.choice(['%T', '%T', '%U'])}[{index()}, {index()}]"


def random_body(rng: random.Random, names: list[str], fresh: list[int], depth: int) -> list[str]:
    lines: list[str] = []
    for _ in range(rng.randint(1, 3)):
        fresh[0] += 1
        n = fresh[0]
        if depth < 2 and rng.random() < 0.35:
            inner = f"j{n}"
            tag = "j" if rng.random() < 0.7 else "i"
            body = random_body(rng, [*names, inner], fresh, depth + 1)
            lines += [f'scf.for(%{inner} = 0 to {rng.randint(0, 4)}, tag="{tag}") {{', *body, "yield", "}"]
            continue
        lines.append(f"%x{n} = memref.load({random_access(rng, names)}) : f32")
        lines.append(f"%y{n} = arith.addf(%x{n}, %one) : f32")
        lines.append(f"memref.store(%y{n}, {random_access(rng, names)})")
    return lines


def random_program(rng: random.Random) -> str:
    lines = ["%T = memref.alloc() : memref<f32[12, 12]>", "%R = memref.reshape(%T) : memref<f32[144]>", "%U = memref.alloc() : memref<f32[12, 12]>"]
    lines += ["%one = arith.constant(1.0) : f32", "memref.copy(%A, %T)", "memref.copy(%C, %U)"]
    fresh = [0]
    bound = rng.randint(0, 4)
    for _ in range(rng.randint(1, 3)):
        fresh[0] += 1
        name = f"i{fresh[0]}"
        lines += [f'scf.for(%{name} = 0 to {bound}, tag="i") {{', *random_body(rng, [name], fresh, 0), "yield", "}"]
    lines += ["memref.copy(%T, %A)", "memref.copy(%U, %C)"]
    return program("\n".join(lines), "%A: memref<f32[12, 12]>, %C: memref<f32[12, 12]>")


def test_random_programs() -> None:
    """Each pass alone, and all of them in some order, keep the memory of random nests."""
    rng = random.Random(7)
    applied = dict.fromkeys(PASSES, 0)
    for _ in range(30):
        before = load(random_program(rng))
        order = [*([p] for p in PASSES), rng.sample(PASSES, len(PASSES))]
        for passes in order:
            after = clone_module(before)
            apply(after, ",".join(passes))
            if str(after) != str(before):
                applied[passes[0]] += 1
                assert_same_memory(before, after, [{}])
    assert all(count for name, count in applied.items() if name != "shrink-buffers"), applied
