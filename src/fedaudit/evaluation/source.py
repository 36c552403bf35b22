"""Source inference in one run: success rate, baselines, and membership inference before it.

Attacks name the client of each queried sample. Queries are equally many random training samples of
every client, as in the paper. If the fair draw for membership gave all clients the label
distribution of the target, its samples are further queries. The label-distribution baseline, and
shuffles within classes, show what label distributions alone explain.
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
from fedaudit.core.values import NOBODY, ClientId, Sees, positions_of
from fedaudit.datasets.draws.fair import OF_EACH_CLIENT
from fedaudit.evaluation.accuracy import overfitting
from fedaudit.evaluation.controls import Outcome, attempted, cubes_for, measured_untrained
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
    Answered,
    Chained,
    ClassSuccess,
    SourceResult,
)

LEAST_CHANCES = (0.2, 0.3, 0.5, 0.7, 0.9)
"""Thresholds on the posterior below which an adversary abstains (selective prediction)."""

CHAINED_FPRS = (0.01, 0.1)
"""False-positive rates of the membership decision before source inference."""


class SourceQueries(NamedTuple):
    """Samples whose owner is inferred, equally many of each client.

    Attributes:
        positions: Positions of the samples in the audit set.
        owner: Client of each sample, as a position among all clients.
        labels: Class of each sample.
        clients: All clients, ascending.
        at_random: Whether they are random training samples of each client, which have the label
            distributions of clients.
    """

    positions: Int[ndarray, " samples"]
    owner: Int[ndarray, " samples"]
    labels: Int[ndarray, " samples"]
    clients: tuple[ClientId, ...]
    at_random: bool = False


def source_queries(run: Setup) -> SourceQueries | None:
    """Return the queries of the first draw; None if a client has no samples."""
    return next(iter(source_draws(run).values()), None)


def source_draws(run: Setup) -> dict[str, SourceQueries]:
    """Return queries by draw.

    The draw "own", which comes first, has random training samples of each client. The draw "fair"
    has the samples of a fair draw, with the label distribution of its target. In recordings, or if
    label distributions are equal, audited samples are the draw "own". The result is empty if a
    client has no samples.
    """
    study, deal = run.study, run.deal
    audited = _audited_queries(run)
    of_each = study.audit.draw in OF_EACH_CLIENT
    is_own = run.recorded is not None or of_each or study.has_equal_clients
    draws = {} if audited is None else {OWN if is_own else FAIR: audited}
    if deal.source_samples is None or not len(deal.source_samples.position):
        return draws
    clients = tuple(sorted(deal.clients))
    order = deal.source_samples.position.argsort()
    positions = deal.source_samples.position[order]
    owner = np.searchsorted(clients, deal.source_samples.owner[order])
    labels = deal.measured.labels.numpy()[positions]
    queries = SourceQueries(positions, owner, labels, clients, at_random=True)
    return {OWN: queries} | {draw: fair for draw, fair in draws.items() if draw != OWN}


def _audited_queries(run: Setup) -> SourceQueries | None:
    """Return equally many audited samples of every client; None if a client has none."""
    audit, clients = run.deal.audit, tuple(sorted(run.deal.clients))
    rng = seeded_numpy(run.seed, "source")
    by_owner, empty = positions_of(audit.owner), np.zeros(0, dtype=np.int64)
    by_client = [rng.permutation(by_owner.get(client, empty)) for client in clients]
    count = min(len(part) for part in by_client)
    if not count:
        return None
    positions = np.sort(np.concatenate([part[:count] for part in by_client]))
    owner = np.searchsorted(clients, audit.owner[positions])
    labels = audit.samples.labels.numpy()[positions]
    at_random = run.study.audit.draw in OF_EACH_CLIENT
    return SourceQueries(positions, owner, labels, clients, at_random)


def at_queries(
    attack: Attack, measured: Mapping[str, Measurements], samples: SourceQueries
) -> dict[str, Measurements]:
    """Return the signals of an attack for queried samples."""
    positions = torch.from_numpy(samples.positions)
    names = {signal.name for signal in attack.signals}
    return {
        name: replace(m, values=m.values[:, :, positions])
        for name, m in measured.items()
        if name in names
    }


def posteriors(
    run: Setup, attack: Attack, cubes: Mapping[str, Measurements], samples: SourceQueries
) -> Float[ndarray, "clients samples"]:
    """Return the posterior of every client; 0 for clients that were never measured."""
    clients = cubes[attack.signals[0].name].clients
    posterior = np.zeros((len(samples.clients), len(samples.positions)))
    rows = np.searchsorted(samples.clients, clients)
    posterior[rows] = attack.posterior(cubes, run.deal.sizes).numpy()
    return posterior


def round_by_round(
    attack: Attack, cubes: Mapping[str, Measurements]
) -> list[dict[str, Measurements]]:
    """Return the measurements of each single round; empty if the attack needs several rounds."""
    if Sees.ROUNDS in attack.needs:
        return []
    rows = range(len(next(iter(cubes.values())).rounds))
    return [
        {
            name: replace(
                m,
                values=m.values[row : row + 1],
                rounds=m.rounds[row : row + 1],
                bases=m.bases[row : row + 1],
                stands_for=m.stands_for[row : row + 1],
            )
            for name, m in cubes.items()
        }
        for row in rows
    ]


class SourceFound(NamedTuple):
    """Answers and figures of one source inference attack in one run.

    Attributes:
        answers: Answers to the queries of the first draw.
        figures: Figures of these answers.
        others: Figures of the answers to the queries of the second draw, if any.
    """

    answers: SourceResult
    figures: list[Estimate]
    others: Sequence[Estimate] = ()


def source_results(
    run: Setup,
    measured: Mapping[str, Measurements],
    failed: dict[str, dict[str, str]],
    notes: Mapping[str, str],
    progress: Progress = quiet,
) -> list[SourceFound]:
    """Return the result of each source attack of a run."""
    queries, results = source_draws(run), list[SourceFound]()
    phase, where = f"seed {run.seed}: source inference", f"seed {run.seed}"
    for done, (name, attack) in enumerate(run.on_source.items()):
        progress(phase, done, len(run.on_source))
        try:
            if not queries:
                raise BadInput(
                    "a client has no audited sample and none drawn for source inference; set "
                    "audit.sources to a number of samples of each client, or raise audit.samples"
                )
            results.append(_result(run, name, attack, measured, queries, notes))
        except FedauditError as refusal:
            failed.setdefault(name, {})[where] = f"{where}: {refusal}"
    if run.on_source:
        progress(phase, len(run.on_source), len(run.on_source))
    return results


def _result(
    run: Setup,
    name: str,
    attack: Attack,
    measured: Mapping[str, Measurements],
    queries: Mapping[str, SourceQueries],
    notes: Mapping[str, str],
) -> SourceFound:
    samples = next(iter(queries.values()))
    cubes = at_queries(attack, measured, samples)
    posterior = posteriors(run, attack, cubes, samples)
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
            Answered(least=least, answered=success.total, right=success.hits)
            for least, success in selective.items()
        ],
        chained=chained(run, attack, measured, is_correct, samples),
        rounds=list(run.measured_rounds),
        by_round=[
            source_success(
                inferred_source(posteriors(run, attack, cubes_of_round, samples)), samples.owner
            ).value
            for cubes_of_round in round_by_round(attack, cubes)
        ],
        overfitting=overfitting(notes, samples.clients),
        absent=sorted({*samples.clients}.difference(*(m.clients for m in cubes.values()))),
    )
    by_draw = []
    for draw, queried in queries.items():
        if queried is not samples:
            posterior = posteriors(run, attack, at_queries(attack, measured, queried), queried)
        by_draw.append(_figures(run, answers, draw, inferred_source(posterior), queried))
    figures, *others = by_draw
    return SourceFound(answers, figures, [figure for part in others for figure in part])


def _figures(
    run: Setup,
    answers: SourceResult,
    draw: str,
    inferred: Int[ndarray, " samples"],
    samples: SourceQueries,
) -> list[Estimate]:
    owner, labels = samples.owner, samples.labels
    success = source_success(inferred, owner)
    by_client = run.deal.class_counts(run.dataset.classes)
    counts = np.array([by_client[client] for client in samples.clients])
    baseline = named_by_labels(run, counts, samples)
    change = paired(inferred == owner, baseline == owner)
    rng = seeded_numpy(run.seed, "shuffled owners")
    null = source_null(inferred, owner, rng=rng)
    within_classes = source_null(inferred, owner, within=labels, rng=rng)
    return source_figures(
        answers.model_copy(update={"samples": len(owner)}),
        success,
        Test(null=GUESSING, level=answers.chance, high=null.high, p_value=null.p_value),
        beyond_labels(inferred, owner, labels, counts if samples.at_random else None),
        within_classes.p_value,
        Baseline(source_success(baseline, owner).value, change.difference, change.p_value),
        draw,
    )


def named_by_labels(
    run: Setup, counts: Int[ndarray, "clients classes"], samples: SourceQueries
) -> Int[ndarray, " samples"]:
    """Return the answers of the label-distribution baseline.

    Of the training data in a recording, only audited samples are known. The sources of a random
    half of them are inferred from the label distributions without this half, and vice versa, so
    that no sample affects its own answer.
    """
    owner, labels = samples.owner, samples.labels
    if run.recorded is None or len(owner) < 2 * len(samples.clients):
        return by_label_distribution(counts, labels)
    order = seeded_numpy(run.seed, "halves of sources").permutation(len(owner))
    half = np.zeros(len(owner), dtype=bool)
    for client in range(len(samples.clients)):
        half[order[owner[order] == client][::2]] = True
    inferred = np.zeros_like(owner)
    for side in (half, ~half):
        others = counts.copy()
        np.subtract.at(others, (owner[side], labels[side]), 1)
        inferred[side] = by_label_distribution(others, labels[side])
    return inferred


def chained(
    run: Setup,
    attack: Attack,
    measured: Mapping[str, Measurements],
    is_correct: Bool[ndarray, " samples"],
    samples: SourceQueries,
) -> list[Chained]:
    """Infer membership, and then the source of samples that are classified as members.

    The membership score of a sample is the maximum over clients of the attack's signal, averaged
    over rounds. The result is empty if there are no unseen samples.
    """
    unseen = np.flatnonzero(run.deal.audit.owner == NOBODY)
    if not len(unseen):
        return []
    values = measured[attack.signals[0].name].values.double()
    score = values.nanmean(0).nan_to_num(-torch.inf).amax(0).numpy()
    results = []
    for fpr in CHAINED_FPRS:
        allowed = int(fpr * len(unseen))
        threshold = np.sort(score[unseen])[::-1][allowed] if allowed < len(unseen) else -np.inf
        is_accepted = score[samples.positions] > threshold
        results.append(
            Chained(
                fpr=fpr,
                realised_fpr=float((score[unseen] > threshold).mean()),
                called=int(is_accepted.sum()),
                right=int((is_accepted & is_correct).sum()),
            )
        )
    return results


class Baseline(NamedTuple):
    """Success of the label-distribution baseline.

    It names the client whose data have the largest share of the sample's class.

    Attributes:
        success: Success rate of the baseline.
        change: Success rate of the attack minus that of the baseline.
        p_value: P-value of the exact, two-sided test on the same samples; None if only success
            rates are known.
    """

    success: float
    change: float
    p_value: float | None


def source_figures(
    answers: SourceResult,
    success: Limited[float],
    guessing: Test,
    labels: LabelExcess,
    p_value: float,
    baseline: Baseline | None,
    draw: str = OWN,
) -> list[Estimate]:
    """Return the success rate of one attack in one run, and its excess over label distributions.

    Args:
        answers: Answers of the attack.
        success: Success rate with Clopper-Pearson limits.
        guessing: Test against shuffled owners, with their mean and 95 % quantile.
        labels: Success rate that label distributions explain, and the excess over it.
        p_value: P-value of the test with owners shuffled within each class.
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
        tests=[guessing],
    )
    excess = {
        "against": LABELS,
        "value": labels.value,
        "low": labels.low,
        "high": labels.high,
        "method": LABELS_METHOD,
        "tests": [Test(null=LABELS, level=labels.level, p_value=p_value)],
    }
    figures = [rate, rate.model_copy(update=excess)]
    if baseline is not None:
        level, change, p_value_of_change = baseline
        test = Test(null=LABEL_BASELINE, level=level, p_value=p_value_of_change, two_sided=True)
        over = {"against": LABEL_BASELINE, "value": change, "method": "", "tests": [test]}
        figures.append(rate.model_copy(update={"low": None, "high": None, **over}))
    return figures


