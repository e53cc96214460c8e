"""A transcript says what was said, and nothing in it can act on a terminal or a page."""

from __future__ import annotations

from dataclasses import replace

from report_factories import make_row
from transcript_factories import LOST, WON, make_episode_row

from artifacts.episodes import Ending
from artifacts.records import Outcome, ShownPicture
from artifacts.reports.answers import changes_of, markdown, questions_of
from artifacts.reports.transcript import Transcript, transcript_of
from artifacts.tables import ResponseRow


def told(row: ResponseRow) -> Transcript:
    transcript = transcript_of(row)
    assert transcript is not None
    return transcript


def test_an_episode_reads_turn_by_turn() -> None:
    transcript = told(make_episode_row("0/3", index=2, step=6))
    assert transcript.response_id == "0/3:2"
    assert transcript.about == "guess, seed 17, short round of step 6, version 6"
    assert transcript.headline == (
        "reward 1, ok, terminated, 2 turns, 4 sampled and 8 given tokens"
    )
    assert "\n".join(map(str, transcript.lines)).split("\n") == [
        "  1  environment  Guess.",
        "     model        10",
        "                  reward 0; model 0.50 s, environment 0.25 s",
        "  2  environment  Higher.",
        "     model        15",
        "                  reward 1; model 0.50 s, environment 0.25 s",
        "end  environment  Right.",
    ]


def test_a_turn_shows_its_own_pictures_alone() -> None:
    """Given again, where the history is rewritten, are those of the turns before."""
    row = make_episode_row(said=LOST)
    generated = row.response.generated
    assert generated.episode is not None
    a, b, c = (ShownPicture(content=name, begin=1, rows=1, columns=1) for name in "abc")
    given = (((a,), False), ((a, b), True), ((c,), False))
    turns = tuple(
        replace(turn, pictures=pictures, starts_over=starts_over)
        for turn, (pictures, starts_over) in zip(generated.episode.turns, given, strict=True)
    )
    generated = replace(generated, episode=replace(generated.episode, turns=turns))
    lines = told(replace(row, response=replace(row.response, generated=generated))).lines
    assert [picture.content for line in lines for picture in line.pictures] == ["a", "b", "c"]
    assert [line.text for line in lines if line.pictures] == [
        "(picture) Guess.",
        "(picture) Higher.",
        "(picture) Lower.",
    ]


def test_a_response_of_one_turn_has_no_transcript() -> None:
    assert transcript_of(make_row("0/1", "3", 1.0)) is None


def test_what_was_stopped_says_so() -> None:
    said = (("Guess.", "10", 0.0), ("Higher.", "1", None))
    transcript = told(make_episode_row(said=said, outcome=None, ending=None))
    assert transcript.headline == (
        "no reward, aborted, stopped, 2 turns, 4 sampled and 8 given tokens"
    )
    assert str(transcript.lines[-1]).strip() == "the environment has not answered; model 0.50 s"


def test_a_failure_says_what_failed_even_before_the_first_turn() -> None:
    row = make_episode_row(
        said=(), outcome=Outcome.INFRA, ending=Ending.CRASHED, detail="reset raised\x07"
    )
    transcript = told(row)
    assert transcript.headline == (
        "no reward, infra, crashed (reset raised\\x07), 0 turns, 0 sampled and 0 given tokens"
    )
    assert transcript.lines == ()


def test_lines_of_an_observation_stand_below_each_other() -> None:
    transcript = told(make_episode_row(said=(("a\nb", "c", 0.0),)))
    assert str(transcript.lines[0]) == "  1  environment  a\n                  b"


def test_changes_count_success_turns_and_endings() -> None:
    lost = [
        make_episode_row(f"heldout/{place}", LOST, Outcome.TRUNCATED, Ending.TURNS)
        for place in range(3)
    ]
    won = [make_episode_row(f"heldout/{place}", WON) for place in range(2)]
    crashed = make_episode_row("heldout/2", (), Outcome.INFRA, Ending.CRASHED)
    rows = {
        change.name: (change.before, change.after) for change in changes_of(lost, [*won, crashed])
    }
    assert rows == {
        "episodes": ("3", "3"),
        "success": ("0.0%", "100.0%"),  # of those with a verdict
        "mean turns": ("3.00", "2.00"),
        "ended: terminated": ("0", "2"),
        "ended: turns": ("3", "0"),
        "ended: crashed": ("0", "1"),
    }
    assert [change.after for change in changes_of(lost, [])] == ["–"] * 4
    assert changes_of([make_row("heldout/0", "3", 1.0)], []) == []


def test_markdown_has_both_transcripts_and_no_markup_of_theirs() -> None:
    fence = "```\n# title"
    before = [make_episode_row("heldout/0", ((fence, "90", 0.0),), Outcome.WRONG)]
    after = [make_episode_row("heldout/0")]
    text = markdown(changes_of(before, after), questions_of(before, after))
    assert "| success | 0.0% | 100.0% |" in text
    assert "### heldout/0, guess, seed 17" in text
    assert text.index("**before**") < text.index("90") < text.index("**after**")
    assert text.index("**after**") < text.index("Higher.")
    marked = [line for line in text.splitlines() if "```" in line or "# title" in line]
    assert len(marked) == 2
    assert all(line.startswith("    ") for line in marked)
