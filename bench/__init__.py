"""Benchmarks.

``python -m bench`` times machine code beside other engines on the workloads of ``bench/workloads``, see ``bench/__main__.py``;
``python bench/frontend.py`` times the front end; ``python bench/math_errors.py`` finds the largest errors of vector math.
"""
