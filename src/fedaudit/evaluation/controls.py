"""Controls, which check that the estimates of a run are valid.

In the negative controls, no leak exists or can be found: membership labels are permuted, a
classifier sees inputs but no model, or attacks get untrained models. Another control searches
non-members for copies of training samples. In the positive control, attacks must find a leak that
is planted in a *twin*: a small federation with the run's model and data.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.attacks import resolve_attack
from fedaudit.attacks.base import Attack
from fedaudit.attacks.rules import Recovery
from fedaudit.core.devices import CPU
from fedaudit.core.errors import FedauditError
from fedaudit.core.metric_names import Origin
from fedaudit.core.progress import Progress, announce_phase, ignore_progress
from fedaudit.core.seeds import seed_for, seeded, seeded_numpy
from fedaudit.core.values import (
    NO_CLIENT,
    Capability,
    ClientId,
    Params,
    Samples,
    add_scaled,
    scaled,
)
from fedaudit.datasets.dataset import number_rows
from fedaudit.evaluation.truth import (
    EvaluationResults,
    TargetTruth,
    fields_of_run,
    has_iid_clients,
    mean_by,
    origin_of,
    target_truth,
)
from fedaudit.fl.algorithms.base import SendsControlVariates
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.metrics import auc_interval, blind_classifier, permuted_membership
from fedaudit.observe.measurements import MeasuredRound, Measurements, stacked
from fedaudit.observe.round import ObservedModels, Round, map_clients
from fedaudit.observe.views import merged_view, seen_from, view_named
from fedaudit.plan.parts import Resources, Setup
from fedaudit.results.record import ControlResult
from fedaudit.signals.measure import measure_by_block, measure_round

_FALSE_ALARM = 0.01
"""Probability that any of a study's controls of one kind fails by chance."""

_MAX_COPIES = 0.05
"""Tolerated fraction of exact copies among non-members.

Tabular data sets contain a few copies (Adult: 0.1 %). They change an AUC by at most this fraction.
"""

_MAX_UNTRAINED_CLIENTS = 100
"""Maximum number of clients in a round of untrained models, unless more clients are audited."""

_RANDOM_STEP = 0.01
"""Standard deviation of the random updates in rounds of untrained models."""

_NONMEMBERS = {Origin.UNSEEN: "unseen samples", Origin.OTHER_CLIENT: "other clients' samples"}

_CONCLUSIVE_LIMIT = 0.85
"""Largest upper limit of the blind classifier's AUC at which the control is conclusive."""

_PLANTED_CONFIDENCE = 0.99
_CANARIES = 100
"""Number of canaries on which the twin's target trains, and of canaries that it never sees."""

_CANARY_COPIES = 5
"""Number of copies of each canary in the training data of the twin's target."""

_OTHER_CLIENTS = 4
_REFERENCE_FEDERATIONS = 2
"""Number of reference federations of the twin, for attacks that need them."""

_TWIN_ROUNDS = 6
_TWIN_TRAINING = LocalTraining(epochs=2, batch_size=16, lr=0.1)


def number_of_controls(setup: Setup) -> int:
    """Return an upper bound on the number of controls, because some may be impossible."""
    if not setup.membership_attacks:
        return 0
    # Each attack has the controls "permuted members" and "untrained model". The other one is
    # "exact copies".
    per_target, total = 2 * len(setup.membership_attacks) + 1, 0
    if setup.study.figures.blind_classifier:
        per_target += len(_NONMEMBERS)
        total += not has_iid_clients(setup)
    return total + len(setup.study.audit.targets) * per_target


SECONDS_PER_STEP = 0.2
"""Seconds for one attack or control, until the first is measured. They took 0.11 to 0.41 s in an
audit of 300 samples of digits on two cores."""


