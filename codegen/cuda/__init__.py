"""CUDA C from kernels, its compilers, and what runs it: on a GPU, or on the CPU for tests."""
