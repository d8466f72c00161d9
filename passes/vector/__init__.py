"""Passes on vectors and the scalars of loop bodies."""
