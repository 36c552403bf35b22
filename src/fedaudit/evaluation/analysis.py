"""Evaluation of membership inference attacks: from measurements and ground truth to estimates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import compress
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.attacks.base import Attack
from fedaudit.core.errors import FedauditError, TooFewPeers, TooFewRounds
from fedaudit.core.metric_names import AUC, EPSILON, Origin, rate_of
from fedaudit.core.progress import Progress, ignore_progress
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import ClientId
from fedaudit.evaluation.truth import (
    Comparison,
    EvaluationResults,
    RunFields,
    TargetTruth,
    UnitTruth,
    fields_of_run,
    fields_of_run_and_view,
    has_iid_clients,
    pooled_targets,
    repeats_other_contrast,
    target_truth,
)
from fedaudit.fl.hooks import ClientContext
from fedaudit.metrics import (
    MetricValue,
    auc_by_group,
    auc_by_owner,
    clustered_auc,
    evaluate,
    labels_alone_auc,
    most_exposed,
    one_run_epsilon_from_scores,
    permute_nonmembers_per_round,
    roc_curve,
    scale_within_strata,
    thin_roc,
    tpr_limits_function,
)
from fedaudit.metrics.catalogue import CONTRASTS, evaluate_metric, resolve_metric
from fedaudit.metrics.epsilon import EpsilonBound, bound_method, describe_equal_coins
from fedaudit.observe.measurements import Measurements
from fedaudit.plan.named import assigns_classes
from fedaudit.plan.parts import Setup
from fedaudit.results.estimate import PEOPLE_IGNORED, Estimate, Interval, Test
from fedaudit.results.record import Curve, ExposedSample, Histogram, Trajectory

GUESSED_FRACTION = 0.2
"""Fraction of fairly drawn samples for which the one-run bound on epsilon guesses membership.

It is a constant, because the bound is valid only if the fraction does not depend on the scores.
"""

_CURVE_POINTS = 120
_HISTOGRAM_BINS = 40
_PLOT_DIGITS = 5
"""Significant digits of the values in plots; estimates keep all digits."""


class AttackRun(NamedTuple):
    """Attack, defense, view and seed, which several estimates have in common."""

    attack: str
    defense: str
    view: str
    seed: int


def evaluate_attacks(
    setup: Setup,
    measured: Mapping[str, Measurements],
    results: EvaluationResults,
    progress: Progress = ignore_progress,
) -> None:
    """Run every attack on every target of one run, and add the estimates to ``results``."""
    phase = f"seed {setup.seed}: attacks"
    first_estimate, first_group = len(results.estimates), len(results.groups)
    targets = setup.study.audit.targets
    truths = {target: target_truth(setup, target) for target in targets}
    done, total = 0, len(targets) * len(setup.membership_attacks)
    progress(phase, done, total)
    for truth in truths.values():
        measurements = {
            name: _evaluated_measurements(setup, m, truth) for name, m in measured.items()
        }
        for name, m in measurements.items():
            results.trajectories.extend(trajectories(setup, name, m, truth))
        for name, attack in setup.membership_attacks.items():
            scores = _scores(setup, name, attack, measurements, truth, results)
            if scores is not None:
                _add_attack(setup, name, scores, truth, results)
            done += 1
            progress(phase, done, total)
    if not has_iid_clients(setup):
        _add_pooled(setup, [truth.units for truth in truths.values()], results)
    if setup.ignores_people:
        for added, first in ((results.estimates, first_estimate), (results.groups, first_group)):
            added[first:] = map(_note_ignored_people, added[first:])


def _add_attack(
    setup: Setup,
    name: str,
    sample_scores: Float[ndarray, " samples"],
    truth: TargetTruth,
    results: EvaluationResults,
) -> None:
    """Add the scores, estimates and plots of one attack on one target."""
    scores, units = truth.unit_scores(sample_scores), truth.units
    results.scores[setup.seed, truth.target, name] = scores
    _add_estimates(setup, name, scores, units, results)
    if truth.person is not None:
        results.estimates += _single_sample_estimates(setup, name, sample_scores, truth)
    _add_plots(setup, name, scores, units, results)
    results.groups.extend(_group_estimates(setup, name, sample_scores, truth))


def _note_ignored_people(estimate: Estimate) -> Estimate:
    """Note in an estimate's method that its interval treats samples of a person as independent."""
    # Bounds on epsilon are also valid for dependent samples.
    if estimate.high is None or estimate.metric == EPSILON:
        return estimate
    return estimate.model_copy(update={"method": f"{estimate.method}, {PEOPLE_IGNORED}"})


