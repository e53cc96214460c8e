"""Opens a run: checks every input before any process is started or any record is written.

RunConfig -> artifact root writable? -> rows sound, and enough? -> model there? -> do prompts fit?
          -> manifest -> tracker -> context of the tasks"""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from artifacts.commit import StepCommit, digest_of_manifest, read_commits, read_manifest
from artifacts.config_parts import Misfits
from artifacts.custom_part import check_own_parts
from artifacts.datasets.row_mapping import MappedConfig
from artifacts.handover import handover_directory
from artifacts.layout import CERTIFICATE, LOGS, PICTURES, PLANS, ROUNDS, report_file, steps_of
from artifacts.records import WeightsRef
from artifacts.reports.trackers import TrackerStatus
from artifacts.reports.tracking import RunTracker, ended_by
from artifacts.status import await_end, pulse
from artifacts.store import Store
from flows.config.consistency import transport_for
from flows.config.elastic_rules import weight_server_of
from flows.config.engine_sizes import check_heads
from flows.config.gpu_memory import check_gpu_memory, with_sleep
from flows.config.keep import KeepConfig
from flows.config.misfits import misfits_of_places
from flows.config.picture_rules import check_judge, check_pictures
from flows.config.rows_needed import fitted, heldout_asked, misfit_of_rows
from flows.config.run_config import RunConfig, pinned
from flows.config.subject import lent_questions, subject
from flows.output import print_line
from flows.resume import effective_config
from flows.run_record import links_of, record_beginning
from tasks.cluster.cards import smallest_card_bytes
from tasks.cluster.devices import engine_members, learners_per_machine, worker_specs
from tasks.cluster.ports import refusal
from tasks.elastic.config import ElasticWeightsConfig
from tasks.engines.model_files import read_head_counts, takes_pictures
from tasks.learner.adapters import check_adapter
from tasks.learner.architecture import check_architecture, read_config, replays_routes
from tasks.learner.memory import model_size
from tasks.rewards.judges.reward import judge_engine_of
from tasks.rewards.registry import Rewards, build_rewards
from tasks.run.elastic_setup import check_token
from tasks.run.prompts import (
    Examination,
    UnfitPrompts,
    check_embeddings,
    check_prompts,
    heldout_refs,
    probe_of,
    prompts_of,
    task_dataset,
)
from tasks.run.run_context import EVALUATION, RunContext
from tasks.scheduling.batch import times
from tasks.scheduling.queue_state import QueueState, without_unfit
from tasks.tiny_models.models import resolve_model

logger = logging.getLogger(__name__)

