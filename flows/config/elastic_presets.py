"""Presets of runs that elastic workers may join."""

from __future__ import annotations

from flows.config.overlay import Values, overlay
from flows.config.smollm2_presets import smollm2
from flows.config.tiny_presets import tiny

ELASTIC: Values = {
    "elastic": {"enabled": True},
    "seeding": {"enabled": True},
    "engine": {"report_tokens": 32},
    "cluster": {"num_devices": 1, "roles": "rollout: 0, learner: 0", "scheduler_port": 8786},
}


def elastic() -> Values:
    """The main job on one core, with an engine of its own; workers that join with rollflow worker
    generate, too, and may leave at any time."""
    return overlay(overlay(smollm2(), ELASTIC), {"preset": "elastic"})


def tiny_elastic() -> Values:
    """The tiny preset on one core; workers that join with rollflow worker generate, too, and may
    leave at any time."""
    return overlay(overlay(tiny(), ELASTIC), {"preset": "tiny-elastic"})
