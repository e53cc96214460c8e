"""Tools: how they are called, what the calculator says and refuses, what is asked and when an
answer is right."""

from __future__ import annotations

import random
import re
import time
from fractions import Fraction

import pytest
from pydantic import TypeAdapter, ValidationError

from artifacts.datasets.chain_sum import CHARACTERS
from research.kills.delayed import DelayedConfig
from tasks.environments.registry import EnvironmentConfig
from tasks.environments.tools.calculator import (
    NO_DIVISION,
    TOO_LARGE,
    TOO_LONG,
    UNREADABLE,
    CannotCompute,
    calculate,
    written,
)
from tasks.environments.tools.grammar import Action, read_action
from tasks.environments.tools.questions import (
    SHOTS,
    Arithmetic,
    Counting,
    asked_expression,
    result_of,
    worked_out,
)
from tasks.environments.tools.tools import NOT_RUN, ToolsConfig, is_same_number
from tasks.rewards.maths.math_answer import MathAnswer, MathAnswerConfig

BOTH = ToolsConfig(tools=("calculator", "python"))
CHAIN = ToolsConfig(max_operations=1)
COUNTING = ToolsConfig(tools=("python",), questions=Counting())
CONFIGS = (ToolsConfig(), BOTH, CHAIN, COUNTING)


@pytest.mark.parametrize(
    ("text", "kind", "body"),
    [
        ("calc 47 * 86", "calculator", "47 * 86"),
        (" Calc: 47 * 86 = \n", "calculator", "47 * 86"),
        ("calc   (1 + 2) x 3?", "calculator", "(1 + 2) x 3"),
        ("answer 4042", "answer", "4042"),
        ("ANSWER: 4,042.", "answer", "4,042."),
        ("python\nprint(1)", "python", "print(1)"),
        ("python print(1)", "python", "print(1)"),
        ("Python:\n\n  a = 1\n  print(a)\n", "python", "\na = 1\nprint(a)"),
        ("```python\nprint(1)\n```", "python", "print(1)\n"),
        ("```py\nprint(1)", "python", "print(1)"),
        ("```\nprint(1)\n```\nThis prints 1. answer 1", "python", "print(1)\n"),
        ("python\n```python\nprint(1)\n```", "python", "print(1)\n"),
        ("calc", "invalid", ""),
        ("calc 1 + 2\nanswer 3", "invalid", ""),
        ("calculate 1 + 2", "invalid", ""),
        ("answer", "invalid", ""),
        ("answer " + "9" * 101, "invalid", ""),
        ("python", "invalid", ""),
        ("python\n \n", "invalid", ""),
        ("pythonic 1", "invalid", ""),
        ("python\n" + "1" * 4_001, "invalid", ""),
        ("I use a tool.\n```python\nprint(1)\n```", "invalid", ""),
        ("4042", "invalid", ""),
        ("", "invalid", ""),
    ],
)
def test_the_first_word_says_what_is_meant(text: str, kind: str, body: str) -> None:
    assert read_action(text, "chat") == Action(kind, body)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "kind", "body"),
    [
        ("c47t86", "calculator", "47 * 86"),
        ("c1p2m3", "calculator", "1 + 2 - 3"),
        ("a4042", "answer", "4042"),
        ("am5", "answer", " - 5"),
        ("47t86", "invalid", ""),
        ("c", "invalid", ""),
        ("c1+2", "invalid", ""),
        ("c" + "1" * 101, "invalid", ""),
        ("calc 1 + 2", "invalid", ""),
    ],
)
def test_the_terse_style_has_letters_for_signs(text: str, kind: str, body: str) -> None:
    assert read_action(text, "terse") == Action(kind, body)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("47 * 86", "4042"),
        ("47*86+391", "4433"),
        ("12 - 30", "-18"),
        ("-(2 + 3) * -4", "20"),
        ("2 ^ 10", "1024"),
        ("2 ** -2", "0.25"),
        ("(-1) ** 999999999999", "-1"),
        ("0 ** 99999999999999", "0"),
        ("1,234 + 1", "1235"),
        ("12 x 34", "408"),
        ("6 × 7 − 2 ÷ 4", "41.5"),
        ("0.1 + 0.2", "0.3"),
        ("99999999999999999.5 * 2", "199999999999999999"),
        ("123456789012.123456789 - 123456789012", "0.123457"),
        ("5. + .5", "5.5"),
        ("1 / 3", "0.333333"),
        ("-2 / 3", "-0.666667"),
        ("1 / 10000000", "0"),
        ("-1 / 10000000", "0"),
        ("2 / 2", "1"),
        ("17 // 5 + 17 % 5", "5"),
        ("9" * 60, "9" * 60),
    ],
)
def test_the_calculator_computes_exactly(text: str, said: str) -> None:
    assert written(calculate(text).value) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("9**9**9", TOO_LARGE),
        ("9**9**9**9**9", TOO_LARGE),
        ("2 ** 999999999999", TOO_LARGE),
        ("2 ** -999999999999", TOO_LARGE),
        ("(1/2) ** 999999999999", TOO_LARGE),
        ("9" * 61, TOO_LARGE),
        ("*".join(["99999"] * 20), TOO_LARGE),
        ("1 / 0", NO_DIVISION),
        ("1 // 0", NO_DIVISION),
        ("1 % (2 - 2)", NO_DIVISION),
        ("0 ** -1", NO_DIVISION),
        ("2 ** 0.5", UNREADABLE),
        ("1 + " * 51, TOO_LONG),
        ("(" * 100 + "1" + ")" * 99, UNREADABLE),
        ("-" * 199 + "1", "-1"),
        ("__import__('os').system('true')", UNREADABLE),
        ("(1).__class__", UNREADABLE),
        ("...", UNREADABLE),
        ("()", UNREADABLE),
        ("1(2)", UNREADABLE),
        ("1, 2", UNREADABLE),
        ("0xff", UNREADABLE),
        ("1e999", UNREADABLE),
        ("007", UNREADABLE),
        ("٣ + 1", UNREADABLE),
        ("1 +\n2", UNREADABLE),
        ("1 +", UNREADABLE),
        ("", UNREADABLE),
        ("\ud800", UNREADABLE),
    ],
)
def test_the_calculator_refuses_at_once_what_is_no_expression_or_too_much(
    text: str, said: str
) -> None:
    began_s = time.process_time()
    try:
        told = written(calculate(text).value)
    except CannotCompute as error:
        told = str(error)
    assert told == said
    assert time.process_time() - began_s < 0.5


