"""The variants that sweep eta on real engines, as what they change of one preset. Pure.

As in RollPacker's Figure 11: on prompts alone, on responses alone, and on both. All but `sync`
score per response, which acceptance needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from research.ablations.ablation_variants import SYNC, TAIL, AblationVariant

SWEPT = (1.125, 1.25, 1.5)
BOTH = 1.25


def _batched(prompts: float, responses: float, what: str) -> AblationVariant:
    return AblationVariant(
        label=f"tail batching, eta {max(prompts, responses):g} on {what}",
        over="sync",
        settings=(
            *TAIL,
            f"scheduling.prompt_overprovision={prompts:g}",
            f"scheduling.response_overprovision={responses:g}",
        ),
    )


def _swept() -> Iterator[tuple[str, AblationVariant]]:
    for eta in SWEPT:
        yield f"prompts-{eta:g}", _batched(eta, 1, "prompts")
        yield f"responses-{eta:g}", _batched(1, eta, "responses")
    yield f"both-{BOTH:g}", _batched(BOTH, BOTH, "prompts and responses")


ETA: Mapping[str, AblationVariant] = {
    "sync": AblationVariant(
        label="sync: rewards after the rollout",
        over="",
        settings=(*SYNC, "scheduling.reward_timing=after_rollout"),
    ),
    **dict(_swept()),
}
