"""The largest upper limit of a metric over all attacks of a record."""

import math
from typing import NamedTuple

from fedaudit.report import evidence, words
from fedaudit.report.grid import shortened
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record

LEVEL = "95%"
"""Confidence of the limits that are compared."""


class UpperLimit(NamedTuple):
    """The largest upper limit over single runs, means over them, clients and contrasts alike.

    The limit of a mean says nothing about the worst model behind it. The largest limit holds for
    the strongest attack with the confidence of a single limit, and needs no correction for their
    number: that attack's own limit is not above the largest.

    Attributes:
        value: The limit.
        of: Attack, contrast and run of the figure that has it.
        attacks: Attacks that have limits.
        without: Attacks that have a figure without a limit, or no figure at all.
    """

    value: float
    of: str
    attacks: list[str]
    without: list[str]


def largest_limit(record: Record, metric: str) -> UpperLimit | None:
    """Return the largest 95% upper limit of a metric of membership.

    None without any, and where a control failed. Of a record that has fair comparisons only these
    count: differences between clients that hold other classes are part of the rest.
    """
    found = [f for f in record.findings if f.attack and f.metric == metric and not f.against]
    every = [figure for figure in found if figure.fair] or found
    limited = [one for one in every if _limit(one) is not None]
    failed = evidence.checks_of(record.controls).failed
    if not limited or failed or evidence.says_nothing(record):
        return None
    best = max(limited, key=lambda one: _limit(one) or 0.0)
    tried = [row.name for row in record.attacks if not row.infers_source]
    attacks = evidence.distinct(one.attack for one in limited)
    unlimited = [one.attack for one in every if _limit(one) is None]
    lacking = [name for name in tried if name not in attacks]
    label = evidence.label_among(best, every)
    if best.seed is None and len(record.seeds) > 1 and "over seeds" not in label:
        label = ", ".join(filter(None, (label, "mean over seeds")))
    of = f"{shortened(best.attack, 40)} {words.against(best.contrast)}"
    return UpperLimit(
        _limit(best) or 0.0,
        ", ".join(filter(None, (of, label))),
        [shortened(name, 60) for name in attacks],
        [shortened(name, 60) for name in evidence.distinct([*unlimited, *lacking])],
    )


def _limit(figure: Estimate) -> float | None:
    return figure.high if words.level_of(figure.method) == LEVEL else None


def rounded_up(share: float) -> float:
    """Return an upper limit with three decimals, rounded up so that it still is one."""
    return math.ceil(round(1000 * share, 6)) / 1000