LEFT_OUT = {  # reasons in words
    "unusable": "unusable (the log names the first)",
    "filtered": "that the filter does not want",
    "held_out": "whose question is held out",
    "unfit": "whose prompt cannot be asked (the log names each)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run whose inputs are checked, with its folder, tracker and earlier commits."""

    config: RunConfig
    context: RunContext
    store: Store  # the run's own folder
    tracker: RunTracker
    commits: tuple[StepCommit, ...]  # steps that an earlier attempt committed
    links: Mapping[str, str]  # addresses of the run in other services, by name

    @property
    def state(self) -> QueueState:
        """The prompt queue after the last commit, without unfit prompts."""
        return without_unfit(state_of(self.commits), self.context.unfit)

    def weights_of(self, step: int) -> WeightsRef | None:
        """The weights that a committed step published; None for step 0, the base model."""
        return read_commits(self.store)[step - 1].weights if step > 0 else None

    @property
    def untracked(self) -> str:
        """A sentence on what MLflow lacks, with the command that sends it; empty if nothing."""
        if not (waiting := self.tracker.outbox.waiting):
            return ""
        return (
            f"MLflow at {self.tracker.uri} did not take {len(waiting)} entries of this"
            f" run; '{self.command('track')}' sends them when it answers"
        )

    def command(self, name: str) -> str:
        """The shell command of this name for this run: "track" sends MLflow the entries that it
        lacks, "ui" serves its pages."""
        root = self.config.keep.artifact_root
        where = "" if root == KeepConfig().artifact_root else f" --root {shlex.quote(root)}"
        return f"rollflow {name} {self.context.run_id}{where}"

    @property
    def logs(self) -> Path:
        """Folder in which the run's processes on this machine write their logs."""
        if self.store.is_local:
            return self.store.local_path(LOGS)
        return Path(tempfile.gettempdir()) / f"rollflow-{os.getuid()}" / self.context.run_id / LOGS

    def certificate(self, scratch: Path) -> Path:
        """Path for the certificate of the run's own cluster: in the run's folder if elastic workers
        need the same one after a resume, and the root is local; else in `scratch`."""
        kept = self.config.elastic.enabled and self.store.is_local
        return self.store.local_path(CERTIFICATE) if kept else scratch / CERTIFICATE

    def local_report(self, name: str) -> Path | None:
        """Path of a report file, whose folder is made; None if the artifact root is remote."""
        if not self.store.is_local:
            return None
        path = self.store.local_path(report_file(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def evaluated_steps(store: Store) -> set[int]:
    """The steps after which an evaluation was recorded in this run's folder."""
    return set(steps_of(store.child(EVALUATION).list(ROUNDS)))


def check_places(config: RunConfig) -> None:
    """Raise Misfits with all files, folders, ports and rows that are not as the run needs them."""
    if found := misfits_of_places(config):
        raise Misfits(found)


def check_rows(config: RunConfig, unfit: Collection[int] = ()) -> None:
    """Raise ValueError for a malformed row, or too few rows for a round or an evaluation."""
    if told := misfit_of_rows(config, task_dataset(config.task, config.seed), unfit):
        raise ValueError(told)


def new_run_id(config: RunConfig) -> str:
    """A name of subject, time and a random part: several machines may begin in one second."""
    return f"{subject(config)}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def with_rows_that_fit(config: RunConfig) -> RunConfig:
    """The configuration fitted to its rows, as the preset `own` wants it; says what was changed,
    and that a user's own model learns the questions of a demo."""
    config, told = fitted(config, task_dataset(config.task, config.seed))
    for line in filter(None, (told, "" if config.resume else lent_questions(config))):
        print_line(line)
    return config


@contextmanager
def open_run(given: RunConfig) -> Iterator[OpenRun]:
    """Check and prepare a run and record its beginning; after the block, end it in MLflow."""
    root = Store.open(given.keep.artifact_root)
    root.check_writable()
    config = pinned(effective_config(given))
    check_own_parts(config)
    config = with_rows_that_fit(config)
    check_places(config)
    run_id = config.resume or config.run_name or new_run_id(config)
    store = _store_of(config, root, run_id)
    await_end(store, print_line)
    check_rows(config)
    with handover_directory(Path(config.keep.weights_dir), run_id, store.url) as weights_dir:
        if leftovers := store.sweep(""):
            logger.info("swept=%d unfinished files of a killed attempt, run=%s", leftovers, run_id)
        commits = tuple(read_commits(store))
        with closing(build_rewards(config.rewards)) as rewards:
            context = _context(config, run_id, weights_dir)
            context = _with_probes(config, _without_unfit(config, context, commits, rewards))
        left_out = _left_out(config, context)
        tracker = record_beginning(config, run_id, store, len(commits), left_out)
        context = replace(
            context,
            manifest_digest=digest_of_manifest(store),
            has_digests=store.needs_digests,
        )
        store = store.of_begun_run()
        run = OpenRun(
            config=config,
            context=context,
            store=store,
            tracker=tracker,
            commits=commits,
            links=links_of(run_id),
        )
        with _tracked(run), pulse(store):
            yield run


def _store_of(config: RunConfig, root: Store, run_id: str) -> Store:
    """Open the run's folder. Raises ValueError if it belongs to another run."""
    store = root.child(run_id)
    if store.exists("manifest.json") and not config.resume:
        raise ValueError(
            f"run_name must be new under {root.url}, {run_id!r} is there; choose another, or resume"
            f" it with resume={run_id!r}"
        )
    if not config.resume or read_manifest(store).has_digests:
        return store.requiring_digests()
    print_line(f"{run_id} was begun by a version that kept no digests: damage to its files passes")
    return store


@contextmanager
def _tracked(run: OpenRun) -> Iterator[None]:
    """After the block, end the MLflow run, and name the command that sends what MLflow lacks."""
    status: TrackerStatus = "FINISHED"
    try:
        yield
    except BaseException as error:
        status = ended_by(error)
        raise
    finally:
        if not run.tracker.end(status):
            print_line(run.untracked)
        for warning in run.tracker.untold():
            print_line(warning)


def _context(config: RunConfig, run_id: str, weights_dir: Path) -> RunContext:
    weight_server = _weight_server(config)
    check_token(config.elastic, weight_server)
    specs = worker_specs(config.cluster)
    members = engine_members(config.cluster, config.engine.tensor_parallel_size)
    cache = Path(config.keep.model_cache)
    judge = judge_engine_of(config.rewards)
    model = check_architecture(resolve_model(config.model, cache, print_line))
    check_heads(config, read_head_counts(str(model)))
    if config.learner.lora.rank:
        check_adapter(config.learner.lora, model)
    check_pictures(config, model)
    judge_model = resolve_model(judge.model, cache, print_line) if judge else None
    if judge_model is not None:
        check_judge(judge_model)
    described, on_cpu = read_config(model).get_text_config(), config.cluster.device_kind == "cpu"
    config.engine.check_model(described, on_cpu)
    size, engine = model_size(model), config.engine
    if not on_cpu:
        card = None if config.cluster.scheduler_address else smallest_card_bytes()
        rested = with_sleep(config, size, card)
        check_gpu_memory(rested, size, card)
        engine = rested.engine
    if replays_routes(config.learner.router_replay, engine, described, on_cpu):
        engine = engine.model_copy(update={"records_routes": True})
    root, shown = str(config.local_root() or config.keep.artifact_root), {}
    if takes_pictures(str(model)):
        shown["pictures"] = f"{root.rstrip('/')}/{run_id}/{PICTURES}"
    return RunContext(
        run_id=run_id,
        artifact_root=root,
        weights_dir=str(weights_dir),
        seed=config.seed,
        task=config.task,
        model_path=str(model),
        judge_model_path=str(judge_model or ""),
        rewards=config.rewards,
        environments=config.environments,
        episodes=config.episodes,
        reward_workers=config.reward_workers,
        max_infra_fraction=config.max_infra_fraction,
        engine=engine.model_copy(update=shown),
        sampling=config.sampling,
        learner=config.learner.model_copy(update=shown),
        stream_trainer=config.stream_trainer,
        balancing=config.balancing,
        gate=config.weight_check,
        elastic=config.elastic,
        prices=config.prices,
        weight_server=weight_server,
        deadlines=config.deadlines,
        transport=transport_for(config),
        engines=tuple(members),
        members=members,
        learners=tuple(spec.name for spec in specs if spec.role == "learner"),
        learners_per_machine=learners_per_machine(config.cluster),
        judges=tuple(spec.name for spec in specs if spec.role == "judge"),
        environment_workers=tuple(spec.name for spec in specs if spec.role == "environment"),
        devices={spec.name: spec.device or "host" for spec in specs},
        scheduling=config.scheduling,
    )


def _weight_server(config: RunConfig) -> ElasticWeightsConfig | None:
    """Settings of the weight server, if any; its port is 0 (any) if the configured one is taken."""
    server = weight_server_of(config.elastic, config.cluster)
    if server is None or not (
        server.port and any(refusal(server.port, host) for host in server.addresses)
    ):
        return server
    print_line(f"port {server.port} is taken: the weight server has a free one")
    return server.model_copy(update={"port": 0})


def state_of(commits: Sequence[StepCommit]) -> QueueState:
    return QueueState.from_json(commits[-1].queue) if commits else QueueState()


def _without_unfit(
    config: RunConfig, context: RunContext, commits: Sequence[StepCommit], rewards: Rewards
) -> RunContext:
    """Add the unfit prompts to the context. Raises ValueError if they are refused or too many."""
    algebra = config.scheduling.algebra(config.batch)
    # a step that gives prompts up asks new ones, at most as many as may be under way
    under_way = times(1 + algebra.mean_lag, algebra.ordinary.launch_prompts)
    num_asked = under_way + algebra.reserve_prompts
    asked = heldout_asked(config)
    # a round that was begun may be read back, even if the run now ends before it
    num_begun = len(context.open_store().list(PLANS))
    num_steps = max(0, max(config.num_steps, num_begun) - len(commits))
    policy: UnfitPrompts = config.unfit_prompts
    if isinstance(config.task, MappedConfig) and config.task.unusable_rows == "skip":
        policy = "skip"
    check_embeddings(policy, context)
    examination = Examination(context, rewards)
    num_heldout = examination.examine_heldout(max(asked, config.weight_check.num_probes))
    examination.examine_stream(state_of(commits), num_steps * num_asked)
    check_prompts(policy, examination.reasons, examination.num_examined)
    if num_heldout < asked:
        reason = next(iter(examination.reasons.values()), "")
        first = reason and f" (the first that does not fit: {reason})"
        raise ValueError(
            f"evaluation.num_prompts must be <= the held-out prompts that fit ({num_heldout}), got"
            f" {asked}; lower it{first}"
        )
    check_rows(config, examination.rows())
    return replace(context, unfit=examination.rows(), unfit_heldout=examination.heldout())


def _left_out(config: RunConfig, context: RunContext) -> dict[str, int]:
    num_unfit = len(context.unfit) + len(context.unfit_heldout)
    counted = {**task_dataset(config.task, config.seed).left_out, "unfit": num_unfit}
    found = {reason: num for reason, num in counted.items() if num}
    if found:
        counts = ", ".join(f"{num} {LEFT_OUT[reason]}" for reason, num in found.items())
        print_line(f"rows left out: {counts}")
    return found


def _with_probes(config: RunConfig, context: RunContext) -> RunContext:
    """Add the weight check's probes: the ends of held-out prompts, which differ most there."""
    if not config.weight_check.enabled:
        return context
    prompts = prompts_of(context, heldout_refs(context, config.weight_check.num_probes))
    return replace(
        context,
        probes=tuple(
            probe_of(context, prompt, config.weight_check.probe_tokens)
            for prompt in prompts.values()
        ),
    )
