"""Cheapest way to decide an open claim, and its core hours."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scipy.optimize import brentq

from docs.claims.accuracies import METHOD
from docs.claims.again import seconds_of
from docs.claims.comparing import BY_STUDENT
from docs.claims.data import RECORDS, Claim, is_of_games, regimes, variant_of
from docs.claims.figures import rows
from docs.claims.judging import (
    ERROR,
    FEWEST_SEEDS,
    UNDECIDED,
    ClaimResult,
    PartResult,
    RegimeResult,
    Verdict,
    beyond,
    family_in,
    family_of,
    needed_regimes,
    p_value_if_repeated,
    seeds_of,
)
from docs.claims.names import figure_words
from fedaudit.formatting.wording import capitalise, join_and
from fedaudit.metrics.intervals import FEWEST_RUNS

MANY = 1000
"""Seeds, or factor of samples, from which a difference counts as equal to its margin."""
_LARGEST_FACTOR = 50.0
"""Natural logarithm of the largest factor that is computed."""
FIRST: tuple[Verdict, ...] = ("confirmed", "contradicted", "no difference")
_VERDICTS: dict[str, str] = {
    "confirmed": "confirmed",
    "contradicted": "shown not to hold",
    "no difference": "no difference",
    "depends on the regime": "shown to depend on the regime",
}


class Step(NamedTuple):
    """Additional runs or samples of a regime that would give a verdict in it."""

    # Name of the regime.
    regime: str
    # Comparison that needs most; None if nothing is needed.
    part: PartResult | None
    # Factor of the existing runs or samples.
    times: float
    # Additional core hours.
    hours: float


class Route(NamedTuple):
    """Steps to a verdict if all figures stay the same."""

    # Verdict of the claim.
    verdict: Verdict
    # Step in each regime that takes part.
    steps: Sequence[Step]

    @property
    def hours(self) -> float:
        return sum(step.hours for step in self.steps)

    @property
    def times(self) -> float:
        return max(step.times for step in self.steps)


def share_of_error(results: Sequence[ClaimResult], claim: Claim) -> float:
    """Return the p-value below which Holm's procedure decides the next claim of a family."""
    tested = [result for result in family_in(results, claim) if result.p_value is not None]
    open_ = sum(result.verdict == "open" for result in tested)
    return ERROR / max(open_, 1)


# Prices.


def cheapest(result: ClaimResult, share: float) -> Route | None:
    """Return the route with the fewest core hours to any verdict, if one exists."""
    routes = list(_routes(result, share))
    return min(routes, key=lambda route: (route.hours, route.times), default=None)


def _routes(result: ClaimResult, share: float) -> Iterator[Route]:
    counted = result.counted
    among, needed = len(counted), needed_regimes(result.claim)
    verdicts = {regime_result.verdict for regime_result in counted} - {"open"}
    for verdict in FIRST:
        allowed = {verdict, "no difference"} if verdict == "contradicted" else {verdict}
        if verdicts <= allowed:
            tested = among - needed + 1
            for place in range(1, tested + 1):
                steps = _cheapest_of(counted, verdict, share * place / tested)
                if len(steps) >= needed - 1 + place:
                    yield Route(verdict, steps[: needed - 1 + place])
    if among > 1:
        sides = [_cheapest_of(counted, verdict, share / among) for verdict in FIRST]
        for hold in sides[0][:2]:
            for against in [*sides[1][:2], *sides[2][:2]]:
                if hold.regime != against.regime:
                    yield Route("depends on the regime", [hold, against])


def _cheapest_of(counted: Sequence[RegimeResult], verdict: Verdict, p_value: float) -> list[Step]:
    steps = [step_to(regime_result, verdict, p_value) for regime_result in counted]
    return sorted((step for step in steps if step), key=lambda step: (step.hours, step.times))


def step_to(result: RegimeResult, verdict: Verdict, p_value: float) -> Step | None:
    parts = [part for part in result.parts if part.gap is not None]
    if verdict == "contradicted":
        # One comparison refutes a claim; it is chosen among several, which share the error.
        prices = [(part, times_to(part, verdict, p_value / len(parts))) for part in parts]
        part, times = min(prices, key=lambda price: price[1])
        needs = {part.other.model_dump_json(): (part, times)}
    else:
        also = ("confirmed",) if verdict == "no difference" else ()
        prices = [
            (part, min(times_to(part, v, p_value) for v in (verdict, *also))) for part in parts
        ]
        part, times = max(prices, key=lambda price: price[1])
        needs = {str(place): price for place, price in enumerate(prices)}
    if not math.isfinite(times) or len(parts) < len(result.parts):
        return None
    if times <= 1:
        return Step(result.regime, None, 1.0, 0.0)
    records: dict[tuple[str, str, str], float] = {}
    for needing, factor in needs.values():
        for record in _records(needing):
            records[record] = max(records.get(record, 1.0), factor)
    hours = sum((factor - 1) * _hours(*record) for record, factor in records.items())
    return Step(result.regime, part, times, hours)


