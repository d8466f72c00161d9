"""Functions that every module, or one that needs them, has beside the graph's own."""

from __future__ import annotations

from codegen.llvm.writer import Unit

X86 = ("x86_64", "amd64", "i386", "i686")
"""Names of machines."""

FAILED, FIRST, SECOND, COUNT, GENERATION, CALLBACK = 0, 8, 16, 64, 128, 192
"""Offsets in ``state``: failed site + 1, its two numbers, the barrier's two words, the function that prints."""

STOP, CHECK, ZERO = 200, 208, 232
"""Where to look whether the run may have to end (a byte's address, or null), the function that then knows it, a byte that is 0."""

_FLOOR_DIVISION = """define internal i64 @{name}.floordiv(i64 %x, i64 %y) #0 {{
entry:
  %zero = icmp eq i64 %y, 0
  %minus = icmp eq i64 %y, -1
  %odd = or i1 %zero, %minus
  %safe = select i1 %odd, i64 1, i64 %y
  %q = sdiv i64 %x, %safe
  %r = srem i64 %x, %safe
  %inexact = icmp ne i64 %r, 0
  %signs = xor i64 %r, %safe
  %differ = icmp slt i64 %signs, 0
  %down = and i1 %inexact, %differ
  %one = sext i1 %down to i64
  %floor = add i64 %q, %one
  %negated = sub i64 0, %x
  %result = select i1 %minus, i64 %negated, i64 %floor
  ret i64 %result
}}
"""

_NORMAL = """define internal double @{name}.normcdf(double %x) #0 {{
entry:
  %scaled = fmul double %x, 0xBFE6A09E667F3BCD
  %minus = fneg double %scaled
  %error = call double @llvm.fma.f64(double %x, double 0xBFE6A09E667F3BCD, double %minus)
  %rest = call double @llvm.fma.f64(double %x, double 0x3C8BDD3413B26456, double %error)
  %erfc = call double @erfc(double %scaled)
  %square = fmul double %scaled, %minus
  %exp = call double @exp(double %square)
  %slope = fmul double %exp, 0xBFF20DD750429B6D
  %change = fmul double %slope, %rest
  %sum = fadd double %erfc, %change
  %half = fmul double %sum, 0x3FE0000000000000
  %plain = fmul double %erfc, 0x3FE0000000000000
  %number = fcmp ord double %half, %half
  %result = select i1 %number, double %half, double %plain
  ret double %result
}}
"""

_GELU = """define internal double @{name}.gelu(double %x) #0 {{
entry:
  %share = call double @{name}.normcdf(double %x)
  %product = fmul double %x, %share
  %infinite = fcmp oeq double %x, 0xFFF0000000000000
  %result = select i1 %infinite, double 0x8000000000000000, double %product
  ret double %result
}}
"""

_SIGMOID = """define internal double @{name}.sigmoid(double %x) #0 {{
entry:
  %size = call double @llvm.fabs.f64(double %x)
  %minus = fneg double %size
  %small = call double @exp(double %minus)
  %above = fcmp oge double %x, 0.0
  %top = select i1 %above, double 1.0, double %small
  %sum = fadd double 1.0, %small
  %result = fdiv double %top, %sum
  ret double %result
}}
"""

_SILU = """define internal double @{name}.silu(double %x) #0 {{
entry:
  ; exp(x) is denormal where the result is not, its root is not; -inf * 0 would be NaN
  %size = call double @llvm.fabs.f64(double %x)
  %half = fmul double %size, -0.5
  %root = call double @exp(double %half)
  %low = fcmp olt double %x, -1500.0
  %finite = select i1 %low, double -1500.0, double %x
  %once = fmul double %finite, %root
  %below = fmul double %once, %root
  %above = fcmp oge double %x, 0.0
  %top = select i1 %above, double %x, double %below
  %square = fmul double %root, %root
  %sum = fadd double 1.0, %square
  %result = fdiv double %top, %sum
  ret double %result
}}
"""

_GELU_TANH = """define internal double @{name}.gelu_tanh(double %x) #0 {{
entry:
  %cubic = fmul double %x, 0x3FA6E4E26D4801F7
  %fourth = fmul double %cubic, %x
  %third = fmul double %fourth, %x
  %sum = fadd double %x, %third
  %argument = fmul double %sum, 0x3FF9884533D43651
  %share = call double @{name}.sigmoid(double %argument)
  %low = fcmp olt double %x, -50.0
  %finite = select i1 %low, double -50.0, double %x
  %result = fmul double %finite, %share
  ret double %result
}}
"""

