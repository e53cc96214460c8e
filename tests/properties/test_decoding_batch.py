"""The batch that jumps from event to event is the one that decodes token by token."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_factories import make_request

from tasks.engines.simulation.batch import DecodingBatch
from tasks.engines.simulation.decoding import Decoding
from tasks.engines.simulation.pace import Pace

LINEAR = Pace(
    step_s=0.01, step_s_per_sequence=0.002, prefill_s_per_token=0.001, max_batch=6, kv_tokens=90
)
ROOFLINE = Pace(
    step_s=0.01,
    step_s_per_sequence=0.0005,
    prefill_s_per_token=0.0001,
    max_batch=8,
    kv_tokens=110,
    step_s_per_kv_token=0.0003,
    weights_s=0.004,
    matrix_s_per_token=0.001,
    chunk_tokens=16,
    attention_share=0.01,
    kv_margin=0.01,
    shares_prompts=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A sequence, when it comes and when it is given up."""

    prompt: int
    num_prompt_tokens: int
    target: int
    kept: int
    comes: int  # the boundary between two steps
    leaves: int | None


@dataclass(slots=True, kw_only=True, eq=False)
class Token:
    """A sequence of the naive batch."""

    asked: Asked
    num_tokens: int
    left: float = 0.0  # work of prefilling that is left


@dataclass(slots=True, kw_only=True)
class Played:
    """What a batch did."""

    ends: dict[int, tuple[float, int]] = field(default_factory=dict)  # second and tokens, by place
    order: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    boundaries: dict[int, float] = field(default_factory=dict)  # seconds, where something came


def naively(pace: Pace, asked: list[Asked]) -> Played:
    """One step after the other, every sum anew."""
    played, now_s, step = Played(), 0.0, 0
    running: list[Token] = []
    waiting: list[Token] = []
    places = {id(one): place for place, one in enumerate(asked)}
    last = max([one.comes for one in asked] + [one.leaves or 0 for one in asked])

    def held() -> float:
        shared = {token.asked.prompt: token.asked.num_prompt_tokens for token in running}
        prompts = (
            sum(shared.values())
            if pace.shares_prompts
            else sum(token.asked.num_prompt_tokens for token in running)
        )
        return prompts + sum(token.num_tokens for token in running)

    def missing(token: Token) -> float:
        is_there = pace.shares_prompts and token.asked.prompt in {
            other.asked.prompt for other in running
        }
        return token.num_tokens + (0 if is_there else token.asked.num_prompt_tokens)

    def give_up(at: int) -> None:
        for token in [*running, *waiting]:
            if token.asked.leaves == at:
                played.ends[places[id(token.asked)]] = (now_s, token.num_tokens)
                (running if token in running else waiting).remove(token)

    def fill() -> float:
        stall_s = 0.0
        while len(running) > 1 and held() >= pace.kv_tokens:
            waiting.insert(0, running.pop())
            played.num_preemptions += 1
        while waiting:
            room = pace.kv_tokens * (1 - pace.kv_margin)
            fits = held() + missing(waiting[0]) <= room and len(running) < pace.max_batch
            if running and not fits:
                break
            token = waiting.pop(0)
            work = pace.prefill_work(missing(token))
            token.left = work if pace.chunk_tokens else 0.0
            stall_s += 0.0 if pace.chunk_tokens else pace.prefill_s_per_token * work
            running.append(token)
        return stall_s

    while running or waiting or step <= last:
        arrivals = [one for one in asked if one.comes == step]
        waiting += [Token(asked=one, num_tokens=one.kept) for one in arrivals]
        played.boundaries[step] = now_s
        give_up(step)
        now_s += fill()
        step += 1
        if not running:
            continue
        decoding = [token for token in running if token.left <= 1e-6]
        prefilling = [token for token in running if token.left > 1e-6]
        work = pace.chunk(len(decoding), sum(token.left for token in prefilling))
        work = work if prefilling else 0.0
        read = sum(token.num_tokens + token.asked.num_prompt_tokens for token in decoding)
        now_s += pace.base_s(len(decoding), work) + pace.step_s_per_kv_token * read
        for token in prefilling:
            done = min(token.left, work)
            token.left, work = token.left - done, work - done
        for token in decoding:
            token.num_tokens += 1
            if token.num_tokens == token.asked.target:
                running.remove(token)
                played.ends[places[id(token.asked)]] = (now_s, token.num_tokens)
                played.order.append(places[id(token.asked)])
    return played