def times_to(part: PartResult, verdict: Verdict, p_value: float) -> float:
    """Return the factor of runs or samples that would give a verdict if the figure stays the same.

    Infinite if the figure contradicts the verdict.
    """
    gap = part.gap
    assert gap is not None
    if gap.low is None or gap.high is None:
        # The verdict of missing limits is unknown.
        return math.inf if _lacks_limits(part) else FEWEST_RUNS / seeds_of(part)
    if beyond(part.test, gap, verdict) <= 0:
        return math.inf

    def excess(logarithm: float) -> float:
        repeated = p_value_if_repeated(part.test, gap, verdict, math.exp(logarithm))
        return repeated - p_value

    if excess(0.0) <= 0:
        return 1.0
    if excess(_LARGEST_FACTOR) > 0:
        return math.inf
    return math.exp(float(brentq(excess, 0.0, _LARGEST_FACTOR)))


def _records(part: PartResult) -> Iterator[tuple[str, str, str]]:
    regime = regimes()[part.regime]
    for term in (part.test.one, part.other):
        if term.value is None:
            study = term.study or regime.study
            if is_of_games(study):
                yield study, "", term.attack
            elif (term.figure or part.test.figure) == "hypervolume":
                yield study, "*", ""
            else:
                yield study, variant_of(regime, term), ""


def _hours(study: str, variant: str, point: str) -> float:
    if variant == "*":
        return hours_spent(study)
    points = 1
    if is_of_games(study):
        points = sum(key.figure == "games" for key in rows(study, "") or {})
    return seconds_of(study, variant) / 3600 / points


def hours_spent(study: str) -> float:
    paths = (RECORDS / study).glob(f"{study}*.json")
    variants = [path.stem.removeprefix(study).removeprefix("-") for path in paths]
    return sum(seconds_of(study, variant) for variant in variants) / 3600


def _lacks_limits(part: PartResult) -> bool:
    """Return whether a figure lacks limits, even with more seeds."""
    gap = part.gap
    is_of_games = regimes()[part.regime].kind == "games"
    return gap is not None and gap.low is None and (is_of_games or gap.seeds >= FEWEST_RUNS)


# In words.


def decided_in(result: ClaimResult) -> str:
    """Describe the regimes that support a verdict; empty if all regimes that count do."""
    if result.verdict == "depends on the regime":
        states = {"confirmed": "holds", "contradicted": "does not hold"}
        return "; ".join(
            f"{states.get(regime.verdict, regime.verdict)} in `{regime.regime}`"
            for regime in result.counted
            if regime.verdict != "open"
        )
    if result.verdict in UNDECIDED:
        return ""
    verdict = "contradicted" if result.verdict == "not found at this scale" else result.verdict
    agreeing = sum(regime_result.verdict == verdict for regime_result in result.counted)
    among = len(result.counted)
    if among == 1:
        return "in one regime"
    return "" if agreeing == among else f"in {agreeing} of {among} regimes, open in the others"


def before_correction(result: ClaimResult, tested: int) -> str:
    """Describe the verdict of an open claim without the correction over its family."""
    if result.verdict != "open" or result.by_itself == "open" or result.p_value is None:
        return ""
    if result.p_value > ERROR:
        return f"regimes differ, but not significantly (p = {result.p_value:.2g})"
    return (
        f"{result.by_itself} without correction (p = {result.p_value:.2g}), open after correction "
        f"over {tested} {family_of(result.claim)}"
    )


def what_decides(result: ClaimResult, share: float, scale: str = "") -> str:
    """Describe what would decide a claim; empty if it is decided.

    Args:
        result: The claim.
        share: The p-value below which the claim would be decided.
        scale: Scale of the paper for this claim, if it differs from that of the other claims.
    """
    if result.claim.not_run:
        return result.claim.not_run
    if result.verdict == "not run":
        return capitalise("; ".join(_not_run(regime_result) for regime_result in result.held))
    if result.verdict == "not found at this scale":
        return ": ".join(filter(None, ["Runs at the paper's scale", scale]))
    return capitalise(_settling(result, share)) if result.verdict == "open" else ""


