"""The variants that say what a run pays for being open to elastic workers while none comes, as what
they change of one preset. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from research.ablations.ablation_variants import AblationVariant

CLOSED = ("elastic.enabled=false", "seeding.enabled=false", "cluster.scheduler_port=0")

OPEN: Mapping[str, AblationVariant] = {
    "colocated": AblationVariant(
        label="colocated: no elastic workers, no token reports",
        over="",
        settings=(*CLOSED, "engine.report_tokens=0"),
    ),
    "reports": AblationVariant(
        label="+ token reports",
        over="colocated",
        settings=(*CLOSED, "engine.report_tokens=32"),
    ),
    "open": AblationVariant(
        label="+ open to elastic workers, with seeding; none comes",
        over="reports",
        settings=(
            "elastic.enabled=true",
            "seeding.enabled=true",
            "cluster.scheduler_port=0",
            "engine.report_tokens=32",
        ),
    ),
}
