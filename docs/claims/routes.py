"""What would settle an open claim, and for how many core hours: the cheapest way."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scipy.special import ndtri, stdtrit

from docs.claims.again import seconds_of
from docs.claims.comparing import BY_STUDENT, leak_of
from docs.claims.data import RECORDS, Claim, is_of_games, regimes, variant_of
from docs.claims.figures import rows
from docs.claims.judging import (
    ERROR,
    FEWEST_SEEDS,
    LIMIT,
    Decided,
    Held,
    Judged,
    Verdict,
    beyond,
    needed_regimes,
    seeds_of,
)
from fedaudit.metrics.intervals import FEWEST_RUNS

MANY = 1000
"""From so many seeds on, or so many times the samples, a difference counts as level with its
margin."""
FIRST: tuple[Verdict, ...] = ("confirmed", "contradicted", "no difference")
_VERDICTS: dict[str, str] = {
    "confirmed": "confirmed",
    "contradicted": "shown not to hold",
    "no difference": "no difference",
    "depends on the regime": "shown to depend on the regime",
}
SAID: dict[str, str] = {
    "confirmed": "holds in",
    "contradicted": "does not hold in",
    "no difference": "no difference in",
}


class Step(NamedTuple):
    """More runs or samples of one regime, up to a verdict there.

    Attributes:
        regime: Its name.
        part: The comparison that takes most; None if nothing is needed.
        times: How many times what there is.
        hours: Core hours beyond those that were spent.
    """

    regime: str
    part: Judged | None
    times: float
    hours: float


class Route(NamedTuple):
    """Steps that lead to a verdict, if every figure stays what it is.

    Attributes:
        verdict: The claim's.
        steps: In every regime that takes part, also those in which nothing is needed.
    """

    verdict: Verdict
    steps: Sequence[Step]

    @property
    def hours(self) -> float:
        """Core hours of all steps."""
        return sum(step.hours for step in self.steps)

    @property
    def times(self) -> float:
        """The largest factor of all steps."""
        return max(step.times for step in self.steps)


def share_of_error(claims: Sequence[Decided]) -> float:
    """Return the p-value below which Holm's procedure decides a paper's next claim."""
    tested = [one for one in claims if one.p_value is not None]
    open_ = sum(one.verdict == "open" for one in tested)
    return ERROR / max(open_, 1)


# Prices.


def cheapest(one: Decided, share: float) -> Route | None:
    """Return the route with the fewest core hours to any verdict; None if there is none."""
    found = list(_routes(one, share))
    return min(found, key=lambda route: (route.hours, route.times), default=None)


def _routes(one: Decided, share: float) -> Iterator[Route]:
    counted = one.counted
    among, needed = len(counted), needed_regimes(one.claim)
    said = {here.verdict for here in counted} - {"open"}
    for verdict in FIRST:
        allowed = {verdict, "no difference"} if verdict == "contradicted" else {verdict}
        if said <= allowed:
            rest = among - needed + 1
            for place in range(1, rest + 1):
                steps = _cheapest_of(counted, verdict, share * place / rest)
                if len(steps) >= needed - 1 + place:
                    yield Route(verdict, steps[: needed - 1 + place])
    if among > 1:
        sides = [_cheapest_of(counted, verdict, share / among) for verdict in FIRST]
        for hold in sides[0][:2]:
            for against in [*sides[1][:2], *sides[2][:2]]:
                if hold.regime != against.regime:
                    yield Route("depends on the regime", [hold, against])


def _cheapest_of(counted: Sequence[Held], verdict: Verdict, p_value: float) -> list[Step]:
    steps = [step_to(here, verdict, p_value) for here in counted]
    return sorted((step for step in steps if step), key=lambda step: (step.hours, step.times))


def step_to(one: Held, verdict: Verdict, p_value: float) -> Step | None:
    """Return what a verdict in a regime takes at a p-value; None if no number of runs gives it."""
    parts = [part for part in one.parts if part.gap is not None]
    if verdict == "contradicted":
        # One comparison is enough against a claim; whoever picks it shares the error.
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
    if not math.isfinite(times) or len(parts) < len(one.parts):
        return None
    if times <= 1:
        return Step(one.regime, None, 1.0, 0.0)
    records: dict[tuple[str, str, str], float] = {}
    for needing, factor in needs.values():
        for record in _records(needing):
            records[record] = max(records.get(record, 1.0), factor)
    hours = sum((factor - 1) * _hours(*record) for record, factor in records.items())
    return Step(one.regime, part, times, hours)


def times_to(part: Judged, verdict: Verdict, p_value: float) -> float:
    """How many times the runs, or samples, would give a verdict, were the figure what it seems.

    Limits shrink by the root of what they rest on. Infinite if the figure lies on another side.
    """
    gap = part.gap
    assert gap is not None
    if gap.low is None or gap.high is None:
        # Which verdict these limits will give is not known.
        return math.inf if _lacks_limits(part) else FEWEST_RUNS / seeds_of(part)
    widths = beyond(part, verdict)
    if widths <= 0:
        return math.inf
    if math.isinf(widths):
        return 1.0
    if gap.method == BY_STUDENT and gap.seeds > 1:
        degrees = gap.seeds - 1
        reach = stdtrit(degrees, 1 - p_value / 2) / stdtrit(degrees, 1 - ERROR / 2)
    else:
        reach = -ndtri(p_value / 2) / LIMIT
    return max(1.0, float(reach / widths) ** 2)


def _records(part: Judged) -> Iterator[tuple[str, str, str]]:
    """Records, and points of games, that a comparison rests on."""
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
        points = sum(asked.figure == "games" for asked in rows(study, "") or {})
    return seconds_of(study, variant) / 3600 / points


def hours_spent(study: str) -> float:
    """What all records of a study took, in hours."""
    paths = (RECORDS / study).glob(f"{study}*.json")
    variants = [path.stem.removeprefix(study).removeprefix("-") for path in paths]
    return sum(seconds_of(study, variant) for variant in variants) / 3600


def _lacks_limits(part: Judged) -> bool:
    """Whether a figure has no limits, and more seeds would not give any."""
    gap = part.gap
    is_of_games = regimes()[part.regime].kind == "games"
    return gap is not None and gap.low is None and (is_of_games or gap.seeds >= FEWEST_RUNS)


# In words.


def why(one: Decided, share: float, tested: int, scale: str = "") -> str:
    """Say where a claim is decided, and of an open one what would settle it.

    Args:
        one: The claim.
        share: The p-value below which it would be decided.
        tested: Claims of its paper that were tested.
        scale: The scale of regimes that are smaller than the paper.
    """
    claim, counted = one.claim, one.counted
    if claim.not_run:
        return claim.not_run
    if one.verdict == "not run":
        return "; ".join(_not_run(here) for here in one.held)
    if one.verdict == "depends on the regime":
        return "; ".join(f"{SAID[h.verdict]} `{h.regime}`" for h in counted if h.verdict in SAID)
    if one.verdict != "open":
        return "; ".join(filter(None, [_where(one), scale]))
    here = [_state(held) for held in one.held if held.verdict in SAID or held.wanting]
    if one.by_itself != "open" and one.p_value is not None:
        here.append(
            f"{one.by_itself} by itself (p = {one.p_value:.2g}), but not after correction over "
            f"{tested} claims"
        )
    return "; ".join([*here, f"to settle it: {_settling(one, share)}"])


def _where(one: Decided) -> str:
    alike = SAID if one.verdict in ("contradicted", "not found at this scale") else {}
    verdict = "contradicted" if alike else one.verdict
    there, among = sum(held.verdict == verdict for held in one.counted), len(one.counted)
    if among == 1:
        return "in one regime"
    return "" if there == among else f"in {there} of {among} regimes, open in the others"


def _state(one: Held) -> str:
    if one.wanting == "leak":
        return _no_leak(one.regime)
    if one.wanting == "seeds":
        return f"`{one.regime}` does not count with one seed"
    return f"{SAID[one.verdict]} `{one.regime}`"


def _settling(one: Decided, share: float) -> str:
    route = cheapest(one, share)
    if route is not None:
        taken = [(step.part, step.times) for step in route.steps if step.part is not None]
        said = "; ".join(more_of(part, times) for part, times in taken)
        if any(is_level(part, times) for part, times in taken):
            return said
        if said:
            hours = f"about {route.hours:.1f}" if route.hours >= 0.05 else "less than 0.1"
            return f"{said} (then {_VERDICTS[route.verdict]}; {hours} core hours)"
    more = [*_one_seed(one), *(_not_run(here) for here in one.held if here.verdict == "not run")]
    more += [
        f"a record of `{part.regime}` with limits of {part.test.one.figure or part.test.figure}"
        for here in one.counted
        for part in here.parts
        if _lacks_limits(part)
    ][:1]
    if len(one.counted) < needed_regimes(one.claim):
        if more:
            return "; or ".join(more)
        another = "a second regime" if one.counted else "a regime"
        return f"{another} {_that_counts(one.claim)}"
    return "; or ".join(more) or (
        "another margin or a narrower sentence, as more of the same runs would not do"
    )


def _one_seed(one: Decided) -> list[str]:
    return [
        f"{FEWEST_SEEDS} seeds of `{here.regime}` or more (1 so far)"
        for here in one.held
        if here.wanting == "seeds"
    ]


def _that_counts(claim: Claim) -> str:
    if not claim.leaks:
        return "with another data set or network"
    asked = {
        "membership": "an undefended attack with an AUC of 0.7",
        "sources": "an undefended attack that names the owner ten points more often than the label "
        "distribution allows",
        "clusters": "a model whose real risk is 60 %",
        "games": "a server that is right in 70 % of games where nothing is randomised",
    }[regimes()[claim.regimes[0]].kind]
    return f"that leaks ({asked})"


def _no_leak(name: str) -> str:
    if leak_of(name) is None:
        return f"whether `{name}` leaks is not known, its base was not run"
    return f"nothing leaks in `{name}`"


def _not_run(one: Held) -> str:
    lacking = list(dict.fromkeys(part.lacking for part in one.parts if part.lacking))
    regime = regimes()[one.regime]
    if rows(regime.study, regime.base) is None:
        hours = f" ({regime.hours:.1f} h planned)" if regime.hours else ""
        return f"`{one.regime}` was not run{hours}"
    more = f", nor {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return f"{lacking[0]}{more}"


def is_level(part: Judged, times: float) -> bool:
    """Whether a figure counts as level with its margin: more than a thousand seeds or times."""
    return times * (seeds_of(part) if _rests_on(part) == "seeds" else 1) > MANY


def more_of(part: Judged, times: float) -> str:
    """So many times of what an interval rests on, in words."""
    assert part.gap is not None
    name, seeds = f"`{part.regime}`", seeds_of(part)
    if part.gap.low is None:
        return f"{FEWEST_RUNS} seeds of {name} ({seeds} so far), from which on there are limits"
    if is_level(part, times):
        return f"another margin: {part.gap.value:.4f} in {name} is too close to a limit of it"
    rests = _rests_on(part)
    if rests == "seeds":
        count = max(math.ceil(times * seeds), seeds + 1)
        return f"some {count:,} seeds of {name} ({seeds} so far)"
    said = f"some {_round_up(times)} times the {rests} of {name}"
    return f"{said}, or accuracies paired by sample" if rests == "test samples" else said


def _round_up(times: float) -> str:
    return f"{math.ceil(times):,}" if times > 10 else f"{math.ceil(10 * times) / 10:g}"


def _rests_on(part: Judged) -> str:
    """What there must be more of for a narrower interval."""
    figure = part.test.one.figure or part.test.figure
    if regimes()[part.regime].kind == "games":
        games = {"epochs": "targets", "uncertified": "targets", "spread_auc": "copies"}
        rest = "detector's runs" if figure == "detector_auc" else "games, with these targets,"
        return games.get(figure, rest)
    assert part.gap is not None
    if part.gap.method == BY_STUDENT:
        return "seeds"
    # Their errors do not cancel over runs (fedaudit.results.aggregate).
    if figure == "test_accuracy":
        return "test samples"
    return "members and non-members" if "@" in figure else "seeds"
