"""Gathers the results of a run: summary, warnings, pictures and the page. All come from records, so
that a resumed run also shows the steps of earlier attempts.

    commits, recorded rounds, evaluations ─▶ RunResults ─▶ RunSummary, figures, index.html"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from matplotlib.figure import Figure

from artifacts import layout
from artifacts.commit import StepCommit, figures_by_step, read_manifest, seconds_added
from artifacts.journal import Journal
from artifacts.pictures import PictureFolder, as_url
from artifacts.printable import printable_line
from artifacts.records import ShownPicture
from artifacts.reports import canvas, plots
from artifacts.reports.answers import TrainingSample, distinct, shown_pictures, training_samples
from artifacts.reports.device_cost import run_cost
from artifacts.reports.elastic_workers import (
    denied_requests_summary,
    elastic_worker_rows,
    read_denied_requests,
    read_elastic_workers,
)
from artifacts.reports.environment_processes import read_pools
from artifacts.reports.episode_figures import TURNS
from artifacts.reports.page import Picture, RunPage, StepLine, render
from artifacts.reports.plots import LAG, episodes_by_step, staleness
from artifacts.reports.summary import (
    Estimate,
    RunSummary,
    mean_interval,
    paired_difference,
    unpaired,
)
from artifacts.reports.timeline import BUBBLES
from flows.evaluate import Evaluations, HeldoutAnswers
from flows.run import OpenRun
from flows.run_facts import all_settings_of, facts_of, settings_of
from tasks.learner.reports import REASONS, skipped_of
from tasks.metrics.monitors import (
    MonitorConfig,
    StepWarning,
    flat_cause,
    nothing_learned,
    warnings_of,
)
from tasks.metrics.report import STAGES

ALL_PAGES = "all its pages"  # name of the link that is the command `rollflow ui RUN`
TIMELINES = "timelines"
APPLIED = "train/applied"
DOMAIN_REWARD = re.compile(r"reward/(.+)_mean")
MOST_SHOWN_BYTES = 2**18  # of a picture on the page
SHOWN_SAMPLES = 3  # questions of each step whose training answers are shown
SHOWN_ANSWERS, SHOWN_CHARACTERS = 2, 120  # answers that a warning "nothing learned" quotes


class RunResults:
    """Summarises and draws one run; reads the lengths of each step's responses once."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._journal = Journal(run.store)
        self._lengths: dict[int, list[int]] = {}

    def summary(
        self,
        commits: Sequence[StepCommit],
        evaluations: Evaluations,
        links: Mapping[str, str],
    ) -> RunSummary:
        """Summarise a run's gain and cost so far; of a run that does not train, and evaluates
        nothing, the mean reward of its steps."""
        first, last = min(evaluations, default=0), max(evaluations, default=0)
        before, after = evaluations.get(first), evaluations.get(last)
        rewards = [commit.metrics["reward/mean"] for commit in commits]
        of_rounds = sum(rewards) / len(rewards) if rewards else math.nan
        return RunSummary(
            run_id=self._run.context.run_id,
            num_steps=len(commits),
            run_s=sum(seconds_added(commits)),
            adapters=after.by_adapter if after else {},
            is_heldout=before is not None,
            reward_before=of_rounds if before is None else before.mean,
            reward_after=after.mean if after and last > first else None,
            gain=gain_of(evaluations, self._run.config.seed),
            num_unpaired=unpaired(before.scores, after.scores) if before and after else 0,
            time_s={stage: sum(commit.timings[stage] for commit in commits) for stage in STAGES},
            ledger_tokens=_ledger(commits, evaluations),
            links=links,
            warnings=self.warnings(commits),
            untracked=self._run.untracked,
            cost=run_cost([commit.metrics for commit in commits], self._run.config.prices),
        )

    def warnings(self, commits: Sequence[StepCommit]) -> tuple[str, ...]:
        if told := no_update_at_all(commits, self._journal):
            return (told,)
        warnings = run_warnings(commits, self._run.config.monitors, self._journal)
        return tuple(warning.text for warning in warnings)

    def pictures(
        self, commits: Sequence[StepCommit], evaluations: Evaluations
    ) -> dict[str, Figure]:
        """Draw all plots; returns figures by file name without suffix, curves before timelines."""
        steps = [commit.step for commit in commits]
        heldout = {
            step: mean_interval(report.scores, self._run.config.seed, question_of=report.questions)
            for step, report in evaluations.items()
            if report.scores
        }
        stages = {stage: [commit.timings[stage] for commit in commits] for stage in STAGES}
        pictures = {
            "reward": plots.reward_curve(
                steps, [commit.metrics["reward/mean"] for commit in commits], heldout
            ),
        }
        figures_of_steps = figures_by_step(commits)
        if len(domains := domains_of(figures_of_steps)) > 1:
            pictures["domains"] = plots.domain_rewards(figures_of_steps, domains)
        if adapters := sorted({name for each in evaluations.values() for name in each.by_adapter}):
            scored = [(step, each.metrics) for step, each in evaluations.items()]
            both = sorted([*figures_of_steps, *scored], key=lambda pair: pair[0])
            pictures["adapters"] = plots.adapter_rewards(both, adapters)
        pictures |= {
            "learning": plots.learning_curves(figures_of_steps),
            "policy": plots.policy_curves(figures_of_steps),
            "step_times": plots.step_times(steps, [commit.kind for commit in commits], stages),
            "response_lengths": plots.response_lengths(self._lengths_by_kind(commits)),
        }
        if any(LAG in figures for _, figures in figures_of_steps):
            pictures["staleness"] = staleness(figures_of_steps)
        if any(TURNS in figures for _, figures in figures_of_steps):
            pictures["episodes"] = episodes_by_step(figures_of_steps)
        typical = [
            typical_step(commits, kind) for kind in dict.fromkeys(each.kind for each in commits)
        ]
        spans = {
            f"Step {commit.step}, a {commit.kind} round": self._journal.read_spans(commit.step)
            for commit in typical
        }
        if spans:
            pictures[TIMELINES] = plots.timelines(spans, {*self._run.context.devices.values()})
        return pictures

    def page(
        self,
        commits: Sequence[StepCommit],
        evaluations: Evaluations,
        answers: HeldoutAnswers,
        summary: RunSummary,
        pictures: Mapping[str, Figure],
        is_over: bool,
    ) -> bytes:
        """Render the report as one page of HTML, with these `pictures`."""
        config = self._run.config
        drawn = {}
        for name, figure in pictures.items():
            titles = [axes.get_title(loc="left") for axes in figure.axes]
            title = figure.get_suptitle() or next(filter(None, titles), "plot")
            drawn[name] = Picture(title=title, svg=canvas.svg(figure))
        so_far = f"{len(commits)} of {config.num_steps} steps"
        samples = self._samples(commits)
        page = RunPage(
            summary=summary,
            state=f"finished, {len(commits)} steps" if is_over else f"under way, {so_far}",
            written=datetime.now(UTC),
            facts=facts_of(self._run, commits),
            links=self._links(summary),
            curves=[drawn[name] for name in drawn if name != TIMELINES],
            timelines=[drawn[name] for name in drawn if name == TIMELINES],
            devices=device_shares(commits),
            steps=[_line(commit) for commit in commits],
            preset=config.preset,
            settings=settings_of(config),
            all_settings=all_settings_of(config),
            changes=read_manifest(self._run.store).changes,
            episodes=answers.episodes,
            pools=read_pools(self._run.store),
            elastic_workers=elastic_worker_rows(
                read_elastic_workers(self._run.store), datetime.now(UTC).timestamp()
            ),
            denied_requests=denied_requests_summary(read_denied_requests(self._run.store)),
            questions=answers.shown,
            num_questions=len(distinct(answers.questions)),
            samples=samples,
            steps_asked=(min(evaluations, default=0), max(evaluations, default=0)),
            pictures=self._shown(shown_pictures((*answers.shown, *samples))),
        )
        return render(page)

    def _links(self, summary: RunSummary) -> dict[str, str]:
        """Links from the page, by name; links to files in the report folder are relative."""
        wanted = {"MLflow": "MLflow", "Prefect": "prefect.flow_run_url"}
        wanted |= {"model": "model", ALL_PAGES: ALL_PAGES}
        links = {name: summary.links[key] for name, key in wanted.items() if key in summary.links}
        return links | ({"Dask": layout.DASK_PAGE} if self._run.store.is_local else {})

    def _shown(self, pictures: Iterable[ShownPicture]) -> dict[str, str]:
        """These pictures as URLs, by content; none that is large or gone."""
        folder = PictureFolder(self._run.store.child(layout.PICTURES))
        found: dict[str, str] = {}
        for picture in pictures:
            with suppress(FileNotFoundError, ValueError):
                data = folder.read(picture.content)
                if len(data) <= MOST_SHOWN_BYTES:
                    found[picture.content] = as_url(data)
        return found

    def _samples(self, commits: Sequence[StepCommit]) -> list[TrainingSample]:
        """Training questions of the first and the last step with their answers."""
        steps = sorted({commit.step for commit in (*commits[:1], *commits[-1:])})
        return [
            sample
            for step in steps
            for sample in training_samples(step, self._journal.read(step), SHOWN_SAMPLES)
        ]

    def _lengths_by_kind(self, commits: Sequence[StepCommit]) -> dict[str, list[int]]:
        lengths: dict[str, list[int]] = defaultdict(list)
        for commit in commits:
            if commit.step not in self._lengths:
                self._lengths[commit.step] = [
                    row.response.generated.num_sampled
                    for row in self._journal.read(commit.step)
                    if row.response.generated.finish_reason != "aborted"
                ]
            lengths[commit.kind] += self._lengths[commit.step]
        return lengths