def _evaluated_measurements(setup: Setup, m: Measurements, truth: TargetTruth) -> Measurements:
    """Return the measurements of the target's audited samples, redrawn if the study sets this."""
    values = m.values[:, :, torch.from_numpy(truth.positions)]
    if setup.study.figures.evaluation == "redraw":
        rng = seeded_numpy(setup.seed, "redraw", truth.target)
        values = torch.from_numpy(
            permute_nonmembers_per_round(values.numpy(), truth.is_member, rng=rng)
        )
    return replace(m, values=values)


def _scores(
    setup: Setup,
    name: str,
    attack: Attack,
    measurements: Mapping[str, Measurements],
    truth: TargetTruth,
    results: EvaluationResults,
) -> Float[ndarray, " samples"] | None:
    """Return an attack's scores. If it cannot run on the target, add the reason to the results."""
    try:
        if attack.needs_side_information:
            first, labels = next(iter(measurements.values())), torch.from_numpy(truth.labels)
            trainable = trainable_by_round(setup, truth.target, first, labels)
            attack = attack.with_side_information(trainable)
        attack = attack.on_samples(torch.from_numpy(truth.positions))
        return attack.scores(measurements, truth.target).numpy()
    except FedauditError as refusal:
        client = setup.client_name(truth.target)
        subject = client if setup.recording_info else f"seed {setup.seed}, {client}"
        reason = str(refusal).replace(f"client {truth.target}", client)
        reasons = results.failed
        if isinstance(refusal, TooFewRounds):
            reasons = results.too_few_rounds
        elif isinstance(refusal, TooFewPeers):
            reasons = results.too_few_peers
        reasons.setdefault(name, {})[subject] = f"{subject}: {reason}"
        return None


def _single_sample_estimates(
    setup: Setup, name: str, scores: Float[ndarray, " samples"], truth: TargetTruth
) -> Iterator[Estimate]:
    """Yield the AUC over samples instead of people, with confidence limits clustered by person."""
    # These estimates have no test, because a study of people tests only the estimates over people.
    assert truth.person is not None
    for contrast, against in CONTRASTS.items():
        mask = np.isin(truth.origin, [Origin.MEMBER, *against])
        is_member, person = truth.is_member[mask], truth.person[mask]
        if is_member.all() or not is_member.any():
            continue
        yield Estimate(
            **fields_of_run_and_view(setup),
            attack=name,
            target=truth.target,
            contrast=contrast,
            metric=AUC,
            **asdict(clustered_auc(scores[mask], is_member, person)),
            n_members=int(is_member.sum()),
            n_nonmembers=int((~is_member).sum()),
        )


def _add_estimates(
    setup: Setup,
    name: str,
    scores: Float[ndarray, " units"],
    truth: UnitTruth,
    results: EvaluationResults,
) -> None:
    study = setup.study
    attack = AttackRun(attack=name, **fields_of_run_and_view(setup))
    add_estimates(attack, scores, truth, results, study.figures.fprs)
    for metric in study.figures.metrics:
        rng = seeded_numpy(setup.seed, "metric", metric, truth.target, name)
        compute = resolve_metric(metric)
        for contrast, compared in truth.comparisons.items():
            units, origin = scores[compared.mask], truth.origin[compared.mask]
            values = evaluate_metric(
                metric, compute, units, origin, rng=rng, origin_codes=True, contrasts=(contrast,)
            )
            results.estimates += [_estimate(attack, truth, value, compared) for value in values]
    results.estimates += _epsilon_bound(setup, name, scores, truth)


def add_estimates(
    attack: AttackRun,
    scores: Float[ndarray, " units"],
    truth: UnitTruth,
    results: EvaluationResults,
    fprs: Sequence[float],
) -> None:
    """Add the estimates of one attack on one client in one run, except the bound on epsilon."""
    for contrast, compared in truth.comparisons.items():
        _add_contrast(attack, scores, truth, contrast, compared, results, fprs)