def announce_evaluation(runs: Iterable[Setup], progress: Progress) -> None:
    """Announce attacks, source inference and controls of all runs."""
    for run in runs:
        n_attacks = len(run.study.audit.targets) * len(run.membership_attacks)
        for phase, steps in (
            ("attacks", n_attacks),
            ("source inference", len(run.source_attacks)),
            ("controls", number_of_controls(run)),
        ):
            announce_phase(progress, f"seed {run.seed}: {phase}", steps, SECONDS_PER_STEP)


def evaluate_controls(
    setup: Setup,
    results: EvaluationResults,
    device: torch.device = CPU,
    progress: Progress = ignore_progress,
) -> Iterator[ControlResult]:
    """Yield all controls of one run that need no further training."""
    phase, total = f"seed {setup.seed}: controls", number_of_controls(setup)
    progress(phase, 0, total)
    for done, result in enumerate(_controls(setup, results, device), 1):
        yield result
        progress(phase, done, total)
    progress(phase, total, total)


def _controls(
    setup: Setup, results: EvaluationResults, device: torch.device
) -> Iterator[ControlResult]:
    yield from exact_copies(setup)
    truths = [target_truth(setup, target) for target in setup.study.audit.targets]
    if setup.study.figures.blind_classifier and not has_iid_clients(setup):
        yield from _blind_over_clients(setup, truths)
    for truth in truths:
        yield from _permuted(setup, truth, results)
        if setup.study.figures.blind_classifier:
            yield from _blind_by_origin(setup, truth)
        yield from _attacks_on_untrained(setup, truth, device)


class ControlOutcome(NamedTuple):
    """Outcome of a control, with some fields of :class:`ControlResult`."""

    value: float | None
    low: float | None = None
    high: float | None = None
    passed: bool | None = None
    note: str = ""


def run_control(
    make_result: Callable[..., ControlResult], compute_outcome: Callable[[], ControlOutcome]
) -> ControlResult:
    """Compute the outcome of a control, and return its result.

    An error becomes the note of an undecided result.

    Args:
        make_result: Function that receives the fields of the outcome as keyword arguments.
        compute_outcome: Function that runs the control.
    """
    try:
        outcome = compute_outcome()
    except FedauditError as error:
        outcome = ControlOutcome(None, note=str(error))
    return make_result(**outcome._asdict())


def exact_copies(setup: Setup) -> Iterator[ControlResult]:
    """Yield a control for each target with non-members that are exact copies of training samples.

    Held-out samples are compared with the training samples of all clients, and other clients'
    samples with the training samples of the target. A recording without features has no such
    control.
    """
    audit_set, clients = setup.assignment.audit, setup.assignment.clients
    if not audit_set.samples.features.flatten(1).shape[1]:
        # Without features, all samples of a class would count as copies.
        return
    # Give samples equal numbers if they have equal features and labels.
    audited_numbers, *by_client = number_rows(audit_set.samples, *clients.values())
    # Samples that a client holds out of training do not count as training samples.
    held_out_ids = audit_set.samples.ids.numpy()[audit_set.owner == NO_CLIENT]
    training_rows = {
        client: rows[~np.isin(clients[client].ids.numpy(), held_out_ids)]
        for client, rows in zip(clients, by_client, strict=True)
    }
    is_copy_at_any_client = np.isin(audited_numbers, np.concatenate(list(training_rows.values())))
    for target in setup.study.audit.targets:
        origin = origin_of(setup, target)
        is_copy_at_target = np.isin(audited_numbers, training_rows.get(target, []))
        is_held_out = origin == Origin.UNSEEN
        is_of_other_client = origin == Origin.OTHER_CLIENT
        is_copy = (is_held_out & is_copy_at_any_client) | (is_of_other_client & is_copy_at_target)
        n_copies, n_nonmembers = int(is_copy.sum()), int((is_held_out | is_of_other_client).sum())
        if n_copies:
            yield ControlResult(
                **fields_of_run(setup),
                control="exact copies",
                target=target,
                expected="fewer than 5 % of non-members are exact copies of training samples",
                value=n_copies / n_nonmembers,
                passed=n_copies / n_nonmembers < _MAX_COPIES,
                note=f"{n_copies} of {n_nonmembers} non-members are exact copies of training "
                "samples, which hides leakage; remove copies from the data set",
            )