_SPREADS = 5
"""Standard deviations above the mean of shuffled owners at which a control fails. A control
without a fault fails once in millions of runs."""


def source_controls(run: Setup, device: torch.device = CPU) -> Iterator[ControlResult]:
    """Yield the success of source inference on untrained models, limited by label distributions."""
    samples = source_queries(run)
    if not run.on_source or samples is None:
        return
    if run.recorded is not None and not run.recorded.untrained:
        return
    measured = measured_untrained(run, samples.positions, device)

    def outcome(attack: Attack) -> Outcome:
        inferred = inferred_source(posteriors(run, attack, cubes_for(attack, measured), samples))
        rng = seeded_numpy(run.seed, "untrained owners")
        null = source_null(inferred, samples.owner, within=samples.labels, rng=rng)
        limit = min(null.mean + _SPREADS * null.spread, 1.0)
        value = source_success(inferred, samples.owner).value
        note = (
            f"owners shuffled within classes: {null.mean:.3f} on average; limit at {_SPREADS} "
            f"standard deviations above: {limit:.3f}"
        )
        return Outcome(value, None, limit, value <= limit, note)

    for name, attack in run.on_source.items():
        control = partial(
            ControlResult,
            **run_coordinates(run),
            control="untrained model",
            attack=name,
            expected="success no higher than label distributions explain, on untrained models",
        )
        yield attempted(control, partial(outcome, attack))
