"""Differences of test accuracies, paired by test sample, from models that are trained again.

Records have the number of correct predictions, but not those of single test samples.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool
from numpy import ndarray
from pydantic import TypeAdapter

from docs.claims.data import CLAIMS, ROOT, Part, Regime, Term, named, papers, regimes, variant_of
from docs.claims.figures import FigureName, rows
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput
from fedaudit.core.files import write_atomically
from fedaudit.core.modules import outputs_of
from fedaudit.plan.file import read_studies
from fedaudit.plan.sections import Study
from fedaudit.results.aggregate import further_runs_interval
from fedaudit.study.build import build_setup

TAKEN = CLAIMS / "accuracies"
METHOD = "paired by test sample 95%"
QUANTILE = 1.959963984540054
MOST_CHANGED = 0.03
"""Largest difference between the accuracy of a model and that of its record. Another machine rounds
differently, and choices that depend on small differences then lead to another model."""

Correct = Bool[ndarray, "seeds samples"]
"""Whether the final model of each seed classifies each test sample correctly."""


class AccuracyPair(Part):
    """Mean difference of two variants' test accuracies over seeds, with limits for these runs."""

    one: str
    other: str
    seeds: list[int]
    # Number of test samples, which are the same for all seeds.
    samples: int
    value: float
    low: float
    high: float
    # Mean accuracies of the models that were trained again.
    accuracy: float
    other_accuracy: float
    # Limits for further runs, if there are at least five seeds.
    further_low: float | None = None
    further_high: float | None = None


class Limits(NamedTuple):
    """Mean difference with its limits."""

    value: float
    low: float
    high: float


PAIRS = TypeAdapter(list[AccuracyPair])


@cache
def accuracy_pairs(study: str) -> Mapping[tuple[str, str], AccuracyPair]:
    """Return the paired differences of a study, in both directions."""
    path = TAKEN / f"{study}.json"
    if not path.is_file():
        return {}
    pairs = PAIRS.validate_json(path.read_bytes())
    return {(pair.one, pair.other): pair for pair in [*map(_reversed, pairs), *pairs]}


def _reversed(pair: AccuracyPair) -> AccuracyPair:
    changes: dict[str, object] = {
        "one": pair.other,
        "other": pair.one,
        "accuracy": pair.other_accuracy,
        "other_accuracy": pair.accuracy,
        "value": -pair.value,
        "low": -pair.high,
        "high": -pair.low,
    }
    if pair.further_low is not None and pair.further_high is not None:
        changes |= {"further_low": -pair.further_high, "further_high": -pair.further_low}
    return pair.model_copy(update=changes)


def paired_accuracy(first: Correct, second: Correct) -> Limits:
    """Return the mean difference of two accuracies on the same test samples.

    The models are given, and the test samples are random. A sample contributes the mean of its
    differences over seeds, so its dependence between seeds does not matter. Two pseudo-samples
    prevent limits without width if few predictions differ.

    Source: Agresti and Min, Effects and non-effects of paired identical observations in comparing
        proportions with binary matched-pairs data, 2004, and Simple improved confidence intervals
        for comparing matched proportions, 2005, for one seed.
    """
    differences = (first.astype(float) - second.astype(float)).mean(axis=0)
    n = len(differences) + 2
    center = float(differences.sum()) / n
    # The pseudo-samples are half a sample at 1, half a sample at -1, and one at 0.
    variance = (float(differences @ differences) + 1) / n - center**2
    half_width = QUANTILE * math.sqrt(variance / n)
    value = float(differences.mean())
    return Limits(value, min(value, center - half_width), max(value, center + half_width))


def wanted_accuracies(study: str) -> list[tuple[str, str]]:
    """Return the pairs of variants whose test accuracies claims compare in a study."""
    return list(dict.fromkeys(_wanted(study)))


def _wanted(study: str) -> Iterator[tuple[str, str]]:
    for claim in (claim for paper in papers() for claim in paper.claim):
        for regime in (regimes()[name] for name in claim.regimes):
            for test in claim.tests if regime.study == study else ():
                for other in test.others if test.figure == "test_accuracy" else ():
                    variants = variants_of(regime, test.one, other)
                    if variants is not None:
                        yield variants