def test_no_expression_takes_the_calculator_long_or_makes_it_raise() -> None:
    rng = random.Random(0)
    began_s = time.process_time()
    for _ in range(3_000):
        text = "".join(rng.choices("0123456789" * 2 + "+-*/%.()** ", k=rng.randint(1, 60)))
        try:
            value, num_operations = calculate(text)
        except CannotCompute:
            continue
        assert max(abs(value.numerator), value.denominator) < 2**200
        assert num_operations <= len(text)
        shown = Fraction(written(value))
        assert abs(shown - value) <= Fraction(1, 10**6)
    assert time.process_time() - began_s < 30


@pytest.mark.parametrize("questions", [Arithmetic(), Counting(), Counting(largest=4_000)])
def test_a_question_has_its_answer_and_a_program_that_prints_it(
    questions: Arithmetic | Counting, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(40):
        question = questions.draw(seed)
        assert question == questions.draw(seed)
        exec(question.program, {})
        assert capsys.readouterr().out == f"{question.gold}\n"
        if question.expression:
            assert result_of(question.expression) == question.gold
        assert asked_expression(question.text) == question.expression
    assert len({questions.draw(seed).text for seed in range(40)}) > 30


def test_terms_signs_and_sizes_are_those_of_the_configuration() -> None:
    questions = Arithmetic(term_weights=(0.0, 0.5, 0.5), signs=("*",), largest_term=20)
    parts = [questions.draw(seed).expression.split() for seed in range(400)]
    assert {len(expression) for expression in parts} == {5, 7}
    assert sum(len(expression) == 5 for expression in parts) / 400 == pytest.approx(0.5, abs=0.1)
    assert {sign for expression in parts for sign in expression[1::2]} == {"*"}
    terms = {int(term) for expression in parts for term in expression[::2]}
    assert (min(terms), max(terms)) == (10, 20)
    with pytest.raises(ValidationError, match="one of term_weights must be > 0"):
        Arithmetic(term_weights=(0.0,))


def test_the_longest_product_has_a_result_and_no_longer_one_is_asked_for() -> None:
    longest = Arithmetic(signs=("*",), term_weights=(0.0,) * 7 + (1.0,), largest_term=999_999)
    for seed in range(200):
        assert int(longest.draw(seed).gold) > 0
    with pytest.raises(ValueError, match="at most 8 items"):
        Arithmetic(term_weights=(1.0,) * 9)


def test_an_expression_is_worked_out_products_first() -> None:
    assert worked_out("10 - 20 * 3 + 5", 1) == ["20 * 3", "10 - 60", "-50 + 5"]
    assert worked_out("10 - 20 * 3 + 5", 2) == ["20 * 3", "10 - 60 + 5"]
    assert worked_out("10 - 20 * 3 + 5", 3) == ["10 - 20 * 3 + 5"]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_dump_json()[:60])
