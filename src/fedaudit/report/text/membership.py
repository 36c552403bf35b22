"""Sentences on membership inference: headline, upper limits, and what a verdict means."""

from fedaudit.core.metric_names import AUC
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text, fixed_texts
from fedaudit.formatting.grid import shorten
from fedaudit.report.deciding import caveats, membership
from fedaudit.report.deciding.epsilons import shown_bounds
from fedaudit.report.evidence import (
    Status,
    by_contrast,
    main_estimates,
    max_size,
    size_of,
    size_reached,
    unique_items,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import above_chance
from fedaudit.results.record import Record

LEAKAGE = fixed_texts("membership.leakage")  # beginning of a headline by verdict
RATES = ("tpr@0.01", "tpr@0.001")  # true-positive rates at low false-positive rates


def member_headline(record: Record, status: Status, *, alone: bool) -> str:
    """Return the headline on membership with its caveats; ``alone`` if it is the only topic."""
    client_groups = caveats.estimates_by_client_group(record)
    names, front = list(client_groups), next(iter(client_groups.values()))
    text = _headline(record, status, front, alone=alone)
    if len(client_groups) > 1:
        other = membership.member_status(record, client_groups[names[1]])
        text = f"{wording.capitalise(names[0])}: {wording.without_capital(text)}"
        text += f". {wording.capitalise(names[1])}: {other}"
    estimates = main_estimates(record)
    unfair = fixed_text("membership.unfair") * (
        bool(estimates) and not any(f.fair for f in estimates)
    )
    people = caveats.people_caveat(record)
    return wording.join_parts(
        text, membership.scope_sentence(record, front), unfair, people, by=". "
    )


def _headline(record: Record, status: Status, front: list[Estimate], *, alone: bool) -> str:
    scope = fixed_text("guard.scope") if caveats.guard_of(record) else ""
    if status in LEAKAGE:
        distinguished = fixed_text(f"membership.distinguished.{caveats.unit_of(record)}")
        better = fixed_texts("membership.better").get(status, "")
        ranged = caveats.range_headline(front).replace("; ", f"; {scope}", 1)
        return ranged or f"{LEAKAGE[status]}: {scope}{distinguished}{better}"
    if status == "no leak shown":
        topic = "" if alone else " of membership"
        return f"No leak{topic} shown: {scope}{fixed_text('membership.guessing')}"
    topic = "" if alone else " about membership"
    reason = fixed_text(f"membership.inconclusive.{_reason(record, front)}")
    return f"Inconclusive{topic}: {scope}{reason}"


def _reason(record: Record, estimates: list[Estimate]) -> str:
    if caveats.wrong_sign(estimates):
        return "wrong sign"
    if caveats.coverage_gaps(record):
        return "not measured"
    of_clients = any(bounds.unit.startswith("one client") for bounds in shown_bounds(record))
    return "samples" if of_clients else "small"


def member_meaning(record: Record, status: Status, estimates: list[Estimate]) -> str:
    """Return what follows from the verdict on membership, and what does not."""
    texts, key = fixed_texts("membership.meaning"), str(status)
    if status in LEAKAGE:
        if caveats.unit_of(record) == "canary sample":
            key = "canary sample"
        elif status == "trace of a leak" and caveats.range_headline(estimates):
            key = "range"
    elif status == "inconclusive" and (reason := _reason(record, estimates)) in texts:
        key = reason
    parts = [texts[key].format(units=caveats.units_of(record))]
    if status in LEAKAGE:
        parts += [_affected(estimates), _may_be_larger(estimates)]
        parts.append(_of_federation(record, estimates))
    elif status == "no leak shown":
        parts.append(_hidden(record, estimates))
    return wording.join_parts(*parts, by=" ")


def _affected(estimates: list[Estimate]) -> str:
    affected = {
        wording.defense_name(estimate.defense) for estimate in estimates if above_chance(estimate)
    }
    names = unique_items(wording.defense_name(estimate.defense) for estimate in estimates)
    leaking = wording.join_some([shorten(name, 60) for name in names if name in affected])
    others = wording.join_some([shorten(name, 60) for name in names if name not in affected])
    if len(names) < 2:
        return ""
    return f"The leak is shown with {leaking}{f', but not with {others}' if others else ''}."


def _of_federation(record: Record, estimates: list[Estimate]) -> str:
    """State that the leak is not about a client, if only unseen samples are distinguished.

    Source inference answers whether a client can be named, so that its results take precedence.
    """
    if record.sources:
        return ""
    estimates_by_contrast = by_contrast(estimates)
    others, unseen = (estimates_by_contrast.get(name, []) for name in ("other_client", "unseen"))
    is_shown = any(map(above_chance, unseen)) and not any(map(above_chance, others))
    has_others = any(estimate.high is not None and not estimate.doubt for estimate in others)
    if not (is_shown and has_others):
        return ""
    return fixed_text("membership.not_of_client", units=caveats.units_of(record))


def _may_be_larger(estimates: list[Estimate]) -> str:
    above = [estimate for estimate in estimates if above_chance(estimate)]
    highs = [size_reached(f.high, f.metric) for f in above if f.high is not None]
    smallest_size, largest_size = max_size(map(size_of, above)), max_size(highs)
    if smallest_size is None or largest_size is None or largest_size == smallest_size:
        return ""
    return f"The size is that of the lower limits; the upper limits allow a {largest_size} leak."


def _hidden(record: Record, estimates: list[Estimate]) -> str:
    """Describe the leaks that the verdict "no leak shown" does not rule out."""
    texts = fixed_texts("membership.hidden")
    power = fixed_text("guard.not_planted") if caveats.guard_of(record) else texts["not_planted"]
    if any(c.control == "planted leak" and c.passed for c in record.controls):
        power = texts["planted"]
    rates = [f.value for f in estimates if f.metric == "tpr@0.001"]
    return str(texts["hidden"]).format(
        power=power,
        bounds=upper_bounds(estimates),
        unknown=texts["unknown"] if not rates or None in rates else "",
    )


def upper_bounds(estimates: list[Estimate], metrics: tuple[str, ...] = (AUC, *RATES)) -> str:
    """Format the largest upper limits: "AUC up to 0.596 and TPR at 1% FPR up to 2.0%".

    With several clients, each limit names its client, and pooled clients come first.
    """
    has_several_clients, parts = membership.are_several(estimates), []
    for metric in metrics:
        limits = [
            wording.format_value(limit.value, metric, rounding="up")
            + f" for {limit.name}" * has_several_clients
            for limit in membership.limits_to_print(estimates, metric)
        ]
        if limits:
            second = f" ({limits[1]})" if limits[1:] and has_several_clients else ""
            parts.append(f"{wording.metric_name(metric)} up to {limits[0]}{second}")
    return wording.join_and(parts)
