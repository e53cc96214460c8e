"""In which order responses are asked where they wait for their turn, and what is remembered."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError
from round_factories import make_engines, make_plan, plan_round, play, simulate_run

from flows.commands.algebra_rows import algebra_rows
from flows.commands.command_line import assemble
from research.ablations.longest_first import LongestFirst, LongestFirstConfig
from research.ablations.policies import ComparedConfig
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import LengthModel
from tasks.rounds.records import RoundResult
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import (
    Abort,
    AcceptGroup,
    CloseRound,
    Filter,
    Finished,
    Launch,
    Lost,
    RoundPlan,
    Scored,
)
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.queue_state import QueueState, RoundEnd, finish_round
from tasks.scheduling.short_round import ShortRoundScheduler
from tasks.scheduling.wait_for_all import WaitForAll
from tests.unit.test_scheduling_schedulers import infra, launches, scored

BATCH = BatchConfig(prompts_per_step=4, responses_per_prompt=3)
DOMAINS = ("add", "letters") * 6  # three steps of four prompts


def ordered(most: int, num_prompts: int = 3, known: tuple[int, ...] = ()) -> LongestFirst:
    plan = replace(make_plan(domains=("a",) * num_prompts), expected_tokens=known)
    return LongestFirst(WaitForAll(plan), plan, most)


def finished(prompt_id: str, index: int, num_tokens: int) -> Finished:
    return Finished(prompt_id=prompt_id, index=index, num_tokens=num_tokens)


def test_a_response_of_every_prompt_comes_before_the_others() -> None:
    scheduler = ordered(3)
    assert scheduler.start() == [*launches("p0", 0), *launches("p1", 0), *launches("p2", 0)]
    assert "; 3 responses wait for their turn" in scheduler.waiting_for()


def test_then_come_prompts_without_an_answer_and_then_those_of_the_longest() -> None:
    scheduler = ordered(3)
    scheduler.start()
    # the others' first responses run still: they may be the longest
    assert scheduler.handle(finished("p1", 0, 50)) == launches("p0", 1)
    assert scheduler.handle(finished("p2", 0, 90)) == launches("p2", 1)
    assert scheduler.handle(finished("p0", 0, 10)) == launches("p1", 1)


def test_a_verdict_makes_no_place_and_an_answer_does() -> None:
    scheduler = ordered(2)
    scheduler.start()
    assert scheduler.handle(finished("p0", 0, 5)) == launches("p2", 0)
    assert scheduler.handle(scored("p0", 0)) == []


def test_what_an_earlier_epoch_took_is_known_from_the_start() -> None:
    """A prompt that is new then comes first, with one response."""
    assert ordered(4, known=(70, 0, 90)).start() == [
        *launches("p1", 0, 1),  # its only answer runs: it counts as the longest
        *launches("p2", 0, 1),
    ]
    assert ordered(3, known=(70, 80, 90)).start() == [*launches("p2", 0, 1), *launches("p1", 0)]
    everything = ordered(6, known=(70, 80, 90)).start()
    assert everything == [launch for name in ("p2", "p1", "p0") for launch in launches(name, 0, 1)]


def test_a_lost_response_waits_for_its_turn_again() -> None:
    scheduler = ordered(2, num_prompts=2)
    scheduler.start()
    assert scheduler.handle(Lost(prompt_id="p1", index=0)) == launches("p0", 1)
    assert scheduler.handle(finished("p0", 0, 4)) == launches("p1", 1)
    assert scheduler.handle(finished("p0", 1, 4)) == launches("p1", 0)


def test_a_response_in_place_of_one_without_a_verdict_waits_too() -> None:
    scheduler = ordered(2, num_prompts=2)
    scheduler.start()
    assert scheduler.handle(finished("p0", 0, 4)) == launches("p1", 1)
    assert scheduler.handle(infra("p0", 0)) == []
    assert scheduler.handle(finished("p1", 1, 9)) == launches("p0", 1)
    assert scheduler.handle(finished("p1", 0, 9)) == launches("p0", 2)


def test_what_waits_is_given_up_without_a_word_to_an_engine() -> None:
    plan = make_plan("short", domains=("a",) * 3, accept_prompts=1)
    scheduler = LongestFirst(ShortRoundScheduler(plan), plan, 3)
    scheduler.start()
    scheduler.handle(finished("p1", 0, 3))
    scheduler.handle(finished("p1", 1, 3))  # was not even asked: some recorded answer
    decisions = [*scheduler.handle(scored("p1", 0)), *scheduler.handle(scored("p1", 1))]
    assert AcceptGroup(prompt_id="p1", indices=(0, 1)) in decisions
    aborted = [each for each in decisions if isinstance(each, Abort)]
    assert aborted == [
        Abort(prompt_id="p0", indices=(0, 1)),
        Abort(prompt_id="p2", indices=(0,)),
    ]
    assert isinstance(decisions[-1], CloseRound)
    assert not any(isinstance(each, Launch) for each in decisions)


def test_a_stand_in_of_a_filtered_group_waits_for_its_turn() -> None:
    plan = make_plan(domains=("a", "a"), reserve=("a",))
    scheduler = LongestFirst(WaitForAll(plan), plan, 2)
    scheduler.start()
    assert scheduler.handle(finished("p0", 0, 4)) == launches("p1", 1)
    assert scheduler.handle(finished("p1", 1, 9)) == launches("p0", 1)
    assert scheduler.handle(finished("p0", 1, 4)) == []
    assert scheduler.handle(scored("p0", 0)) == []
    assert scheduler.handle(scored("p0", 1)) == [*launches("r0", 0), Filter(prompt_id="p0")]
    assert scheduler.handle(finished("p1", 0, 9)) == launches("r0", 1)


def test_the_round_says_what_its_prompts_took_in_earlier_epochs() -> None:
    policy, state = LongestFirstConfig(), QueueState()
    for step in range(1, 4):
        plan = planned(policy, state, step)
        assert plan.expected_tokens == (0, 0, 0, 0)
        answers = {ref.prompt_id: 10 * step for ref in plan.prompts}
        state = finish_round(state, plan, RoundEnd(accepted=[*answers], answer_tokens=answers))
    kept = QueueState.from_json(json.loads(json.dumps(state.to_json())))
    assert kept == state
    again = planned(policy, kept, 4)
    assert {ref.prompt_id.split("/")[0] for ref in again.prompts} == {"1"}
    assert set(again.expected_tokens) <= {10, 20, 30}
    # nobody else pays for it
    plan = plan_round(kept, BATCH, SyncConfig(), domains=DOMAINS, seed=3, step=4, num_steps=5)
    assert plan is not None
    assert plan.expected_tokens == ()
    ended = RoundEnd(accepted=[ref.prompt_id for ref in plan.prompts], answer_tokens={"1/0": 5})
    assert finish_round(kept, plan, ended).answer_tokens == kept.answer_tokens


def planned(policy: LongestFirstConfig, state: QueueState, step: int) -> RoundPlan:
    plan = plan_round(state, BATCH, policy, domains=DOMAINS, seed=3, step=step, num_steps=5)
    assert plan is not None
    return plan


@pytest.mark.parametrize("moves_running", [False, True])
def test_every_step_trains_what_synchronous_steps_train(moves_running: bool) -> None:
    """The same answers to the same prompts, epoch after epoch."""

    def trained(policy: SyncConfig | LongestFirstConfig) -> list[dict[str, list[int]]]:
        rounds = run_virtual(
            simulate_run(BATCH, policy, num_steps=5, engines=make_engines(2), domains=DOMAINS)
        )
        return [answers_of(played.result) for played in rounds]

    ours = LongestFirstConfig(under_way=0.25, moves_running=moves_running)
    assert trained(ours) == trained(SyncConfig())


def answers_of(result: RoundResult) -> dict[str, list[int]]:
    """Tokens of what is trained, by prompt."""
    return {
        group.prompt.prompt_id: [each.generated.num_sampled for each in group.responses]
        for group in sorted(result.groups, key=lambda group: group.prompt.prompt_id)
    }


def test_what_runs_moves_to_where_there_is_less_to_do() -> None:
    """Of two engines one has all long answers when the other's are over."""
    engine = SimulatedEngineConfig(
        max_batch=64, kv_capacity_tokens=60_000, lengths=LengthModel(median_tokens=400, sigma=1.2)
    )
    batch = BatchConfig(prompts_per_step=16, responses_per_prompt=2)

    def played(moves_running: bool) -> RoundResult:
        policy = LongestFirstConfig(under_way=1.0, moves_running=moves_running)
        plan = plan_round(
            QueueState(), batch, policy, domains=("a",) * 40, seed=3, step=1, num_steps=1
        )
        assert plan is not None
        engines = make_engines(2, engine)
        balancing = BalancingConfig(interval_s=1.0, threshold=0.1, keep_running=0)
        return run_virtual(
            play(plan, engines, policy=policy, max_response_tokens=4000, balancing=balancing)
        )

    stay, move = played(False), played(True)
    assert not stay.migrated
    assert move.migrated
    assert answers_of(stay) == answers_of(move)


def test_explain_says_how_many_an_engine_has_at_a_time() -> None:
    values = assemble("tiny-sync", "", ["scheduling.kind=longest_first"])
    rows = dict(algebra_rows(ComparedConfig.model_validate(values)))
    assert rows["requests per engine"] == "32 on each of 2, the others wait for their turn"


def test_it_is_refused_with_what_frees_devices_in_mid_round() -> None:
    values = assemble("tiny", "", ["scheduling.kind=longest_first", "stream_trainer.enabled=true"])
    with pytest.raises(ValidationError, match="what waits for its turn would find its engine gone"):
        ComparedConfig.model_validate(values)
    with pytest.raises(ValidationError, match="under_way"):
        LongestFirstConfig(under_way=0)


def test_a_scored_event_of_a_prompt_that_nobody_knows_changes_nothing() -> None:
    scheduler = ordered(2)
    scheduler.start()
    unknown = scored("elsewhere", 0)
    assert isinstance(unknown, Scored)
    assert scheduler.handle(unknown) == []
