"""Kernels on a GPU beside torch (cuBLAS, torch.compile), in one run: ``python -m bench.gpu``, see ``bench/gpu/__main__.py``."""
