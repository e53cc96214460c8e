"""tools: a question that is worked out with a calculator, with Python, or with both.

    What is 47 * 86 + 391?  ->  calc 47 * 86 + 391  ->  4433  ->  answer 4433

A call's result, or a short sentence about what was wrong with it, is the next observation; an
answer ends the episode and is judged as the mathematics reward judges numbers. The calculator
computes here. `ProgramRunner` runs programs, in the sandbox of the code rewards: the process of an
environment may start no other, and a model's program may not run where the answer is known.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from artifacts.datasets.rows import Message
from artifacts.fixed_fields import DerivedSeconds, Fixed
from tasks.environments.base import Environment, RequestedProgram, Transition, head_messages
from tasks.environments.games.game import GameConfig
from tasks.environments.tools.calculator import CannotCompute, calculate, written
from tasks.environments.tools.grammar import (
    INVALID,
    Action,
    Tool,
    answer,
    call,
    meant,
    read_action,
    tersely,
)
from tasks.environments.tools.questions import (
    Arithmetic,
    Questions,
    asked_expression,
    result_of,
    worked_out,
)
from tasks.rewards.maths.exact_number import amount, exact_number, plain
from tasks.rewards.maths.final_answer import bare_answer, fold

RULES = {
    "calculator": "You have a calculator: reply with calc and an expression to use it.",
    "python": "You have Python: reply with python and below it a program, to see what it prints.",
}
ANSWERING = "When you know the answer, reply with answer and the number."
FORMS = {"calculator": '"calc" and an expression', "python": '"python" and a program'}
NOT_RUN = "Nothing here runs Python."  # replaced by the program's output in `ProgramRunner`
NUMBER = re.compile(r"[-m]?[0-9]+(\.[0-9]+)?")


class ToolsConfig(GameConfig):
    """Answer a question with tools."""

    kind: Literal["tools"] = Field(
        "tools", description="Chooses questions that are worked out with tools."
    )
    max_turns: int = Field(6, ge=1, description="Calls and answers after which it is cut.")
    tools: tuple[Tool, ...] = Field(
        ("calculator",), min_length=1, description="What may be called: calculator, python."
    )
    questions: Questions = Field(default_factory=Arithmetic, description="What is asked.")
    max_operations: int = Field(
        16,
        ge=1,
        description=(
            "Operations that the calculator does in one call; with 1, a question takes as many"
            " calls as it has signs."
        ),
    )
    program_s: DerivedSeconds = 5.0  # for a program
    max_result_chars: Fixed[int] = 200  # characters that the model reads of what a program prints

    @model_validator(mode="after")
    def _check(self) -> Self:
        asked, tools = self.questions.kind, ", ".join(self.tools)
        if self.style == "terse" and (asked != "arithmetic" or tools != "calculator"):
            raise ValueError(
                "style terse must go with arithmetic and the calculator alone, for which it has"
                f" characters, got {asked} and {tools}; use style chat"
            )
        if asked == "counting" and "python" not in self.tools:
            raise ValueError(f"questions of kind counting need python, got {tools}; add it")
        return self

    def chat_head(self) -> tuple[Message, ...]:
        """Returns the rules, and example questions worked out with each tool in turn."""
        rules = " ".join([*(RULES[tool] for tool in self.tools), ANSWERING])
        turns = list[tuple[str, str]]()
        for place, question in enumerate(self.questions.shown()):
            fit = [tool for tool in self.tools if tool == "python" or question.expression]
            calls = [question.program]
            if (tool := fit[place % len(fit)]) == "calculator":
                calls = worked_out(question.expression, self.max_operations)
            observations = [question.text, *map(result_of, calls[:-1]), question.gold]
            actions = [*(call(tool, body, "chat") for body in calls), answer(question.gold, "chat")]
            turns += zip(observations, actions, strict=True)
        return head_messages(rules, turns)

    def build(self) -> Environment:
        return Tools(self)

    def read(self, text: str) -> Action:
        """Read the action in a text; INVALID if it calls a tool that is not configured."""
        action = read_action(text, self.style)
        return action if action.kind in (*self.tools, "answer") else INVALID

    def program_in(self, text: str) -> RequestedProgram | None:
        kind, body = self.read(text)
        is_program = kind == "python"
        return RequestedProgram(body, self.program_s, self.max_result_chars) if is_program else None

    def valid_action(self, observations: Sequence[str], rng: random.Random) -> str:
        """Returns a call that continues the work, or as often an answer with the last number."""
        numbers = [seen for seen in observations[1:] if NUMBER.fullmatch(seen)]
        if rng.random() < 0.5:
            return answer(numbers[-1] if numbers else str(rng.randint(10, 999)), self.style)
        asked = observations[0]
        expression = asked_expression(meant(asked) if self.style == "terse" else asked) or "1 + 1"
        tool = rng.choice(self.tools)
        if tool == "python":
            return call(tool, f"print({expression})", self.style)
        calls = worked_out(expression, self.max_operations)
        return call(tool, calls[min(len(numbers), len(calls) - 1)], self.style)


class Tools:
    """The environment of one question."""

    def __init__(self, config: ToolsConfig) -> None:
        self._config, self._is_terse = config, config.style == "terse"
        forms = [*(FORMS[tool] for tool in config.tools), '"answer" and the number']
        self._how = f"Say {', or '.join(forms)}."

    def reset(self, seed: int) -> str:
        self._question = self._config.questions.draw(seed)
        self._left = self._config.max_turns
        return tersely(self._question.expression) if self._is_terse else self._question.text

    def step(self, text: str) -> Transition:
        self._left -= 1
        action = self._config.read(text)
        if action.kind == "answer":
            is_right = is_same_number(self._question.gold, action.body)
            words = "ny" if self._is_terse else ("Wrong.", "Right.")
            return Transition(words[is_right], float(is_right), True, False, {"action": "answer"})
        if action.kind == "calculator":
            said, verdict = self._computed(action.body)
        elif action.kind == "python":
            said, verdict = NOT_RUN, "call"
        else:
            said, verdict = "x" if self._is_terse else self._how, "invalid"
        return Transition(said, 0.0, False, self._left <= 0, {"action": verdict})

    def _computed(self, expression: str) -> tuple[str, str]:
        """Returns the calculator's answer, and the verdict: "call" or "failed"."""
        most = self._config.max_operations
        try:
            value, num_operations = calculate(expression)
            if num_operations > most:
                raise CannotCompute(f"At most {most} operation{'s' * (most > 1)} at once.")
        except CannotCompute as error:
            return "x" if self._is_terse else str(error), "failed"
        if self._is_terse and value.denominator > 1:
            return "x", "failed"  # no character for a point
        return tersely(written(value)) if self._is_terse else written(value), "call"


def is_same_number(gold: str, said: str) -> bool:
    """True if an answer is this number, alone or with a unit, as `math_answer` reads answers."""
    wanted, given = exact_number(gold), amount(plain(bare_answer(fold(said))))
    return wanted is not None and given is not None and wanted.amount == given.amount