RUNTIME = """define internal void @{name}.fail(ptr %state, i64 %site, i64 %first, i64 %second) #1 {{
entry:
  %site32 = trunc i64 %site to i32
  %mark = add i32 %site32, 1
  %pair = cmpxchg ptr %state, i32 0, i32 %mark acq_rel acquire
  %won = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %won, label %write, label %end
write:
  %p = getelementptr i8, ptr %state, i64 8
  store i64 %first, ptr %p, align 8
  %q = getelementptr i8, ptr %state, i64 16
  store i64 %second, ptr %q, align 8
  br label %end
end:
  ret void
}}

define internal i32 @{name}.stopped(ptr %state, i64 %thread) #1 {{
entry:
  %place = getelementptr i8, ptr %state, i64 208
  %check = load ptr, ptr %place, align 8
  %none = icmp eq ptr %check, null
  br i1 %none, label %on, label %ask
ask:
  %answer = call i32 %check(ptr %state, i64 %thread)
  ret i32 %answer
on:
  ret i32 0
}}

define internal i32 @{name}.barrier(ptr %state, i64 %threads, i64 %thread) #2 {{
entry:
  %alone = icmp sle i64 %threads, 1
  br i1 %alone, label %end, label %arrive
arrive:
  %count = getelementptr i8, ptr %state, i64 64
  %generation = getelementptr i8, ptr %state, i64 128
  %before = load atomic i32, ptr %generation acquire, align 4
  %earlier = atomicrmw add ptr %count, i32 1 acq_rel
  %wanted = trunc i64 %threads to i32
  %arrived = add i32 %earlier, 1
  %last = icmp eq i32 %arrived, %wanted
  br i1 %last, label %release, label %wait
release:
  ; all leave or none: whether there was a failure is decided once, and told in the last bit
  %known = load atomic i32, ptr %state acquire, align 4
  %some = icmp ne i32 %known, 0
  %bit = zext i1 %some to i32
  store atomic i32 0, ptr %count monotonic, align 4
  %round = add i32 %before, 2
  %next = or i32 %round, %bit
  store atomic i32 %next, ptr %generation release, align 4
  ret i32 %bit
wait:
  %spins = phi i32 [ 0, %arrive ], [ %spun, %again ]
  %now = load atomic i32, ptr %generation acquire, align 4
  %passed = icmp ne i32 %now, %before
  br i1 %passed, label %told, label %rest
told:
  %last_bit = and i32 %now, 1
  ret i32 %last_bit
rest:
  %spun = add i32 %spins, 1
  %patient = icmp ult i32 %spins, 512
  br i1 %patient, label %pause, label %yield
pause:
  {pause}
  br label %again
yield:
  %ignored = call i32 @sched_yield()
  %stop_place = getelementptr i8, ptr %state, i64 200
  %stop = load ptr, ptr %stop_place, align 8
  %nobody = icmp eq ptr %stop, null
  br i1 %nobody, label %again, label %look
look:
  %flag = load atomic i8, ptr %stop monotonic, align 1
  %raised = icmp ne i8 %flag, 0
  br i1 %raised, label %ask, label %again
ask:
  %answer = call i32 @{name}.stopped(ptr %state, i64 %thread)
  br label %again
again:
  br label %wait
end:
  %failed = load atomic i32, ptr %state acquire, align 4
  ret i32 %failed
}}
"""


def floor_division(unit: Unit) -> str:
    """The name of a function for the quotient rounded down, of any two integers (a wrong one for divisor 0)."""
    unit.definitions.setdefault("floordiv", _FLOOR_DIVISION.format(name=unit.name))
    return f"@{unit.name}.floordiv"


def normal_distribution(unit: Unit) -> str:
    """The name of a function for ``math.normcdf`` in double: erfc of the C library, corrected for the rounding of its argument."""
    unit.declare("double", "llvm.fma.f64", "double", "double", "double")
    unit.external("double", "erfc", "double")
    unit.external("double", "exp", "double")
    unit.definitions.setdefault("normcdf", _NORMAL.format(name=unit.name))
    return f"@{unit.name}.normcdf"


def gelu(unit: Unit) -> str:
    """The name of a function for ``math.gelu`` in double."""
    normal_distribution(unit)
    unit.definitions.setdefault("gelu", _GELU.format(name=unit.name))
    return f"@{unit.name}.gelu"


def gelu_tanh(unit: Unit) -> str:
    """The name of a function for ``math.gelu_tanh`` in double."""
    sigmoid(unit)
    unit.definitions.setdefault("gelu_tanh", _GELU_TANH.format(name=unit.name))
    return f"@{unit.name}.gelu_tanh"


def sigmoid(unit: Unit) -> str:
    """The name of a function for ``math.sigmoid`` in double."""
    return _of_exponential(unit, "sigmoid", _SIGMOID)


def silu(unit: Unit) -> str:
    """The name of a function for ``math.silu`` in double."""
    return _of_exponential(unit, "silu", _SILU)


def _of_exponential(unit: Unit, name: str, text: str) -> str:
    unit.declare("double", "llvm.fabs.f64", "double")
    unit.external("double", "exp", "double")
    unit.definitions.setdefault(name, text.format(name=unit.name))
    return f"@{unit.name}.{name}"


def runtime(unit: Unit, pause: str) -> str:
    """The functions for failures and barriers.  ``pause`` is the instruction for waiting."""
    unit.external("i32", "sched_yield")
    return RUNTIME.format(name=unit.name, pause=pause)
