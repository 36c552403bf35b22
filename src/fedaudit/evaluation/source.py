"""Source inference in one run: success rates, baselines, and the combination with membership.

An attack names the client that trained on each queried sample. Queries are equally many random
training samples of every client, as in the paper. Membership inference may have drawn audited
samples that follow the label distribution of one target; these are a second set of queries. The
label-distribution baseline, and shuffles of clients within classes, show how many answers can be
explained by label distributions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fedaudit.attacks.base import Attack
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NO_CLIENT, ClientId, Sees, positions_of
from fedaudit.datasets.draws.fair import CLIENT_SAMPLE_DRAWS
from fedaudit.evaluation.accuracy import overfitting
from fedaudit.evaluation.controls import Outcome, measured_untrained, measurements_for, run_control
from fedaudit.evaluation.truth import run_coordinates, view_coordinates
from fedaudit.metrics import Limited
from fedaudit.metrics.source import (
    LabelExcess,
    beyond_labels,
    by_label_distribution,
    confusion,
    inferred_source,
    paired,
    source_null,
    source_success,
)
from fedaudit.observe.measurements import Measurements
from fedaudit.plan.parts import Setup
from fedaudit.results.estimate import GUESSING, SUCCESS_RATE, Estimate, Test
from fedaudit.results.record import ControlResult
from fedaudit.results.runs import (
    FAIR,
    LABEL_BASELINE,
    LABELS,
    LABELS_METHOD,
    OWN,
    ChainedInference,
    ClassSuccess,
    SelectivePrediction,
    SourceResult,
)

LEAST_CHANCES = (0.2, 0.3, 0.5, 0.7, 0.9)
"""Thresholds on the posterior below which an adversary abstains (selective prediction)."""

CHAINED_FPRS = (0.01, 0.1)
"""False-positive rates of membership inference, if it decides which samples have a source."""


class SourceQueries(NamedTuple):
    """Samples whose owner is inferred, equally many of each client.

    Attributes:
        positions: Positions of the samples in the audit set.
        owner: Client of each sample, as an index into ``clients``.
        labels: Class of each sample.
        clients: All clients, ascending.
        at_random: Whether the samples of each client are a random subset of its training data, so
            that they follow its label distribution.
    """

    positions: Int[ndarray, " samples"]
    owner: Int[ndarray, " samples"]
    labels: Int[ndarray, " samples"]
    clients: tuple[ClientId, ...]
    at_random: bool = False


def source_queries(run: Setup) -> SourceQueries | None:
    """Return the first of the queries of :func:`source_draws`; None if there are none."""
    return next(iter(source_draws(run).values()), None)


def source_draws(run: Setup) -> dict[str, SourceQueries]:
    """Return queries by draw.

    The draw "own", which comes first, has random training samples of each client. The draw "fair"
    has the audited samples of membership inference, which follow the label distribution of one
    target. In recordings, or if label distributions are equal, audited samples are the draw "own".
    The result is empty if a client has no samples.
    """
    study, assignment = run.study, run.assignment
    audited = _audited_queries(run)
    is_drawn_by_client = study.audit.draw in CLIENT_SAMPLE_DRAWS
    is_own = run.recording_info is not None or is_drawn_by_client or study.has_equal_clients
    draws = {} if audited is None else {OWN if is_own else FAIR: audited}
    if assignment.source_samples is None or not len(assignment.source_samples.position):
        return draws
    clients = tuple(sorted(assignment.clients))
    order = assignment.source_samples.position.argsort()
    positions = assignment.source_samples.position[order]
    owner = np.searchsorted(clients, assignment.source_samples.owner[order])
    labels = assignment.measured.labels.numpy()[positions]
    queries = SourceQueries(positions, owner, labels, clients, at_random=True)
    return {OWN: queries} | {draw: others for draw, others in draws.items() if draw != OWN}


def _audited_queries(run: Setup) -> SourceQueries | None:
    """Return equally many audited samples of every client; None if a client has none."""
    audit, clients = run.assignment.audit, tuple(sorted(run.assignment.clients))
    rng = seeded_numpy(run.seed, "source")
    by_owner, empty = positions_of(audit.owner), np.zeros(0, dtype=np.int64)
    by_client = [rng.permutation(by_owner.get(client, empty)) for client in clients]
    count = min(len(positions) for positions in by_client)
    if not count:
        return None
    positions = np.sort(np.concatenate([drawn[:count] for drawn in by_client]))
    owner = np.searchsorted(clients, audit.owner[positions])
    labels = audit.samples.labels.numpy()[positions]
    at_random = run.study.audit.draw in CLIENT_SAMPLE_DRAWS
    return SourceQueries(positions, owner, labels, clients, at_random)


def measurements_of_queries(
    attack: Attack, measured: Mapping[str, Measurements], queries: SourceQueries
) -> dict[str, Measurements]:
    """Return the signals of an attack, measured on queried samples."""
    positions = torch.from_numpy(queries.positions)
    names = {signal.name for signal in attack.signals}
    return {
        name: replace(m, values=m.values[:, :, positions])
        for name, m in measured.items()
        if name in names
    }


def posteriors(
    run: Setup, attack: Attack, measurements: Mapping[str, Measurements], queries: SourceQueries
) -> Float[ndarray, "clients samples"]:
    """Return the posterior of every client for each query; 0 for clients without measurements."""
    clients = measurements[attack.signals[0].name].clients
    posterior = np.zeros((len(queries.clients), len(queries.positions)))
    rows = np.searchsorted(queries.clients, clients)
    posterior[rows] = attack.posterior(measurements, run.assignment.sizes).numpy()
    return posterior


def split_by_round(
    attack: Attack, measurements: Mapping[str, Measurements]
) -> list[dict[str, Measurements]]:
    """Return the measurements of each single round; empty if the attack needs several rounds."""
    if Sees.ROUNDS in attack.needs:
        return []
    rows = range(len(next(iter(measurements.values())).rounds))
    return [
        {
            name: replace(
                m,
                values=m.values[row : row + 1],
                rounds=m.rounds[row : row + 1],
                bases=m.bases[row : row + 1],
                stands_for=m.stands_for[row : row + 1],
            )
            for name, m in measurements.items()
        }
        for row in rows
    ]


class SourceEvaluation(NamedTuple):
    """Answers and estimates of one source inference attack in one run.

    Attributes:
        answers: Answers to the queries of the first draw.
        estimates: Success rates of these answers.
        of_second_draw: Success rates for the queries of a second draw; empty without one.
    """

    answers: SourceResult
    estimates: list[Estimate]
    of_second_draw: Sequence[Estimate] = ()


def source_results(
    run: Setup,
    measured: Mapping[str, Measurements],
    failed: dict[str, dict[str, str]],
    notes: Mapping[str, str],
    progress: Progress = quiet,
) -> list[SourceEvaluation]:
    """Return the evaluation of each source attack of a run, and add failures to ``failed``."""
    queries, results = source_draws(run), list[SourceEvaluation]()
    phase, where = f"seed {run.seed}: source inference", f"seed {run.seed}"
    for done, (name, attack) in enumerate(run.source_attacks.items()):
        progress(phase, done, len(run.source_attacks))
        try:
            if not queries:
                raise BadInput(
                    "a client has no audited sample and none drawn for source inference; set "
                    "audit.sources to a number of samples of each client, or raise audit.samples"
                )
            results.append(_result(run, name, attack, measured, queries, notes))
        except FedauditError as refusal:
            failed.setdefault(name, {})[where] = f"{where}: {refusal}"
    if run.source_attacks:
        progress(phase, len(run.source_attacks), len(run.source_attacks))
    return results


def _result(
    run: Setup,
    name: str,
    attack: Attack,
    measured: Mapping[str, Measurements],
    draws: Mapping[str, SourceQueries],
    notes: Mapping[str, str],
) -> SourceEvaluation:
    samples = next(iter(draws.values()))
    measurements = measurements_of_queries(attack, measured, samples)
    posterior = posteriors(run, attack, measurements, samples)
    inferred = inferred_source(posterior)
    is_correct = inferred == samples.owner
    selective = {
        least: source_success(inferred_source(posterior, least=least), samples.owner)
        for least in LEAST_CHANCES
    }
    answers = SourceResult(
        attack=name,
        **view_coordinates(run),
        clients=list(samples.clients),
        samples=len(samples.owner),
        confusion=confusion(inferred, samples.owner, len(samples.clients)).tolist(),
        classes=[
            ClassSuccess(label=label, samples=len(rows), right=int(is_correct[rows].sum()))
            for label, rows in positions_of(samples.labels).items()
        ],
        answers=[
            SelectivePrediction(least=least, answered=success.total, right=success.hits)
            for least, success in selective.items()
        ],
        chained=sources_of_inferred_members(run, attack, measured, is_correct, samples),
        rounds=list(run.measured_rounds),
        by_round=[
            source_success(
                inferred_source(posteriors(run, attack, round_measurements, samples)), samples.owner
            ).value
            for round_measurements in split_by_round(attack, measurements)
        ],
        overfitting=overfitting(notes, samples.clients),
        absent=sorted({*samples.clients}.difference(*(m.clients for m in measurements.values()))),
    )
    by_draw = []
    for draw, queries in draws.items():
        if queries is not samples:
            measurements = measurements_of_queries(attack, measured, queries)
            inferred = inferred_source(posteriors(run, attack, measurements, queries))
        by_draw.append(_success_estimates(run, answers, draw, inferred, queries))
    first, *others = by_draw
    return SourceEvaluation(answers, first, [estimate for part in others for estimate in part])


def _success_estimates(
    run: Setup,
    answers: SourceResult,
    draw: str,
    inferred: Int[ndarray, " samples"],
    samples: SourceQueries,
) -> list[Estimate]:
    owner, labels = samples.owner, samples.labels
    success = source_success(inferred, owner)
    by_client = run.assignment.class_counts(run.dataset.classes)
    counts = np.array([by_client[client] for client in samples.clients])
    baseline = infer_from_labels(run, counts, samples)
    change = paired(inferred == owner, baseline == owner)
    rng = seeded_numpy(run.seed, "shuffled owners")
    null = source_null(inferred, owner, rng=rng)
    within_classes = source_null(inferred, owner, within=labels, rng=rng)
    return source_estimates(
        answers.model_copy(update={"samples": len(owner)}),
        success,
        Test(null=GUESSING, level=answers.chance, high=null.high, p_value=null.p_value),
        beyond_labels(inferred, owner, labels, counts if samples.at_random else None),
        within_classes.p_value,
        Baseline(source_success(baseline, owner).value, change.difference, change.p_value),
        draw,
    )


def infer_from_labels(
    run: Setup, counts: Int[ndarray, "clients classes"], queries: SourceQueries
) -> Int[ndarray, " samples"]:
    """Return the answers of the label-distribution baseline.

    A recording contains only audited training samples, so a sample's own label would affect the
    label distribution of its client. Therefore, the samples are split into two random halves, and
    the sources of each half are inferred from the label distributions of the other half.
    """
    owner, labels = queries.owner, queries.labels
    if run.recording_info is None or len(owner) < 2 * len(queries.clients):
        return by_label_distribution(counts, labels)
    order = seeded_numpy(run.seed, "halves of sources").permutation(len(owner))
    first_half = np.zeros(len(owner), dtype=bool)
    for client in range(len(queries.clients)):
        first_half[order[owner[order] == client][::2]] = True
    inferred = np.zeros_like(owner)
    for half in (first_half, ~first_half):
        counts_without_half = counts.copy()
        np.subtract.at(counts_without_half, (owner[half], labels[half]), 1)
        inferred[half] = by_label_distribution(counts_without_half, labels[half])
    return inferred


def sources_of_inferred_members(
    run: Setup,
    attack: Attack,
    measured: Mapping[str, Measurements],
    is_correct: Bool[ndarray, " samples"],
    samples: SourceQueries,
) -> list[ChainedInference]:
    """Count correct sources among the queries that membership inference classifies as members.

    The membership score of a sample is the maximum over clients of the attack's signal, averaged
    over rounds. The result is empty without held-out samples, which set the threshold.
    """
    held_out = np.flatnonzero(run.assignment.audit.owner == NO_CLIENT)
    if not len(held_out):
        return []
    values = measured[attack.signals[0].name].values.double()
    score = values.nanmean(0).nan_to_num(-torch.inf).amax(0).numpy()
    null = score[held_out]
    results = []
    for fpr in CHAINED_FPRS:
        allowed = int(fpr * len(null))
        threshold = np.sort(null)[::-1][allowed] if allowed < len(null) else -np.inf
        is_accepted = score[samples.positions] > threshold
        results.append(
            ChainedInference(
                fpr=fpr,
                realised_fpr=float((null > threshold).mean()),
                called=int(is_accepted.sum()),
                right=int((is_accepted & is_correct).sum()),
            )
        )
    return results


class Baseline(NamedTuple):
    """Success of the label-distribution baseline.

    The baseline names the client with the largest proportion of the sample's class in its data.

    Attributes:
        success: Success rate of the baseline.
        change: Success rate of the attack minus that of the baseline.
        p_value: P-value of the exact, two-sided test on the same samples; None if only success
            rates are known.
    """

    success: float
    change: float
    p_value: float | None


def source_estimates(
    answers: SourceResult,
    success: Limited[float],
    chance_test: Test,
    labels: LabelExcess,
    p_value: float,
    baseline: Baseline | None,
    draw: str = OWN,
) -> list[Estimate]:
    """Return the success rate of one attack in one run, and its excess over label distributions.

    Args:
        answers: Answers of the attack.
        success: Success rate with Clopper-Pearson limits.
        chance_test: Test against shuffled owners, with their mean and 95 % quantile.
        labels: Success rate that label distributions explain, and the excess over it.
        p_value: P-value of the test of the excess, with owners shuffled within each class.
        baseline: The label-distribution baseline; None if unknown.
        draw: Draw of the queries: "own" or "fair".
    """
    shared = {
        name: getattr(answers, name) for name in ("attack", "defense", "view", "seed", "samples")
    }
    rate = Estimate(
        **shared,
        topic="source",
        contrast=draw,
        metric=SUCCESS_RATE,
        value=success.value,
        low=success.low,
        high=success.high,
        method="Clopper-Pearson 95%",
        tests=[chance_test],
    )
    excess = {
        "against": LABELS,
        "value": labels.value,
        "low": labels.low,
        "high": labels.high,
        "method": LABELS_METHOD,
        "tests": [Test(null=LABELS, level=labels.level, p_value=p_value)],
    }
    estimates = [rate, rate.model_copy(update=excess)]
    if baseline is not None:
        level, change, p_value_of_change = baseline
        test = Test(null=LABEL_BASELINE, level=level, p_value=p_value_of_change, two_sided=True)
        gain = {"against": LABEL_BASELINE, "value": change, "method": "", "tests": [test]}
        estimates.append(rate.model_copy(update={"low": None, "high": None, **gain}))
    return estimates


_LIMIT_IN_DEVIATIONS = 5
"""Number of standard deviations above the mean of shuffled owners at which a control fails. By
chance, a control fails once in millions of runs."""


def source_controls(run: Setup, device: torch.device = CPU) -> Iterator[ControlResult]:
    """Yield a control per attack: untrained models reveal no more than label distributions do."""
    samples = source_queries(run)
    if not run.source_attacks or samples is None:
        return
    if run.recording_info is not None and not run.recording_info.untrained:
        return
    measured = measured_untrained(run, samples.positions, device)

    def outcome(attack: Attack) -> Outcome:
        inferred = inferred_source(
            posteriors(run, attack, measurements_for(attack, measured), samples)
        )
        rng = seeded_numpy(run.seed, "untrained owners")
        null = source_null(inferred, samples.owner, within=samples.labels, rng=rng)
        limit = min(null.mean + _LIMIT_IN_DEVIATIONS * null.spread, 1.0)
        value = source_success(inferred, samples.owner).value
        note = (
            f"owners shuffled within classes: {null.mean:.3f} on average; limit at "
            f"{_LIMIT_IN_DEVIATIONS} standard deviations above: {limit:.3f}"
        )
        return Outcome(value, None, limit, value <= limit, note)

    for name, attack in run.source_attacks.items():
        control = partial(
            ControlResult,
            **run_coordinates(run),
            control="untrained model",
            attack=name,
            expected="success no higher than label distributions explain, on untrained models",
        )
        yield run_control(control, partial(outcome, attack))
