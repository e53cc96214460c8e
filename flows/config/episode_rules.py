"""Rules between environments or episodes and other parts of a configuration, as in
`consistency`."""

from __future__ import annotations

from artifacts.models.registry import TinyPlayerConfig
from artifacts.records import Running
from flows.config.parts import Parts
from tasks.cluster.devices import num_environment_workers
from tasks.learner.credit import AnchorStateAdvantage, TurnReturnAdvantage
from tasks.rewards.episode import EpisodeRewardConfig
from tasks.rewards.registry import ANY_DOMAIN, config_of
from tasks.tiny_models.demonstrations import game_of


def check_environment_workers(config: Parts) -> None:
    """Workers of the role environment need configured environments."""
    if num_environment_workers(config.cluster.roles) and not config.environments:
        raise ValueError(
            "the role environment needs environments, got none with roles"
            f" {config.cluster.roles!r}; add environments, or drop the role"
        )


def check_player(config: Parts) -> None:
    """A tiny player must be warmed up on a known game, with valid settings of that game."""
    if isinstance(config.model, TinyPlayerConfig):
        game_of(config.model)


def check_episode_rewards(config: Parts) -> None:
    """Domains with an environment, and only these, need a reward of kind episode."""
    for domain, reward in config.rewards.items():
        pays_episodes = isinstance(reward, EpisodeRewardConfig)
        if pays_episodes and domain not in (ANY_DOMAIN, *config.environments):
            raise ValueError(
                f"a reward of kind episode needs an environment, rewards.{domain} has none; add"
                f" environments.{domain}, or choose another kind"
            )
    for domain in config.environments:
        found = config_of(config.rewards, domain)
        if not isinstance(found, EpisodeRewardConfig):
            raise ValueError(
                f"a domain with an environment must have a reward of kind episode, {domain!r} has"
                f" {found.kind!r}; set rewards.{domain}.kind=episode"
            )
        advantage = config.learner.advantage
        if found.discount < 1 and isinstance(advantage, TurnReturnAdvantage | AnchorStateAdvantage):
            raise ValueError(
                f"rewards of episodes must not be discounted beside learner.advantage.kind"
                f" {advantage.kind!r}, which discounts the turns' returns itself, got"
                f" rewards.{domain}.discount {found.discount:g}: the last turn would be charged"
                " for what the earlier ones lost; leave it out and set learner.advantage.gamma"
            )


def check_episode_bounds(config: Parts) -> None:
    """A turn must fit into an episode, an environment's slowest call into a round's deadline."""
    if not config.environments:
        return
    episodes, longest = config.episodes, config.sampling.max_response_tokens
    if episodes.max_turn_tokens >= longest:
        raise ValueError(
            "episodes.max_turn_tokens must leave room for an observation in"
            f" sampling.max_response_tokens ({longest}), the bound of a whole episode, got"
            f" {episodes.max_turn_tokens}; lower it or raise sampling.max_response_tokens"
        )
    slowest_s = max(episodes.hosts.reset_s, episodes.hosts.step_s)
    if slowest_s >= config.deadlines.progress_s:
        raise ValueError(
            "deadlines.progress_s must be longer than an environment may take to be reset, twice"
            f" deadlines.environment_s ({slowest_s:g} s), got {config.deadlines.progress_s:g} s: a"
            " round would be given up while its environments think; raise it"
        )
    if config.scheduling.algebra(config.batch).at_update is Running.DRAIN:
        raise ValueError(
            "scheduling.at_update=drain finishes what engines have begun, and of an episode that is"
            " a turn: episodes would be of two versions all the same; take interrupt or keep"
        )