def _settling(result: ClaimResult, share: float) -> str:
    route = cheapest(result, share)
    if route is not None:
        needs = [(step.part, step.times) for step in route.steps if step.part is not None]
        level = [(part, times) for part, times in needs if is_level(part, times)]
        if level:
            return join_and([too_close(part, route.verdict) for part, _ in level])
        if needs:
            hours = f"about {route.hours:.1f}" if route.hours >= 0.05 else "less than 0.1"
            text = join_and([more_of(part, times) for part, times in needs])
            return f"{text}: then {_VERDICTS[route.verdict]} ({hours} core hours)"
    options = [
        *_one_seed(result),
        *(
            _not_run(regime_result)
            for regime_result in result.held
            if regime_result.verdict == "not run"
        ),
    ]
    options += [
        f"a confidence interval of the {figure_words(figure)} in `{part.regime}`"
        for regime_result in result.counted
        for part in regime_result.parts
        if _lacks_limits(part)
        for figure in [part.test.one.figure or part.test.figure]
    ][:1]
    if len(result.counted) < needed_regimes(result.claim) and not options:
        another = "a second regime" if result.counted else "a regime"
        return f"{another} {_that_counts(result.claim)}"
    return "; or ".join(options) or (
        "another margin or a narrower claim, because more of the same runs would not decide it"
    )


def _one_seed(result: ClaimResult) -> list[str]:
    return [
        f"at least {FEWEST_SEEDS} seeds of `{regime_result.regime}` (1 so far)"
        for regime_result in result.held
        if regime_result.wanting == "seeds"
    ]


def _that_counts(claim: Claim) -> str:
    if not claim.leaks:
        return "with another data set or network"
    requirement = {
        "membership": "an attack with an AUC of 0.7 without a defense",
        "sources": "an attack that identifies the client ten points more often than label "
        "distributions explain",
        "clusters": "a model with a measured risk of 0.6",
        "games": "a server that is right in 70 % of games without noise on the samples",
    }[regimes()[claim.regimes[0]].kind]
    return f"that leaks ({requirement})"


def _not_run(result: RegimeResult) -> str:
    lacking = list(dict.fromkeys(part.lacking for part in result.parts if part.lacking))
    regime = regimes()[result.regime]
    if rows(regime.study, regime.base) is None:
        hours = f" ({regime.hours:.1f} core hours)" if regime.hours else ""
        return f"a run of `{result.regime}`{hours}"
    further = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return f"{lacking[0]}{further}"


def is_level(part: PartResult, times: float) -> bool:
    return times * (seeds_of(part) if _rests_on(part) == "seeds" else 1) > MANY


def too_close(part: PartResult, verdict: Verdict) -> str:
    """Explain why no practical number of runs or samples gives a verdict."""
    assert part.gap is not None
    value = part.gap.value
    rests = _rests_on(part)
    amount = f"{MANY:,} seeds" if rests == "seeds" else f"{MANY:,} times the {rests}"
    margin = part.test.margin
    bounds = {margin, -margin}
    if part.test.direction != "near" and verdict == "contradicted":
        bounds = {0.0}
    elif part.test.direction != "near" and verdict == "confirmed":
        bounds = {margin if part.test.direction == "above" else -margin}
    nearest = min(bounds, key=lambda bound: abs(bound - value))
    shift = part.other.value or 0.0
    what = "difference" if part.other.value is None else "figure"
    return (
        f"more than {amount} of `{part.regime}`, because its {what} of "
        f"{round(value + shift, 4):g} is close to {nearest + shift:g}"
    )


def more_of(part: PartResult, times: float) -> str:
    assert part.gap is not None
    name, seeds = f"`{part.regime}`", seeds_of(part)
    if part.gap.low is None:
        return f"{FEWEST_RUNS} seeds of {name} ({seeds} so far), the fewest with an interval"
    rests = _rests_on(part)
    if rests == "seeds":
        count = max(math.ceil(times * seeds), seeds + 1)
        return f"about {count:,} seeds of {name} ({seeds} so far)"
    text = f"about {_round_up(times)} times the {rests} of {name}"
    is_unpaired = rests == "test samples" and part.gap.method != METHOD
    return f"{text} (or accuracies paired by sample)" if is_unpaired else text


def _round_up(times: float) -> str:
    return f"{math.ceil(times):,}" if times > 10 else f"{math.ceil(10 * times) / 10:g}"


def _rests_on(part: PartResult) -> str:
    """Return the unit that determines the width of the interval."""
    figure = part.test.one.figure or part.test.figure
    if regimes()[part.regime].kind == "games":
        games = {"epochs": "targets", "uncertified": "targets", "spread_auc": "copies"}
        unit = "detector's runs" if figure == "detector_auc" else "games (with the same targets)"
        return games.get(figure, unit)
    assert part.gap is not None
    if part.gap.method == BY_STUDENT:
        return "seeds"
    # Errors of rates do not cancel over runs (fedaudit.results.aggregate).
    if figure == "test_accuracy":
        return "test samples"
    return "members and non-members" if "@" in figure else "seeds"