def _add_contrast(
    attack: AttackRun,
    scores: Float[ndarray, " units"],
    truth: UnitTruth,
    contrast: str,
    compared: Comparison,
    results: EvaluationResults,
    fprs: Sequence[float],
    client: Int[ndarray, " units"] | None = None,
) -> None:
    """Add the estimates of one contrast, and limits of rates at any confidence.

    If units of several clients are pooled, ``client`` is the client whose fair draw contains each
    unit. Units are then only compared with units of the same client.
    """
    mask = compared.mask
    if not truth.is_member[mask].any():
        note = (
            "inconclusive: no class has both members and such non-members, and label "
            "distributions alone would distinguish them"
        )
        inconclusive = MetricValue(
            contrast=contrast, metric=AUC, value=None, low=None, high=None, note=note
        )
        results.estimates.append(_estimate(attack, truth, inconclusive, compared))
        return
    if truth.is_member[mask].all():
        # Without such non-members, pass all units to evaluate(), which returns an estimate with a
        # note about this.
        mask = np.ones_like(mask)
    scores, origin = scores[mask], truth.origin[mask]
    strata = None if client is None else client[mask]
    scaled = scores if strata is None else scale_within_strata(scores, strata)
    for evaluated in evaluate(
        scores,
        origin,
        fprs=fprs,
        seed=attack.seed,
        origin_codes=True,
        contrasts=(contrast,),
        strata=strata,
    ):
        rate, estimate = rate_of(evaluated.metric), _estimate(attack, truth, evaluated, compared)
        # An estimate that repeats another one gets no test, since the test would otherwise count
        # twice in the correction for multiple tests.
        if evaluated.p_value is not None and not repeats_other_contrast(contrast, truth):
            estimate = estimate.model_copy(update={"tests": [Test(p_value=evaluated.p_value)]})
        if rate is not None and evaluated.value is not None:
            limits = tpr_limits_function(scaled, origin == Origin.MEMBER, rate)
            results.limits[len(results.estimates)] = limits
        results.estimates.append(estimate)


def _add_pooled(setup: Setup, audited: Sequence[UnitTruth], results: EvaluationResults) -> None:
    """Add estimates over all audited clients, in which units are compared within each client.

    They help if single clients have too few audited samples for a conclusion. Only units from fair
    draws are pooled.
    """
    for name in setup.membership_attacks:
        attack = AttackRun(attack=name, **fields_of_run_and_view(setup))
        truths, scores_by_client = list[UnitTruth](), []
        for truth in pooled_targets(setup, audited):
            client_scores = results.scores.get((setup.seed, truth.target, name))
            if client_scores is not None:
                truths.append(truth)
                scores_by_client.append(client_scores[truth.fair])
        if len(truths) < 2:
            continue
        scores = np.concatenate(scores_by_client)
        counts = [len(client_scores) for client_scores in scores_by_client]
        client = np.repeat([truth.target for truth in truths], counts)
        origin = np.concatenate([truth.origin[truth.fair] for truth in truths])
        ids = np.concatenate([truth.ids[truth.fair] for truth in truths])
        first, fair = truths[0], np.ones_like(ids, bool)
        units = UnitTruth(first.target, first.unit, origin, fair, ids)
        labels = [
            truth.labels[truth.fair]
            for truth in truths
            if isinstance(truth, TargetTruth) and truth.has_classes
        ]
        for contrast, origins in CONTRASTS.items():
            if not {*origin.tolist()}.issuperset(origins):
                continue
            mask, labels_alone = np.isin(origin, [Origin.MEMBER, *origins]), None
            if len(labels) == len(truths):
                labels_alone = labels_alone_auc(
                    np.concatenate(labels)[mask],
                    units.is_member[mask],
                    rng=seeded_numpy(setup.seed, "labels alone", "pooled", contrast),
                    strata=client[mask],
                )
            compared = Comparison(mask, within="client", labels_alone=labels_alone)
            fprs = setup.study.figures.fprs
            _add_contrast(attack, scores, units, contrast, compared, results, fprs, client)


_COPIED_FIELDS = (
    *("contrast", "metric", "value", "low", "high", "method", "n_members", "n_nonmembers"),
    *("realised_fpr", "ceiling", "note"),
)
"""Fields that MetricValue and Estimate have in common."""


def _estimate(
    attack: AttackRun, truth: UnitTruth, evaluated: MetricValue, compared: Comparison
) -> Estimate:
    low, high = evaluated.low_at_threshold, evaluated.high_at_threshold
    return Estimate(
        **attack._asdict(),
        **{name: getattr(evaluated, name) for name in _COPIED_FIELDS},
        unit=truth.unit,
        target=None if compared.within == "client" else truth.target,
        within=compared.within,
        fair=compared.fair,
        labels_alone=compared.labels_alone if evaluated.metric == AUC else None,
        at_threshold=None if high is None else Interval(low=low, high=high),
    )


class CoinScores(NamedTuple):
    """An attack's scores for units whose membership was decided by a fair coin.

    Attributes:
        run: The run.
        target: The audited client.
        attack: Name of the attack.
        unit: "sample" or "person".
        scores: Scores of units, larger for likelier members.
        is_member: Whether the client trained on each unit.
        guesses: Number of units for which the bounds on epsilon guess membership: half of them are
            the units with the highest scores, the others those with the lowest.
    """

    run: Setup
    target: ClientId
    attack: str
    unit: Literal["sample", "person"]
    scores: Float[ndarray, " units"]
    is_member: Bool[ndarray, " units"]
    guesses: int


