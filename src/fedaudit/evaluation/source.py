"""Source inference in one run: success rates, baselines, and the combination with membership.

An attack infers for each query, a training sample, which client trained on it. As in the paper,
queries are random training samples, with the same number from every client. If the audited samples
of membership inference follow the label distribution of one target, they are a second set of
queries. Many correct answers may follow from label distributions alone. The label-distribution
baseline, and permutations of clients within classes, measure how many.
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
from fedaudit.core.errors import BadInput, FedauditError, TooFewPeers
from fedaudit.core.progress import Progress, ignore_progress
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NO_CLIENT, Capability, ClientId, positions_of
from fedaudit.datasets.draws.fair import CLIENT_SAMPLE_DRAWS
from fedaudit.evaluation.accuracy import generalisation_gaps
from fedaudit.evaluation.controls import (
    ControlOutcome,
    measured_untrained,
    measurements_for,
    run_control,
)
from fedaudit.evaluation.truth import EvaluationResults, fields_of_run, fields_of_run_and_view
from fedaudit.metrics import EstimateWithLimits
from fedaudit.metrics.source import (
    ExcessOverLabels,
    confusion_matrix,
    excess_over_labels,
    infer_by_label_distribution,
    infer_source,
    mcnemar_test,
    source_null,
    source_success,
)
from fedaudit.observe.measurements import Measurements
from fedaudit.plan.parts import Setup
from fedaudit.results.estimate import GUESSING, SUCCESS_RATE, Estimate, Test
from fedaudit.results.record import ControlResult
from fedaudit.results.runs import (
    FAIR_DRAW,
    LABEL_BASELINE,
    LABELS,
    LABELS_METHOD,
    OWN_SAMPLES,
    ChainedInference,
    ClassSuccess,
    SelectivePrediction,
    SourceResult,
)

_POSTERIOR_THRESHOLDS = (0.2, 0.3, 0.5, 0.7, 0.9)
"""Posteriors of the best client below which an adversary abstains (selective prediction)."""

_CHAINED_FPRS = (0.01, 0.1)
"""False-positive rates of membership inference that selects the samples for source inference."""


class SourceQueries(NamedTuple):
    """Samples whose owner is inferred, with the same number from each client.

    Attributes:
        positions: Positions of the samples in the audit set.
        owner: Client of each sample, as an index into ``clients``.
        labels: Class of each sample.
        clients: All clients in ascending order.
        at_random: Whether the samples of each client are a random subset of its training data, and
            therefore follow its label distribution.
    """

    positions: Int[ndarray, " samples"]
    owner: Int[ndarray, " samples"]
    labels: Int[ndarray, " samples"]
    clients: tuple[ClientId, ...]
    at_random: bool = False


def source_queries(run: Setup) -> SourceQueries | None:
    """Return the queries of the first draw of :func:`source_draws`; None if there is no draw."""
    return next(iter(source_draws(run).values()), None)


def source_draws(run: Setup) -> dict[str, SourceQueries]:
    """Return the sets of queries by name.

    The set "own", which comes first, has random training samples of each client. The set "fair" has
    the audited samples of membership inference, which follow the label distribution of one target.
    In recordings, or if label distributions are equal, the audited samples are the set "own". The
    result is empty if a client has no samples.
    """
    study, assignment = run.study, run.assignment
    draws: dict[str, SourceQueries] = {}
    samples = assignment.source_samples
    if samples is not None and len(samples.position):
        clients = tuple(sorted(assignment.clients))
        order = samples.position.argsort()
        positions = samples.position[order]
        owner = np.searchsorted(clients, samples.owner[order])
        labels = assignment.measured.labels.numpy()[positions]
        draws[OWN_SAMPLES] = SourceQueries(positions, owner, labels, clients, at_random=True)
    audited_queries = _audited_queries(run)
    if audited_queries is not None:
        is_drawn_by_client = study.audit.draw in CLIENT_SAMPLE_DRAWS
        is_own = run.recording_info is not None or is_drawn_by_client or study.has_iid_clients
        draws.setdefault(OWN_SAMPLES if is_own else FAIR_DRAW, audited_queries)
    return draws


def _audited_queries(run: Setup) -> SourceQueries | None:
    """Return the same number of audited samples of every client; None if a client has none."""
    audit, clients = run.assignment.audit, tuple(sorted(run.assignment.clients))
    rng = seeded_numpy(run.seed, "source")
    positions_by_owner = positions_of(audit.owner)
    if not positions_by_owner.keys() >= set(clients):
        return None
    shuffled = [rng.permutation(positions_by_owner[client]) for client in clients]
    count = min(map(len, shuffled))
    positions = np.sort(np.concatenate([client_positions[:count] for client_positions in shuffled]))
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
    """Return the measurements of each round; empty if the attack needs several rounds together."""
    if Capability.ROUNDS in attack.needs:
        return []

    def select_row(m: Measurements, row: int) -> Measurements:
        rows = slice(row, row + 1)
        return replace(
            m,
            values=m.values[rows],
            rounds=m.rounds[rows],
            bases=m.bases[rows],
            group_of=m.group_of[rows],
        )

    n_rounds = len(next(iter(measurements.values())).rounds)
    return [
        {name: select_row(m, row) for name, m in measurements.items()} for row in range(n_rounds)
    ]


class SourceEvaluation(NamedTuple):
    """Answers and estimates of one source inference attack in one run.

    Attributes:
        answers: Answers to the queries of the first draw.
        estimates: Success rates of these answers.
        of_second_draw: Success rates for the queries of the second draw; empty if there is no
            second draw.
    """

    answers: SourceResult
    estimates: list[Estimate]
    of_second_draw: Sequence[Estimate] = ()


def source_results(
    run: Setup,
    measured: Mapping[str, Measurements],
    results: EvaluationResults,
    notes: Mapping[str, str],
    progress: Progress = ignore_progress,
) -> list[SourceEvaluation]:
    """Return the evaluation of each source attack of a run.

    Args:
        run: The run.
        measured: Measurements of signals.
        results: Results, to which the reasons are added why source attacks could not run.
        notes: Notes of the last measured round, which contain the overfitting of clients' models.
        progress: Callback for progress.
    """
    draws, evaluations = source_draws(run), list[SourceEvaluation]()
    phase, subject = f"seed {run.seed}: source inference", f"seed {run.seed}"
    for done, (name, attack) in enumerate(run.source_attacks.items()):
        progress(phase, done, len(run.source_attacks))
        try:
            if not draws:
                raise BadInput(
                    "source inference needs samples of every client, but a client has none; set "
                    "audit.sources to a number of samples of each client"
                )
            evaluations.append(_evaluate(run, name, attack, measured, draws, notes))
        except FedauditError as refusal:
            reasons = results.too_few_peers if isinstance(refusal, TooFewPeers) else results.failed
            reasons.setdefault(name, {})[subject] = f"{subject}: {refusal}"
    if run.source_attacks:
        progress(phase, len(run.source_attacks), len(run.source_attacks))
    return evaluations


def _evaluate(
    run: Setup,
    name: str,
    attack: Attack,
    measured: Mapping[str, Measurements],
    draws: Mapping[str, SourceQueries],
    notes: Mapping[str, str],
) -> SourceEvaluation:
    queries = next(iter(draws.values()))
    measurements = measurements_of_queries(attack, measured, queries)
    posterior = posteriors(run, attack, measurements, queries)
    inferred = infer_source(posterior)
    is_correct = inferred == queries.owner
    selective = {
        min_posterior: source_success(
            infer_source(posterior, min_posterior=min_posterior), queries.owner
        )
        for min_posterior in _POSTERIOR_THRESHOLDS
    }
    success_by_round = []
    for round_measurements in split_by_round(attack, measurements):
        round_posterior = posteriors(run, attack, round_measurements, queries)
        success = source_success(infer_source(round_posterior), queries.owner)
        success_by_round.append(success.value)
    measured_clients = {client for m in measurements.values() for client in m.clients}
    answers = SourceResult(
        attack=name,
        **fields_of_run_and_view(run),
        clients=list(queries.clients),
        samples=len(queries.owner),
        confusion=confusion_matrix(inferred, queries.owner, len(queries.clients)).tolist(),
        classes=[
            ClassSuccess(label=label, samples=len(rows), right=int(is_correct[rows].sum()))
            for label, rows in positions_of(queries.labels).items()
        ],
        answers=[
            SelectivePrediction(least=min_posterior, answered=success.total, right=success.hits)
            for min_posterior, success in selective.items()
        ],
        chained=sources_of_inferred_members(run, attack, measured, is_correct, queries),
        rounds=list(run.measured_rounds),
        by_round=success_by_round,
        overfitting=generalisation_gaps(notes, queries.clients),
        absent=sorted({*queries.clients} - measured_clients),
    )
    estimates_by_draw = []
    for draw, draw_queries in draws.items():
        if draw_queries is not queries:
            measurements = measurements_of_queries(attack, measured, draw_queries)
            inferred = infer_source(posteriors(run, attack, measurements, draw_queries))
        estimates_by_draw.append(_success_estimates(run, answers, draw, inferred, draw_queries))
    return SourceEvaluation(answers, *estimates_by_draw)


def _success_estimates(
    run: Setup,
    answers: SourceResult,
    draw: str,
    inferred: Int[ndarray, " samples"],
    queries: SourceQueries,
) -> list[Estimate]:
    owner, labels = queries.owner, queries.labels
    success = source_success(inferred, owner)
    counts_by_client = run.assignment.class_counts(run.dataset.classes)
    counts = np.array([counts_by_client[client] for client in queries.clients])
    baseline = infer_from_labels(run, counts, queries)
    change = mcnemar_test(inferred == owner, baseline == owner)
    rng = seeded_numpy(run.seed, "shuffled owners")
    null = source_null(inferred, owner, rng=rng)
    within_classes = source_null(inferred, owner, within=labels, rng=rng)
    return source_estimates(
        answers.model_copy(update={"samples": len(owner)}),
        success,
        Test(null=GUESSING, level=answers.chance, high=null.quantile_95, p_value=null.p_value),
        excess_over_labels(inferred, owner, labels, counts if queries.at_random else None),
        within_classes.p_value,
        Baseline(source_success(baseline, owner).value, change.difference, change.p_value),
        draw,
    )


def infer_from_labels(
    run: Setup, counts: Int[ndarray, "clients classes"], queries: SourceQueries
) -> Int[ndarray, " samples"]:
    """Return the answers of the label-distribution baseline.

    In a recording, the only known training samples of clients are the queries themselves. Label
    distributions that include a query would reveal its source. Therefore, the queries are split
    into two random halves, and the sources of each half are inferred from the label distributions
    of the other half.
    """
    owner, labels = queries.owner, queries.labels
    if run.recording_info is None or len(owner) < 2 * len(queries.clients):
        return infer_by_label_distribution(counts, labels)
    order = seeded_numpy(run.seed, "halves of sources").permutation(len(owner))
    first_half = np.zeros(len(owner), dtype=bool)
    for client in range(len(queries.clients)):
        first_half[order[owner[order] == client][::2]] = True
    inferred = np.zeros_like(owner)
    for half in (first_half, ~first_half):
        counts_without_half = counts.copy()
        np.subtract.at(counts_without_half, (owner[half], labels[half]), 1)
        inferred[half] = infer_by_label_distribution(counts_without_half, labels[half])
    return inferred


def sources_of_inferred_members(
    run: Setup,
    attack: Attack,
    measured: Mapping[str, Measurements],
    is_correct: Bool[ndarray, " samples"],
    queries: SourceQueries,
) -> list[ChainedInference]:
    """Count correct sources among the queries that membership inference classifies as members.

    The membership score of a sample is the attack's signal, averaged over rounds, with its maximum
    over clients. The threshold follows from held-out samples. Without them, the result is empty.
    """
    is_held_out = run.assignment.audit.owner == NO_CLIENT
    if not is_held_out.any():
        return []
    values = measured[attack.signals[0].name].values.double()
    scores = values.nanmean(0).nan_to_num(-torch.inf).amax(0).numpy()
    null_scores = scores[np.flatnonzero(is_held_out)]
    results = []
    for fpr in _CHAINED_FPRS:
        n_false_positives = int(fpr * len(null_scores))
        threshold = np.sort(null_scores)[::-1][n_false_positives]
        is_inferred_member = scores[queries.positions] > threshold
        results.append(
            ChainedInference(
                fpr=fpr,
                realised_fpr=float((null_scores > threshold).mean()),
                called=int(is_inferred_member.sum()),
                right=int((is_inferred_member & is_correct).sum()),
            )
        )
    return results


class Baseline(NamedTuple):
    """Success of the label-distribution baseline.

    The baseline infers the client whose data have the largest proportion of the sample's class.

    Attributes:
        success: Success rate of the baseline.
        excess: Success rate of the attack minus that of the baseline.
        p_value: P-value of the exact, two-sided test on the same samples; None if only success
            rates are known.
    """

    success: float
    excess: float
    p_value: float | None


def source_estimates(
    answers: SourceResult,
    success: EstimateWithLimits[float],
    chance_test: Test,
    labels: ExcessOverLabels,
    p_value: float,
    baseline: Baseline | None,
    draw: str = OWN_SAMPLES,
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
    rate = Estimate(
        attack=answers.attack,
        defense=answers.defense,
        view=answers.view,
        seed=answers.seed,
        samples=answers.samples,
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
        "tests": [Test(null=LABELS, level=labels.explained_rate, p_value=p_value)],
    }
    estimates = [rate, rate.model_copy(update=excess)]
    if baseline is not None:
        test = Test(
            null=LABEL_BASELINE, level=baseline.success, p_value=baseline.p_value, two_sided=True
        )
        excess_over_baseline = {
            "against": LABEL_BASELINE,
            "value": baseline.excess,
            "low": None,
            "high": None,
            "method": "",
            "tests": [test],
        }
        estimates.append(rate.model_copy(update=excess_over_baseline))
    return estimates


_LIMIT_IN_DEVIATIONS = 5
"""Number of standard deviations above the mean of shuffled owners at which a control fails.

