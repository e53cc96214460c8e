"""The report of a run as one page: `index.html`, which needs no network and no script.

RunPage -> page.html (Jinja, everything escaped but our own drawings) -> bytes

Leaves out gathering what is on it (`flows.results`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from artifacts.reports.answers import HeldoutQuestion
from artifacts.reports.episode_changes import EpisodeChange
from artifacts.reports.host_states import PoolState
from artifacts.reports.summary import RunSummary, headline, shares

# what the columns of the token ledger mean, for somebody who reads of them for the first time
LEDGER = {
    "trained": "in answers that were trained on",
    "no_update": "in answers of steps that made no update",
    "aborted": "in answers that were stopped half-way",
    "discarded": "in finished answers that no group took",
    "filtered": "in groups whose answers were all worth the same",
    "stale": "of an attempt or of weights that do not count",
    "evaluated": "in answers to held-out questions",
    "judged": "written by judge models",
}
BUBBLES = {
    "work": "it computed",
    "tail": "others still generated",
    "reward_wait": "training waited for verdicts",
    "sync": "it waited for training, update or publication",
    "sleep_wake": "an engine slept, woke or was rebuilt",
    "idle": "nothing worked anywhere: orchestration",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing with what it shows."""

    title: str  # for those who do not see it, too
    svg: str  # an <svg> element of our own making


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedSetting:
    """A field of the configuration that is not the preset's."""

    field: str  # dotted path
    preset: str  # what the preset has
    value: str  # what the run had


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """A committed step in the table of steps."""

    step: int  # from 1
    kind: str  # kind of its round
    reward: float  # mean training reward
    tokens: int  # generated tokens
    longest: int  # tokens of its longest response
    rollout_s: float  # seconds of generation
    train_s: float  # seconds of training
    step_s: float  # seconds of the step


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Everything that the page shows."""

    summary: RunSummary  # what the run gained and cost so far
    state: str  # "finished", or what has been made until now
    written: datetime  # when this was the state
    facts: Mapping[str, str]  # what was trained on what with what, a line each
    links: Mapping[str, str]  # name -> URL, page beside this one, or path
    curves: Sequence[Picture]  # reward, step times, response lengths
    timelines: Sequence[Picture]  # what every device did in a typical step of each kind
    devices: Mapping[str, float]  # share of the devices' seconds by cause, "work" among them
    steps: Sequence[StepLine]  # every committed step
    preset: str  # the preset that the settings differ from
    settings: Sequence[ChangedSetting]  # how the configuration differs from it
    changes: Sequence[Mapping[str, object]]  # what resumed attempts changed
    episodes: Sequence[
        EpisodeChange
    ]  # held-out episodes before and after; empty where there are none
    hosts: Sequence[PoolState]  # environment hosts as last told; empty where there are none
    members: Sequence[
        Mapping[str, object]
    ]  # elastic workers, a row each; empty where there were none
    knocks: Sequence[str]  # who asked for weights without a right, a sentence each
    questions: Sequence[HeldoutQuestion]  # some held-out questions with their answers
    num_questions: int  # of how many they are taken
    steps_asked: tuple[int, int]  # steps after which they were asked, first and last


def render(page: RunPage) -> bytes:
    """The page as UTF-8. Whatever a model, a data set or a user wrote appears as text."""
    environment = Environment(
        loader=PackageLoader("artifacts.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"drawing": Markup, "brief": brief, "duration": duration, "worth": worth}
    text = environment.get_template("page.html").render(
        page=page,
        summary=page.summary,
        headline=headline(page.summary),
        time_shares=shares(page.summary.time_s),
        token_shares=shares(page.summary.ledger_tokens),
        ledger=LEDGER,
        bubbles=BUBBLES,
    )
    return text.encode("utf-8", errors="replace")  # a lone surrogate is no UTF-8


def duration(seconds: float) -> str:
    """Seconds as a person says them: 48 s, 12 min, 3.2 h."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def brief(seconds: float) -> str:
    """Seconds of something short: 8.7 ms, 1.2 s."""
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:.2g} s"


def worth(reward: float | None) -> str:
    """What an answer is called by its reward: for the colour of its edge."""
    if reward is None:
        return "unknown"
    return "good" if reward >= 0.999 else "poor" if reward <= 0.001 else "partial"