def coin_scores(
    run: Setup, attack: str, scores: Float[ndarray, " units"], truth: UnitTruth
) -> CoinScores | None:
    """Return the scores from which bounds on epsilon are computed; None if there are too few."""
    mask = truth.fair & (truth.origin != Origin.OTHER_CLIENT)
    guesses = 2 * int(GUESSED_FRACTION * mask.sum() / 2)
    if guesses < 2:
        return None
    is_member = truth.is_member[mask]
    return CoinScores(run, truth.target, attack, truth.unit, scores[mask], is_member, guesses)


def bound_estimate(
    coins: CoinScores,
    metric: str,
    bound: EpsilonBound | str,
    family: int,
    *,
    name: str,
    delta: float,
    note: str,
) -> Estimate:
    """Return the estimate with a lower bound on epsilon.

    Args:
        coins: Scores from which the bound was computed.
        metric: Name of the estimate.
        bound: The bound, or the reason why there is none.
        family: Number of bounds among which the study's error probability is divided.
        name: Name of the method, which is used if there is no bound.
        delta: Delta of the method, which is used if there is no bound.
        note: Note on the bound for readers.
    """
    estimate = partial(
        Estimate,
        **fields_of_run_and_view(coins.run),
        attack=coins.attack,
        unit=coins.unit,
        target=coins.target,
        contrast="unseen",
        metric=metric,
        n_members=int(coins.is_member.sum()),
        n_nonmembers=int((~coins.is_member).sum()),
    )
    shared = f"; error shared by {family} bounds"
    if isinstance(bound, str):
        method = bound_method(name, delta, coins.run.study.figures.alpha / family)
        return estimate(value=None, method=method + shared, note=f"refused: {bound}")
    return estimate(
        value=bound.value,
        low=bound.value,
        method=bound.method + shared,
        ceiling=bound.ceiling,
        note=note,
    )


def _epsilon_bound(
    setup: Setup, name: str, scores: Float[ndarray, " units"], truth: UnitTruth
) -> Iterator[Estimate]:
    """Yield the lower bound on epsilon from one run's members and held-out samples."""
    study, coins = setup.study, coin_scores(setup, name, scores, truth)
    if coins is None or study.figures.evaluation == "redraw":
        return
    family = len(setup.membership_attacks) * len(study.audit.targets) * len(study.seeds)
    bound: EpsilonBound | str = describe_equal_coins(coins.is_member)
    if not bound:
        alpha = study.figures.alpha / family
        bound = one_run_epsilon_from_scores(
            coins.scores, coins.is_member, guesses=coins.guesses, alpha=alpha
        )
    note = f"lower bound from {coins.guesses} guesses in one run; it refutes claims, confirms none"
    yield bound_estimate(coins, EPSILON, bound, family, name="one run", delta=0.0, note=note)


def trainable_by_round(
    setup: Setup, target: ClientId, m: Measurements, labels: Int[Tensor, " samples"]
) -> dict[int, Bool[Tensor, " samples"]]:
    """Return whether the target may train on each sample's class, for each measured round.

    A defense may assign classes to clients, which then train on samples of these classes. They also
    train on a few samples of other classes, which this function ignores. If several clients are
    attacked as one, the result is True if any of them may train on the class.
    """
    merged = setup.study.audit.merge
    clients = merged if target in merged else (target,)
    trainable = {}
    for row, index in enumerate(m.rounds):
        is_measured = (m.bases[row] >= 0).tolist()
        cohort_ids = set(compress(m.clients, is_measured))
        if m.group_of:
            # Add clients that are visible only in a sum.
            cohort_ids.update(m.group_of[row])
        cohort = tuple(sorted(cohort_ids))
        by_client = [_may_train_on(setup, client, index, cohort, labels) for client in clients]
        trainable[index] = torch.stack(by_client).any(0)
    return trainable


def _may_train_on(
    setup: Setup,
    client: ClientId,
    index: int,
    cohort: tuple[ClientId, ...],
    labels: Int[Tensor, " samples"],
) -> Bool[Tensor, " samples"]:
    defense = setup.defenses.get(client)
    if defense is None or not assigns_classes(defense):
        return torch.ones(len(labels), dtype=torch.bool)
    if client not in cohort:
        return torch.zeros(len(labels), dtype=torch.bool)
    client_context = ClientContext(
        round=index,
        rounds=setup.study.training.rounds,
        client=client,
        cohort=cohort,
        weights={},
        seed=setup.federation_seed,
    )
    return defense.assigned_classes(client_context, classes=setup.dataset.classes)[labels]


