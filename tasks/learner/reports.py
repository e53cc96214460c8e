"""What the learner says of its work, as sums, so that reports of calls and of ranks can be added."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulateReport:
    """One `accumulate`. Token statistics cover tokens whose log-probabilities were computed: those of skipped responses were not."""

    num_groups: int = 0  # groups given
    num_groups_flat: int = 0  # groups whose advantages are all zero (equal rewards, or fewer than two verdicts)
    num_responses: int = 0  # responses in the loss, the skipped ones included
    num_responses_excluded: int = 0  # responses without a verdict (infra) or without a token: not in the loss
    num_responses_masked: int = 0  # truncated responses that were left out of the loss
    num_responses_skipped: int = 0  # in the normaliser but not computed: their gradient is exactly zero
    num_tokens: int = 0  # response tokens in the loss, those of skipped responses included
    num_tokens_scored: int = 0  # response tokens whose log-probability was computed
    num_tokens_computed: int = 0  # tokens that went through the layers
    num_prompt_tokens_computed: int = 0  # of these, tokens of prompts
    num_prompt_tokens_saved: int = 0  # prompt tokens that sharing spared
    num_micro_batches: int = 0  # packed rows
    normaliser: float = 0.0  # what was added to the divisor
    loss_sum: float = 0.0  # weighted token losses, the KL term included
    ratio_sum: float = 0.0  # policy over old policy, over scored tokens
    ratio_max: float = 0.0  # largest of these ratios
    num_tokens_clipped: int = 0  # scored tokens without gradient because of the clip
    entropy_sum: float = 0.0  # nats, over scored tokens
    reference_kl_sum: float = 0.0  # k3 estimate to the reference, over scored tokens; 0 without a KL term
    mismatch_abs_sum: float = 0.0  # |learner - engine| log-probability, over scored tokens
    mismatch_k3_sum: float = 0.0  # k3 estimate of KL(engine || learner), over scored tokens
    busy: tuple[tuple[float, float], ...] = ()  # when the device worked: Unix seconds, (start, end)

    def __add__(self, other: AccumulateReport) -> AccumulateReport:
        """Sums of sums, the larger maximum, and all busy times."""
        total = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return AccumulateReport(**(total | {"ratio_max": max(self.ratio_max, other.ratio_max)}))

    @property
    def busy_s(self) -> float:
        """Seconds of device work."""
        return sum(end - start for start, end in self.busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """One `update`; the same on every rank but for `busy`."""

    step: int  # the step it made
    applied: bool  # False when nothing was accumulated (normaliser 0): weights and optimizer are untouched
    normaliser: float  # divisor, summed over ranks
    loss: float  # loss of the update, divided
    grad_norm: float  # global norm after the division, before the clip
    learning_rate: float  # rate used
    busy: tuple[tuple[float, float], ...]  # when the device worked: Unix seconds, (start, end)


def token_means(report: AccumulateReport) -> dict[str, float]:
    """The per-token metrics by name, ready for tracking; 0 where nothing was scored."""
    count = max(1, report.num_tokens_scored)
    return {
        "train/ratio_mean": report.ratio_sum / count,
        "train/ratio_max": report.ratio_max,
        "train/clip_fraction": report.num_tokens_clipped / count,
        "train/entropy_nats": report.entropy_sum / count,
        "train/reference_kl": report.reference_kl_sum / count,
        "train/mismatch_abs": report.mismatch_abs_sum / count,
        "train/mismatch_k3": report.mismatch_k3_sum / count,
        "train/flat_group_fraction": report.num_groups_flat / max(1, report.num_groups),
        "train/busy_s": report.busy_s,
    }