def _permuted(
    setup: Setup, truth: TargetTruth, results: EvaluationResults
) -> Iterator[ControlResult]:
    """Yield a control per attack: intervals after a permutation rarely exclude chance level."""
    for name in setup.membership_attacks:
        scores = results.scores.get((setup.seed, truth.target, name))
        if scores is None:
            continue
        null = permuted_membership(
            scores,
            truth.units.is_member,
            rng=seeded_numpy(setup.seed, "permuted", truth.target, name),
            permutations=setup.study.figures.permutations,
        )
        yield ControlResult(
            **fields_of_run(setup),
            control="permuted members",
            attack=name,
            target=truth.target,
            expected="no more false alarms than 95 % intervals promise when membership is shuffled",
            value=null.mean,
            low=null.low,
            high=null.high,
            passed=null.passed,
            note=f"{null.alarms} of {null.permutations} shuffles raised an alarm",
        )


def _blind_by_origin(setup: Setup, truth: TargetTruth) -> Iterator[ControlResult]:
    """Yield a control for each kind of non-members: a classifier of inputs is at chance level."""
    features = _as_columns(setup.assignment.audit.samples.features).numpy()[truth.positions]
    units, labels = truth.units, truth.labels
    if truth.person is not None:
        # Average over the samples of each person. With one row per sample, a classifier that was
        # trained on some samples of a person would recognise their other samples.
        one_hot = np.eye(setup.dataset.classes)[labels]
        columns = np.concatenate([features.astype(float), one_hot], axis=1)
        features = mean_by(truth.person, columns)
    for origin, nonmembers in _NONMEMBERS.items():
        comparison = units.comparisons[origin.name.lower()]
        mask = comparison.mask
        # In a fair comparison, a random draw decided membership. If the other non-members have such
        # a comparison, skip one without it.
        is_skipped = not comparison.fair and units.control_comparison.fair
        if is_skipped or not mask.any() or units.is_member[mask].all():
            continue
        yield _blind_control(
            setup,
            nonmembers,
            features[mask],
            units.is_member[mask],
            labels[mask] if truth.person is None else None,
            stream=("blind", truth.target, int(origin)),
            target=truth.target,
        )


def _blind_over_clients(setup: Setup, truths: Sequence[TargetTruth]) -> Iterator[ControlResult]:
    """Yield the blind classifier's control on the fair draws of all audited clients together.

    It helps if single clients have too few samples to train a classifier.
    """
    positions_by_client = [
        truth.positions[truth.fair & (truth.origin != Origin.OTHER_CLIENT)]
        for truth in truths
        if truth.person is None and truth.comparisons["unseen"].fair
    ]
    if len(positions_by_client) > 1:
        positions, audit_set = np.concatenate(positions_by_client), setup.assignment.audit
        yield _blind_control(
            setup,
            "unseen samples of the same client, over all audited clients",
            _as_columns(audit_set.samples.features).numpy()[positions],
            audit_set.owner[positions] >= 0,
            audit_set.samples.labels.numpy()[positions],
            stream=("blind over clients",),
        )