class _AttackFields(RunFields):
    attack: str
    target: int


def _add_plots(
    setup: Setup,
    name: str,
    scores: Float[ndarray, " units"],
    truth: UnitTruth,
    results: EvaluationResults,
) -> None:
    """Add ROC curves, a histogram and the most exposed members of one attack."""
    fields: _AttackFields = {**fields_of_run(setup), "attack": name, "target": truth.target}
    for contrast, compared in truth.comparisons.items():
        mask = compared.mask
        if truth.is_member[mask].all():
            continue
        roc = thin_roc(roc_curve(scores[mask], truth.is_member[mask]), _CURVE_POINTS)
        curve = {"fpr": _rounded(roc.fpr), "tpr": _rounded(roc.tpr)}
        results.curves.append(Curve(**fields, view=setup.view.name, contrast=contrast, **curve))
    results.histograms.append(_histogram(fields, scores, truth))
    results.exposed.extend(
        ExposedSample(
            **fields,
            unit=truth.unit,
            sample=int(truth.ids[member.position]),
            label=int(truth.labels[member.position]) if isinstance(truth, TargetTruth) else None,
            above_nonmembers=member.above_nonmembers,
        )
        for member in most_exposed(scores, truth.is_member, top=setup.study.figures.most_exposed)
    )


def _histogram(
    fields: _AttackFields, scores: Float[ndarray, " units"], truth: UnitTruth
) -> Histogram:
    finite = scores[np.isfinite(scores)]
    # Count extreme scores in the first and last bin, since they would otherwise widen all bins.
    low, high = np.quantile(finite, [0.02, 0.98]).tolist() if len(finite) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, _HISTOGRAM_BINS + 1)
    counts = {
        name: np.histogram(np.clip(scores[truth.origin == origin], low, high), edges)[0].tolist()
        for origin, name in _ORIGIN_NAMES.items()
    }
    return Histogram(**fields, edges=_rounded(edges), **counts)


def _group_estimates(
    setup: Setup, name: str, scores: Float[ndarray, " samples"], truth: TargetTruth
) -> Iterator[Estimate]:
    """Yield the AUC within each class, and against the samples of each other client."""
    if truth.person is not None:
        # The intervals assume independent samples, but samples of the same person are dependent.
        return
    estimate = partial(
        Estimate, **fields_of_run(setup), metric=AUC, attack=name, target=truth.target
    )
    for row in auc_by_group(scores, truth.is_member, groups=truth.labels):
        fields = asdict(row) | {"group": str(row.group)}
        yield estimate(contrast="mixed", by="class", fair=True, **fields)
    is_fair = truth.comparisons["other_client"].fair
    for row in auc_by_owner(scores, truth.is_member, owners=truth.owners):
        if row.group >= 0:
            fields = asdict(row) | {"group": str(row.group)}
            yield estimate(contrast="other_client", by="client", fair=is_fair, **fields)


def trajectories(
    setup: Setup, name: str, m: Measurements, truth: TargetTruth
) -> Iterator[Trajectory]:
    """Yield the mean and the 10 % and 90 % quantiles of a signal in each round, by origin."""
    all_values = m.of(truth.target).numpy()
    for origin in Origin:
        values = all_values[:, truth.origin == origin]
        if values.shape[1]:
            yield Trajectory(
                **fields_of_run(setup),
                signal=name,
                target=truth.target,
                origin=_ORIGIN_NAMES[origin],
                rounds=list(m.rounds),
                mean=_none_unless_finite(values.mean(1)),
                low=_none_unless_finite(np.quantile(values, 0.1, axis=1)),
                high=_none_unless_finite(np.quantile(values, 0.9, axis=1)),
            )


_ORIGIN_NAMES: dict[Origin, Literal["member", "other_client", "unseen"]] = {
    Origin.MEMBER: "member",
    Origin.OTHER_CLIENT: "other_client",
    Origin.UNSEEN: "unseen",
}


def _rounded(values: Float[ndarray, " points"]) -> list[float]:
    return [float(f"{value:.{_PLOT_DIGITS}g}") for value in values]


def _none_unless_finite(values: Float[ndarray, " rounds"]) -> list[float | None]:
    return [
        rounded if np.isfinite(value) else None
        for value, rounded in zip(values, _rounded(values), strict=True)
    ]
