"""Paired differences of AUCs, from the folders of runs: records hold no scores."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from docs.claims.data import CLAIMS, Part, Regime, Term, Test, named, papers, regimes, variant_of
from fedaudit.core.errors import BadInput
from fedaudit.core.files import SCORES_FILE, write_whole
from fedaudit.evaluation.sample_scores import paired_auc, read_scores
from fedaudit.results.aggregate import Value, mean_difference

TAKEN = CLAIMS / "pairs"


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


@cache
def pairs(study: str) -> Sequence[Pair]:
    """The paired differences that were taken from a study's runs."""
    path = TAKEN / f"{study}.json"
    return PAIRS.validate_json(path.read_bytes()) if path.is_file() else ()


def sides(regime: Regime, one: Term, other: Term) -> list[tuple[Side, Side]]:
    """The pairs of attacks that a difference of AUCs is made of: one, or attack by attack.

    Raises:
        BadInput: The two sides are means over different numbers of attacks.
    """
    variants = variant_of(regime, one), variant_of(regime, other)
    attacks = [term.attacks or [term.attack] for term in (one, other)]
    if len(attacks[0]) != len(attacks[1]):
        raise BadInput(f"means over {len(attacks[0])} and {len(attacks[1])} attacks make no pairs")
    return [
        (Side(variant=variants[0], attack=first), Side(variant=variants[1], attack=second))
        for first, second in zip(*attacks, strict=True)
    ]


def wanted_pairs(study: str) -> list[tuple[Side, Side, str, int | None]]:
    """The differences of AUCs that claims ask of a study's runs."""
    found = {}
    for paper in papers():
        for claim in paper.claim:
            for regime in (regimes()[name] for name in claim.regimes):
                if regime.study == study:
                    for one, other, test in _of_attacks(claim.tests):
                        for both in sides(regime, one, other):
                            of = (*both, test.contrast, one.target)
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
        here = [scores.get(named(study, side.variant)) for side in (one, other)]
        if here[0] is None or here[1] is None:
            print(f"no runs yet for {one} and {other}")
            continue
        least = min(client for _, client in here[0])
        whose = least if target is None else target
        seeds = sorted(s for s, client in here[0] if client == whose and (s, whose) in here[1])
        try:
            taken = [
                paired_auc(
                    here[0][seed, whose], one.attack, here[1][seed, whose], other.attack, contrast
                )
                for seed in seeds
            ]
        except BadInput as error:
            # Other clients, samples or label distributions: the records' figures are compared.
            print(f"not paired, {one.variant or study} and {other.variant or study}: {error}")
            continue
        gap = mean_difference(
            [Value(d.value, d.low, d.high, d.method, cancels=True) for d in taken]
        )
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