A control without a fault fails about once in millions of runs."""


def source_controls(run: Setup, device: torch.device = CPU) -> Iterator[ControlResult]:
    """Yield a control per attack: on untrained models, only label distributions help the attack."""
    queries = source_queries(run)
    if not run.source_attacks or queries is None:
        return
    if run.recording_info is not None and not run.recording_info.untrained:
        return
    measured = measured_untrained(run, queries.positions, device)

    def outcome(attack: Attack) -> ControlOutcome:
        posterior = posteriors(run, attack, measurements_for(attack, measured), queries)
        inferred = infer_source(posterior)
        rng = seeded_numpy(run.seed, "untrained owners")
        null = source_null(inferred, queries.owner, within=queries.labels, rng=rng)
        limit = min(null.mean + _LIMIT_IN_DEVIATIONS * null.std, 1.0)
        value = source_success(inferred, queries.owner).value
        note = (
            f"owners shuffled within classes: {null.mean:.3f} on average; limit at "
            f"{_LIMIT_IN_DEVIATIONS} standard deviations above: {limit:.3f}"
        )
        return ControlOutcome(value, None, limit, value <= limit, note)

    for name, attack in run.source_attacks.items():
        control = partial(
            ControlResult,
            **fields_of_run(run),
            control="untrained model",
            attack=name,
            expected="success no higher than label distributions explain, on untrained models",
        )
        yield run_control(control, partial(outcome, attack))
