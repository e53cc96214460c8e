"""The data sets that the papers train on, by name: mappings of rows on the hub, with their domain.

    task.kind=deepmath ─▶ zwhe99/DeepMath-103K: question, final_answer ─▶ `HubRows`

Every field may be set beside the kind. Rows that no reward could score are left out and counted.
No commit is named: a run takes the branch's, records it and keeps to it. docs/data.md has the
licences and where each mapping comes from.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo

from artifacts.datasets.hub_rows import HubRows
from artifacts.datasets.row_mapping import AnswerForm
from artifacts.urls import Repository

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
TAGGED = (
    "Output the thinking process in <think> </think> and final answer (number) in <answer>"
    " </answer> tags."
)
PROGRAM = "Reply with only the program in a ```python code block."


def _usually(field: str, value: object) -> Any:  # Any: as pydantic types a field's default
    """The field of `HubRows` with this default."""
    return FieldInfo.merge_field_infos(HubRows.model_fields[field], default=value)


class PublishedRows(HubRows):
    """A published data set, of which unusable rows are left out."""

    unusable_rows: Literal["refuse", "skip"] = _usually("unusable_rows", "skip")


class DeepMathConfig(PublishedRows):
    """DeepMath-103K: mathematics with a final answer."""

    kind: Literal["deepmath"] = Field(
        "deepmath", description="Chooses DeepMath-103K, mathematics; MIT."
    )
    repository: Repository = _usually("repository", "zwhe99/DeepMath-103K")
    prompt_field: str = _usually("prompt_field", "question")
    answer_field: str = _usually("answer_field", "final_answer")
    system_prompt: str = _usually("system_prompt", BOXED)
    domain: str = _usually("domain", "math")


class OpenR1Config(PublishedRows):
    """OpenR1-Math-220k, its configuration `extended`: mathematics with a final answer."""

    kind: Literal["openr1"] = Field(
        "openr1", description="Chooses OpenR1-Math-220k (extended), mathematics; Apache-2.0."
    )
    repository: Repository = _usually("repository", "open-r1/OpenR1-Math-220k")
    name: str = _usually("name", "extended")
    prompt_template: str = _usually("prompt_template", f"{{problem}} {BOXED}")
    domain: str = _usually("domain", "math")


class GeoqaConfig(PublishedRows):
    """GEOQA_R1V_Train_8K: geometry with a picture and a final answer, asked as by R1-V and ROLL."""

    kind: Literal["geoqa"] = Field(
        "geoqa",
        description="Chooses GEOQA_R1V_Train_8K, geometry with pictures; no licence known.",
    )
    repository: Repository = _usually("repository", "leonardPKU/GEOQA_R1V_Train_8K")
    prompt_template: str = _usually("prompt_template", f"{{problem}} {TAGGED}")
    images_field: str = _usually("images_field", "image")
    answer_field: str = _usually("answer_field", "solution")
    answer_form: AnswerForm = _usually("answer_form", "tagged")
    domain: str = _usually("domain", "math")


class KodCodeRows(PublishedRows):
    """KodCode-V1: programs to write, with tests."""

    repository: Repository = _usually("repository", "KodCode/KodCode-V1")
    answer_field: str = _usually("answer_field", "test")
    answer_form: AnswerForm = _usually("answer_form", "tests")
    domain: str = _usually("domain", "code")


class KodCodeConfig(KodCodeRows):
    """KodCode-V1: functions to write, tested by assertions."""

    kind: Literal["kodcode"] = Field(
        "kodcode", description="Chooses KodCode-V1, functions with tests; CC BY-NC 4.0."
    )
    filter: tuple[str, ...] = _usually("filter", ("style in instruct, complete",))
    prompt_template: str = _usually(
        "prompt_template",
        "{question}\n\nThe function is declared as"
        f" `{{test_info.0.function_declaration}}`. {PROGRAM}",
    )
    solution_field: str = _usually("solution_field", "solution")


class KodCodeProgramsConfig(KodCodeRows):
    """KodCode-V1: whole programs that read a standard input."""

    kind: Literal["kodcode_programs"] = Field(
        "kodcode_programs", description="Chooses KodCode-V1, whole programs; CC BY-NC 4.0."
    )
    filter: tuple[str, ...] = _usually("filter", ("style == online_judge",))
    prompt_template: str = _usually(
        "prompt_template",
        f"{{question}}\n\n{PROGRAM} It reads standard input and prints the result.",
    )


class MultiSubjectConfig(PublishedRows):
    """Multi-subject-RLVR: questions of 48 subjects with free-form answers, for a judge."""

    kind: Literal["multi_subject"] = Field(
        "multi_subject", description="Chooses Multi-subject-RLVR, for a judge; Apache-2.0."
    )
    repository: Repository = _usually("repository", "virtuoussy/Multi-subject-RLVR")
    messages_field: str = _usually("messages_field", "query")
    answer_field: str = _usually("answer_field", "label")
    heldout_split: str = _usually("heldout_split", "test")
    domain: str = _usually("domain", "subjects")


Published = (
    DeepMathConfig
    | OpenR1Config
    | GeoqaConfig
    | KodCodeConfig
    | KodCodeProgramsConfig
    | MultiSubjectConfig
)
