"""Native code for CPUs through LLVM: see :mod:`codegen.llvm.emit` and :mod:`codegen.llvm.jit`."""
