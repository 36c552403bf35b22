"""Fields that records of older versions lack or call by another name, as this version has them."""

import math
import re
from collections.abc import Mapping, Sequence

from fedaudit.core.metric_names import rate_of
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.results.record import Record, replaced

AT_THRESHOLD = "at the threshold used"
"""What limits of a rate in a record of an older version are limits of."""

_ALLOWS_FOR_THRESHOLD = "order statistics"
"""How the method of limits of a rate begins (``fedaudit.metrics.rate_limits``, long to load)."""

_OVER_RUNS = re.compile(r"(?:Student t|no spread) over (\d{1,6}) seeds.*")
"""How older versions made the one interval of a mean over runs: between runs, from two on."""
_SAME = 1e-9

FIRST_SET = "2026-1"
"""The attacks that were run where none was named, before sets of attacks had names."""


def settled(config: Mapping[str, object]) -> dict[str, object]:
    """The settings of a study that was carried out, with defaults as they were at its time.

    That is the set of attacks, and how the risk of a clustered federation's models was estimated.
    """
    before = {"attack_set": FIRST_SET} if config.get("attacks") == {} else {}
    found = {**before, **config}
    risk = config.get("risk")
    if isinstance(risk, Mapping) and "training" not in risk:
        found["risk"] = {"training": "continued", "sizes": "capped", **risk}
    return found


def restated(record: Record) -> Record:
    """The record with its older limits called what they are.

    Older versions took the threshold of a rate as given. Such limits hold for the share of members
    above the threshold that was used and not for the rate at a false-positive rate, so that a
    ceiling, a size or a verdict cannot rest on them. No others follow from the record.

    They had one interval over several runs, by Student's t from two runs on. It says what further
    runs would give: it is kept as that from five seeds on, and dropped below. What these runs gave
    follows from the single runs and is made anew for AUCs and balanced accuracies; a rate over runs
    takes limits at other errors, which no record holds.
    """
    findings = [_at_threshold(figure) for figure in record.findings]
    return replaced(record, [*_findings_over_runs(findings), *record.groups])


def _at_threshold(figure: Estimate) -> Estimate:
    of_one_run = rate_of(figure.metric) is not None and figure.seed is not None
    without = figure.low is None and figure.high is None
    if not of_one_run or without or figure.method.startswith(_ALLOWS_FOR_THRESHOLD):
        return figure
    return figure.model_copy(
        update={
            "low": None,
            "high": None,
            "at_threshold": Interval(low=figure.low, high=figure.high),
            "method": f"{figure.method} {AT_THRESHOLD}".strip(),
        }
    )


def _is_over_runs(mean: Estimate) -> bool:
    """True if a figure has the interval over runs that older versions made."""
    return _OVER_RUNS.fullmatch(mean.method.removesuffix(", so limits of the runs")) is not None


def _findings_over_runs(findings: Sequence[Estimate]) -> list[Estimate]:
    if not any(figure.seed is None and _is_over_runs(figure) for figure in findings):
        return list(findings)
    runs: dict[tuple[object, ...], list[Estimate]] = {}
    for figure in findings:
        if figure.seed is not None:
            runs.setdefault(_what(figure), []).append(figure)
    return [
        _over_runs(figure, runs.get(_what(figure), []))
        if figure.seed is None and _is_over_runs(figure)
        else figure
        for figure in findings
    ]


def _over_runs(figure: Estimate, behind: Sequence[Estimate]) -> Estimate:
    """A mean over runs with what these runs gave, where they are those of the mean."""
    # Few records come this far, and the arithmetic takes longer to load than a report to write.
    from fedaudit.results.aggregate import over_runs

    update = _as_further(figure)
    made = over_runs(behind) if behind else figure
    if behind and math.isclose(made.value or 0.0, figure.value or 0.0, abs_tol=_SAME):
        for name in ("low", "high", "at_threshold", "method"):
            update[name] = getattr(made, name)
    return figure.model_copy(update=update)


def _as_further(mean: Estimate) -> dict[str, object]:
    """An older interval read as what it is, where there are runs enough for it."""
    from fedaudit.metrics.intervals import FEWEST_RUNS, too_few_runs

    found = _OVER_RUNS.fullmatch(mean.method)
    seeds = int(found[1]) if found else 0
    enough = seeds >= FEWEST_RUNS
    further = Interval(
        low=mean.low if enough else None,
        high=mean.high if enough else None,
        method=mean.method if enough else too_few_runs(seeds),
    )
    return {"low": None, "high": None, "method": "", "further": further}


def _what(figure: Estimate) -> tuple[object, ...]:
    """Coordinates of a figure, whichever run it was found in."""
    where = (figure.attack, figure.defense, figure.view, figure.contrast)
    return (*where, figure.target, figure.metric)
