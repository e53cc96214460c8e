"""Figures of a step's episodes, or of any other set of episodes, under their names in MLflow.

A round that stops long episodes trains mostly short ones: `episode/trained_turns_share` measures
this bias, as mean turns of trained episodes divided by those of started ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from artifacts.episodes import Ending, Episode
from artifacts.records import Fate, Outcome
from artifacts.reports.transcript import environment_s, model_s
from artifacts.tables import ResponseRow

SUCCESS, TURNS, LONGEST = "episode/success_share", "episode/turns_mean", "episode/turns_max"
TRAINED_TURNS, STARTED_TURNS = "episode/trained_turns_mean", "episode/started_turns_mean"
ENDED, STOPPED = "episode/ended_", "episode/stopped"
# key of an action's name in an environment's info; the names that a figure's name may contain
ACTION, ACTION_NAME = "action", re.compile(r"[a-z0-9_]{1,32}")
MAX_ACTION_NAMES = 8  # the most frequent ones


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedResponse:
    """A response that is an episode, with its row of the responses table."""

    row: ResponseRow
    episode: Episode

    @property
    def num_turns(self) -> int:
        return len(self.episode.turns)

    @property
    def is_whole(self) -> bool:
        """True if the episode ended, and not by a failure of its environment."""
        return self.episode.ending is not None and not self.episode.ending.is_failure


def played(rows: Iterable[ResponseRow]) -> list[PlayedResponse]:
    """Select the responses that are episodes."""
    return [
        PlayedResponse(row=row, episode=episode)
        for row in rows
        if (episode := row.response.generated.episode) is not None
    ]


def episode_figures(rows: Iterable[ResponseRow]) -> dict[str, float]:
    """Figures of the episodes among these responses, by name; empty without episodes. Figures of
    turns are over whole episodes, the success share is over episodes with a verdict."""
    episodes = played(rows)
    if not episodes:
        return {}
    ended = Counter(found.episode.ending for found in episodes)
    figures = {
        **{f"{ENDED}{ending}": float(ended[ending]) for ending in Ending},
        STOPPED: float(ended[None]),
    }
    if whole := [found for found in episodes if found.is_whole]:
        longest = max(found.num_turns for found in whole)
        figures |= {TURNS: _mean_turns(whole), LONGEST: float(longest)}
    scores = [found.row.response.score for found in episodes]
    if judged := [score for score in scores if score is not None and score.reward is not None]:
        figures[SUCCESS] = sum(score.outcome is Outcome.OK for score in judged) / len(judged)
    responses = [found.row.response.generated for found in episodes]
    sampled = sum(generated.num_sampled for generated in responses)
    given = sum(len(generated.token_ids) for generated in responses) - sampled
    counts = {  # episodes that continued after their engine had stopped or died are included
        "sampled_tokens": sampled,
        "given_tokens": given,
        "resumed": sum(found.episode.num_resumed for found in episodes),
        "replayed_turns": sum(found.episode.num_replayed for found in episodes),
        "restarted": sum(found.episode.num_restarted for found in episodes),
        "forgotten_tokens": sum(found.episode.num_forgotten for found in episodes),
    }
    figures |= {f"episode/{name}": float(count) for name, count in counts.items()}
    return figures | _actions(episodes) | _seconds(episodes)


def step_episode_figures(rows: Sequence[ResponseRow], decided: Collection[str]) -> dict[str, float]:
    """Figures of the episodes of a closed round, by name. Mean turns of trained episodes are
    compared with those of all episodes that the round started for its `decided` prompts: prompts
    that it trained, filtered or gave up for good."""
    started = [found for found in played(rows) if found.row.prompt.prompt_id in decided]
    trained = [found for found in started if found.row.fate is Fate.TRAINED]
    figures = episode_figures(rows)
    if not trained:
        return figures
    trained_mean, started_mean = _mean_turns(trained), _mean_turns(started)
    figures |= {TRAINED_TURNS: trained_mean, STARTED_TURNS: started_mean}
    if started_mean:
        figures["episode/trained_turns_share"] = trained_mean / started_mean
    return figures


def _mean_turns(episodes: Sequence[PlayedResponse]) -> float:
    return sum(found.num_turns for found in episodes) / len(episodes)


def _seconds(episodes: Sequence[PlayedResponse]) -> dict[str, float]:
    """Seconds of environments, resets included, and their share in those of both sides."""
    turns = [turn for found in episodes for turn in found.episode.turns]
    stepped_s = sum(environment_s(turn) for turn in turns)
    waited_s = stepped_s + sum(found.episode.reset_s for found in episodes)
    total_s = waited_s + sum(model_s(turn) for turn in turns)
    return {
        "episode/environment_s": waited_s,
        "episode/environment_share": waited_s / total_s if total_s else 0.0,
    }


def _actions(episodes: Sequence[PlayedResponse]) -> dict[str, float]:
    """Shares of the most frequent actions among those that the environment names in `info`."""
    infos = (dict(turn.info) for found in episodes for turn in found.episode.turns)
    called = Counter(info[ACTION] for info in infos if ACTION in info)
    total = called.total()
    return {
        f"episode/action_{name}_share": count / total
        for name, count in called.most_common(MAX_ACTION_NAMES)
        if ACTION_NAME.fullmatch(name)
    }
