"""The page of claims, from claims and records: which of the papers' claims hold, and where.

python docs/claims.py                     writes docs/claims.md anew
python docs/claims.py --check             says whether the page is what claims and records give
python docs/claims.py --pairs RUNS NAME   takes the paired differences of AUCs that claims name from
                                          the folders of a study's runs into claims/pairs/NAME.json

`claims/regimes.toml` names the regimes, `claims/PAPER.toml` the claims. Nobody writes a verdict by
hand.
"""

import math
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter
from scipy.special import ndtr

from fedaudit.errors import BadInput
from fedaudit.files import SCORES_FILE, write_whole
from fedaudit.metrics import Limited, averaged
from fedaudit.metrics.intervals import clopper_pearson
from fedaudit.results.aggregate import (
    Value,
    Values,
    difference,
    gap_between,
    mean_of,
    over_gaps,
)
from fedaudit.results.clusters import MODEL_RISK
from fedaudit.results.comparison import Difference
from fedaudit.results.older import completed
from fedaudit.results.read import read_games, read_record
from fedaudit.results.record import Record
from fedaudit.results.sources import SourceResult
from fedaudit.study.sample_scores import paired_auc, read_scores

ROOT = Path(__file__).parents[1]
CLAIMS, RECORDS, PAGE = ROOT / "claims", ROOT / "records", ROOT / "docs" / "claims.md"
TAKEN = CLAIMS / "pairs"
LEAST = {"membership": (0.7, 0.65), "sources": (0.1, 0.0), "clusters": (0.6, 0.55)}
"""From which figure and lower limit on a regime leaks, by what an adversary asks there."""
NO_LEAK = "nothing there to leak"
ERROR = 0.05
MOST_SEEDS = 1000

Verdict = Literal["confirmed", "contradicted", "no difference", "open", "not run"]
VERDICTS: tuple[Verdict, ...] = ("confirmed", "contradicted", "no difference", "open", "not run")


class Part(BaseModel):
    """A table of a claims file: no unknown key."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Regime(Part):
    """Where claims are tested.

    Attributes:
        study: Folder of records.
        title: Data, network and sizes, for the table.
        kind: What an adversary asks: decides what it means that the regime leaks.
        leak: The undefended attack, named beforehand, by which it is judged whether it leaks.
        base: Variant that is the regime undefended; empty for the study itself.
        hours: What its records take, as stated before they were made.
        contrast: Whether it is there to show what is found where hardly anything leaks.
    """

    study: str
    title: str
    kind: Literal["membership", "sources", "clusters", "games"] = "membership"
    leak: str = ""
    base: str = ""
    hours: str
    contrast: bool = False


class Term(Part):
    """One side of a comparison: a figure of a variant, or a number.

    Attributes:
        study: Folder of records, where that is not the regime's.
        variant: Of the regime's study; None for its base.
        attack: Whose figure it is, where it is an attack's; of games a point's label.
        attacks: Instead, several whose mean it is.
        target: Audited client; the first of the study's if left out.
        group: Of clients, for figures of clustered learning.
        figure: The figure, where it is another than the test's.
        value: A number instead of a figure.
    """

    study: str = ""
    variant: str | None = None
    attack: str = ""
    attacks: list[str] = []
    target: int | None = None
    group: str = "everybody"
    figure: str = ""
    value: float | None = None


class Test(Part):
    """One comparison: one less other, held against a margin.

    Attributes:
        figure: "auc", "tpr@0.001", "test_accuracy", "generalisation_gap", "success",
            "over_label_baseline", a figure of clustered learning, or "adv" of games.
        contrast: Of figures about membership.
        one: The figure that the claim is about.
        others: What it is held against, each by itself.
        direction: Where the claim says that one lies.
        margin: How far, in the figure's own unit; for "near", how far apart at most.
    """

    figure: str = "auc"
    contrast: str = "mixed"
    one: Term
    others: list[Term]
    direction: Literal["above", "below", "near"] = "above"
    margin: float = 0.0


class Claim(Part):
    """What a paper says, and the test of it.

    Attributes:
        id: For links and commands.
        says: In our words.
        where: Table, figure or section.
        theirs: The paper's own figures.
        regimes: Where it is tested, by name.
        tests: All of which must hold.
        leaks: Whether it can only be judged where there is something to leak.
        tier: 1 for what needs two regimes.
        not_run: Why there is no test of it.
        note: What to bear in mind.
    """

    id: str
    says: str
    where: str
    theirs: str
    regimes: list[str] = []
    tests: list[Test] = []
    leaks: bool = True
    tier: Literal[1, 2] = 1
    not_run: str = ""
    note: str = ""


class Paper(Part):
    """The claims of one paper."""

    name: str
    title: str
    claim: list[Claim]


class Side(Part):
    """One side of a paired difference: a variant's folder and an attack."""

    variant: str
    attack: str


