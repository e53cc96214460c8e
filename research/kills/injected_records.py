"""What the records of a run on policy must say, however often it was killed: every prompt that was
drawn is trained once, with all its responses, by one weight version, and every token is booked. A
prompt that is put off counts where it is asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from artifacts.commit import StepCommit, read_commits, read_manifest
from artifacts.episodes import Ending
from artifacts.journal import Journal
from artifacts.records import NO_UPDATE, Fate, Group
from artifacts.store import Store
from artifacts.tables import ResponseRow
from flows.recovery import partial_round
from tasks.rounds.report import RolloutReport, read_round
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.queue_state import QueueState

BOOKED = (Fate.TRAINED, Fate.ABORTED, Fate.DISCARDED, Fate.FILTERED)  # by rows of the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is wrong, a sentence each, and how often the records tell of a fault."""

    lost: list[str] = field(default_factory=list)  # steps, prompts, responses
    doubled: list[str] = field(default_factory=list)  # prompts, responses
    mixed_versions: list[str] = field(default_factory=list)  # responses of other weights
    unbooked: list[str] = field(default_factory=list)  # tokens and prompts that do not add up
    counts: Counter[str] = field(default_factory=Counter)  # how often what is told

    @property
    def wrong(self) -> list[str]:
        """All sentences."""
        return [*self.lost, *self.doubled, *self.mixed_versions, *self.unbooked]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptStep:
    """All that is kept of a step."""

    commit: StepCommit
    plan: RoundPlan
    rollout: RolloutReport
    rows: Sequence[ResponseRow]
    groups: Sequence[Group]

    @property
    def step(self) -> int:
        """Its number."""
        return self.commit.step


def examine(store: Store) -> Findings:
    """Look through all steps of a run that is over."""
    findings = Findings()
    try:
        manifest, commits = read_manifest(store), read_commits(store)
    except ValueError as error:
        findings.lost.append(str(error))
        return findings
    num_steps, batch = int(manifest.config["num_steps"]), manifest.config["batch"]
    if len(commits) < num_steps:  # a drain is one more
        findings.lost.append(f"{num_steps - len(commits)} of {num_steps} steps are not committed")
    asked: Counter[str] = Counter()  # without those that were put off
    for commit in commits:
        records = _records(store, commit, findings)
        if records is None:
            continue
        asked.update(ref.prompt_id for ref in records.plan.prompts)
        asked.subtract(records.rollout.deferred)
        findings.lost.extend(_lost(records, batch["responses_per_prompt"]))
        findings.doubled.extend(_doubled(records))
        findings.mixed_versions.extend(_mixed(records))
        findings.unbooked.extend(_unbooked(records))
        findings.counts.update(_counts(records))
    findings.doubled.extend(f"prompt {name} was asked in two steps" for name in _repeated(asked))
    findings.unbooked.extend(_unbooked_prompts(commits, findings.counts))
    findings.counts["attempts at the run"] = len(manifest.prefect_flow_run_ids)
    return findings


def _records(store: Store, commit: StepCommit, findings: Findings) -> KeptStep | None:
    journal, step = Journal(store), commit.step
    begun, rollout = partial_round(store, step, step, ()), read_round(store, step)
    if begun is None or rollout is None:
        findings.lost.append(f"step {step} has no plan or no round")
        return None
    rows = journal.read(step)
    try:
        groups = journal.read_groups(step, rows)
    except KeyError as error:
        findings.lost.append(f"step {step} trained {error} of which there is no record")
        return None
    return KeptStep(commit=commit, plan=begun.plan, rollout=rollout, rows=rows, groups=groups)


