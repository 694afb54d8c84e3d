"""How hypothesis tries these tests: by number of examples, never against the clock."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "clusterctl", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("clusterctl")
