"""Rows become token ids by the model's own template, and a prompt that is too long is named."""

from __future__ import annotations

import pytest

from artifacts.datasets.rows import Message, question_row
from artifacts.models.character_tokenizer import character_tokenizer
from tasks.environments.episodes.prompts import render

ROW = question_row("chain_sum", "a3b5=", "8")


def test_a_prompt_is_the_rendered_chat() -> None:
    tokenizer = character_tokenizer()
    prompt = render(ROW, tokenizer, "0/7", 64)
    assert tokenizer.decode(prompt.token_ids) == "<bos>a3b5="
    assert (prompt.prompt_id, prompt.domain, prompt.gold, prompt.text) == (
        "0/7",
        "chain_sum",
        "8",
        "a3b5=",
    )


def test_the_template_sees_every_turn_and_the_request_to_answer() -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}={% endfor %}{% if add_generation_prompt %}z{%"
        " endif %}"
    )
    row = question_row(
        "d",
        "c1",
        "0",
        (Message(role="user", content="a1"), Message(role="assistant", content="b1")),
    )
    assert tokenizer.decode(render(row, tokenizer, "0/0", 64).token_ids) == "a1=b1=c1=z"


def test_without_a_template_the_turns_are_joined() -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = None
    assert tokenizer.decode(render(ROW, tokenizer, "0/0", 64).token_ids) == "a3b5="


def test_a_prompt_that_is_too_long_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"fit in 5 tokens.*row 0/7 has 6 \('a3b5='\); drop the row"
    ):
        render(ROW, character_tokenizer(), "0/7", 5)
