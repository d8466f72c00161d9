"""Benchmarks.

``python -m bench`` times machine code beside other engines on the workloads of ``bench/workloads``, see ``bench/__main__.py``;
``python bench/frontend.py`` times the front end, ``python bench/compile_time.py`` the way to machine code; ``python
bench/math_errors.py`` finds the largest errors of vector math.
"""
