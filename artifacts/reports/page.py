"""Renders the report of a run as one page: `index.html`, which needs no network and no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from markupsafe import Markup

from artifacts.reports.answers import EpisodeChange, HeldoutQuestion, TrainingSample
from artifacts.reports.environment_processes import PoolState
from artifacts.reports.html_pages import templates
from artifacts.reports.summary import RunSummary, doubts, shares

# the columns of the token ledger, explained on the page
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
    """A drawing with its title."""

    title: str  # shown, and read aloud in place of the drawing
    svg: str  # an <svg> element of our own making


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedSetting:
    """A configuration field whose value differs from the preset's."""

    field: str  # dotted path
    preset: str  # value of the preset
    value: str  # value of the run


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """A row of the table of committed steps."""

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
    """The content of a run's page."""

    summary: RunSummary  # gain and cost of the run so far
    state: str  # "finished", or the progress so far
    written: datetime  # time of this state
    facts: Mapping[str, str]  # model, task, machine and the like, a line each
    links: Mapping[str, str]  # name -> URL, page beside this one, or path
    curves: Sequence[Picture]  # reward, learning, step times, response lengths
    timelines: Sequence[Picture]  # work of every device in typical steps
    devices: Mapping[str, float]  # share of the devices' seconds by cause, "work" among them
    steps: Sequence[StepLine]  # every committed step
    preset: str  # the preset that the settings differ from
    settings: Sequence[ChangedSetting]  # how the configuration differs from it
    all_settings: Mapping[str, str]  # every setting with its effective value, by dotted field
    changes: Sequence[Mapping[str, object]]  # settings that resumed attempts changed
    episodes: Sequence[EpisodeChange]  # held-out episodes before and after; empty without any
    pools: Sequence[PoolState]  # environment processes as last reported; empty without any
    elastic_workers: Sequence[Mapping[str, object]]  # a row each; empty without any
    denied_requests: Sequence[str]  # unauthorised requests for weights, a sentence each
    questions: Sequence[HeldoutQuestion]  # some held-out questions with their answers
    num_questions: int  # all different held-out questions, from which those are taken
    samples: Sequence[TrainingSample]  # some training questions of the first and the last step
    steps_asked: tuple[int, int]  # steps after which they were asked, first and last
    # `data:` URLs of the pictures that the shown questions are about, by content
    pictures: Mapping[str, str] = field(default_factory=dict)


def render(page: RunPage) -> bytes:
    """Render the page as HTML in UTF-8. Texts of models, data sets and users are escaped."""
    environment = templates()
    environment.filters |= {"drawing": Markup, "brief": brief, "duration": duration, "worth": worth}
    text = environment.get_template("page.html").render(
        page=page,
        summary=page.summary,
        doubts=doubts(page.summary),
        time_shares=_present(page.summary.time_s),
        token_shares=_present(page.summary.ledger_tokens),
        ledger=LEDGER,
        bubbles=BUBBLES,
    )
    return text.encode("utf-8", errors="replace")  # a lone surrogate is no UTF-8


def _present(amounts: Mapping[str, float]) -> dict[str, float]:
    """The shares of amounts above zero, largest first."""
    return {name: share for name, share in shares(amounts).items() if share > 0}


def duration(seconds: float) -> str:
    """Format seconds in a suitable unit: 48 s, 12 min, 3.2 h."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def brief(seconds: float) -> str:
    """Format a short time in a suitable unit: 8.7 ms, 1.2 s."""
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:.2g} s"


def worth(reward: float | None) -> str:
    """The CSS class of an answer by its reward, which sets the colour of the answer's edge."""
    if reward is None:
        return "unknown"
    return "good" if reward >= 0.999 else "poor" if reward <= 0.001 else "partial"
