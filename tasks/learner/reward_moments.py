"""What rewards are compared with: the moments of the last steps', this one's among them.

    round closes ─▶ record_moments ─▶ moments/00007.json ─▶ compared_with, in the steps after it

They are on disk before the round is closed: a step that is replayed has the same advantages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from artifacts import layout
from artifacts.journal import PLAY_AGAIN
from artifacts.records import Group
from artifacts.store import Store
from tasks.learner.advantage import Moments, ReinforcePlusPlusAdvantage
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.samples import moments_of


def compared_with(
    groups: Sequence[Group], store: Store, step: int, config: LearnerConfig
) -> Moments | None:
    """The moments that the rewards of a step are compared with; None for an advantage that needs
    none. Raises FileNotFoundError when those of an earlier step in the window are not there."""
    own = moments_of(groups, config.advantage, config.overlong)
    if own is None or not isinstance(config.advantage, ReinforcePlusPlusAdvantage):
        return None
    first = max(1, step - config.advantage.window + 1)
    earlier = [_read(store, before) for before in range(first, step)]
    return Moments.together([*earlier, own]) if earlier else own


def record_moments(groups: Sequence[Group], store: Store, step: int, config: LearnerConfig) -> None:
    """Keep a step's own moments for the steps after it, if they will be asked for."""
    advantage = config.advantage
    if not isinstance(advantage, ReinforcePlusPlusAdvantage) or advantage.window == 1:
        return
    own = moments_of(groups, advantage, config.overlong)
    if own is not None:
        store.keep(layout.moments_file(step), json.dumps(asdict(own)).encode())


def _read(store: Store, step: int) -> Moments:
    name = layout.moments_file(step)
    try:
        return store.parsed(name, lambda data: Moments(**json.loads(data)), PLAY_AGAIN)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"the moments of step {step} must be in {store.url}/{name}, which is not there;"
            f" {PLAY_AGAIN}"
        ) from None
