"""Settings: nothing is kept in the user's cache, unless ``GRAPH_OPT_CACHE`` names a folder.

Of the property tests: ``HYPOTHESIS_PROFILE=ci`` is deterministic; ``GRAPH_OPT_FUZZ=N`` tries N random programs per test.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.checks")

os.environ.setdefault("GRAPH_OPT_CACHE", "off")

COUNT = int(os.environ.get("GRAPH_OPT_FUZZ", "30"))
_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
settings.register_profile("default", max_examples=COUNT, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("ci", max_examples=COUNT, deadline=None, derandomize=True, print_blob=True, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
