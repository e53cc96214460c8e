"""shapes: questions about small rendered pictures, which a tiny model learns to answer.

    count     3 x 3 fields with circles, squares and nothing: how many circles?
    height    bars over a ruled ground: how high is the second bar?

A row holds what is drawn, not the picture: it is drawn when it is asked, the same every time.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.rows import Dataset, Row, generate, question_row

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

SCHEME = "shapes:"  # of a row's pictures
DOMAIN = "shapes"
CELL, CELLS = 28, 3  # pixels of a field's side, fields of a picture's side
SIDE = CELL * CELLS
BARS, HIGHEST = 3, 9
NAMES = ("first", "second", "third")
INKS = ("black", "blue", "red", "green")

Kind = Literal["count", "height"]
Style = Literal["words", "terse"]


class ShapesConfig(FrozenConfig):
    """Questions about drawn shapes."""

    kind: Literal["shapes"] = Field(
        "shapes", description="Chooses drawn pictures, for a model that takes pictures."
    )
    num_prompts: int = Field(4096, ge=1, description="Questions to train on.")
    heldout_prompts: int = Field(
        256, ge=0, description="Questions to evaluate on; none of them is trained."
    )
    asks: tuple[Kind, ...] = Field(
        ("count", "height"),
        min_length=1,
        description="What is asked: the number of circles or squares, the height of a bar.",
    )
    style: Style = Field(
        "words", description="Questions in words, or in the few characters of the tiny model."
    )

    def load(self, seed: int) -> Dataset:
        """Draw the questions for this configuration and seed."""

        def draw(rng: random.Random) -> Row:
            return _ROWS[rng.choice(self.asks)](rng, self.style)

        return generate("shapes", draw, seed, self.num_prompts, self.heldout_prompts)


def _row(words: str, terse: str, style: Style, gold: int, drawing: Mapping[str, object]) -> Row:
    source = SCHEME + json.dumps(drawing, separators=(",", ":"))
    row = question_row(DOMAIN, words if style == "words" else terse, str(gold))
    return replace(row, pictures=(source,))


def count_row(rng: random.Random, style: Style) -> Row:
    """Draw a question for the number of one shape."""
    asked = rng.choice(("circles", "squares"))
    fields = ["c"] * rng.randint(0, 4) + ["s"] * rng.randint(0, 4)
    fields += ["."] * (CELLS * CELLS - len(fields))
    rng.shuffle(fields)
    gold = fields.count(asked[0])
    drawing = {"fields": "".join(fields), "ink": rng.choice(INKS), "look": rng.randrange(1000)}
    return _row(f"How many {asked} are there?", f"{asked}=", style, gold, drawing)


def height_row(rng: random.Random, style: Style) -> Row:
    """Draw a question for the height of a bar."""
    bars = [rng.randint(1, HIGHEST) for _ in range(BARS)]
    asked = rng.randrange(BARS)
    words = f"How high is the {NAMES[asked]} bar, in lines?"
    drawing = {"bars": bars, "ink": rng.choice(INKS)}
    return _row(words, f"{NAMES[asked]}=", style, bars[asked], drawing)


_ROWS: Mapping[Kind, Callable[[random.Random, Style], Row]] = {
    "count": count_row,
    "height": height_row,
}


def drawn(source: str) -> bytes:
    """The PNG file of a row's picture."""
    from PIL import Image, ImageDraw  # pictures alone need it

    drawing = json.loads(source.removeprefix(SCHEME))
    picture = Image.new("RGB", (SIDE, SIDE), "white")
    canvas, ink = ImageDraw.Draw(picture), str(drawing["ink"])
    if "bars" in drawing:
        _draw_bars(canvas, drawing["bars"], ink)
    else:
        _draw_fields(canvas, drawing["fields"], ink, random.Random(drawing["look"]))
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return file.getvalue()


def _draw_fields(canvas: ImageDraw, fields: str, ink: str, rng: random.Random) -> None:
    for place, what in enumerate(fields):
        size = rng.randint(8, 11)  # half of the shape's side
        x, y = (CELL * part + CELL // 2 + rng.randint(-2, 2) for part in divmod(place, CELLS)[::-1])
        box = (x - size, y - size, x + size, y + size)
        if what == "c":
            canvas.ellipse(box, fill=ink)
        elif what == "s":
            canvas.rectangle(box, outline=ink, width=3)


def _draw_bars(canvas: ImageDraw, bars: list[int], ink: str) -> None:
    step = SIDE // (HIGHEST + 1)
    for line in range(HIGHEST + 1):
        canvas.line((0, SIDE - line * step - 1, SIDE, SIDE - line * step - 1), fill="lightgray")
    for place, height in enumerate(bars):
        left = CELL * place + 6
        canvas.rectangle((left, SIDE - height * step - 1, left + 15, SIDE), fill=ink)