class Pair(Part):
    """A paired difference of AUCs: what claims rest on, since records have no scores.

    Attributes:
        one: Whose AUC it is.
        other: Whose is subtracted, on the same samples.
        target: The audited client of both.
        seeds: Runs that were paired.
        value: The mean difference over these runs.
        low: Lower limit for these runs.
        high: Upper limit.
        further_low: What further runs would give, from five seeds on.
        further_high: Its upper limit.
    """

    one: Side
    other: Side
    contrast: str
    target: int
    seeds: list[int]
    value: float
    low: float
    high: float
    method: str
    further_low: float | None = None
    further_high: float | None = None


PAIRS = TypeAdapter(list[Pair])


class Found(NamedTuple):
    """A figure, or a difference of two, with what these runs allow of it."""

    value: float
    low: float | None
    high: float | None
    method: str
    seeds: int
    further: tuple[float, float] | None = None


class Judged(NamedTuple):
    """What came of one comparison in one regime."""

    regime: str
    test: Test
    other: Term
    verdict: Verdict
    one: Found | None = None
    held_against: Found | None = None
    gap: Found | None = None
    why: str = ""


@cache
def regimes() -> dict[str, Regime]:
    """All regimes by name."""
    text = (CLAIMS / "regimes.toml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Regime]).validate_python(tomllib.loads(text))


@cache
def papers() -> list[Paper]:
    """All papers in the order of their files' names, with their claims."""
    found = [
        Paper.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        for path in sorted(CLAIMS.glob("*.toml"))
        if path.name != "regimes.toml"
    ]
    ids = Counter(claim.id for paper in found for claim in paper.claim)
    twice = [name for name, times in ids.items() if times > 1]
    if twice:
        raise BadInput(f"two claims are called {twice[0]!r}; give each a name of its own")
    return found


# The records: all that a claim asks of one goes through `rows`.


class Asked(NamedTuple):
    """What names a figure of a record."""

    figure: str
    attack: str = ""
    contrast: str = ""
    target: int | None = None
    group: str = "everybody"


@cache
def rows(study: str, variant: str) -> Mapping[Asked, Values] | None:
    """All figures of a record by seed; None where there is no such record."""
    path = RECORDS / study / f"{named(study, variant)}.json"
    if not path.is_file():
        return None
    found: dict[Asked, dict[int | None, Value]] = {}
    figures = _of_games(path) if regime_is_of_games(study) else _figures(record_at(path))
    for asked, seed, value in figures:
        found.setdefault(asked, {})[seed] = value
    return {asked: {s: {None: v} for s, v in by.items()} for asked, by in found.items()}


def named(study: str, variant: str) -> str:
    """What a variant of a study is called, as its folder and its record are."""
    return f"{study}-{variant}" if variant else study


@cache
def record_at(path: Path) -> Record:
    """A record as this version would have written it."""
    return completed(read_record(path))


def regime_is_of_games(study: str) -> bool:
    """Whether a folder's record is of security games."""
    return any(one.study == study and one.kind == "games" for one in regimes().values())


def _of_games(path: Path) -> Iterator[tuple[Asked, int | None, Value]]:
    """Points by their label, in the place of attacks."""
    for point in read_games(path).points:
        adv = Value(point.adv.value, point.adv.low, point.adv.high, point.adv.method)
        yield Asked("adv", point.label), None, adv
        if point.held_out is not None:
            yield Asked("held_out", point.label), None, Value(point.held_out)
        if point.epochs is not None:
            epochs = Value(point.epochs.value, point.epochs.low, point.epochs.high)
            yield Asked("epochs", point.label), None, epochs


def _figures(record: Record) -> Iterator[tuple[Asked, int | None, Value]]:
    for f in record.findings:
        if f.value is not None and f.attack:
            asked = Asked(f.metric, f.attack, f.contrast, f.target)
            # A rate with too few non-members for a lower limit above 0 has that one.
            low = 0.0 if f.low is None and f.high is not None else f.low
            yield asked, f.seed, Value(f.value, low, f.high, f.method, f.metric == "auc")
    for u in record.utility:
        of = Value(u.test_accuracy, u.test_low, u.test_high, "Clopper-Pearson 95%")
        yield Asked("test_accuracy"), u.seed, of
        yield Asked("train_accuracy"), u.seed, Value(u.train_accuracy)
        yield Asked("generalisation_gap"), u.seed, Value(u.generalisation_gap)
    for run in record.sources:
        for name, of in _of_sources(run):
            yield Asked(name, run.attack), run.seed, of
    for mean in record.cluster_means:
        of = Value(mean.value, mean.low, mean.high, mean.method)
        yield Asked(mean.figure, group=mean.group), None, of
        if len(mean.seeds) > 1 or mean.low is None:
            for seed, value in zip(mean.seeds, mean.values, strict=True):
                yield Asked(mean.figure, group=mean.group), seed, Value(value)


def _of_sources(run: SourceResult) -> Iterator[tuple[str, Value]]:
    """What a source attack found in one run, and what of it is beyond class mixes."""
    method = "Clopper-Pearson 95%"

    def named(share: float) -> Value:
        low, high = clopper_pearson(round(share * run.samples), run.samples)
        return Value(share, low, high, method, cancels=True)

    success = named(run.success)
    yield "success", success
    # A mean over a thousand shuffles: its own error is small beside that of the success.
    mixes = Value(run.by_class_mix, run.by_class_mix, run.by_class_mix, "", cancels=True)
    yield "excess", gap_between(success, mixes)
    if run.label_baseline is not None:
        # On the same samples, which are rather named together than apart: wide enough.
        yield "over_label_baseline", gap_between(success, named(run.label_baseline))
    if run.by_round:
        yield "best_round", named(max(run.by_round))
        yield "least_round", named(min(run.by_round))
    if run.overfitting:
        yield "overfitting", Value(fmean(abs(gap) for gap in run.overfitting))


@cache
def pairs(study: str) -> Sequence[Pair]:
    """The paired differences that were taken from a study's runs."""
    path = TAKEN / f"{study}.json"
    return PAIRS.validate_json(path.read_bytes()) if path.is_file() else ()


# What a comparison gives.


def judged(claim: Claim) -> list[Judged]:
    """Every comparison of a claim in every regime that it names, before correction."""
    return [
        one
        for regime in claim.regimes
        for test in claim.tests
        for other in test.others
        for one in [_judged(claim, regime, test, other)]
    ]


def _judged(claim: Claim, name: str, test: Test, other: Term) -> Judged:
    regime = regimes()[name]
    one, against = _found(regime, test, test.one), _found(regime, test, other)
    for term, found in ((test.one, one), (other, against)):
        if found is None:
            return Judged(name, test, other, "not run", one, against, None, _lacking(regime, term))
    assert one is not None
    assert against is not None
    gap = _gap(regime, test, other)
    if claim.leaks and not leaks(name):
        why = NO_LEAK if leak_of(name) is not None else f"{regime.study} itself was not run"
        return Judged(name, test, other, "open", one, against, gap, why)
    if gap is None or gap.low is None or gap.high is None:
        return Judged(name, test, other, "open", one, against, gap, "no limits")
    verdict = _verdict(test, gap.low, gap.high)
    why = _wanting(test, gap) if verdict == "open" else ""
    return Judged(name, test, other, verdict, one, against, gap, why)


def _lacking(regime: Regime, term: Term) -> str:
    what = named(term.study or regime.study, _variant(regime, term))
    return f"{what} has no such record or figure"


def _variant(regime: Regime, term: Term) -> str:
    return regime.base if term.variant is None else term.variant


def _values(regime: Regime, test: Test, term: Term) -> Values | None:
    study = term.study or regime.study
    known = rows(study, _variant(regime, term))
    if known is None:
        return None
    figure = term.figure or test.figure
    member = figure == "auc" or "@" in figure or figure == "balanced_accuracy"
    target = (term.target if term.target is not None else _first_target(known)) if member else None
    contrast = test.contrast if member else ""
    parts = [
        known.get(Asked(figure, attack, contrast, target, term.group))
        for attack in term.attacks or [term.attack]
    ]
    there = [part for part in parts if part is not None]
    return None if len(there) < len(parts) else there[0] if len(there) == 1 else mean_of(there)


def _first_target(known: Mapping[Asked, Values]) -> int | None:
    targets = [asked.target for asked in known if asked.target is not None]
    return min(targets) if targets else None


def _found(regime: Regime, test: Test, term: Term) -> Found | None:
    """A figure over the runs of its record."""
    if term.value is not None:
        return Found(term.value, term.value, term.value, "", 0)
    values = _values(regime, test, term)
    return None if values is None else _over_runs(values)


def _over_runs(values: Values) -> Found:
    by_seed = {seed: by[None] for seed, by in values.items() if seed is not None}
    whole = values[None][None] if None in values else None
    if len(by_seed) == 1 or (whole and (whole.low is not None or not by_seed)):
        one = whole or next(iter(by_seed.values()))
        return Found(one.value, one.low, one.high, one.method, max(len(by_seed), 1))
    mean = over_gaps(list(by_seed.values()))
    assert mean is not None
    return _settled(_as_found(mean))


def _gap(regime: Regime, test: Test, other: Term) -> Found | None:
    """One less other: paired by sample where the runs were, else by seed, else by their limits."""
    if other.value is not None:
        found = _found(regime, test, test.one)
        return found and _shifted(found, other.value)
    paired = _paired(regime, test, other)
    if paired is not None:
        return paired
    one, against = _values(regime, test, test.one), _values(regime, test, other)
    if one is None or against is None:
        return None
    if all(set(side) != {None} for side in (one, against)):
        gap = difference(one, against)
        if gap is not None:
            found = _as_found(gap)
            if found.low is not None or found.further is not None:
                return _settled(found)
    return _settled(_apart(_over_runs(one), _over_runs(against)))


def _as_found(gap: Difference) -> Found:
    further = gap.further
    wide = (
        (further.low, further.high)
        if further and further.low is not None and further.high is not None
        else None
    )
    return Found(gap.value, gap.low, gap.high, gap.method, gap.runs or 1, wide)


def _settled(found: Found) -> Found:
    """With the limits for further runs where nothing makes any for these: counts of clients."""
    if found.low is not None or found.further is None:
        return found
    low, high = found.further
    return found._replace(low=low, high=high, method="Student's t over runs")


def _shifted(found: Found, number: float) -> Found:
    low = None if found.low is None else found.low - number
    high = None if found.high is None else found.high - number
    return found._replace(value=found.value - number, low=low, high=high)


def _apart(one: Found, other: Found) -> Found:
    gap, seeds = one.value - other.value, min(one.seeds, other.seeds)
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Found(gap, None, None, "", seeds)
    low = gap - math.hypot(one.value - one.low, other.high - other.value)
    high = gap + math.hypot(one.high - one.value, other.value - other.low)
    return Found(gap, low, high, "separate limits combined", seeds)


def _paired(regime: Regime, test: Test, other: Term) -> Found | None:
    if test.figure != "auc" or test.one.study or other.study:
        return None
    found = [
        pair
        for one, against in _sides(regime, test.one, other)
        for pair in pairs(regime.study)
        if (pair.one, pair.other, pair.contrast) == (one, against, test.contrast)
        and test.one.target in (None, pair.target)
    ]
    if not found or len(found) < len(_sides(regime, test.one, other)):
        return None
    if len(found) > 1:
        # Attacks of one run rest on the same samples.
        low, high = averaged([Limited(pair.value, pair.low, pair.high) for pair in found])
        value = fmean(pair.value for pair in found)
        method = f"{found[0].method}, limits of {len(found)} attacks averaged"
        return Found(value, low, high, method, len(found[0].seeds))
    (pair,) = found
    wide = (
        (pair.further_low, pair.further_high)
        if pair.further_low is not None and pair.further_high is not None
        else None
    )
    return Found(pair.value, pair.low, pair.high, pair.method, len(pair.seeds), wide)


def _sides(regime: Regime, one: Term, other: Term) -> list[tuple[Side, Side]]:
    """The pairs of attacks that a difference of AUCs is made of: one, or attack by attack."""
    variants = _variant(regime, one), _variant(regime, other)
    attacks = [term.attacks or [term.attack] for term in (one, other)]
    if len(attacks[0]) != len(attacks[1]):
        raise BadInput(f"means over {len(attacks[0])} and {len(attacks[1])} attacks make no pairs")
    return [
        (Side(variant=variants[0], attack=first), Side(variant=variants[1], attack=second))
        for first, second in zip(*attacks, strict=True)
    ]


def _verdict(test: Test, low: float, high: float) -> Verdict:
    """Beyond the margin, within it, on the other side of nothing, or none of these."""
    margin = test.margin
    if test.direction == "near":
        if -margin <= low and high <= margin:
            return "confirmed"
        return "contradicted" if low > margin or high < -margin else "open"
    if test.direction == "below":
        low, high = -high, -low
    if low > margin:
        return "confirmed"
    if -margin <= low and high <= margin:
        return "no difference"
    return "contradicted" if high < 0 else "open"


def _wanting(test: Test, gap: Found) -> str:
    """How many runs like these would settle it, were the difference what it seems to be."""
    assert gap.low is not None
    assert gap.high is not None
    seems = -gap.value if test.direction == "below" else gap.value
    bounds = (-test.margin, test.margin) if test.direction == "near" else (0.0, test.margin)
    away = min(abs(seems - bound) for bound in bounds)
    half = (gap.high - gap.low) / 2
    needed = math.ceil(max(gap.seeds, 1) * (half / away) ** 2) if away > 0 else MOST_SEEDS + 1
    if needed > MOST_SEEDS:
        return "the difference lies at the margin itself; no number of seeds up to 1,000 tells"
    return f"some {needed} seeds like these would settle it"


@cache
def leaks(name: str) -> bool:
    """Whether an undefended attack named beforehand finds enough in a regime."""
    kind, found = regimes()[name].kind, leak_of(name)
    if kind == "games":
        return True
    if found is None:
        return False
    value, low = LEAST[kind]
    return found.value >= value and (found.low or 0.0) >= low


def leak_of(name: str) -> Found | None:
    """What that attack finds; of models of clustered learning the riskiest's real risk."""
    regime = regimes()[name]
    if regime.kind == "clusters":
        test = Test(figure=MODEL_RISK, one=Term(), others=[])
        groups = [_found(regime, test, Term(group=group)) for group in ("majority", "minority")]
        return max((one for one in groups if one), key=lambda one: one.low or 0.0, default=None)
    figure = "over_label_baseline" if regime.kind == "sources" else "auc"
    return _found(regime, Test(figure=figure, one=Term(), others=[]), Term(attack=regime.leak))


# One verdict a claim.


class Decided(NamedTuple):
    """A claim with its verdict and everything behind it."""

    claim: Claim
    verdict: Verdict
    parts: Sequence[Judged]
    why: str


def decided(paper: Paper) -> list[Decided]:
    """All claims of a paper; comparisons that are decided share one error by Holm's procedure."""
    by_claim = [(claim, judged(claim)) for claim in paper.claim]
    sure = _held(part for _, parts in by_claim for part in parts)
    return [_decided(claim, [sure.get(id(p), p) for p in parts]) for claim, parts in by_claim]


def _held(parts: Iterable[Judged]) -> dict[int, Judged]:
    """Those decided comparisons that do not hold after correction, made open."""
    decided = [part for part in parts if part.verdict in ("confirmed", "contradicted")]
    ordered = sorted((_p_value(part), at) for at, part in enumerate(decided))
    largest, changed = 0.0, dict[int, Judged]()
    for rank, (p_value, at) in enumerate(ordered):
        largest = max(largest, p_value * (len(ordered) - rank))
        if largest > ERROR:
            why = "not after correction over the claims of this paper"
            changed[id(decided[at])] = decided[at]._replace(verdict="open", why=why)
    return changed


def _p_value(part: Judged) -> float:
    """Two-sided, by the normal distribution that the interval stands for."""
    gap = part.gap
    assert gap is not None
    assert gap.low is not None
    assert gap.high is not None
    error = (gap.high - gap.low) / (2 * 1.959963984540054)
    if part.test.direction == "near":
        distance = min(abs(gap.value - part.test.margin), abs(gap.value + part.test.margin))
    else:
        # Against the claim it is enough to lie on the other side of nothing.
        margin = part.test.margin if part.verdict == "confirmed" else 0.0
        distance = abs(gap.value) - margin
    return float(2 * ndtr(-distance / error)) if error > 0 else 0.0


def _decided(claim: Claim, parts: Sequence[Judged]) -> Decided:
    if claim.not_run:
        return Decided(claim, "not run", (), claim.not_run)
    run = [part for part in parts if part.verdict != "not run"]
    if not run:
        return Decided(claim, "not run", parts, parts[0].why if parts else "no test")
    counted = [part for part in run if part.why != NO_LEAK]
    if not counted:
        return Decided(claim, "open", parts, "nothing leaks in the regimes that were run")
    said = {part.verdict for part in counted}
    missing = len(run) < len(parts)
    if said == {"confirmed"} and not missing:
        return Decided(claim, "confirmed", parts, _in_few(claim, counted))
    if "contradicted" in said:
        for_it = [name for name in claim.regimes if _all_of(counted, name, "confirmed")]
        if not for_it:
            return Decided(claim, "contradicted", parts, _in_few(claim, counted))
        return Decided(claim, "open", parts, "regimes disagree")
    if said <= {"confirmed", "no difference"} and not missing:
        return Decided(claim, "no difference", parts, _in_few(claim, counted))
    if missing:
        return Decided(claim, "open", parts, _so_far(claim, parts))
    reasons = [part.why for part in counted if part.why]
    return Decided(claim, "open", parts, max(reasons, key=_seeds_in))


def _so_far(claim: Claim, parts: Sequence[Judged]) -> str:
    """Where a claim holds as yet, where it does not, and where it waits for a record."""
    said = []
    for name in claim.regimes:
        here = [part.verdict for part in parts if part.regime == name]
        if "not run" in here:
            said.append(f"`{name}` was not run")
        elif set(here) == {"confirmed"}:
            said.append(f"holds in `{name}`")
        elif "contradicted" in here:
            said.append(f"does not hold in `{name}`")
    return "; ".join(said)


def _seeds_in(why: str) -> int:
    digits = [word for word in why.split() if word.isdecimal()]
    return int(digits[0]) if digits else MOST_SEEDS + len(why)


def _all_of(parts: Sequence[Judged], regime: str, verdict: Verdict) -> bool:
    here = [part.verdict for part in parts if part.regime == regime]
    return bool(here) and all(one == verdict for one in here)


def _in_few(claim: Claim, parts: Sequence[Judged]) -> str:
    few = len({part.regime for part in parts}) < 2
    return "in one regime" if few else ""


# Paired differences, from the folders of runs.


def wanted_pairs(study: str) -> list[tuple[Side, Side, str, int | None]]:
    """The differences of AUCs that claims ask of a study's runs."""
    found = {}
    for paper in papers():
        for claim in paper.claim:
            for regime in (regimes()[name] for name in claim.regimes):
                if regime.study == study:
                    for one, other, test in _of_attacks(claim.tests):
                        for sides in _sides(regime, one, other):
                            of = (*sides, test.contrast, one.target)
                            found[repr(of)] = of
    return list(found.values())


def _of_attacks(tests: Sequence[Test]) -> Iterator[tuple[Term, Term, Test]]:
    for test in tests:
        for other in test.others:
            in_place = other.value is None and not (test.one.study or other.study)
            if test.figure == "auc" and in_place:
                yield test.one, other, test


def take_pairs(runs: Path, study: str) -> int:
    """Writes the paired differences that claims ask of a study; how many there are.

    Args:
        runs: The folder that holds a folder for each variant.
        study: Its name, that of the folder of records.

    Raises:
        BadInput: There are no runs with scores, or no claim asks for pairs of them.
    """
    scores = {path.parent.name: read_scores(path) for path in sorted(runs.glob(f"*/{SCORES_FILE}"))}
    wanted = wanted_pairs(study)
    if not scores or not wanted:
        lacking = f"{SCORES_FILE} below {runs}" if not scores else f"claim about pairs of {study}"
        raise BadInput(f"there is no {lacking}; give the folder of the study's runs, and its name")
    found = []
    for one, other, contrast, target in wanted:
        sides = [scores.get(named(study, side.variant)) for side in (one, other)]
        if sides[0] is None or sides[1] is None:
            print(f"no runs yet for {one} and {other}")
            continue
        least = min(client for _, client in sides[0])
        whose = least if target is None else target
        seeds = sorted(s for s, client in sides[0] if client == whose and (s, whose) in sides[1])
        try:
            taken = [
                paired_auc(
                    sides[0][seed, whose], one.attack, sides[1][seed, whose], other.attack, contrast
                )
                for seed in seeds
            ]
        except BadInput as error:
            # Other clients, samples or class mixes: the difference is that of the records' figures.
            print(f"not paired, {one.variant or study} and {other.variant or study}: {error}")
            continue
        gap = over_gaps([Value(d.value, d.low, d.high, d.method, cancels=True) for d in taken])
        if gap is None or gap.low is None or gap.high is None:
            continue
        found.append(
            Pair(
                one=one,
                other=other,
                contrast=contrast,
                target=whose,
                seeds=seeds,
                value=gap.value,
                low=gap.low,
                high=gap.high,
                method=taken[0].method if len(taken) == 1 else gap.method,
                further_low=gap.further.low if gap.further else None,
                further_high=gap.further.high if gap.further else None,
            )
        )
    TAKEN.mkdir(exist_ok=True)
    write_whole(TAKEN / f"{study}.json", PAIRS.dump_json(found, indent=0).decode() + "\n")
    return len(found)


# The page.

INTRODUCTION = """# The papers' claims

What five papers say, and what comes out here, claim by claim. `python docs/claims.py` makes this
page from the claims (`claims/*.toml`) and the records (`records/`), verdicts and all; a test holds
it to them.

- **confirmed**: the 95% interval of the difference lies on the claimed side of the claim's margin,
  in every regime that counts.
- **no difference**: it lies within the margin, on either side.
- **contradicted**: it lies on the other side, in one regime at least, and all that the claim says
  holds in none.
- **open**: none of these, or nothing there to leak. What would settle it stands beside it.
- **not run**: and why.

Differences of AUCs are paired by sample within a run (DeLong), others by seed or by their separate
limits; over seeds the interval is that of these runs. Decided claims of one paper share an error of
5% (Holm). A regime *leaks* where the attack that was named beforehand has an AUC of 0.7 or more
against all non-members, with a lower limit of 0.65 or more, undefended; for sources, where it names
the owner ten points more often than the label distribution allows; for clustered learning, where
a model's real risk is 60 % or more, with a lower limit of 55 %. Claims about attacks and defenses
are judged nowhere else.

To make a regime's rows again, carry out its study and take its records and pairs; in minutes, for
instance, with D the folder of the data sets:

```
fedaudit run studies/fedmia-location30.toml --variant all --data-dir D --out runs/fedmia-location30
python records/keep.py runs/fedmia-location30
python docs/claims.py --pairs runs/fedmia-location30 fedmia-location30
python docs/claims.py
```

All of them take the hours that stand with the [regimes](#regimes), below.
"""


def page() -> str:
    """The whole page."""
    found = [(paper, decided(paper)) for paper in papers()]
    parts = [INTRODUCTION.rstrip(), _tally(found)]
    parts += [_section(paper, rows) for paper, rows in found]
    parts.append(_regimes_table())
    return "\n\n".join(parts) + "\n"


def _tally(found: Sequence[tuple[Paper, Sequence[Decided]]]) -> str:
    lines = [_row(["paper", "claims", *VERDICTS]), _row(["---"] * (2 + len(VERDICTS)))]
    total = Counter[Verdict]()
    for paper, claims in found:
        counts = Counter(one.verdict for one in claims)
        total += counts
        link = f"[{paper.name}](#{paper.name.lower()})"
        lines.append(_row([link, str(len(claims)), *(str(counts[v]) for v in VERDICTS)]))
    lines.append(_row(["all", str(total.total()), *(str(total[v]) for v in VERDICTS)]))
    return "\n".join(lines)


def _regimes_table() -> str:
    head = [
        "regime",
        "what",
        "seeds",
        "training / test accuracy",
        "leaks?",
        "hours stated",
        "spent",
    ]
    lines = ["## Regimes", "", _row(head), _row(["---"] * len(head))]
    for name, regime in regimes().items():
        link = f"[`{name}`](results/{regime.study}.md)" if _is_recorded(regime) else f"`{name}`"
        lines.append(_row([link, regime.title, *_regime_cells(name, regime)]))
    return "\n".join(lines)


def _is_recorded(regime: Regime) -> bool:
    return any((RECORDS / regime.study).glob(f"{regime.study}*.json"))


def _regime_cells(name: str, regime: Regime) -> list[str]:
    known = rows(regime.study, regime.base)
    if known is None:
        return ["", "", "not run", regime.hours, ""]
    accuracies = [known.get(Asked(figure)) for figure in ("train_accuracy", "test_accuracy")]
    both = " / ".join(_percent(_over_runs(one).value) for one in accuracies if one)
    seeds = str(len([seed for seed in accuracies[1] if seed is not None])) if accuracies[1] else ""
    return [seeds, both, _leak_words(name, regime), regime.hours, _spent(regime.study)]


def _leak_words(name: str, regime: Regime) -> str:
    if regime.kind == "games":
        return "by the server's own doing"
    found = leak_of(name)
    if found is None:
        return "not known"
    figure = {
        "membership": f"{regime.leak} AUC",
        "sources": f"{regime.leak} over the label distribution",
        "clusters": "real risk of the riskiest model",
    }[regime.kind]
    return f"**{'yes' if leaks(name) else 'no'}**: {figure} {_shown(found)}"


def _spent(study: str) -> str:
    """Hours of the records that say how long they took."""
    paths = list((RECORDS / study).glob("*.json"))
    if regime_is_of_games(study):
        seconds = [read_games(path).environment.seconds or 0.0 for path in paths]
    else:
        seconds = [_seconds(record_at(path)) for path in paths]
    return f"{sum(seconds) / 3600:.1f} h, {len(paths)} {'record' if len(paths) == 1 else 'records'}"


def _seconds(record: Record) -> float:
    """What a record took; of runs that were attacked again at least their training."""
    return max(record.environment.seconds or 0.0, sum(row.seconds for row in record.usage))


def _section(paper: Paper, claims: Sequence[Decided]) -> str:
    lines = [f"## {paper.name}", "", f"*{paper.title}*", ""]
    head = ["verdict", "the paper says", "its figures", "here"]
    lines += [_row(head), _row(["---"] * len(head))]
    for one in claims:
        note = f"<br>*{one.claim.note}*" if one.claim.note else ""
        verdict = f"**{one.verdict}**" + (f"<br>{one.why}" if one.why else "")
        says = f"<a id='{one.claim.id}'></a>{one.claim.says}{note}"
        theirs = f"{one.claim.where}: {one.claim.theirs}"
        here = "<br>".join(_here(one.parts)) or "–"
        lines.append(_row([verdict, says, theirs, here]))
    return "\n".join(lines)


def _here(parts: Sequence[Judged]) -> list[str]:
    """For each regime and test one line: all that it was held against, the hardest first."""
    groups: dict[tuple[str, int], list[Judged]] = {}
    for part in parts:
        groups.setdefault((part.regime, id(part.test)), []).append(part)
    return [_line(group) for group in groups.values()]


def _line(group: Sequence[Judged]) -> str:
    first = group[0]
    there = [part for part in group if part.gap is not None]
    if not there or first.one is None:
        return f"`{first.regime}`: {first.why}"
    hardest, *rest = sorted(there, key=_ease)
    head = f"`{first.regime}`: {_side(first.test.one)}"
    if hardest.other.value is not None:
        return f"{head} {_shown(first.one)}, {_mark(hardest)}"
    assert hardest.gap is not None
    others = [f"{_side(p.other)} {_plain(p.held_against)}, {_mark(p)}" for p in rest]
    more = f"; {'; '.join(others)}" if others else ""
    return (
        f"{head} {_plain(first.one)}; {_side(hardest.other)} {_plain(hardest.held_against)}: "
        f"{_shown(hardest.gap)}, {_mark(hardest)}{more}"
    )


def _ease(part: Judged) -> float:
    """How far a difference lies on the claimed side."""
    assert part.gap is not None
    if part.test.direction == "near":
        return -abs(part.gap.value)
    return -part.gap.value if part.test.direction == "below" else part.gap.value


def _mark(part: Judged) -> str:
    return "nothing to leak" if part.why == NO_LEAK else part.verdict


def _side(term: Term) -> str:
    several = f"mean of {len(term.attacks)} attacks" if term.attacks else ""
    # Labels of games are settings, which may be long.
    attack = term.attack.replace(",", ", ").replace("_", " ") + (":" if "=" in term.attack else "")
    named_by = [attack, several, term.variant or "", term.figure, term.group]
    words = [word for word in named_by if word and word != "everybody"]
    return " ".join(words) if term.value is None else ""


def _plain(found: Found | None) -> str:
    return "" if found is None else _number(found.value)


def _shown(found: Found) -> str:
    if found.low is None or found.high is None:
        return _number(found.value)
    return f"{_number(found.value)} ({_number(found.low)} to {_number(found.high)})"


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.0f}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def main(words: Sequence[str]) -> int:
    """What the command line asks for; the exit code."""
    if words[:1] == ["--pairs"] and len(words) == 3:
        print(take_pairs(Path(words[1]), words[2]))
        return 0
    made = page()
    if list(words) == ["--check"]:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == made
        print("the page is what claims and records give" if same else "run python docs/claims.py")
        return 0 if same else 1
    if words:
        print(__doc__)
        return 2
    write_whole(PAGE, made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
