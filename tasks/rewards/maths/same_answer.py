r"""Compares two answers that may be written in different forms.

    gold, answer -> uniform spelling -> forms -> part by part: numbers exactly, others as functions

If a form cannot be read, the result is None (undecided), unless both texts are identical. One
answer may state what the other leaves out: a name (`x = 5` for `5`), a unit (`12 cm` for `12`), the
braces of a set. Statements of both must agree.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from tasks.rewards.maths.answer_form import read_form
from tasks.rewards.maths.closed_form import read_closed_form
from tasks.rewards.maths.exact_number import ComparisonRules, exact_number, same_number
from tasks.rewards.maths.form import INFINITY, Form, scalar
from tasks.rewards.maths.identity import (
    close_to_decimal,
    constant_value,
    same_equation,
    same_function,
)
from tasks.rewards.maths.notation import uniform
from tasks.rewards.maths.units import split_unit

UNORDERED = frozenset(("set", "list", "union", "both", "either"))
MAX_PARTS = 24  # of an unordered form: every part may have to be compared with every other
_LABEL = re.compile("[A-J]")  # of a choice
_ROUNDED = re.compile(r"-?[0-9]*\.[0-9]{6,}")


def same_answer(gold: str, answer: str, rules: ComparisonRules) -> bool | None:
    """Compare two answers, both texts from `plain`: True if equal, None if undecided."""
    return _same(_read(gold), _read(answer), rules)


@lru_cache(maxsize=4096)
def is_readable(gold: str) -> bool:
    """True if all parts of a gold can be read; then an answer that cannot be read is wrong."""
    return _is_known(_read(gold))


def _is_expression(text: str) -> bool:
    return exact_number(text) is not None or read_closed_form(text) is not None


def _is_known(form: Form) -> bool:
    if form.kind == "scalar":
        amount = split_unit(form.mark)[0]
        return _is_expression(amount) or INFINITY in amount
    if form.kind == "words":
        return True
    return all(_is_known(part) for part in form.parts)


@lru_cache(maxsize=4096)
def _read(text: str) -> Form:
    return read_form(uniform(text))


def _same(
    gold: Form, answer: Form, rules: ComparisonRules, *, is_part: bool = False
) -> bool | None:
    if gold == answer and gold.kind != "false":  # a scalar may be nothing but punctuation
        return True if gold.kind != "scalar" or any(map(str.isalnum, gold.mark)) else None
    if "choice" in (gold.kind, answer.kind):
        return _same_choice(gold, answer, rules)
    if (equations := _as_equations(gold, answer)) is not None:
        return _same_relation(*equations)
    if not _names_agree(gold.name, answer.name):
        return False
    if not is_part:
        gold, answer = _only_element(gold, answer), _only_element(answer, gold)
    gold, answer = _alike(gold, answer)
    if gold.kind != answer.kind:
        return _across_kinds(gold, answer)
    if gold.kind == "scalar":
        return _same_scalar(gold.mark, answer.mark, rules)
    if gold.mark != answer.mark or len(gold.parts) != len(answer.parts) or gold.kind == "false":
        return False
    if gold.kind in ("equation", "inequality"):
        return _same_relation(gold, answer)
    if gold.kind == "congruence":
        return _same_congruence(gold, answer)
    if gold.kind in UNORDERED:
        return _same_unordered(gold, answer, rules)
    pairs = zip(gold.parts, answer.parts, strict=True)
    verdicts = [_same(wanted, given, rules, is_part=True) for wanted, given in pairs]
    return False if False in verdicts else None if None in verdicts else True


def _same_choice(gold: Form, answer: Form, rules: ComparisonRules) -> bool | None:
    """Compare a choice (letter and text) with another one, a letter or a text; one may match."""
    if gold.kind == answer.kind and gold.mark != answer.mark:
        return False
    if answer.kind != "choice":
        return gold.mark == answer.mark or _same(gold.parts[0], answer, rules)
    if gold.kind != "choice" and _LABEL.fullmatch(gold.mark):
        return gold.mark == answer.mark
    wanted = gold.parts[0] if gold.kind == "choice" else gold
    return _same(wanted, answer.parts[0], rules)


def _across_kinds(gold: Form, answer: Form) -> bool | None:
    """False, or None if a form is an expression that cannot be read. Words equal a scalar or
    letters if both are the same single word."""
    if {gold.kind, answer.kind} in ({"words", "scalar"}, {"words", "letters"}):
        return gold.mark.isalpha() and gold.mark.casefold() == answer.mark.casefold()
    for side in (gold, answer):
        if side.kind == "scalar" and not _is_expression(split_unit(side.mark)[0]):
            return None
    return False


def _names_agree(gold: str, answer: str) -> bool:
    """True if two names may mean the same: equal ones, one left out, or y and f(x)."""
    if not gold or not answer or gold == answer:
        return True
    names = {gold, answer}
    return "y" in names and any(re.fullmatch(r".*\([a-z]\)", name) for name in names)


def _as_equations(gold: Form, answer: Form) -> tuple[Form, Form] | None:
    """Both forms as equations if one is one, as for `y = 2x + 1` and `y - 2x = 1`; else None."""
    kinds = [gold.kind, answer.kind]
    if kinds == ["scalar", "scalar"] and _names_agree(gold.name, answer.name):
        return None
    if not set(kinds) <= {"equation", "scalar"} or kinds == ["equation", "equation"]:
        return None
    sides = [form if form.kind == "equation" else _equation_of(form) for form in (gold, answer)]
    return (sides[0], sides[1]) if sides[0] and sides[1] else None


def _equation_of(form: Form) -> Form | None:
    value = read_closed_form(form.mark)
    if not form.name or value is None or not value.letters or read_closed_form(form.name) is None:
        return None
    return Form(kind="equation", mark="=", parts=(scalar(form.name), scalar(form.mark)))


def _alike(gold: Form, answer: Form) -> tuple[Form, Form]:
    """Convert both forms to a common kind if there is one: a list and a set become sets."""
    kinds = (gold.kind, answer.kind)
    if kinds in (("set", "list"), ("list", "set")):
        return replace(gold, kind="set"), replace(answer, kind="set")
    if kinds in (("interval", "tuple"), ("tuple", "interval")):
        return _as_tuple(gold), _as_tuple(answer)
    if kinds == ("tuple", "list") and not any(part.name for part in answer.parts):
        return gold, replace(answer, kind="tuple")
    if kinds == ("list", "list") and not any(part.name for part in answer.parts):
        named = _by_names(gold)
        return named, replace(answer, kind=named.kind)
    if set(kinds) == {"tuple", "list"}:
        return _by_names(gold), _by_names(answer)
    if set(kinds) == {"tuple", "matrix"}:
        return _column_as_tuple(gold), _column_as_tuple(answer)
    return gold, answer


def _as_tuple(form: Form) -> Form:
    is_open = form.kind == "interval" and form.mark == "()"
    return Form(kind="tuple", parts=form.parts) if is_open else form


def _only_element(form: Form, other: Form) -> Form:
    r"""The element 5 of a set `\{5\}` if the other form is a single expression; else the form."""
    is_one = form.kind == "set" and len(form.parts) == 1 and other.kind == "scalar"
    return form.parts[0] if is_one else form


def _by_names(form: Form) -> Form:
    """Convert a list such as `y = 2, x = 1` to a tuple in the order of the names: (1, 2)."""
    if form.kind != "list" or len({part.name for part in form.parts} - {""}) < len(form.parts):
        return form
    in_order = sorted(form.parts, key=lambda part: part.name)
    return Form(kind="tuple", parts=tuple(replace(part, name="") for part in in_order))


def _column_as_tuple(form: Form) -> Form:
    if form.kind != "matrix" or any(len(row.parts) != 1 for row in form.parts):
        return form
    return Form(kind="tuple", parts=tuple(row.parts[0] for row in form.parts))


def _same_unordered(gold: Form, answer: Form, rules: ComparisonRules) -> bool | None:
    """True if each part of the gold equals a different one of as many parts of the answer."""
    if len(gold.parts) > MAX_PARTS:
        return None
    left = list(answer.parts)
    is_certain = True
    for wanted in gold.parts:
        verdicts = [_same(wanted, given, rules, is_part=True) for given in left]
        if True not in verdicts:
            is_certain = is_certain and None not in verdicts
            return None if not is_certain else False
        del left[verdicts.index(True)]
    return True


def _same_relation(gold: Form, answer: Form) -> bool | None:
    if len(gold.parts) > 2:
        pairs = zip(gold.parts, answer.parts, strict=True)
        verdicts = [same_function(wanted.mark, given.mark) for wanted, given in pairs]
        return all(verdicts) if None not in verdicts else None
    wanted, given = ((form.parts[0].mark, form.parts[1].mark) for form in (gold, answer))
    return same_equation(wanted, given, signed=gold.mark not in ("=", r"\ne"))


def _same_congruence(gold: Form, answer: Form) -> bool | None:
    numbers = [exact_number(part.mark) for form in (gold, answer) for part in form.parts]
    wanted, modulus, given, other = numbers
    if wanted is None or modulus is None or given is None or other is None or modulus.value == 0:
        return None
    return modulus == other and (wanted.value - given.value) % modulus.value == 0


def _same_scalar(gold: str, answer: str, rules: ComparisonRules) -> bool | None:
    if "\\degree" in gold + answer and "\\pi" in gold + answer:  # 45 degrees are a quarter of pi
        return same_function(gold, answer)
    (gold, wanted_unit), (answer, given_unit) = split_unit(gold), split_unit(answer)
    if wanted_unit and given_unit and wanted_unit != given_unit:
        return False
    wanted, given = exact_number(gold), exact_number(answer)
    if wanted and given:
        return same_number(wanted, given, rules)
    if wanted and rules.number_wants_number:
        return False if read_closed_form(answer) is not None else None
    if gold.replace(" ", "") == answer.replace(" ", ""):
        return True
    if any(number is not None and number.percent for number in (wanted, given)):
        return False
    verdict = same_function(gold, answer)
    if verdict is False and _ROUNDED.fullmatch(answer):
        value = constant_value(gold)
        return value is not None and close_to_decimal(value, answer)
    return verdict