def variants_of(regime: Regime, one: Term, other: Term) -> tuple[str, str] | None:
    """Return the variants of two terms; None if one is a number or belongs to another study."""
    if other.value is not None or one.study or other.study:
        return None
    return variant_of(regime, one), variant_of(regime, other)


def take_accuracies(study: str, *, data_dir: Path | None, out: Path) -> int:
    """Train the final models that claims compare, and write their paired differences.

    Args:
        study: Name of a study with committed records.
        data_dir: Folder of the data sets.
        out: Folder for the predictions; finished models in it are not trained again.

    Returns:
        The number of differences.

    Raises:
        BadInput: No claim compares accuracies in this study, or the accuracy of a model differs
            from that of its record.
    """
    wanted = [pair for pair in wanted_accuracies(study) if all(rows(study, v) for v in pair)]
    if not wanted:
        raise BadInput(f"no claim compares test accuracies in {study}; name another study")
    base, *variants = read_studies(ROOT / "studies" / f"{study}.toml")
    by_name = {candidate.name: candidate for candidate in (base, *variants)}
    pairs = []
    for one, other in wanted:
        seeds = sorted(_accuracies(study, one).keys() & _accuracies(study, other).keys())
        sides = []
        for variant in (one, other):
            settings = by_name[named(study, variant)]
            expected = _accuracies(study, variant)
            sides.append(
                [_correct(settings, seed, expected[seed], data_dir, out) for seed in seeds]
            )
        first, second = (np.array(side) for side in sides)
        limits = paired_accuracy(first, second)
        by_seed = (first.mean(axis=1) - second.mean(axis=1)).tolist()
        further = further_runs_interval(by_seed, limits_of_runs=limits[1:])
        pairs.append(
            AccuracyPair(
                one=one,
                other=other,
                seeds=seeds,
                samples=first.shape[1],
                **limits._asdict(),
                accuracy=float(first.mean()),
                other_accuracy=float(second.mean()),
                further_low=further.low,
                further_high=further.high,
            )
        )
    TAKEN.mkdir(exist_ok=True)
    write_atomically(TAKEN / f"{study}.json", PAIRS.dump_json(pairs, indent=0).decode() + "\n")
    return len(pairs)


def _accuracies(study: str, variant: str) -> dict[int, float]:
    """Return the test accuracy of each seed of a record."""
    values = (rows(study, variant) or {}).get(FigureName("test_accuracy"), {})
    return {seed: by_target[None].value for seed, by_target in values.items() if seed is not None}


def _correct(
    study: Study, seed: int, expected: float, data_dir: Path | None, out: Path
) -> Bool[ndarray, " samples"]:
    path = out / f"{study.name}-seed-{seed}.npy"
    if path.is_file():
        stored: Bool[ndarray, " samples"] = np.load(path, allow_pickle=False)
        return stored
    correct = final_predictions(study, seed, data_dir)
    if abs(float(correct.mean()) - expected) > MOST_CHANGED:
        raise BadInput(
            f"the model of {study.name}, seed {seed}, has a test accuracy of {correct.mean():.4f}, "
            f"but its record has {expected:.4f}; compare settings and data with those of the record"
        )
    print(f"{path.name}: {correct.mean():.4f} (record: {expected:.4f})", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    np.save(path, correct)
    return correct


def final_predictions(study: Study, seed: int, data_dir: Path | None) -> Bool[ndarray, " samples"]:
    """Train a run without attacks, and return which test samples its final model classifies."""
    run = build_setup(study, seed, data_dir)
    last = next(iter(deque(run.simulate(), maxlen=1)))
    (model,) = last.after.values()
    test = run.dataset.test
    outputs = outputs_of(model, test.features, CPU)
    utilities = model.architecture.task.utility.per_sample(outputs, test.targets)
    correct: Bool[ndarray, " samples"] = (utilities > 0).numpy()
    return correct
