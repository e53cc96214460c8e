"""Prompts that cannot be asked are found before a run starts: refused with the first of them, or
passed over and counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from judge_factories import make_config
from plan_factories import CONTEXT

from artifacts import layout
from artifacts.commit import StepCommit
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.records import WeightsRef
from flows.config.run_config import RunConfig
from flows.run import _left_out, _without_unfit
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.rewards.judges.engine_config import JudgeEngineConfig
from tasks.rewards.registry import build_rewards
from tasks.run.prompts import Examination, dataset_of, heldout_refs
from tasks.run.run_context import RunContext
from tasks.scheduling.events import PromptRef
from tasks.scheduling.queue_state import Carried, QueueState, without_unfit
from tasks.scheduling.staleness import Dispatched

NUM_ROWS = 40
ROOM = 128  # what the tiny preset leaves for a prompt


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model")
    character_tokenizer().save_pretrained(directory)
    return str(directory)


def config_over(path: Path, **values: object) -> RunConfig:
    """A run over a file of questions, half of them held out."""
    task = {"kind": "files", "path": str(path), "heldout_fraction": 0.5}
    small = {
        "num_steps": 2,
        "batch": {"prompts_per_step": 4},
        "evaluation": {"num_prompts": 4},
        "scheduling": {"kind": "sync"},
    }
    return RunConfig.model_validate({"preset": "tiny", "task": task} | small | values)


def write_rows(path: Path, long_rows: set[int] = frozenset(), texts: dict[int, str] = {}) -> None:  # noqa: B006  # never changed
    """Rows with a question each; those of long_rows are longer than there is room for."""
    questions = {
        row: f"{row}+1=" + "1" * (ROOM if row in long_rows else 0) for row in range(NUM_ROWS)
    } | texts
    path.write_text(
        "".join(json.dumps({"prompt": text, "answer": "1"}) + "\n" for text in questions.values())
    )


def fitted(
    config: RunConfig, context: RunContext, commits: Sequence[StepCommit] = ()
) -> RunContext:
    """What a run makes of its context when it opens."""
    with closing(build_rewards(context.rewards)) as rewards:
        return _without_unfit(config, context, commits, rewards)


def context_of(config: RunConfig, model_path: str) -> RunContext:
    engine = VllmEngineConfig(max_model_len=ROOM + CONTEXT.sampling.max_response_tokens)
    return replace(
        CONTEXT, task=config.task, seed=config.seed, model_path=model_path, engine=engine
    )


def long_ones(context: RunContext) -> set[int]:
    """Rows of the training side whose question is too long, by reading them."""
    return {number for number, row in enumerate(dataset_of(context).rows) if len(row.text) > ROOM}


def test_a_prompt_that_does_not_fit_is_refused_before_anything_starts(
    model_path: str, tmp_path: Path
) -> None:
    write_rows(path := tmp_path / "rows.jsonl", long_rows=set(range(0, NUM_ROWS, 2)))
    config = config_over(path, num_steps=50)
    with pytest.raises(
        ValueError, match=r"do not; the first: a prompt must fit in 128 tokens.*unfit_prompts=skip"
    ):
        fitted(config, context_of(config, model_path))


def test_prompts_that_are_passed_over_are_never_planned(model_path: str, tmp_path: Path) -> None:
    write_rows(path := tmp_path / "rows.jsonl", long_rows=set(range(0, NUM_ROWS, 3)))
    config = config_over(path, num_steps=50, unfit_prompts="skip")
    run = fitted(config, context_of(config, model_path))
    assert run.unfit == long_ones(run)
    heldout = dataset_of(run).heldout
    asked = heldout_refs(run, config.evaluation.num_prompts)
    assert len(asked) == 4
    assert all(len(heldout[int(ref.prompt_id.partition("/")[2])].text) <= ROOM for ref in asked)


def test_only_rows_that_the_run_can_come_to_are_rendered(model_path: str, tmp_path: Path) -> None:
    write_rows(path := tmp_path / "rows.jsonl")
    context = context_of(config_over(path), model_path)
    examination = Examination(context, build_rewards(context.rewards))
    examination.examine_stream(QueueState(), 6)
    assert examination.num_examined == 6
    examination.examine_stream(QueueState(num_drawn=2), 6)
    assert examination.num_examined == 8
    examination.examine_stream(QueueState(), 10_000)
    assert examination.num_examined == NUM_ROWS // 2


@pytest.mark.parametrize("text", ["\ud800", "3+4=\udfff"])
def test_a_row_that_the_tokenizer_refuses_is_unfit_too(
    model_path: str, tmp_path: Path, text: str
) -> None:
    write_rows(
        path := tmp_path / "rows.jsonl",
        texts={row: f"{row}{text}" for row in range(0, NUM_ROWS, 2)},
    )
    config = config_over(path, num_steps=50)
    with pytest.raises(ValueError, match="text and roles that the model's tokenizer takes"):
        fitted(config, context_of(config, model_path))


@pytest.mark.parametrize(
    ("gold", "reward", "said"),
    [
        (r"\frac{1}{2", {"kind": "math_answer"}, "a gold must be a number or a LaTeX expression"),
        ("3", {"kind": "code"}, "a code gold must be the JSON of a CodeGold"),
        ("3", {"kind": "reasoning_gym"}, "a reasoning-gym gold must be JSON"),
        ("\udfff", {"kind": "service", "url": "http://x"}, "can't encode character"),
    ],
)
def test_a_gold_that_no_response_can_meet_is_unfit(
    gold: str, reward: dict[str, str], said: str, model_path: str, tmp_path: Path
) -> None:
    row = {"prompt": "1+1=", "answer": gold}
    (path := tmp_path / "rows.jsonl").write_text(
        "".join(f"{json.dumps(row | {'prompt': f'{number}+1='})}\n" for number in range(NUM_ROWS))
    )
    config = config_over(path, rewards={"*": reward})
    context = replace(context_of(config, model_path), rewards=config.rewards)
    with pytest.raises(ValueError, match=rf"do not; the first: .*{said}.*unfit_prompts=skip"):
        fitted(config, context)


def extended(folder: Path, *tokens: str, **named: str) -> str:
    """A model whose tokenizer got further tokens, and whose embedding did not."""
    folder.mkdir()
    tokenizer = character_tokenizer()
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(tokenizer)}))
    tokenizer.add_tokens(list(tokens))
    tokenizer.add_special_tokens(dict(named))
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("role", ["model", "judge"])
def test_a_tokenizer_that_knows_more_than_its_model_is_refused_with_the_cure(
    role: str, model_path: str, tmp_path: Path
) -> None:
    write_rows(path := tmp_path / "rows.jsonl")
    config = config_over(path)
    larger = extended(tmp_path / "larger", "<step>", "<done>")
    run = context_of(config, larger if role == "model" else model_path)
    with pytest.raises(
        ValueError,
        match=r"no more tokens than its model embeds .* 2 more, such as '<step>'; resize the"
        r" embedding .*unfit_prompts=skip",
    ):
        fitted(config, replace(run, judge_model_path=larger if role == "judge" else ""))
    padded = extended(tmp_path / "padded", pad_token="[PAD]")
    assert not fitted(config, replace(run, model_path=padded)).unfit


@pytest.mark.parametrize("how", ["unfit_prompts", "unusable_rows"])
def test_prompts_with_tokens_that_are_not_embedded_are_passed_over_and_told(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(path := tmp_path / "rows.jsonl", texts={3: "3<step>+1=", 8: "<step>8", 9: "9" * 999})
    task = {"kind": "files", "path": str(path), "heldout_fraction": 0.5}
    values: dict[str, object] = {"num_steps": 50, "evaluation": {"num_prompts": 17}}
    if how == "unfit_prompts":
        config = config_over(path, unfit_prompts="skip", **values)
    else:
        config = config_over(path, task=task | {"unusable_rows": "skip"}, **values)
    run = fitted(config, context_of(config, extended(tmp_path / "larger", "<step>")))
    sides = dataset_of(run)
    unfit = {sides.rows[row].text for row in run.unfit} | {
        sides.heldout[row].text for row in run.unfit_heldout
    }
    assert unfit == {"3<step>+1=", "<step>8", "9" * 999}
    assert _left_out(config, run) == {"unfit": 3}
    assert capsys.readouterr().out == (
        "rows left out: 3 whose prompt cannot be asked (the log names each)\n"
    )


def test_a_question_that_leaves_its_judge_no_room_is_unfit(model_path: str, tmp_path: Path) -> None:
    write_rows(path := tmp_path / "rows.jsonl")
    config = config_over(path)
    small = JudgeEngineConfig.model_validate(
        {"model": {"kind": "tiny_llama"}, "max_model_len": 200}
    )
    rewards = {"*": make_config().model_copy(update={"engine": small})}
    run = replace(context_of(config, model_path), rewards=rewards, judge_model_path=model_path)
    with pytest.raises(ValueError, match="room for an answer in the judge's context of 200 tokens"):
        fitted(config, run)


def test_too_few_prompts_that_fit_are_an_error(model_path: str, tmp_path: Path) -> None:
    write_rows(path := tmp_path / "rows.jsonl", long_rows=set(range(3, NUM_ROWS)))
    config = config_over(path, unfit_prompts="skip")
    with pytest.raises(ValueError, match=r"that fit|that can be asked|as many rows"):
        fitted(config, context_of(config, model_path))


@pytest.mark.parametrize("where", ["queue", "skipped", "carried"])
def test_what_waits_in_a_resumed_run_is_examined_again(
    where: str, model_path: str, tmp_path: Path
) -> None:
    write_rows(path := tmp_path / "rows.jsonl", long_rows=set(range(0, NUM_ROWS, 3)))
    config = config_over(path, unfit_prompts="skip", num_steps=1)
    context = context_of(config, model_path)
    row = min(long_ones(context))
    ref = PromptRef(prompt_id=f"0/{row}", domain="questions")
    waiting = Carried(ref=ref, dispatched=Dispatched(version=0)) if where == "carried" else ref
    before = replace(QueueState(num_drawn=5), **{where: (waiting,)})
    commit = StepCommit(
        step=1,
        kind="short",
        weights=WeightsRef(version=1, path="", digest=""),
        queue=before.to_json(),
        seeds={},
        counters={},
        metrics={},
        timings={},
        checkpoint=None,
    )
    run = fitted(config, context, (commit,))
    assert row in run.unfit
    state = without_unfit(before, run.unfit)
    assert (getattr(state, where), state.num_unfit) == ((), 1)


@pytest.mark.parametrize(("async_ratio", "expected"), [(0.0, 8), (1.0, 16), (1.5, 20)])
def test_what_may_be_asked_for_prompts_that_are_given_up_is_examined_too(
    async_ratio: float,
    expected: int,
    model_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two steps of four prompts, each of which may ask anew all that may be under way."""
    examined: list[int] = []
    monkeypatch.setattr(
        Examination, "examine_stream", lambda self, state, number: examined.append(number)
    )
    write_rows(path := tmp_path / "rows.jsonl")
    scheduling = {"kind": "asynchronous", "async_ratio": async_ratio, "at_deadline": "drop"}
    config = config_over(path, scheduling=scheduling)
    fitted(config, context_of(config, model_path))
    assert examined == [expected]


def test_what_a_round_asked_that_was_begun_is_examined_though_the_run_now_ends_before_it(
    model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined: list[int] = []
    monkeypatch.setattr(
        Examination, "examine_stream", lambda self, state, number: examined.append(number)
    )
    write_rows(path := tmp_path / "rows.jsonl")
    config = config_over(path, num_steps=1)
    run = replace(context_of(config, model_path), artifact_root=str(tmp_path))
    for step in (1, 2, 3):
        run.open_store().write(layout.step_file(layout.PLANS, step), b"{}")
    fitted(config, run)
    assert examined == [3 * 4]
