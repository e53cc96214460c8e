"""Pictures among tokens, as records. Leaves out their files (`pictures`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from artifacts.quickly_packed import quickly_packed

MOST_PICTURES = 8  # of a question, and of an observation


@quickly_packed
@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPicture:
    """A picture in a prompt. Its tokens, rows * columns of one id, stand for it."""

    content: str  # SHA-256 of its file, and the file's name among the pictures of a run
    begin: int  # the place of its first token in the prompt
    rows: int  # of tokens, from top to bottom
    columns: int  # of tokens, from left to right

    @property
    def num_tokens(self) -> int:
        return self.rows * self.columns

    def moved(self, by: int) -> ShownPicture:
        """The picture, its tokens so many places further on."""
        return replace(self, begin=self.begin + by)
