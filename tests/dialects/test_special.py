"""erfc."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dialects.graph.special import erfc


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_against_the_c_library(dtype):
    x = np.linspace(-6, 27, 1001).astype(dtype)
    want = np.array([math.erfc(float(v)) for v in x])
    assert np.allclose(erfc(x).astype(np.float64), want.astype(dtype).astype(np.float64), rtol=4e-15 if dtype == np.float64 else 0, atol=0)


def test_special_values():
    assert erfc(np.float32([np.inf, -np.inf, 0, -0.0])).tolist() == [0, 2, 1, 1]
    assert np.isnan(erfc(np.float32(np.nan)))
    assert erfc(np.float32(1e-30)) == 1
    assert erfc(np.zeros((0, 2), np.float32)).shape == (0, 2)