def test_the_examples_of_the_head_are_played_by_the_rules(config: ToolsConfig) -> None:
    system, *shown = [message.content for message in config.head()]
    assert all(f"reply with {word}" in system for word in ("answer", *words_of(config)))
    for seed in SHOTS:
        tools, observation = config.build(), shown[0]
        assert config.questions.draw(seed).text == observation
        tools.reset(seed)
        while True:
            action, *shown = shown[1:]
            turn = tools.step(action)
            assert turn.info["action"] in ("call", "answer")
            if turn.terminated:
                break
            observation = shown[0]
            assert turn.observation in (observation, NOT_RUN)
        assert turn.reward == 1.0
    assert not shown


def words_of(config: ToolsConfig) -> list[str]:
    return [{"calculator": "calc", "python": "python"}[tool] for tool in config.tools]


def test_both_tools_are_shown_where_both_are_there() -> None:
    actions = [message.content for message in BOTH.head() if message.role == "assistant"]
    assert sum(action.startswith("calc ") for action in actions) >= 2
    assert sum(action.startswith("python\n") for action in actions) == 2


def test_a_chain_takes_as_many_calls_as_there_are_signs() -> None:
    for seed in range(50):
        tools, question = CHAIN.build(), CHAIN.questions.draw(seed)
        tools.reset(seed)
        calls = worked_out(question.expression, 1)
        assert len(calls) == len(question.expression.split()) // 2
        said = [tools.step(f"calc {call}") for call in calls]
        assert said[-1].observation == question.gold
        assert {turn.info["action"] for turn in said} == {"call"}
        assert tools.step(f"answer {question.gold}").reward == 1.0


def test_a_calculator_of_one_operation_says_so() -> None:
    tools = CHAIN.build()
    tools.reset(0)
    turn = tools.step("calc 1 + 2 + 3")
    assert (turn.observation, turn.info["action"]) == ("At most 1 operation at once.", "failed")
    assert tools.step("calc 1 + 2").observation == "3"


@pytest.mark.parametrize("text", ["", "no", "9" * 10_000, "\ud800", "\x00", "Calc", "c1p2"])
def test_what_is_no_call_is_answered_by_how_to_call(text: str) -> None:
    tools = ToolsConfig(max_turns=2).build()
    tools.reset(0)
    first, last = tools.step(text), tools.step(text)
    assert first.observation == 'Say "calc" and an expression, or "answer" and the number.'
    assert first.info == {"action": "invalid"}
    assert (first.truncated, last.truncated, last.terminated) == (False, True, False)


