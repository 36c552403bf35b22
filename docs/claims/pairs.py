"""Paired differences of AUCs, from the folders of runs, because records have no scores."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from docs.claims.data import CLAIMS, Part, Regime, Term, Test, named, papers, regimes, variant_of
from fedaudit.core.errors import BadInput
from fedaudit.core.files import SCORES_FILE, write_atomically
from fedaudit.evaluation.sample_scores import paired_auc, read_scores
from fedaudit.results.aggregate import Value, mean_difference

TAKEN = CLAIMS / "pairs"


class Side(Part):
    """Side of a paired difference: the folder of a variant and an attack."""

    variant: str
    attack: str


class Pair(Part):
    """Mean of the paired differences of two AUCs over seeds, with limits for these runs.

    ``further_low`` and ``further_high`` are the limits for further runs, from five seeds on.
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
    path = TAKEN / f"{study}.json"
    return PAIRS.validate_json(path.read_bytes()) if path.is_file() else ()


def sides(regime: Regime, term: Term, other: Term) -> list[tuple[Side, Side]]:
    """Return the pairs of attacks of a difference of AUCs.

    Raises:
        BadInput: The two sides are means over different numbers of attacks.
    """
    variants = variant_of(regime, term), variant_of(regime, other)
    attacks = [side.attacks or [side.attack] for side in (term, other)]
    if len(attacks[0]) != len(attacks[1]):
        raise BadInput(f"means over {len(attacks[0])} and {len(attacks[1])} attacks make no pairs")
    return [
        (Side(variant=variants[0], attack=first), Side(variant=variants[1], attack=second))
        for first, second in zip(*attacks, strict=True)
    ]


def wanted_pairs(study: str) -> list[tuple[Side, Side, str, int | None]]:
    keys = {}
    for paper in papers():
        for claim in paper.claim:
            for regime in (regimes()[name] for name in claim.regimes):
                if regime.study == study:
                    for first, other, test in _of_attacks(claim.tests):
                        for both in sides(regime, first, other):
                            key = (*both, test.contrast, first.target)
                            keys[repr(key)] = key
    return list(keys.values())


def _of_attacks(tests: Sequence[Test]) -> Iterator[tuple[Term, Term, Test]]:
    for test in tests:
        for other in test.others:
            in_place = other.value is None and not (test.one.study or other.study)
            if test.figure == "auc" and in_place:
                yield test.one, other, test


def take_pairs(runs: Path, study: str) -> int:
    """Write the paired differences that claims need from a study, and return their number.

    ``runs`` contains a folder for each variant.

    Raises:
        BadInput: No run has scores, or no claim needs pairs of them.
    """
    scores = {path.parent.name: read_scores(path) for path in sorted(runs.glob(f"*/{SCORES_FILE}"))}
    differences = wanted_pairs(study)
    if not scores or not differences:
        lacking = f"{SCORES_FILE} below {runs}" if not scores else f"claim about pairs of {study}"
        raise BadInput(f"there is no {lacking}; give the folder of the study's runs, and its name")
    pairs_found = []
    for first, other, contrast, target in differences:
        scores_of = [scores.get(named(study, side.variant)) for side in (first, other)]
        if scores_of[0] is None or scores_of[1] is None:
            print(f"no runs yet for {first} and {other}")
            continue
        least = min(client for _, client in scores_of[0])
        whose = least if target is None else target
        seeds = sorted(
            s for s, client in scores_of[0] if client == whose and (s, whose) in scores_of[1]
        )
        try:
            seeds_taken = [
                paired_auc(
                    scores_of[0][seed, whose],
                    first.attack,
                    scores_of[1][seed, whose],
                    other.attack,
                    contrast,
                )
                for seed in seeds
            ]
        except BadInput as error:
            # Clients, samples or label distributions differ: the records are compared.
            print(f"not paired, {first.variant or study} and {other.variant or study}: {error}")
            continue
        gap = mean_difference(
            [Value(d.value, d.low, d.high, d.method, cancels=True) for d in seeds_taken]
        )
        if gap is None or gap.low is None or gap.high is None:
            continue
        pairs_found.append(
            Pair(
                one=first,
                other=other,
                contrast=contrast,
                target=whose,
                seeds=seeds,
                value=gap.value,
                low=gap.low,
                high=gap.high,
                method=seeds_taken[0].method if len(seeds_taken) == 1 else gap.method,
                further_low=gap.further.low if gap.further else None,
                further_high=gap.further.high if gap.further else None,
            )
        )
    TAKEN.mkdir(exist_ok=True)
    write_atomically(
        TAKEN / f"{study}.json", PAIRS.dump_json(pairs_found, indent=0).decode() + "\n"
    )
    return len(pairs_found)