def _blind_control(
    setup: Setup,
    nonmembers: str,
    features: ndarray,
    is_member: Bool[ndarray, " units"],
    labels: ndarray | None,
    *,
    stream: tuple[str | int, ...],
    target: ClientId | None = None,
) -> ControlResult:
    """Check that a classifier of inputs, without a model, does not distinguish members.

    Args:
        setup: The run.
        nonmembers: Description of the non-members.
        features: Inputs of members and non-members, one row per unit.
        is_member: Whether each unit is a member.
        labels: Class of each unit; None for people.
        stream: Names that identify the stream of random numbers.
        target: The audited client; None for a control over all clients.
    """

    def outcome() -> ControlOutcome:
        blind = blind_classifier(
            features,
            is_member,
            rng=seeded_numpy(setup.seed, *stream),
            labels=labels,
            # A run has at most two of these controls per target.
            confidence=1 - _FALSE_ALARM / (2 * _repetitions(setup)),
        )
        note, passed = f"{blind.classifier}, {blind.method}", not blind.shifted
        if passed and blind.high > _CONCLUSIVE_LIMIT:
            inconclusive = f"{note}; inconclusive with so few samples, audit more"
            return ControlOutcome(blind.auc, blind.low, blind.high, None, inconclusive)
        return ControlOutcome(blind.auc, blind.low, blind.high, passed, note)

    result = run_control(
        partial(
            ControlResult,
            **fields_of_run(setup),
            control="blind classifier",
            target=target,
            # Reports group controls by this text, so the note describes the non-members.
            expected="inputs alone do not distinguish members from non-members",
        ),
        outcome,
    )
    return result.model_copy(update={"note": f"against {nonmembers}: {result.note}"})


def _as_columns(features: Tensor) -> Tensor:
    """Return inputs as a matrix; for texts, the columns count the occurrences of each token."""
    flat = features.flatten(1)
    if flat.is_floating_point():
        return flat
    tokens, counts = torch.unique(flat), torch.zeros(len(flat), int(flat.max()) + 1)
    counts.scatter_add_(1, flat.long(), torch.ones(flat.shape))
    return counts[:, tokens.long()]


def _attacks_on_untrained(
    setup: Setup, truth: TargetTruth, device: torch.device
) -> Iterator[ControlResult]:
    """Yield a control for each attack: it is at chance level on untrained models."""
    if setup.recording_info is not None and not setup.recording_info.untrained:
        return
    measured = measured_untrained(setup, truth.positions, device)
    confidence = 1 - _FALSE_ALARM / (len(setup.membership_attacks) * _repetitions(setup))
    units = truth.units
    mask = units.control_comparison.mask
    is_member = units.is_member[mask]

    def outcome(attack: Attack) -> ControlOutcome:
        # Some attacks know which samples a client may have used in a round: here, all of them.
        attack = attack.with_side_information(dict.fromkeys((1, 2), torch.tensor(True)))
        attack = _for_unpoisoned_rounds(attack.on_samples(torch.from_numpy(truth.positions)))
        scores = attack.scores(measurements_for(attack, measured), truth.target).numpy()
        if not 0 < is_member.sum() < len(is_member):
            return ControlOutcome(None, note="no class has both members and non-members")
        auc = auc_interval(truth.unit_scores(scores)[mask], is_member, confidence=confidence)
        passed = auc.low <= 0.5 <= auc.high
        return ControlOutcome(auc.value, auc.low, auc.high, passed, auc.method)

    for name, attack in setup.membership_attacks.items():
        control = partial(
            ControlResult,
            **fields_of_run(setup),
            control="untrained model",
            attack=name,
            target=truth.target,
            expected="AUC of 0.5 within the interval on untrained models",
        )
        yield run_control(control, partial(outcome, attack))


class UntrainedMeasurements(NamedTuple):
    """Measurements of untrained models.

    Attributes:
        all_signals: One round, measured with all signals.
        cheap_signals: Two rounds, measured only with signals that need no gradients.
    """

    all_signals: dict[str, Measurements]
    cheap_signals: dict[str, Measurements]


def measurements_for(attack: Attack, measured: UntrainedMeasurements) -> dict[str, Measurements]:
    """Return two rounds if the attack needs only cheap signals, and otherwise one round."""
    needs_gradients = any(signal.name not in measured.cheap_signals for signal in attack.signals)
    return measured.all_signals if needs_gradients else measured.cheap_signals


def _for_unpoisoned_rounds(attack: Attack) -> Attack:
    """Return the attack with settings for a federation without poisoned rounds.

    A rule that compares losses after poisoned rounds then treats all rounds except the last as
    poisoned.
    """
    if not isinstance(attack.rule, Recovery):
        return attack
    return replace(attack, rule=replace(attack.rule, first=0))


