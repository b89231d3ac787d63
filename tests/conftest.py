"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No test depends on the machine's speed: neither an example's time nor that of drawing it.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