def gain_of(evaluations: Evaluations, seed: int) -> Estimate | None:
    """The paired difference between first and last evaluation; None if they share no prompt with a
    verdict, or are one."""
    if not evaluations:
        return None
    before, after = evaluations[min(evaluations)], evaluations[max(evaluations)]
    if before is after or before.scores.keys().isdisjoint(after.scores):
        return None
    return paired_difference(before.scores, after.scores, seed, question_of=after.questions)


def typical_step(commits: Sequence[StepCommit], kind: str) -> StepCommit:
    """Return the step of median duration among the steps of this kind; there must be one."""
    alike = sorted(
        (commit for commit in commits if commit.kind == kind),
        key=lambda commit: commit.metrics["time/step_s"],
    )
    return alike[len(alike) // 2]


def device_shares(commits: Sequence[StepCommit]) -> dict[str, float]:
    """Split the devices' time in steps into shares: "work", and each cause of a bubble."""
    total_s = sum(commit.metrics["time/step_s"] for commit in commits)
    if not total_s:
        return {}
    lost = {
        cause: sum(
            commit.metrics.get(f"bubble/{cause}_fraction", 0.0) * commit.metrics["time/step_s"]
            for commit in commits
        )
        / total_s
        for cause in BUBBLES
    }
    return {"work": 1.0 - sum(lost.values())} | lost


def domains_of(steps: Iterable[tuple[int, Mapping[str, float]]]) -> list[str]:
    """The domains whose mean training reward is among the metrics of these steps, by name."""
    names = {name for _, figures in steps for name in figures}
    found = {match[1] for name in names if (match := DOMAIN_REWARD.fullmatch(name))}
    return sorted(found)


def _ledger(commits: Sequence[StepCommit], evaluations: Evaluations) -> dict[str, int]:
    ledger: dict[str, int] = defaultdict(int)
    ledger["evaluated"] = sum(report.tokens for report in evaluations.values())
    ledger["judged"] = sum(report.judged_tokens for report in evaluations.values())
    for commit in commits:
        for name, tokens in commit.metrics.items():
            if name.startswith("ledger/"):
                ledger[name.removeprefix("ledger/").removesuffix("_tokens")] += int(tokens)
    return dict(ledger)


def _line(commit: StepCommit) -> StepLine:
    figures = commit.metrics
    return StepLine(
        step=commit.step,
        kind=commit.kind,
        reward=figures["reward/mean"],
        tokens=int(figures["rollout/tokens"]),
        longest=int(figures["rollout/response_tokens_max"]),
        rollout_s=figures["time/rollout_s"],
        train_s=figures["time/train_s"],
        step_s=figures["time/step_s"],
    )


def run_warnings(
    commits: Sequence[StepCommit], config: MonitorConfig, journal: Journal, *, since: int = 0
) -> tuple[StepWarning, ...]:
    """List the warnings of a run from step `since` on, in order of steps: metrics beyond their
    limits, or several steps in a row that learned nothing, with two answers."""
    steps = figures_by_step(commits)
    warnings = list(warnings_of(steps, config))
    warnings += [
        StepWarning(flat.step, f"{flat.text}{_answers(journal, flat.step)}")
        for flat in nothing_learned(steps, config.steps_in_a_row)
        if flat.step >= since
    ]
    recent = (warning for warning in warnings if warning.step >= since)
    return tuple(sorted(recent, key=lambda warning: warning.step))


def no_update_at_all(commits: Sequence[StepCommit], journal: Journal) -> str:
    """A warning about a run none of whose steps made an update, with answers of its last step;
    empty for other runs, and for those of versions that do not record updates."""
    steps = [commit.metrics for commit in commits]
    if not steps or any(figures.get(APPLIED, 1.0) for figures in steps):
        return ""
    causes = {flat_cause(figures) for figures in steps}
    cause, skipped = causes.pop(), skipped_of(steps[-1])
    if cause is None or causes:  # more than one, or one that is no matter of rewards
        cause = REASONS[skipped] if skipped else "its gradient was not applied", "see the log"
    answers = _answers(journal, commits[-1].step, ". Look at some of them", 3)
    return f"No step made an update: {cause[0]} ({cause[1]}){answers}"


def _answers(
    journal: Journal,
    step: int,
    title: str = "; answers of that step",
    count: int = SHOWN_ANSWERS,
) -> str:
    texts = dict.fromkeys(
        printable_line(row.response.generated.text, SHOWN_CHARACTERS)
        for row in journal.read(step)
        if row.response.score is not None
    )
    shown = ", ".join(f'"{text}"' for text in list(texts)[:count])
    return f"{title}: {shown}" if shown else ""