def _lost(records: KeptStep, num_responses: int) -> Iterator[str]:
    """What the step asked and neither trained nor gave up."""
    step, trained = records.step, {group.prompt.prompt_id for group in records.groups}
    given_up = {*records.rollout.dropped, *records.rollout.filtered}
    planned = {ref.prompt_id for ref in records.plan.prompts} - {*records.rollout.deferred}
    for name in sorted(planned - trained - given_up):
        yield f"prompt {name} of step {step} is neither trained nor given up"
    for group in records.groups:
        if len(group.responses) < num_responses:
            got = f"{len(group.responses)} of {num_responses} responses"
            yield f"prompt {group.prompt.prompt_id} of step {step} has {got}"
    there = {row.response.generated.response_id for row in records.rows}
    for name in sorted(planned):
        missing = [index for index in range(num_responses) if f"{name}:{index}" not in there]
        if missing:
            yield f"prompt {name} of step {step} has no record of responses {missing}"
    for row in records.rows:
        if row.fate is None:
            yield f"response {row.response.generated.response_id} of step {step} has no fate"


def _doubled(records: KeptStep) -> Iterator[str]:
    """What the step has twice, or trains beside its groups."""
    step, rows = records.step, records.rows
    for name in _repeated(row.response.generated.response_id for row in rows):
        yield f"response {name} of step {step} has two records"
    for name in _repeated(group.prompt.prompt_id for group in records.groups):
        yield f"prompt {name} of step {step} is trained twice"
    in_groups = [
        response.generated.response_id for group in records.groups for response in group.responses
    ]
    for name in _repeated(in_groups):
        yield f"response {name} of step {step} is trained twice"
    booked = {row.response.generated.response_id for row in rows if row.fate is Fate.TRAINED}
    for name in sorted(booked ^ set(in_groups)):
        yield f"response {name} of step {step} is trained by its fate or in a group, not by both"


def _mixed(records: KeptStep) -> Iterator[str]:
    """Responses with tokens of other weights than those that the step began with."""
    for row in records.rows:
        versions = {span.version for span in row.response.generated.versions}
        if versions - {records.step - 1}:
            name = row.response.generated.response_id
            yield f"response {name} of step {records.step} is of versions {sorted(versions)}"
    if records.commit.weights.version != records.step:
        yield f"step {records.step} published version {records.commit.weights.version}"


def _unbooked(records: KeptStep) -> Iterator[str]:
    """Columns of the ledger that are not what the table says."""
    tokens: Counter[str] = Counter()
    for row in records.rows:
        tokens[f"ledger/{row.fate}_tokens"] += row.response.generated.num_sampled
    for fate in BOOKED:
        column = f"ledger/{fate}_tokens"
        booked = records.commit.metrics[column]
        if fate is Fate.TRAINED:  # the table is written before the update
            booked += records.commit.metrics.get(f"ledger/{NO_UPDATE}_tokens", 0.0)
        if booked != tokens[column]:
            yield f"step {records.step} has {tokens[column]} tokens in {column}, booked {booked:g}"


def _unbooked_prompts(commits: Sequence[StepCommit], counts: Mapping[str, int]) -> Iterator[str]:
    """Prompts of the whole run that are nowhere."""
    if not commits:
        return
    state = QueueState.from_json(commits[-1].queue)
    waiting = len(state.queue) + len(state.skipped) + len(state.carried)
    done = state.num_trained + state.num_dropped + state.num_filtered + state.num_unfit
    if state.num_drawn != done + waiting:
        yield f"{state.num_drawn} prompts were drawn, {done} are done and {waiting} wait"
    if state.num_trained != counts["trained prompts"]:
        trained = counts["trained prompts"]
        yield f"{state.num_trained} prompts are booked as trained, {trained} are in groups"


def _counts(records: KeptStep) -> Counter[str]:
    """How often this step tells of what."""
    episodes = [row.response.generated.episode for row in records.rows]
    endings = Counter(episode.ending for episode in episodes if episode is not None)
    return Counter(
        {
            "trained prompts": len(records.groups),
            "dropped prompts": len(records.rollout.dropped),
            "steps tried again": int(records.commit.metrics["round/attempts"]) - 1,
            "episodes crashed": endings[Ending.CRASHED],
            "episodes unanswered": endings[Ending.UNANSWERED],
        }
    )


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)
