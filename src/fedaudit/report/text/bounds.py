"""Answers on how likely somebody finds a record: the largest figures, and bounds on them."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.core.metric_names import AUC, BALANCED_ACCURACY, tpr_at
from fedaudit.report import words
from fedaudit.report.clusters import clustered_of, in_words, riskiest
from fedaudit.report.evidence import distinct, headline, label_among, says_nothing, strongest
from fedaudit.report.grid import shortened
from fedaudit.report.sources import on_sources
from fedaudit.report.text.answers import (
    LEVEL,
    MOST_NAMED,
    Answer,
    canary_noise,
    first_named,
    models_of,
    not_tested,
)
from fedaudit.report.text.epsilons import client_bound, sum_bound
from fedaudit.report.verdict import unit_of
from fedaudit.results.doubts import NOT_RELIED_ON
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import above_chance, by_test_alone
from fedaudit.results.record import Record
from fedaudit.results.unlearning import unlearning_rows

FPR = 0.01
"""Share of false alarms at which true-positive rates are asked for."""
PRIORS = (0.5, 0.01)
"""Shares of members among the records that an adversary asks about."""
REFERENCE_ATTACKS = ("rmia", "lira")
"""Attacks that compare with reference models, by the first word of their name."""
RELEASED = "final"
"""The view of somebody who is given the released model alone."""
_RATE = tpr_at(FPR)


class Bound(NamedTuple):
    """The largest upper limit over the attacks that were run, and all that they gave.

    Means over runs and clients, single runs, audited clients and kinds of non-members alike: the
    limit of a mean is none of the worst model behind it.

    It holds for the strongest of them with the confidence of a single limit, and needs no
    correction for their number: that attack's own limit is not above the largest.

    Attributes:
        figure: The figure that it is the upper limit of.
        high: The limit.
        mean: The largest limit of the figures that summarise the others; None where these are
            the same.
        attacks: That have one.
        without: Attacks that have a figure without one, or no figure at all.
    """

    figure: Estimate
    high: float
    mean: float | None
    attacks: list[str]
    without: list[str]


def bound_of(record: Record, metric: str) -> Bound | None:
    """The largest 95% upper limit of a metric of membership; None without any, or of no attack."""
    limited, unlimited = list[Estimate](), list[Estimate]()
    for one in _every(record, metric):
        (unlimited if _limit(one) is None else limited).append(one)
    if not limited or says_nothing(record):
        return None
    tried = [row.name for row in record.attacks if not row.infers_source]
    having = {one.attack for one in limited} - {one.attack for one in unlimited}
    named = distinct([*tried, *(one.attack for one in unlimited)])
    without = [name for name in named if name not in having]
    # Of equal limits that of one kind of non-members, and of a single run.
    figure = max(
        limited,
        key=lambda one: (_limit(one) or 0.0, one.contrast != "mixed", one.seed is not None),
    )
    means = [one for one in limited if one.seed is None or one.target is None]
    whole = [one for one in means if one.seed is None and one.target is None] or means
    whole = whole if len(whole) < len(limited) else []
    mean = max((_limit(one) or 0.0 for one in whole), default=None)
    attacks = distinct(one.attack for one in limited)
    return Bound(figure, _limit(figure) or 0.0, mean, attacks, without)


def _every(record: Record, metric: str) -> list[Estimate]:
    """All figures of attacks in a metric of membership, at every level.

    Of a record that has fair comparisons only these: differences between clients that hold other
    classes are part of the rest.
    """
    found = [f for f in record.findings if f.attack and f.metric == metric and not f.against]
    return [figure for figure in found if figure.fair] or found


def _limit(figure: Estimate) -> float | None:
    """The 95% upper limit; None without one."""
    return figure.high if words.level_of(figure.method) == LEVEL else None


def _worst(record: Record, bound: Bound) -> str:
    """The models that the largest limit is the worst of: "the worst of the 2 models"."""
    models, every = models_of(record), _every(record, bound.figure.metric)
    limited = [f for f in every if _limit(f) is not None]
    targets = {f.target for f in limited if f.target is not None}
    alike = [f for f in every if f.contrast == bound.figure.contrast and f.seed is not None]
    having = {(f.defense, f.seed) for f in alike if _limit(f) is not None}
    if having and {(f.defense, f.seed) for f in alike} - having:
        some = f"the {words.count(len(having))} of {words.count(models)} models"
        return f"{some} that have this figure {words.against(bound.figure.contrast)}"
    if models > 1 and all(f.seed is None for f in limited):
        return f"a mean of {words.count(models)} models, none of which has a limit of its own"
    over = [f"{words.count(models)} models"] if models > 1 else []
    over += [f"{words.count(len(targets))} audited clients"] if len(targets) > 1 else []
    return f"the worst of the {words.listed(over)}" if over else ""


def predictive_value(tpr: float, fpr: float, prior: float) -> float:
    """The chance that a flagged record is a member (Bayes).

    Args:
        tpr: Share of members that are flagged.
        fpr: Share of non-members that are; above 0.
        prior: Share of members among all records that are asked about.
    """
    return tpr * prior / (tpr * prior + fpr * (1 - prior))


def membership(record: Record) -> Answer:
    """The largest AUC and true-positive rate, with limits, by which attack in which view."""
    if says_nothing(record):
        return not_tested("Figures of this record were made to show a flaw of an evaluation.")
    figures = headline(record)
    found = [one for metric in (AUC, _RATE) if (one := strongest(figures, metric))]
    risks = [risk for one in clustered_of(record) if (risk := riskiest(one))]
    if not found and risks:
        worst = in_words(max(risks, key=lambda one: one.number))
        said = "Balanced accuracy on real members; guessing is right in 50%."
        return Answer("figure", f"Risk of the riskiest model {worst}", said)
    if not found:
        return _none(record, (AUC, _RATE), "The record has no figure of an attack on membership.")
    text = "; ".join(f"{words.metric_name(one.metric)} {words.with_interval(one)}" for one in found)
    text = _of_unit(record) + text
    tried = distinct(one.attack for one in figures)
    more = [f"The largest over {words.plural(len(tried), 'attack')} ({first_named(tried)})."]
    more += [f"{words.metric_name(one.metric)}: {_place(one, figures)}." for one in found]
    if found[0].metric == AUC:
        more.insert(0, _in_pairs(found[0], figures))
    if _RATE not in (one.metric for one in found):
        refused = _refused(_every(record, _RATE))
        why = _reasons(refused) if refused else "not asked for, or not given."
        more.append(f"{words.metric_name(_RATE)}: {why}")
    more += canary_noise(record)
    if {one.view for one in found} != {RELEASED}:
        more.append("The released model alone, as somebody is given it, was not tested.")
    return Answer("figure", text, "\n".join(more))


def _of_unit(record: Record) -> str:
    """Opening that names the unit where it is not ordinary samples."""
    openings = {
        "person": "Of people, each with all of their samples: ",
        "canary sample": "Of canary samples, not of people’s records: ",
    }
    return openings.get(unit_of(record), "")


def equivalence(record: Record) -> Answer:
    """An upper bound in the place of "no better than guessing", which no test can show."""
    bound = bound_of(record, AUC)
    if bound is None:
        return _none(record, (AUC,), f"No attack on membership here has a {LEVEL} upper limit.")
    worst = _worst(record, bound)
    text = _of_unit(record) + f"AUC at most {_above(bound.high)} with {LEVEL} confidence"
    text += f" for {worst}" if worst else ""
    text += f" ({_short_place(bound.figure, _every(record, AUC))})"
    text += (
        ""
        if bound.mean is None
        else f"; at most {_above(bound.mean)} for {_mean_of(record, bound)}"
    )
    more = (
        "The largest upper limit over all figures of the attacks that were run, those of single "
        "classes and clients' samples left out "
        f"({first_named(bound.attacks)}). Guessing has 0.5. {_accuracy(record)}That attacks do no "
        f"better than guessing cannot be shown, only bounded.{_left_out(bound)}"
    )
    return Answer("figure", text, " ".join([more, *canary_noise(record)]))


def _accuracy(record: Record) -> str:
    """The largest limit of attack accuracy; empty where the record has none."""
    bound = bound_of(record, BALANCED_ACCURACY)
    if bound is None:
        return ""
    where = _short_place(bound.figure, _every(record, BALANCED_ACCURACY))
    mean = "" if bound.mean is None else f"; at most {_up(bound.mean)} for the mean"
    return (
        f"Attack accuracy (balanced, guessing has 50%) at most {_up(bound.high)} ({where}){mean}. "
    )


def flagged(record: Record) -> Answer:
    """The chance that a flagged record is a member, at two priors."""
    bound = bound_of(record, _RATE)
    if bound is None:
        none = f"The record has no {words.metric_name(_RATE)} with a {LEVEL} upper limit."
        return _none(record, (_RATE,), none)
    said = [
        f"{_up(predictive_value(bound.high, FPR, prior))} at a prior of {prior:.0%}"
        for prior in PRIORS
    ]
    more = (
        "The chance at most that a record which the attack flags at 1% false alarms is a member, "
        f"by the largest upper limit of the TPR ({_up(bound.high)}: "
        f"{_place(bound.figure, _every(record, _RATE))}). A guess is right as often "
        "as the prior says: the share of members among the records asked about, an assumption."
        f"{_left_out(bound)}"
    )
    more = " ".join([more, *canary_noise(record)])
    return Answer("figure", f"At most {words.listed(said)}", more)


def references(record: Record) -> Answer:
    """The figures of attacks that train models of their own to compare with, and of the others."""
    figures = headline(record)
    comparing = [f for f in figures if f.attack.split("-")[0] in REFERENCE_ATTACKS]
    best = strongest(comparing, AUC)
    if says_nothing(record) or best is None:
        return not_tested("No attack here compares with reference models (RMIA, LiRA).")
    alone = strongest((f for f in figures if f not in comparing), AUC)
    tried = first_named(distinct(one.attack for one in comparing))
    text = f"Yes, {tried}: largest AUC {words.with_interval(best)}"
    text += f", beside {words.with_interval(alone)} without" if alone else "; no attack without"
    more = [f"With: {_place(best, figures)}."]
    more += [f"Without: {_place(alone, figures)}."] if alone else []
    more += canary_noise(record)
    return Answer("figure", text, "\n".join(more))


def residual(record: Record) -> Answer:
    """The risk that remains after this audit, for whoever deploys the model."""
    if says_nothing(record):
        return Answer("stated", "Nothing follows from this record", "It was made to show a flaw.")
    auc, rate = bound_of(record, AUC), bound_of(record, _RATE)
    owners = [one.success.high for one in on_sources(record) if one.success.high is not None]
    games = [point.adv.high for point in record.games]
    said = [
        auc
        and f"a member stands out in at most {_up(auc.high)} of pairs{_of(record, auc)} "
        "(guessing: 50%)",
        rate
        and f"at 1% false alarms at most {_up(rate.high)} of members are found{_of(record, rate)}",
        owners and f"a sample’s client is named for at most {_up(max(owners))}",
        games and f"a server that tampers is right in at most {_up(max(games))} of games",
        client_bound(record),
        sum_bound(record),
    ]
    text = "; ".join(one for one in said if one) or "No upper limit of a risk is known"
    units, one = {
        "person": ("people", "of them"),
        "canary sample": ("canary samples", "canary sample"),
    }.get(unit_of(record), ("samples", "person’s record"))
    before = "Of the model before deletion. " * bool(unlearning_rows(record))
    before += "".join(f"{one} " for one in canary_noise(record))
    more = (
        f"{before}With {LEVEL} confidence each, by the attacks here, over all audited {units} "
        "together: "
        f"one {one} may be easier to find, and stronger attacks, other adversaries and other "
        "clients may fare otherwise."
    )
    return Answer("stated", words.capital(text), more)


def _of(record: Record, bound: Bound) -> str:
    """ " for the worst of the 2 models, 57.7% for their mean"; empty of one model."""
    worst = _worst(record, bound)
    mean = (
        "" if bound.mean is None else f", at most {_up(bound.mean)} for {_mean_of(record, bound)}"
    )
    return (f" for {worst}" if worst else "") + mean


def _mean_of(record: Record, bound: Bound) -> str:
    means = [f for f in _every(record, bound.figure.metric) if _limit(f) == bound.mean]
    some = [_some_seeds(one) for one in means if _some_seeds(one)]
    return f"the {some[0]}" if some else "their mean"


def _none(record: Record, metrics: Sequence[str], why: str) -> Answer:
    """Without a figure: not tested, or asked and refused for want of samples."""
    refused = _refused([one for metric in metrics for one in _every(record, metric)])
    if not refused or says_nothing(record):
        return not_tested(why)
    named = words.listed(distinct(words.metric_name(one.metric) for one in refused))
    return Answer("inconclusive", f"Inconclusive: too few samples for {named}", _reasons(refused))


def _refused(figures: Sequence[Estimate]) -> list[Estimate]:
    found = [one for one in figures if one.value is None and _WANTING in one.note]
    summary = [one for one in found if one.seed is None] or found
    return sorted(summary, key=lambda one: words.contrast_order(one.contrast))


_WANTING = "inconclusive"
"""What the note of a figure says that was refused for want of samples."""


def _reasons(refused: Sequence[Estimate]) -> str:
    said = distinct(f"{words.against(one.contrast)}: {shortened(one.note, 120)}" for one in refused)
    rest = len(said) - MOST_NAMED
    more = [f"{words.count(rest)} more such"] if rest > 0 else []
    return words.sentence("; ".join([*said[:MOST_NAMED], *more]))


def _in_pairs(best: Estimate, figures: Sequence[Estimate]) -> str:
    known = above_chance(best)
    said = "above guessing" if known else "not shown above guessing, corrected for all figures"
    said = "not tested against guessing" if known is None else said
    said = NOT_RELIED_ON if best.doubt else said
    if by_test_alone(best):
        said = "above guessing by the corrected test, though the interval holds guessing"
    others = sum(bool(above_chance(one)) for one in figures if one.metric == AUC)
    if others and not known:
        said += f"; {words.plural(others, 'other AUC is', 'other AUCs are')} above it"
    return (
        "Given a member and a non-member, the best attack picks the member in "
        f"{words.percent(best.number)} of pairs; guessing 50%; {said}."
    )


def _left_out(bound: Bound) -> str:
    without = f" Without such a limit, in part or whole: {first_named(bound.without)}."
    return without if bound.without else ""


def _place(figure: Estimate, figures: list[Estimate]) -> str:
    label = label_among(figure, figures)
    parts = [_against(figure), f"view “{shortened(figure.view)}”"]
    mean = figure.seed is None and "over seeds" not in label
    parts += [_some_seeds(figure) or "mean over seeds"] if mean else []
    return ", ".join(filter(None, (*parts, label)))


def _some_seeds(figure: Estimate) -> str:
    """ "mean over 3 of 5 seeds", where others do not have the figure; empty elsewhere."""
    found = re.match(r"mean over \d+ of \d+ seeds", figure.note)
    return found[0] if found and figure.seed is None else ""


def _short_place(figure: Estimate, figures: list[Estimate]) -> str:
    return ", ".join(filter(None, (_against(figure), label_among(figure, figures))))


def _against(figure: Estimate) -> str:
    return f"{shortened(figure.attack, 40)} {words.against(figure.contrast)}"


def _up(share: float) -> str:
    """An upper limit in per cent, rounded up so that it still is one."""
    return f"{math.ceil(round(1000 * share, 6)) / 10:g}%"


def _above(value: float) -> str:
    return f"{math.ceil(round(1000 * value, 6)) / 1000:.3f}"
