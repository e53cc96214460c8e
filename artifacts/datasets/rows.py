"""A dataset: rows to train on, and held-out rows that share no question with the trained ones. A
question is the whole conversation before the model's answer. Leaves out the sources."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import chain
from typing import Literal

Role = Literal["system", "user", "assistant"]

HELDOUT_SHARE = 1 / 8  # share of a generator's questions that are never trained
_MAX_DRAWS_PER_ROW = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat."""

    role: Role  # of the speaker
    content: str  # the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question with its answer, not yet tokenised."""

    domain: str  # reward domain and quota key
    messages: tuple[Message, ...]  # the chat up to the question, examples too; none of an episode
    gold: str  # what the reward compares with
    text: str  # the last user turn, the question in short
    # turns at the beginning that the task itself puts before every question; no part of a question
    preamble: int = 0
    # sources of the pictures that stand before the text of the last turn (`picture_sources`)
    pictures: tuple[str, ...] = ()

    @property
    def conversation(self) -> str:
        """The question as text, for rewards and reports: a single turn's text, or several turns,
        each after the name of its role."""
        turns = self.messages[self.preamble :]
        if len(turns) < 2:
            return self.text
        return "\n\n".join(f"{turn.role.capitalize()}: {turn.content}" for turn in turns)

    @property
    def identity(self) -> str:
        """A text that is the same for equal questions: the conversation in `normal_form`, without
        blank turns, and the sources of the pictures."""
        if self.pictures:
            words = replace(self, pictures=()).identity
            shown = "\n".join(self.pictures)
            return f"{words}\n{hashlib.blake2b(shown.encode(), digest_size=16).hexdigest()}"
        turns = self.messages[self.preamble :]
        if len(turns) < 2:
            return normal_form(self.text)
        spoken = [(turn.role, words) for turn in turns if (words := normal_form(turn.content))]
        if len(spoken) < 2:
            return spoken[0][1] if spoken else ""
        return "\n".join(f"{role}: {words}" for role, words in spoken)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The rows of a run: rows to train on and held-out rows. A row is identified by its index. A
    question may come twice, but never on both sides."""

    name: str  # the kind of its source, for file names and tags
    rows: Sequence[Row]  # to train on
    heldout: Sequence[Row]  # to evaluate on
    in_order: bool = False  # True: asked as they stand; False: shuffled in every epoch
    # rows of the source that are on no side: `unusable`, `filtered`, or to train but `held_out`
    left_out: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The domain of every row, in the order of the rows."""
        return tuple(row.domain for row in self.rows)

    def order_seed(self, seed: int) -> int | None:
        """The seed that shuffles the rows in every epoch; None if they keep their order."""
        return None if self.in_order else seed

    @cached_property
    def digest(self) -> str:
        """blake2b over all rows: equal digests mean equal questions in equal order."""
        total = hashlib.blake2b(digest_size=16)
        for side, rows in (("rows", self.rows), ("heldout", self.heldout)):
            for row in rows:
                fields = asdict(row)
                del fields["preamble"]  # no part of the question
                if not row.pictures:
                    del fields["pictures"]
                total.update(f"{side} {json.dumps(fields, sort_keys=True)}\n".encode())
        return total.hexdigest()


def question_row(domain: str, question: str, gold: str, before: tuple[Message, ...] = ()) -> Row:
    """Make a row that asks `question` after the turns `before`."""
    return Row(
        domain=domain,
        messages=(*before, Message(role="user", content=question)),
        gold=gold,
        text=question,
        preamble=len(before),
    )


def shots(*pairs: tuple[str, str]) -> tuple[Message, ...]:
    """Worked examples, each a question and its answer, as turns of a chat."""
    roles: tuple[Role, Role] = ("user", "assistant")
    return tuple(
        Message(role=role, content=text)
        for pair in pairs
        for role, text in zip(roles, pair, strict=True)
    )


def normal_form(text: str) -> str:
    """Normalise a question's text for comparison: white space, invisible characters and the form of
    a character (NFKC) make no difference, but superscripts and the like do: x² is not x2."""
    if not text.isascii():
        pattern, others = _other_forms()
        text = pattern.sub(lambda found: others.get(found[0], found[0]), text)
        if not unicodedata.is_normalized("NFC", text):
            text = unicodedata.normalize("NFC", text)
    return " ".join(text.split())


@cache
def _other_forms() -> tuple[re.Pattern[str], Mapping[str, str]]:
    """The characters that the normal form replaces, and by what: one pass is faster than NFKC."""
    others = dict.fromkeys(map(chr, chain(range(0xFE00, 0xFE10), range(0xE0000, 0xE01F0))), "")
    for sign in map(chr, range(0x20000)):
        decomposed = unicodedata.decomposition(sign)
        if unicodedata.category(sign) == "Cf":
            others[sign] = ""
        elif decomposed and not decomposed.startswith(
            ("<super>", "<sub>", "<fraction>", "<circle")
        ):
            normal = unicodedata.normalize("NFKC", sign)
            if normal != unicodedata.normalize("NFC", sign):
                others[sign] = normal
    common = "".join(sign for sign in others if sign <= "\uffff")
    return re.compile(f"[{common}\U00010000-\U0010ffff]"), others


def generate(
    name: str, draw: Callable[[random.Random], Row], seed: int, num_rows: int, num_heldout: int
) -> Dataset:
    """Draw a dataset row by row. A question's hash decides its side, and the held-out rows are the
    same for every seed, so that scores of different seeds can be compared. Raises ValueError if the
    source has too few questions to find one for each side."""

    def draw_one(rng: random.Random, is_heldout: bool) -> Row:
        for row in (draw(rng) for _ in range(_MAX_DRAWS_PER_ROW)):
            if belongs_to_heldout("".join((row.text, *row.pictures))) == is_heldout:
                return row
        raise ValueError(
            f"task {name} must know questions for both sides, got no"
            f" {'held-out' if is_heldout else 'training'} question in {_MAX_DRAWS_PER_ROW} draws;"
            " raise its sizes or ask for fewer"
        )

    def side(key: str, count: int, is_heldout: bool) -> tuple[Row, ...]:
        rng = random.Random(key)
        return tuple(draw_one(rng, is_heldout) for _ in range(count))

    return Dataset(
        name=name,
        rows=side(f"{seed}/{name}/rows", num_rows, is_heldout=False),
        heldout=side(f"{name}/heldout", num_heldout, is_heldout=True),
    )


def belongs_to_heldout(question: str) -> bool:
    """True if a generated question is held out: one in eight is, by the question's hash alone."""
    word = int.from_bytes(hashlib.blake2b(question.encode(), digest_size=8).digest(), "big")
    return word < HELDOUT_SHARE * 2**64


def pareto_size(rng: random.Random, smallest: int, largest: int, alpha: float) -> int:
    """Draw a size with a long tail: Pareto-distributed from `smallest` with exponent alpha, rounded
    down, at most `largest`."""
    drawn = 1.0 - rng.random()
    if -math.log(drawn) >= alpha * math.log(largest / smallest):
        return largest  # the power of a small exponent may be beyond any float
    return int(smallest * drawn ** (-1.0 / alpha))
