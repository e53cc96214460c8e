"""The keys of other systems and their settings here: one table, of which the page, `explain` and
the converter are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.commands import explain, import_
from flows.commands.explain import field_rows
from flows.config.conversions import FUNCTIONS, convert
from flows.config.foreign_values import numbers, ranges
from flows.config.other_systems import FAMILIES, names_elsewhere, rule_for, rules, rules_of

ROOT = Path(__file__).parents[2]
LONGEST_CELL = 300
OTHER_KINDS: tuple[object, ...] = ("a text", 0, -1, 2.5, True, None, [], ["text"], {})
WANTED = (  # of the question which setting is theirs
    "infer_scaling_down_progress_ratio", "scaling_down_train_batch_size", "max_running_requests",
    "async_generation_ratio", "allowed_sender_ips", "rollout_batch_size",
    "max_num_return_sequences", "max_prompts_ratio",
)  # fmt: skip


def test_the_page_is_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """`rollflow import --keys > docs/from-other-systems.md` writes it."""
    page = (ROOT / "docs/from-other-systems.md").read_text()
    assert import_.main(["--keys"]) == 0
    assert capsys.readouterr().out == page
    assert [key for key in WANTED if f"`{key}`" not in page] == []
    cells = [cell for line in page.splitlines() for cell in line.split("|")]
    assert max(map(len, cells)) <= LONGEST_CELL


def test_every_setting_of_the_table_is_one() -> None:
    known = {row.path for row in field_rows()}
    assert {rule.setting for rule in rules() if rule.setting} <= known


def test_every_function_of_the_table_is_there_and_each_is_used() -> None:
    verbs = {rule.how.partition(" ")[0] for rule in rules()} - {"", "only", "map", "with"}
    assert verbs <= FUNCTIONS.keys()
    named = {
        name
        for name, made in FUNCTIONS.items()
        if getattr(made, "__annotations__", {}).keys() == {"key", "value", "given", "return"}
    }
    assert named == verbs


def test_every_key_is_found_under_its_own_rule_and_read_with_one_that_is_there() -> None:
    for family in FAMILIES:
        known = rules_of(family)
        every = {key for rule in known for key in rule.keys}
        for rule in known:
            for key in rule.keys:
                assert rule_for(key, known) == rule
            verb, _, other = rule.how.partition(" ")
            assert verb != "with" or other in every


def test_no_key_raises_anything_for_a_value_of_another_kind() -> None:
    for family in FAMILIES:
        for rule in rules_of(family):
            key = rule.keys[0].replace("*", "any")
            for value in OTHER_KINDS:
                told = convert(family, {key: value}).told if rule.how in FUNCTIONS else []
                assert all((each.key == key and each.settings) or each.note for each in told)


def test_a_setting_has_its_names_of_elsewhere_in_the_list_of_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert names_elsewhere("batch.prompts_per_step") == (
        "ROLL: rollout_batch_size; veRL: data.train_batch_size"
    )
    assert names_elsewhere("batch") == ""
    assert explain.main(["--fields"]) == 0
    fields = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert fields["batch.responses_per_prompt"].endswith(
        "[ROLL: num_return_sequences_in_group; veRL: rollout.n]"
    )
    assert not fields["task.filter"].endswith("]")


@pytest.mark.parametrize(
    ("mapping", "wanted"),
    [
        ("list(range(0, 8))", "0-7"),
        ("list(range(0,4)) + list(range(6,8))", "0-3,6-7"),
        ([0, 1, 5], "0-1,5"),
        ("[4]", "4"),
        ("list(range(2))", "0-1"),
    ],
)
def test_devices_are_read_without_being_evaluated(mapping: object, wanted: str) -> None:
    assert ranges(numbers(mapping)) == wanted


@pytest.mark.parametrize("mapping", ["__import__('os')", "list(range(n))", "all", "", [[]]])
def test_what_is_no_list_of_devices_is_refused(mapping: object) -> None:
    with pytest.raises(ValueError, match="devices are numbers"):
        numbers(mapping)
