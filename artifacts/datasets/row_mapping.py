"""The mapping from the fields of a user's row to a question with its answer.

fields --filter--> question: a field, a template or a chat
                   answer:   a text or a number, whole or within tags, or the tests of a program
                   domain:   a field, or the same for all
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.picture_sources import source_of
from artifacts.datasets.program_tests import program_tests
from artifacts.datasets.row_fields import Condition, Fields, find, parse_condition, text_of
from artifacts.datasets.rows import Message, Row
from artifacts.shown_pictures import MOST_PICTURES

# of a template, as str.format has it: a doubled brace, a field; {} stands for itself
_PART = re.compile(r"(?P<doubled>\{\{|\}\})|\{(?P<field>[\w.]+)\}|\{\}|(?P<stray>[{}])")
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)

AnswerForm = Literal["text", "tagged", "tests"]


class MappedConfig(FrozenConfig):
    """The mapping of a file's rows to questions; fields are dotted paths into the rows."""

    prompt_field: str = Field(
        "prompt",
        description=(
            "Field with the question as text; unused where prompt_template or messages_field is"
            " set."
        ),
    )
    prompt_template: str = Field(
        "",
        description=(
            "The question with {FIELD} for each field in it, instead of prompt_field; {{ and }} are"
            " braces. Empty: none."
        ),
    )
    messages_field: str = Field(
        "",
        description=(
            "Field with a chat (a list of role and content, or its JSON text); empty: none."
        ),
    )
    system_prompt: str = Field(
        "", description="System turn before a question that is no chat; empty: none."
    )
    images_field: str = Field(
        "",
        description=(
            "Field with the question's picture or pictures: paths, URLs or bytes; empty: none."
        ),
    )
    answer_field: str = Field(
        "answer", description="Field with the answer that the reward compares with."
    )
    answer_form: AnswerForm = Field(
        "text",
        description=(
            "What the answer is: a text or a number, such a one within <answer></answer>, or the"
            " tests of a program for a reward of kind code."
        ),
    )
    solution_field: str = Field(
        "",
        description=(
            "Field with a right program, the first anchor of the tests' time limits; empty: none."
        ),
    )
    domain_field: str = Field(
        "", description="Field with the row's domain; empty: `domain` for every row."
    )
    domain: str = Field(
        "questions", min_length=1, description="Domain of the rows if domain_field is empty."
    )
    filter: tuple[str, ...] = Field(
        (),
        description=(
            "Conditions that a row must meet, such as 'difficulty >= 5' or 'style in a, b';"
            " operators: == != < <= > >= in contains."
        ),
    )
    limit: int = Field(
        0, ge=0, description="Take the first so many rows that meet the filter; 0: all."
    )
    first_rows_sha256: str = Field(
        "",
        pattern=r"^([0-9a-f]{64})?$",
        description=(
            "SHA-256 of the first 64 rows as they are asked; others are refused. Empty: not"
            " compared."
        ),
    )
    unusable_rows: Literal["refuse", "skip"] = Field(
        "refuse",
        description=(
            "What to do about a row without a usable question, answer or domain: say so before"
            " anything starts, or leave it out and count it."
        ),
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.messages_field and (self.system_prompt or self.prompt_template):
            raise ValueError(
                "messages_field goes without system_prompt and prompt_template, got"
                f" {self.messages_field!r} beside one; put the turns into the file's messages, or"
                " empty one of the two"
            )
        if self.prompt_template:
            self._check_template()
        if self.solution_field and self.answer_form != "tests":
            raise ValueError(
                "solution_field goes with answer_form=tests only, got"
                f" {self.solution_field!r} with {self.answer_form!r}; set answer_form or empty it"
            )
        for condition in self.filter:
            parse_condition(condition)
        return self

    def _check_template(self) -> None:
        slots = self._slots()
        if not slots:
            raise ValueError(
                "prompt_template must name a field in braces, of letters, digits, '_' and '.', got"
                f" {self.prompt_template!r}, which asks every row the same; write {{FIELD}}, and"
                " rename a column with other characters"
            )
        stray = next((part for part in _PART.finditer(self.prompt_template) if part["stray"]), None)
        if stray:
            around = self.prompt_template[max(0, stray.start() - 10) : stray.end() + 20]
            raise ValueError(
                "a brace in prompt_template must belong to a {FIELD} of letters, digits, '_' and"
                f" '.', or be doubled, got one in {around!r}; write {{{{ or }}}} for the brace"
            )
        secret = tuple(filter(None, (self.answer_field, self.solution_field)))
        for slot in slots:
            if any(_is_within(slot, field) or _is_within(field, slot) for field in secret):
                raise ValueError(
                    f"prompt_template must not show the answer, got {{{slot}}} beside"
                    f" {' and '.join(map(repr, secret))} as what the reward compares with; name"
                    f" another field, or write {{{{{slot}}}}} for the text {{{slot}}} itself"
                )

    def _slots(self) -> list[str]:
        """The dotted paths of the fields that the template names."""
        found = (part["field"] for part in _PART.finditer(self.prompt_template))
        return [name for name in found if name]

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The filter's conditions, parsed."""
        return tuple(map(parse_condition, self.filter))

    @property
    def folder(self) -> str:
        """Where relative paths of pictures begin."""
        return ""

    @property
    def paths(self) -> frozenset[str]:
        """The dotted path of every field that the mapping reads."""
        question = self._slots() if self.prompt_template else [self.prompt_field]
        return frozenset(
            {
                *([self.messages_field] if self.messages_field else question),
                self.answer_field,
                *(condition.field for condition in self.conditions),
                *filter(None, (self.solution_field, self.domain_field, self.images_field)),
            }
        )


def wanted_row(config: MappedConfig, fields: Fields | ValueError, where: str) -> Row | None:
    """Map a row's fields to a question with its answer; None if the row does not meet the filter.
    Raises ValueError for an unusable row, with the row, the field, its value and the cure."""
    if isinstance(fields, ValueError):
        raise fields
    try:
        if not all(condition.holds(fields, where) for condition in config.conditions):
            return None
        messages = _messages(config, fields, where)
        named = config.domain_field
        return Row(
            domain=text_of(fields, named, where) if named else config.domain,
            messages=messages,
            gold=_gold(config, fields, where),
            text=messages[-1].content,
            preamble=int(bool(config.system_prompt)),
            pictures=_pictures(config, fields, where),
        )
    except (RecursionError, MemoryError, ArithmeticError) as error:  # of JSON, syntax, a number
        raise ValueError(
            f"{where}: a row's fields must hold values that can be read, got some that cannot"
            f" ({type(error).__name__}: {error}); repair the row"
        ) from error


def _gold(config: MappedConfig, fields: Fields, where: str) -> str:
    match config.answer_form:
        case "text":
            return text_of(fields, config.answer_field, where)
        case "tagged":
            return _tagged(text_of(fields, config.answer_field, where), config.answer_field, where)
    solution = text_of(fields, config.solution_field, where) if config.solution_field else ""
    value = find(fields, config.answer_field, where)
    try:
        return program_tests(value, solution).model_dump_json()
    except ValueError as error:
        raise ValueError(
            f"{where}: field {config.answer_field!r} must hold tests that the sandbox can run:"
            f" {error}; write them in one of the forms of docs/data.md"
        ) from error


def _tagged(text: str, name: str, where: str) -> str:
    """The last answer in tags."""
    found = _TAGGED.findall(text)
    answer = str(found[-1]).strip() if found else ""
    if not answer:
        raise ValueError(
            f"{where}: field {name!r} must hold an answer within <answer></answer>, got"
            f" {text[-60:]!r}; repair it, or set answer_form=text"
        )
    return answer


def _messages(config: MappedConfig, fields: Fields, where: str) -> tuple[Message, ...]:
    if not config.messages_field:
        question = Message(role="user", content=_question(config, fields, where))
        system = Message(role="system", content=config.system_prompt)
        return (system, question) if config.system_prompt else (question,)
    name = config.messages_field
    messages = tuple(_message(turn, name, where) for turn in _turns(fields, name, where))
    if not messages or messages[-1].role != "user" or not messages[-1].content.strip():
        raise ValueError(
            f"{where}: field {name!r} must end with a user turn that is not blank; put the question"
            " last"
        )
    return messages


def _pictures(config: MappedConfig, fields: Fields, where: str) -> tuple[str, ...]:
    """The sources of a row's pictures; none of a null or an empty list."""
    if not config.images_field:
        return ()
    value = find(fields, config.images_field, where)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if len(listed) > MOST_PICTURES:
        raise ValueError(
            f"{where}: field {config.images_field!r} must have at most {MOST_PICTURES} pictures,"
            f" got {len(listed)}; drop the row, or some of them"
        )
    return tuple(source_of(each, config.folder, where) for each in listed)


def _question(config: MappedConfig, fields: Fields, where: str) -> str:
    if not config.prompt_template:
        return text_of(fields, config.prompt_field, where)

    def filled(part: re.Match[str]) -> str:
        if part["field"]:
            return text_of(fields, part["field"], where)
        return part[0][0] if part["doubled"] else part[0]

    return _PART.sub(filled, config.prompt_template)


def _is_within(path: str, parent: str) -> bool:
    """True if `path` is `parent` or a path within it."""
    return f"{path}.".startswith(f"{parent}.")


def _turns(fields: Fields, name: str, where: str) -> list[Any]:  # Any: not checked yet
    value = find(fields, name, where)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{where}: field {name!r} must be a chat as JSON, got {value[:60]!r} ({error});"
                " repair it"
            ) from error
    if not isinstance(value, list):
        raise ValueError(
            f"{where}: field {name!r} must be a list of turns, got {type(value).__name__}; write"
            " [{role, content}, ...]"
        )
    return value


def _message(turn: Any, name: str, where: str) -> Message:  # Any: a turn as the file has it
    match turn:
        case {"role": "system" | "user" | "assistant" as role, "content": str(content)}:
            return Message(role=role, content=content)
    raise ValueError(
        f"{where}: every turn of field {name!r} must have a role (system, user, assistant) and a"
        f" text content, got {str(turn)[:80]!r}; repair the turn"
    )