def begin(one: Asked, place: int) -> Decoding:
    request = make_request(
        prompt_id=f"0/{one.prompt}",
        index=place,
        prompt_tokens=(1,) * one.num_prompt_tokens,
        kept_tokens=(1,) * one.kept,
    )
    return Decoding(
        request=request,
        noise=0,
        target_tokens=one.target,
        reason="stop",
        submitted_s=0.0,
        num_settled=float(one.kept),
        spans=(),
        num_reported=one.kept,
    )


def by_events(pace: Pace, asked: list[Asked], boundaries: dict[int, float]) -> Played:
    """The batch itself, told of what comes at the seconds that the naive one reached."""
    played, batch, now_s = Played(), DecodingBatch(pace), 0.0
    sequences = {place: begin(one, place) for place, one in enumerate(asked)}
    places = {sequence: place for place, sequence in sequences.items()}
    steps = {one.comes for one in asked} | {one.leaves for one in asked if one.leaves is not None}
    told = sorted(step for step in steps if step in boundaries)
    while True:
        wait_s = batch.seconds_to_event()
        times = [boundaries[told[0]]] if told else []
        times += [now_s + wait_s] if wait_s is not None else []
        if not times:
            break
        now_s = min(times)
        for sequence in batch.advance(now_s):
            played.ends[places[sequence]] = (now_s, sequence.whole_tokens)
            played.order.append(places[sequence])
        while told and boundaries[told[0]] <= now_s + 1e-9:
            step = told.pop(0)
            for place, one in enumerate(asked):
                if one.comes == step:
                    batch.add(sequences[place])
            for place, one in enumerate(asked):
                if one.leaves == step and sequences[place] in batch.sequences:
                    batch.remove(sequences[place])
                    played.ends[place] = (now_s, sequences[place].whole_tokens)
        batch.fill()
    played.num_preemptions = batch.num_preemptions
    total = sum(tokens - asked[place].kept for place, (_, tokens) in played.ends.items())
    assert batch.tokens_generated == pytest.approx(total), "every token has a sequence"
    return played


@st.composite
def asks(draw: st.DrawFn) -> list[Asked]:
    # the responses to a prompt have its tokens
    prompts = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    made = []
    for _ in range(draw(st.integers(1, 14))):
        prompt = draw(st.integers(0, len(prompts) - 1))
        kept = draw(st.integers(0, 5))
        comes = draw(st.integers(0, 20))
        made.append(
            Asked(
                prompt=prompt,
                num_prompt_tokens=prompts[prompt],
                target=kept + draw(st.integers(1, 40)),
                kept=kept,
                comes=comes,
                leaves=draw(st.none() | st.integers(comes + 1, comes + 40)),
            )
        )
    return made


@pytest.mark.parametrize("pace", [LINEAR, ROOFLINE], ids=["linear", "roofline"])
@given(asked=asks())
@settings(max_examples=60, deadline=None)
def test_events_change_nothing(pace: Pace, asked: list[Asked]) -> None:
    naive = naively(pace, asked)
    fast = by_events(pace, asked, naive.boundaries)
    assert fast.order == naive.order
    assert fast.num_preemptions == naive.num_preemptions
    assert set(fast.ends) == set(naive.ends) == set(range(len(asked)))
    for place, (seconds, tokens) in naive.ends.items():
        assert fast.ends[place][0] == pytest.approx(seconds, abs=1e-6)
        assert fast.ends[place][1] == tokens


@given(
    steps=st.floats(0, 1e5),
    num_sequences=st.integers(1, 500),
    context=st.floats(1, 1e4),
)
def test_the_number_of_steps_is_the_inverse_of_their_time(
    steps: float, num_sequences: int, context: float
) -> None:
    read = num_sequences * context
    seconds = ROOFLINE.steps_s(steps, num_sequences, read, 0)
    assert ROOFLINE.steps_in(seconds, num_sequences, read, 0) == pytest.approx(steps, abs=1e-6)