def test_a_tool_that_is_not_there_cannot_be_called() -> None:
    said = ("calc 1 + 1", "python\nprint(1)")
    told = {config.tools: [config.read(text).kind for text in said] for config in CONFIGS}
    assert told == {
        ("calculator",): ["calculator", "invalid"],
        ("calculator", "python"): ["calculator", "python"],
        ("python",): ["invalid", "python"],
    }
    assert ToolsConfig().program_in(said[1]) is None


def test_a_program_is_handed_over_with_its_bounds_also_from_behind_a_delay() -> None:
    config = ToolsConfig(tools=("python",), program_s=2.5, max_result_chars=50)
    for settings in (config, DelayedConfig(environment=config)):
        assert settings.program_in("python\nprint(1)") == ("print(1)", 2.5, 50)
        assert settings.program_in("answer 1") is None


def test_an_answer_ends_the_episode_right_or_wrong() -> None:
    tools = ToolsConfig().build()
    gold = ToolsConfig().questions.draw(3).gold
    for said, reward in ((gold, 1.0), (f"{gold}.", 1.0), (f"{gold}1", 0.0), ("none", 0.0)):
        tools.reset(3)
        turn = tools.step(f"answer {said}")
        assert (turn.terminated, turn.reward) == (True, reward)
        assert turn.observation == ("Right." if reward else "Wrong.")


@pytest.mark.parametrize(
    "said",
    [
        "4042", "4,042", "4042.0", "4042.", "$4042$", "4042 apples", "8084/2", r"\frac{8084}{2}",
        "4042.5", "-4042", "404", "4042%", "about 4042", "47 * 86", "forty", "", "4042 or 4043",
        "\uff14\uff10\uff14\uff12", "4.042e3",
    ],
)  # fmt: skip
def test_an_answer_is_judged_as_the_mathematics_reward_judges_it(said: str) -> None:
    reward = MathAnswer(MathAnswerConfig())
    assert is_same_number("4042", said) == bool(reward.judge("4042", f"Answer: {said}").reward)
    reward.close()


def test_the_terse_style_is_told_in_the_characters_of_the_tiny_model() -> None:
    config = ToolsConfig(style="terse", max_turns=9)
    assert [message.content for message in config.head()] == [""]
    question, tools = config.questions.draw(1), config.build()
    asked = tools.reset(1)
    said = [tools.step(text) for text in (f"c{asked}", "c5m7", "nonsense", "c3tt9", "am5")]
    assert all(re.fullmatch(rf"[{CHARACTERS}]+", turn.observation) for turn in said)
    assert said[0].observation == question.gold.replace("-", "m")
    assert [turn.observation for turn in said[1:]] == ["m2", "x", "x", "n"]
    tools.reset(1)
    assert tools.step("a" + said[0].observation).reward == 1.0


def test_demonstrations_call_and_answer_and_are_right_only_sometimes() -> None:
    config, right, calls = ToolsConfig(style="terse"), 0, 0
    for seed in range(60):
        turns = config.demonstrate(seed, random.Random(seed))
        tools = config.build()
        tools.reset(seed)
        played = [tools.step(action) for _, action in turns]
        assert {turn.info["action"] for turn in played} <= {"call", "answer"}
        calls += sum(turn.info["action"] == "call" for turn in played)
        right += int(played[-1].reward)
    assert 10 < right < 50
    assert calls > 20


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"style": "terse", "tools": ["python"]}, "style terse must go with arithmetic and the"),
        ({"questions": {"kind": "counting"}}, "questions of kind counting need python, got calc"),
        ({"tools": []}, "at least 1 item"),
        ({"tools": ["shell"]}, "'calculator' or 'python'"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TypeAdapter[EnvironmentConfig](EnvironmentConfig).validate_python(
            {"kind": "tools", **fields}
        )