def measured_untrained(
    setup: Setup, positions: Int[ndarray, " samples"], device: torch.device = CPU
) -> UntrainedMeasurements:
    """Measure untrained models on the audited samples with these indices in the audit set."""
    if setup.recording_info is not None:
        indices = torch.from_numpy(positions)
        rounds = tuple(
            replace(untrained, signals={n: v[:, indices] for n, v in untrained.signals.items()})
            for untrained in setup.recording_info.untrained
        )
    else:
        samples = setup.assignment.measured.take(torch.from_numpy(positions))
        rounds = untrained_rounds(setup, samples, device)
    all_signals = stacked(rounds[:1])
    if len(rounds) == 1:  # No signal is cheap.
        return UntrainedMeasurements(all_signals, {})
    first, second = rounds
    cheap_signals = {
        name: values for name, values in first.signals.items() if name in second.signals
    }
    two_rounds = stacked([replace(first, signals=cheap_signals), second])
    return UntrainedMeasurements(all_signals, two_rounds)


def untrained_rounds(
    setup: Setup,
    samples: Samples,
    device: torch.device = CPU,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[MeasuredRound, ...]:
    """Measure a round of untrained models with all signals, and a second one with cheap signals.

    Attacks that compare rounds need two rounds. The second round has only signals without
    gradients, since gradients take long.
    """
    # Every signal that computes gradients needs the received model.
    cheap_signals = [
        s for s in setup.signals if not s.needs & (Capability.GLOBAL_MODEL | Capability.UPDATE)
    ]
    # Generate one round at a time, since a round of a large federation contains many models.
    untrained = _with_control_variates(setup, (_untrained_round(setup, i) for i in (1, 2)))
    rounds = seen_from(untrained, setup.view)
    if device.type == "cpu":
        first = measure_by_block(next(rounds), setup.signals, samples, progress=progress)
    else:
        progress(0, len(samples))
        first = measure_round(next(rounds), setup.signals, samples, device=device)
        progress(len(samples), len(samples))
    if not cheap_signals:
        return (first,)
    return first, measure_round(next(rounds), cheap_signals, samples, device=device)


def _repetitions(setup: Setup) -> int:
    """Return the number of times that a study runs each control: once per target and seed."""
    return len(setup.study.audit.targets) * len(setup.study.seeds)


def _with_control_variates(setup: Setup, rounds: Iterable[Round]) -> Iterator[Round]:
    """Yield rounds with the control variates that an adversary of the run sees.

    These rounds use FedAvg, which has no control variates. A client's negated update takes their
    place: it is the mean gradient of its steps, except for the scale, which signals do not use.
    """
    for round in rounds:
        if isinstance(setup.algorithm, SendsControlVariates):
            observed = map_clients(round.observed, _with_control_variate)
            round = replace(round, observed=observed)
        yield round


def _with_control_variate(client: ClientId, observed: ObservedModels) -> ObservedModels:
    assert observed.update is not None
    return replace(observed, control_variate=scaled(observed.update, -1.0))


def _untrained_round(setup: Setup, index: int) -> Round:
    """Return a round in which every client's update is a random direction."""
    # The seed of the first round has no index, to reproduce results of early versions.
    stream = () if index == 1 else (index,)
    base = setup.algorithm.architecture.initial(seed_for(setup.seed, "untrained"))
    observed = {}
    for client in _clients_of_untrained_round(setup):
        update = _random_update(base.params, seeded(setup.seed, "untrained", client, *stream))
        local = replace(base, params=add_scaled(base.params, update))
        observed[client] = ObservedModels(base, local, update, gradient_scale=1.0)
    clients = tuple(observed)
    change = _random_update(base.params, seeded(setup.seed, "untrained after", *stream))
    after = replace(base, params=add_scaled(base.params, change))
    return Round(
        index=index,
        observed=observed,
        sent={},
        uploads={},
        weights=dict.fromkeys(clients, 1 / len(clients)),
        selected=clients,
        answered=clients,
        after={"global": after},
    )


def _clients_of_untrained_round(setup: Setup) -> list[ClientId]:
    """Return the clients of an untrained round: all, or a random subset of a large federation.

    The subset contains all audited clients and all owners of audited samples.
    """
    clients = sorted(setup.assignment.clients)
    if len(clients) <= _MAX_UNTRAINED_CLIENTS:
        return clients
    cohort_size = round(setup.study.training.participation * len(clients))
    assignment, audit_settings = setup.assignment, setup.study.audit
    owners = assignment.audit.owner[assignment.audit.owner >= 0]
    required = {*audit_settings.targets, *audit_settings.merge, *owners.tolist()}
    if assignment.source_samples:
        required.update(assignment.source_samples.owner.tolist())
    optional_clients = [client for client in clients if client not in required]
    order = seeded_numpy(setup.seed, "untrained clients").permutation(len(optional_clients))
    n_others = max(0, min(cohort_size, _MAX_UNTRAINED_CLIENTS) - len(required))
    return sorted([*required, *(optional_clients[i] for i in order[:n_others])])


def _random_update(params: Params, rng: torch.Generator) -> Params:
    return {
        name: _RANDOM_STEP * torch.randn(value.shape, dtype=value.dtype, generator=rng)
        for name, value in params.items()
    }


def planted_leak(setup: Setup, resources: Resources) -> Iterator[ControlResult]:
    """Train a twin federation in which one client memorises mislabelled samples, and attack it.

    This control shows that the attacks work. Without it, an AUC of 0.51 may mean that an attack is
    broken. The canaries are samples with random wrong labels. The twin's target client trains on
    several copies of half of the canaries, so that the global model memorises them. No client
    trains on the other half.

    The twin has no defense. It uses federated averaging with a small, fixed learning rate, because
    attacks on gradients find nothing after convergence or in unstable training.
    """
    control = partial(
        ControlResult,
        control="planted leak",
        target=0,
        seed=setup.seed,
        expected="finds mislabelled samples that the target of a twin run has memorised",
    )
    if not setup.algorithm.architecture.task.classes:
        note = "this task has no classes, so no sample can have a wrong label"
        yield control(value=None, passed=None, note=note)
        return
    from fedaudit.signals.canary_gradients import CanaryCosine  # Few studies plant gradients.

    if CanaryCosine() in setup.signals:
        note = "attacks look for planted gradients, which samples with wrong labels do not have"
        yield control(value=None, passed=None, note=note)
        return
    canaries, is_member = _draw_canaries(setup)
    measured = _measure_twin(setup, canaries, is_member, resources)
    references = []
    # Attacks with reference models, such as LiRA, need the study's table [references].
    if any(extension.table == "references" for extension in setup.extensions):
        references = [
            _measure_twin(setup, canaries, is_member, resources, reference=number)
            for number in range(1, 1 + _REFERENCE_FEDERATIONS)
        ]

    def outcome(name: str, attack: Attack) -> ControlOutcome:
        # Without a defense, the target trains on all of its data in every round.
        rounds = range(1, _TWIN_ROUNDS + 1)
        attack = attack.with_side_information(dict.fromkeys(rounds, torch.tensor(True)))
        if references:
            # No reference federation trains on a canary.
            is_trained_on = torch.zeros((len(references), len(canaries)), dtype=torch.bool)
            attack = attack.with_references(references, 0, is_trained_on)
        scores = _for_unpoisoned_rounds(attack).scores(measured, 0).numpy()
        auc = auc_interval(scores, is_member, confidence=_PLANTED_CONFIDENCE)
        passed: bool | None = auc.low > 0.5
        note = auc.method
        if resolve_attack(name).learns:
            # The attack was fitted to a federation with the run's training settings, which differ
            # from the twin's. So it may work and still miss the canaries.
            passed = passed or None
            note += "; fitted to a run whose training settings differ from the twin's"
        return ControlOutcome(auc.value, auc.low, auc.high, passed, note)

    for name, attack in setup.membership_attacks.items():
        yield run_control(partial(control, attack=name), partial(outcome, name, attack))


def twin_steps(setup: Setup) -> int:
    """Return the number of training steps of the twins of the control "planted leak"."""
    others = min(_OTHER_CLIENTS, len(setup.assignment.clients) - 1)
    samples = _CANARIES * (_CANARY_COPIES + others)
    twins = 1
    if any(extension.table == "references" for extension in setup.extensions):
        twins += _REFERENCE_FEDERATIONS
    steps = ceil(samples / _TWIN_TRAINING.batch_size)
    return twins * _TWIN_ROUNDS * _TWIN_TRAINING.epochs * steps


def _measure_twin(
    setup: Setup, canaries: Samples, is_member: np.ndarray, resources: Resources, reference: int = 0
) -> dict[str, Measurements]:
    """Train a twin federation, and measure the canaries in every round except the first.

    Args:
        setup: The run.
        canaries: The canaries.
        is_member: Whether the twin's target trains on each canary.
        resources: Engine and device that train the twin, and the callback for progress.
        reference: Number of a reference federation, in which the target trains on samples of
            another client instead of canaries; 0 for the twin.
    """
    members = canaries.take(torch.from_numpy(is_member))
    other_samples = [
        data.take(slice(0, len(members))) for data in setup.assignment.clients.values()
    ][1:]
    repeated = other_samples[reference % len(other_samples)] if reference else members
    target_data = Samples.concatenate(*[repeated] * _CANARY_COPIES)
    clients = dict(enumerate([target_data, *other_samples[:_OTHER_CLIENTS]]))
    training = _twin_training([len(data) for data in clients.values()])
    rounds = simulate(
        FedAvg(setup.algorithm.architecture, training),
        clients,
        rounds=_TWIN_ROUNDS,
        seed=seed_for(setup.seed, "planted leak", *([reference] if reference else ())),
        engine=resources.engine,
        device=resources.device,
    )
    view, n_merged = setup.view, len(setup.study.audit.merge)
    if n_merged:
        # If several clients of the run are attacked as one, do the same in the twin.
        merged = range(min(n_merged, _OTHER_CLIENTS - 1))
        view = merged_view(view_named(setup.study.audit.view), merged)
    phase = f"seed {setup.seed}: planted leak"
    resources.progress(phase, 0, _TWIN_ROUNDS)
    measured = []
    for round in seen_from(_with_control_variates(setup, rounds), view):
        if round.index > 1:
            measured.append(measure_round(round, setup.signals, canaries, device=resources.device))
        resources.progress(phase, round.index, _TWIN_ROUNDS)
    return stacked(measured)


def _twin_training(sizes: Sequence[int]) -> LocalTraining:
    """Return the twin's training settings, with a batch size that leaves no batch of one sample."""
    # Batch normalisation fails on a batch with a single sample.
    batch_size = _TWIN_TRAINING.batch_size
    while any(size % batch_size == 1 for size in sizes):
        batch_size += 1
    return replace(_TWIN_TRAINING, batch_size=batch_size)


def _draw_canaries(setup: Setup) -> tuple[Samples, np.ndarray]:
    """Return held-out samples with wrong labels, and whether the twin's target trains on each."""
    audit_set = setup.assignment.audit
    pool = audit_set.samples.take(torch.from_numpy(audit_set.owner < 0))
    rng = seeded(setup.seed, "canaries")
    canaries = pool.take(torch.randperm(len(pool), generator=rng)[: 2 * _CANARIES])
    # Labels are shifted by at least 1 and less than the number of classes, so all are wrong.
    shift = torch.randint(1, setup.dataset.classes, (len(canaries),), generator=rng)
    wrong_labels = (canaries.labels + shift) % setup.dataset.classes
    is_member = np.arange(len(canaries)) < len(canaries) // 2
    return Samples(canaries.features, wrong_labels, canaries.ids), is_member
