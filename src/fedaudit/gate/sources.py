"""A ceiling on naming the client that a sample is from, held against a record."""

from collections.abc import Iterator, Sequence
from functools import partial

from fedaudit.gate.limits import Limits, absent, check_limit
from fedaudit.gate.membership import FigureRun, refuse_too_many
from fedaudit.gate.policy import SourcesPolicy, asks_further
from fedaudit.gate.settling import more_samples, more_seeds
from fedaudit.gate.trust import Trust
from fedaudit.gate.verdict import Check, Held, ceiling_check
from fedaudit.metrics.intervals import Limited, too_few_runs
from fedaudit.results.estimate import Interval
from fedaudit.results.record import Record
from fedaudit.results.source_figures import SourceFigure
from fedaudit.results.sources import SourceResult

METRIC = "above_class_mixes_share"


def judged_sources(record: Record, policy: SourcesPolicy | None) -> list[str]:
    """Attacks on sources that the policy judges: those it names, or all that were run.

    One that the record calls run and has no result of is among them, and so is missed by name.
    """
    if policy is None:
        return []
    found = [one.attack for one in record.sources]
    found += [row.name for row in record.attacks if row.status == "run" and row.infers_source]
    return list(policy.attacks) or list(dict.fromkeys(found))


def source_checks(record: Record, policy: SourcesPolicy, trust: Trust) -> Iterator[Check]:
    """The check of success beyond what class mixes alone explain.

    Args:
        record: The record, completed.
        policy: Its ceiling.
        trust: What stands against believing a figure.
    """
    attacks = judged_sources(record, policy)
    refuse_too_many(len(attacks) * len(set(record.seeds)))
    means: dict[str, list[SourceFigure]] = {}
    for mean in record.source_figures:
        means.setdefault(mean.attack, []).append(mean)
    runs: dict[str, list[SourceResult]] = {}
    for run in record.sources:
        runs.setdefault(run.attack, []).append(run)
    found = [
        one
        for attack in attacks
        for one in (
            _means(attack, means.get(attack, []), policy, trust)
            if policy.seeds != "each"
            else _runs(attack, runs.get(attack, []), record.seeds, policy, trust)
        )
    ]
    yield ceiling_check(
        "sources", "success above class mixes", METRIC, policy.above_class_mixes, found
    )


def _means(
    attack: str, means: Sequence[SourceFigure], policy: SourcesPolicy, trust: Trust
) -> Iterator[Held]:
    yield from (_mean(one, policy, trust) for one in means)
    if not means:
        yield absent(str(FigureRun(attack, "none", None, None)), "the record has no such one")


def _runs(
    attack: str,
    runs: Sequence[SourceResult],
    seeds: Sequence[int],
    policy: SourcesPolicy,
    trust: Trust,
) -> Iterator[Held]:
    yield from (_single(one, policy.above_class_mixes, trust) for one in runs)
    there = {one.seed for one in runs}
    for seed in dict.fromkeys(seeds):
        if seed not in there:
            yield absent(str(FigureRun(attack, "none", None, seed)), "the record has no such one")


def _single(one: SourceResult, ceiling: float, trust: Trust) -> Held:
    # The level is a mean over a thousand shuffles: its own error is small beside the success's.
    less = one.by_class_mix
    return check_limit(
        str(FigureRun(one.attack, one.defense, None, one.seed)),
        Limits(one.success - less, one.low - less, one.high - less),
        ceiling,
        confidence=trust.confidence,
        doubt=trust.doubt(one.attack, None, one.seed),
        more=partial(
            more_samples,
            Limited(one.success, one.low, one.high),
            one.samples,
            ceiling,
            less=less,
        ),
    )


def _mean(one: SourceFigure, policy: SourcesPolicy, trust: Trust) -> Held:
    excess, ceiling = one.excess, policy.above_class_mixes
    further = excess.further or Interval(method=too_few_runs(len(one.seeds)))
    if asks_further(policy.seeds):
        limits = Limits(excess.value, further.low, further.high, further.method)
        more = partial(more_seeds, excess.value, further, len(one.seeds), ceiling)
    else:
        limits, more = Limits(excess.value, excess.low, excess.high, excess.method), None
    unsure = (
        ""
        if one.above_mixes or ceiling < 0
        else (
            "the record's test, corrected over all source attacks, does not find it above class "
            "mixes"
        )
    )
    return check_limit(
        str(FigureRun(one.attack, one.defense, None, None)),
        limits,
        ceiling,
        confidence=trust.confidence,
        doubt=trust.doubt(one.attack, None, None) or unsure,
        more=more or (lambda: None),
    )
