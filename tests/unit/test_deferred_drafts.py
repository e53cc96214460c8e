"""Drafts of a round's deferred prompts are looked up in the records of the rounds that gave them
up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_factories import CONTEXT, make_step_plan
from record_factories import make_generated

from artifacts import layout
from artifacts.records import Prompt, Response
from artifacts.tables import ResponseRow
from tasks.deferred_drafts import drafts_of
from tasks.plan import StepPlan, journal_of, store_of

VERIFIES = replace(
    CONTEXT,
    artifact_root="memory://deferred_drafts",
    engine=CONTEXT.engine.model_copy(update={"verify_deferred": True}),
)


def plan_of(kind: str = "long") -> StepPlan:
    """Step 5, which asks 0/0; from the queue, if it is long."""
    return replace(make_step_plan(5, kind), run=VERIFIES)


def record(step: int, *tokens: tuple[int, ...], prompt_id: str = "0/0") -> None:
    """A closed step that had these responses to a prompt."""
    prompt = Prompt(prompt_id=prompt_id, domain="test", token_ids=(1,), gold="", text="")
    rows = [
        ResponseRow(
            step=step,
            kind="short",
            prompt=prompt,
            response=Response(
                generated=make_generated("", own, prompt_id=prompt_id, index=index), score=None
            ),
        )
        for index, own in enumerate(tokens)
    ]
    journal_of(plan_of()).finalise(step, rows, (), ())


@pytest.fixture(autouse=True)
def records() -> None:
    """0/0 was asked in steps 2 and 3, another prompt in step 4."""
    record(2, (1, 2, 3, 4), (5, 6))
    record(3, (1, 2), (), (7,))
    record(4, (9,), prompt_id="0/1")


def test_a_long_round_has_what_its_prompts_had_when_they_were_asked_last() -> None:
    assert drafts_of(plan_of()) == {"0/0:0": (1, 2), "0/0:2": (7,)}


def test_nothing_is_looked_up_where_nobody_verifies_it_or_nothing_was_put_off() -> None:
    plain = replace(plan_of(), run=replace(VERIFIES, engine=CONTEXT.engine))
    assert drafts_of(plain) == {}
    assert drafts_of(plan_of("short")) == {}
    assert drafts_of(plan_of("evaluate")) == {}


def test_a_record_that_cannot_be_read_costs_its_drafts_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store_of(plan_of()).write(layout.table_file("responses", 3), b"cut off")
    assert drafts_of(plan_of()) == {"0/0:0": (1, 2, 3, 4), "0/0:1": (5, 6)}
    assert "step=5 no_drafts_from=3" in caplog.text
