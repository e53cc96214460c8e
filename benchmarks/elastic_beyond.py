"""Tables of `elastic_simulated` with what the paper has not: other policies on top of workers, and
numbers of workers chosen by what they train for a dollar."""

from __future__ import annotations

from artifacts.prices import PriceConfig
from benchmarks.elastic_options import Options, Rows, over
from flows.experiments.spot.elastic_run import PRICES, RESERVED, ElasticRun, PlayedRun
from flows.experiments.spot.elastic_variants import VARIANTS
from flows.experiments.spot.spot_traces import HOUR_S, SEGMENTS
from flows.experiments.spot.spot_workers import SPOT
from tasks.scheduling.hiring import Trained, dearest_worker, tokens_per_dollar, workers_to_hold

COUNTS = range(5)  # of workers, on top of which policies are played
HELD = range(7)  # of workers, to choose among
# of a spot device over a reserved one; the fourth is the paper's
RATIOS = (0.0, 0.1, 0.2, PRICES.classes[SPOT] / PRICES.classes[RESERVED], 0.4, 0.5, 0.7, 1.0)


def beyond(options: Options) -> Rows:
    """Tail batching and the stream trainer on top of workers, alone and together."""
    yield (
        "policy", "workers", "tokens/s", "of PolyRL", "of none", "tokens/$", "of PolyRL", "of none",
        "groups/$, of PolyRL",
    )  # fmt: skip
    published: dict[int, PlayedRun] = {}
    for name, fields in VARIANTS.items():
        for count in COUNTS:
            found = options.settled(count, **fields)
            alike = published.setdefault(count, found)
            throughput, worth = over(found, alike)
            yield (
                name,
                str(count),
                f"{found.tokens_per_s:,.0f}",
                f"{throughput:.2f}",
                f"{over(found, published[0])[0]:.2f}",
                f"{found.tokens_per_dollar:,.0f}",
                f"{worth:.3f}",
                f"{over(found, published[0])[1]:.3f}",
                f"{steps_per_dollar(found) / steps_per_dollar(alike):.3f}",
            )


def holding(options: Options) -> Rows:
    """Tokens per dollar by number of workers and price, over those of the trainer alone; and up to
    which price a number is worth as much as the trainer alone."""
    known = {count: trained(options.settled(count)) for count in HELD}
    yield ("spot/reserved", "$/GPU-hour", *(str(count) for count in HELD), "hold")
    for ratio in RATIOS:
        dollars = ratio * PRICES.classes[RESERVED]
        prices = PriceConfig(classes={**PRICES.classes, SPOT: dollars})
        hourly = ElasticRun(shape=options.shape, prices=prices).hourly
        worth = tokens_per_dollar(known, hourly)
        cells = (f"{worth[count] / worth[0]:.3f}" for count in HELD)
        yield (f"{ratio:.2f}", f"{dollars:.2f}", *cells, str(workers_to_hold(known, hourly)))
    hourly = ElasticRun(shape=options.shape).hourly
    own, gpus = hourly.own, options.shape.gpus
    dearest = [dearest_worker(known, own, 0, count) / gpus for count in HELD[1:]]
    yield ("at most", "$/GPU-hour", "", *(f"{dollars:.2f}" for dollars in dearest), "")


def hired(options: Options) -> Rows:
    """The drawn segments again: workers held up to the paper's N_prem, and as many as trained most
    for a dollar so far."""
    yield (
        "segment", "held by", "workers", "tokens/s", "of none", "tokens/$", "of none", "of N_prem"
    )  # fmt: skip
    plain = options.along(())
    for name, market in SEGMENTS.items():
        trace = market.trace(options.seed, options.hours * HOUR_S)
        capped = options.along(trace)
        chosen = options.along(trace, holds="best")
        for rule, found in (("N_prem", capped), ("tokens per $", chosen)):
            throughput, worth = over(found, plain)
            yield (
                name,
                rule,
                f"{found.workers(options.shape.gpus):.1f}",
                f"{found.tokens_per_s:,.0f}",
                f"{throughput:.2f}",
                f"{found.tokens_per_dollar:,.0f}",
                f"{worth:.3f}",
                f"{over(found, capped)[1]:.3f}",
            )


def trained(run: PlayedRun) -> Trained:
    """What its steps came to, all alike."""
    seconds = sum(step.end_s - step.start_s for step in run.steps)
    return Trained(tokens=sum(step.tokens for step in run.steps), seconds=seconds)


def steps_per_dollar(run: PlayedRun) -> float:
    """Every step trains as many groups, whatever their length."""
    return len(run.steps) / sum(step.figures["cost/dollars"] for step in run.steps)
