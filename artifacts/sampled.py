"""What the sampled tokens of a response have: its other tokens were given to the model, and enter
no loss and no count (invariant 14, docs/architecture.md).

    tokens      bridge, observation | action | bridge, observation | action
    sampled                           ^^^^^^                         ^^^^^^

Leaves out how many there are and where they lie: `Generated` says that itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TypeVar

from artifacts.records import Generated, VersionSpan

Value = TypeVar("Value")


def of_sampled(generated: Generated, values: Sequence[Value]) -> tuple[Value, ...]:
    """The values of the sampled tokens, given one for every token."""
    return tuple(values[place] for places in generated.sampled for place in places)


def sampled_versions(generated: Generated) -> tuple[VersionSpan, ...]:
    """Which weight version sampled which of the sampled tokens; neighbours of one version are one
    span, and the counts sum to `num_sampled`."""
    if generated.episode is None:
        return generated.versions
    by_token = [span.version for span in generated.versions for _ in range(span.num_tokens)]
    runs = groupby(of_sampled(generated, by_token))
    return tuple(VersionSpan(version=version, num_tokens=len([*run])) for version, run in runs)


def num_computed(generated: Generated) -> int:
    """Tokens that go through a learner's layers so that the sampled ones can be predicted: those
    given before them count, those given after the last one do not."""
    return max((places.stop for places in generated.sampled if places), default=0)
