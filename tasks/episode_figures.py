"""The trained episodes of a step in figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from artifacts.records import Ending, Episode, Generated, Group, Outcome

JUDGED = tuple(ending for ending in Ending if not ending.is_failure)  # how a trained one may end


def episode_figures(groups: Sequence[Group]) -> dict[str, float]:
    """By their stable names; nothing where no episodes were trained."""
    responses = [response for group in groups for response in group.responses]
    played = [
        (response, response.generated.episode)
        for response in responses
        if response.generated.episode is not None
    ]
    if not played:
        return {}
    num_turns = [len(episode.turns) for _, episode in played]
    won = [response.score and response.score.outcome is Outcome.OK for response, _ in played]
    return {
        "episode/turns_mean": sum(num_turns) / len(played),
        "episode/turns_max": float(max(num_turns)),
        "episode/success_share": sum(map(bool, won)) / len(played),
        "episode/environment_s_mean": sum(environment_s(each) for _, each in played) / len(played),
        "episode/sampled_tokens": float(sum(each.generated.num_sampled for each, _ in played)),
        "episode/given_tokens": float(sum(num_given(each.generated) for each, _ in played)),
        "episode/replayed_turns": float(sum(each.num_replayed for _, each in played)),
        **{
            f"episode/ended_{ending}": float(sum(each.ending is ending for _, each in played))
            for ending in JUDGED
        },
    }


def environment_s(episode: Episode) -> float:
    """Seconds in which an episode waited for its environment."""
    answered = (
        turn.answered_s - turn.acted_s for turn in episode.turns if turn.answered_s is not None
    )
    return episode.reset_s + sum(answered)


def num_given(generated: Generated) -> int:
    """Tokens of an episode that nobody sampled."""
    return len(generated.token_ids) - generated.num_sampled
