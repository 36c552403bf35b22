"""Controls, which check that the estimates of a run are valid.

They look for copies of training samples among non-members, permute membership labels, classify
inputs without a model and attack untrained models. Attacks must also find a leak that is planted
in a *twin*: a small federation of the run's model and data.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.attacks import attack_named
from fedaudit.attacks.base import Attack
from fedaudit.attacks.rules import Recovery
from fedaudit.core.devices import CPU
from fedaudit.core.errors import FedauditError
from fedaudit.core.metric_names import Origin
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.seeds import seed_for, seeded, seeded_numpy
from fedaudit.core.values import NO_CLIENT, ClientId, Model, Params, Samples, Sees, plus
from fedaudit.datasets.dataset import number_rows
from fedaudit.evaluation.truth import (
    Findings,
    TargetTruth,
    has_equal_clients,
    mean_by,
    origin_of,
    run_coordinates,
    target_truth,
)
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.metrics import auc_interval, blind_classifier, permuted_membership
from fedaudit.observe.measurements import MeasuredRound, Measurements, stacked
from fedaudit.observe.round import Exposed, Round
from fedaudit.observe.views import merged_view, seen_from, view_named
from fedaudit.plan.parts import Resources, Setup
from fedaudit.results.record import ControlResult
from fedaudit.signals.measure import measure_by_block, measure_round

_FALSE_ALARM = 0.01
"""Probability that any of a study's controls of one kind fails by chance."""

_MAX_COPIES = 0.05
"""Tolerated fraction of exact copies among non-members. Tables have a few (Adult: 0.1 %), and the
error of an AUC is at most this fraction."""

_MAX_UNTRAINED = 100
"""Largest number of clients in an untrained round, if fewer are audited."""

_RANDOM_STEP = 0.01
"""Standard deviation of the random updates of untrained rounds."""

_BLIND_AGAINST = {Origin.UNSEEN: "unseen samples", Origin.OTHER_CLIENT: "other clients' samples"}

_CONCLUSIVE_LIMIT = 0.85
"""Largest upper limit of the blind classifier's AUC at which the control is conclusive."""

_PLANTED_CONFIDENCE = 0.99
_CANARIES = 100
"""Number of canaries that the twin's target trains on, and of those that it does not train on."""

_CANARY_COPIES = 5
"""Number of copies of each canary in the training data of the twin's target."""

_OTHER_CLIENTS = 4
_REFERENCE_FEDERATIONS = 2
"""Number of reference federations of the twin, for attacks that need them."""

_TWIN_ROUNDS = 6
_TWIN_TRAINING = LocalTraining(epochs=2, batch_size=16, lr=0.1)


def controls(
    setup: Setup, findings: Findings, device: torch.device = CPU, progress: Progress = quiet
) -> Iterator[ControlResult]:
    """Yield all controls of one run that need no further training."""
    phase = f"seed {setup.seed}: controls"
    blind = _BLIND_AGAINST if setup.study.figures.blind_classifier else {}
    # This is an upper bound, as some controls may be impossible.
    total = len(setup.study.audit.targets) * (2 * len(setup.membership_attacks) + len(blind) + 1)
    total += bool(blind) and not has_equal_clients(setup)
    progress(phase, 0, total)
    for done, result in enumerate(_controls(setup, findings, device), 1):
        yield result
        progress(phase, done, total)
    progress(phase, total, total)


def _controls(setup: Setup, findings: Findings, device: torch.device) -> Iterator[ControlResult]:
    yield from exact_copies(setup)
    truths = [target_truth(setup, target) for target in setup.study.audit.targets]
    if setup.study.figures.blind_classifier and not has_equal_clients(setup):
        yield from _blind_over_clients(setup, truths)
    for truth in truths:
        yield from _permuted(setup, truth, findings)
        if setup.study.figures.blind_classifier:
            yield from _blind_by_origin(setup, truth)
        yield from _attacks_on_untrained(setup, truth, device)


class Outcome(NamedTuple):
    """Outcome of a control, with the fields of :class:`ControlResult`."""

    value: float | None
    low: float | None = None
    high: float | None = None
    passed: bool | None = None
    note: str = ""


def run_control(
    control: Callable[..., ControlResult], outcome: Callable[[], Outcome]
) -> ControlResult:
    """Return the control with its outcome, or with a note why the outcome cannot be computed."""
    try:
        result = outcome()
    except FedauditError as refusal:
        result = Outcome(None, note=str(refusal))
    return control(**result._asdict())


def exact_copies(setup: Setup) -> Iterator[ControlResult]:
    """Yield a control for each target with non-members that are exact copies of training samples.

    Held-out samples are compared with the training samples of all clients, and other clients'
    samples with those of the target. If a recording has no features, there is no control.
    """
    audit, clients = setup.assignment.audit, setup.assignment.clients
    if not audit.samples.features.flatten(1).shape[1]:
        # Without features, all samples of one class would count as copies.
        return
    # Equal rows get equal numbers.
    audited, *by_client = number_rows(audit.samples, *clients.values())
    # Samples that a client holds out of training do not count as training samples.
    held_out_ids = audit.samples.ids.numpy()[audit.owner == NO_CLIENT]
    training_rows = {
        client: rows[~np.isin(clients[client].ids.numpy(), held_out_ids)]
        for client, rows in zip(clients, by_client, strict=True)
    }
    in_any = np.isin(audited, np.concatenate(list(training_rows.values())))
    for target in setup.study.audit.targets:
        origin = origin_of(setup, target)
        in_target = np.isin(audited, training_rows.get(target, []))
        held_out, others = origin == Origin.UNSEEN, origin == Origin.OTHER_CLIENT
        copies = int((held_out & in_any).sum() + (others & in_target).sum())
        nonmembers = int((held_out | others).sum())
        if copies:
            yield ControlResult(
                **run_coordinates(setup),
                control="exact copies",
                target=target,
                expected="fewer than 5 % of non-members are exact copies of training samples",
                value=copies / nonmembers,
                passed=copies / nonmembers < _MAX_COPIES,
                note=f"{copies} of {nonmembers} non-members are exact copies of training samples, "
                "which hides leakage; remove copies from the data set",
            )


def _permuted(setup: Setup, truth: TargetTruth, findings: Findings) -> Iterator[ControlResult]:
    """Yield a control per attack: confidence intervals rarely exclude chance for random members."""
    for name in setup.membership_attacks:
        scores = findings.scores.get((setup.seed, truth.target, name))
        if scores is None:
            continue
        null = permuted_membership(
            scores,
            truth.units.is_member,
            rng=seeded_numpy(setup.seed, "permuted", truth.target, name),
            permutations=setup.study.figures.permutations,
        )
        yield ControlResult(
            **run_coordinates(setup),
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
    """Yield a control per kind of non-members: inputs without a model do not reveal members."""
    features = _as_columns(setup.assignment.audit.samples.features).numpy()[truth.positions]
    units, labels = truth.units, truth.labels
    if truth.subject is not None:
        # Rows are means over people. With a row per sample, a classifier that was trained on some
        # samples of a person would recognise the others.
        one_hot = np.eye(setup.dataset.classes)[labels]
        columns = np.concatenate([features.astype(float), one_hot], axis=1)
        features = mean_by(truth.subject, columns)
    for origin, against in _BLIND_AGAINST.items():
        compared = units.comparisons[origin.name.lower()]
        mask = compared.mask
        # If only other non-members come from the fair draw, conclusions are drawn from those.
        is_skipped = not compared.fair and units.for_controls.fair
        if is_skipped or not mask.any() or units.is_member[mask].all():
            continue
        yield _inputs_control(
            setup,
            against,
            features[mask],
            units.is_member[mask],
            labels[mask] if truth.subject is None else None,
            draw=("blind", truth.target, int(origin)),
            target=truth.target,
        )


def _blind_over_clients(setup: Setup, truths: Sequence[TargetTruth]) -> Iterator[ControlResult]:
    """Yield the control on inputs over the fair draws of all audited clients together.

    A single client may have too few samples for a classifier.
    """
    positions_by_client = [
        truth.positions[truth.fair & (truth.origin != Origin.OTHER_CLIENT)]
        for truth in truths
        if truth.subject is None and truth.comparisons["unseen"].fair
    ]
    if len(positions_by_client) > 1:
        positions, audit = np.concatenate(positions_by_client), setup.assignment.audit
        yield _inputs_control(
            setup,
            "unseen samples of the same client, over all audited clients",
            _as_columns(audit.samples.features).numpy()[positions],
            audit.owner[positions] >= 0,
            audit.samples.labels.numpy()[positions],
            draw=("blind over clients",),
        )


def _inputs_control(
    setup: Setup,
    against: str,
    features: ndarray,
    is_member: Bool[ndarray, " units"],
    labels: ndarray | None,
    *,
    draw: tuple[str | int, ...],
    target: ClientId | None = None,
) -> ControlResult:
    """Return the control on inputs, which is inconclusive with too few samples.

    Args:
        setup: The run.
        against: The non-members, in words.
        features: Inputs of members and non-members, one row per unit.
        is_member: Whether each unit is a member.
        labels: Class of each unit; None for people.
        draw: Names of the stream of random numbers.
        target: The audited client; None for a control over all clients.
    """

    def outcome() -> Outcome:
        blind = blind_classifier(
            features,
            is_member,
            rng=seeded_numpy(setup.seed, *draw),
            labels=labels,
            confidence=1 - _FALSE_ALARM / (2 * _repetitions(setup)),
        )
        is_conclusive = blind.shifted or blind.high <= _CONCLUSIVE_LIMIT
        note = f"{blind.classifier}, {blind.method}"
        note += "" if is_conclusive else "; inconclusive with so few samples, audit more"
        passed = not blind.shifted if is_conclusive else None
        return Outcome(blind.auc, blind.low, blind.high, passed, note)

    result = run_control(
        partial(
            ControlResult,
            **run_coordinates(setup),
            control="blind classifier",
            target=target,
            # A table has one row for each text, so what differs between targets is in the note.
            expected="inputs alone do not distinguish members from non-members",
        ),
        outcome,
    )
    return result.model_copy(update={"note": f"against {against}: {result.note}"})


def _as_columns(features: Tensor) -> Tensor:
    """Return inputs as a matrix; for texts, the number of occurrences of each token."""
    flat = features.flatten(1)
    if flat.is_floating_point():
        return flat
    tokens, counts = torch.unique(flat), torch.zeros(len(flat), int(flat.max()) + 1)
    counts.scatter_add_(1, flat.long(), torch.ones(flat.shape))
    return counts[:, tokens.long()]


def _attacks_on_untrained(
    setup: Setup, truth: TargetTruth, device: torch.device
) -> Iterator[ControlResult]:
    """Yield a control per attack: untrained models, which cannot leak, give an AUC of 0.5."""
    if setup.recording_info is not None and not setup.recording_info.untrained:
        return
    measured = measured_untrained(setup, truth.positions, device)
    confidence = 1 - _FALSE_ALARM / (len(setup.membership_attacks) * _repetitions(setup))
    units = truth.units
    mask = units.for_controls.mask
    is_member = units.is_member[mask]

    def outcome(attack: Attack) -> Outcome:
        # As side information, every sample may have been trained on in both rounds.
        attack = attack.with_side_information(dict.fromkeys((1, 2), torch.tensor(True)))
        attack = _for_unpoisoned_rounds(attack.on_samples(torch.from_numpy(truth.positions)))
        scores = attack.scores(measurements_for(attack, measured), truth.target).numpy()
        if not 0 < is_member.sum() < len(is_member):
            return Outcome(None, note="no class has both sides")
        scores = truth.unit_scores(scores)[mask]
        auc = auc_interval(scores, is_member, confidence=confidence)
        passed = auc.low <= 0.5 <= auc.high
        return Outcome(auc.value, auc.low, auc.high, passed, auc.method)

    for name, attack in setup.membership_attacks.items():
        control = partial(
            ControlResult,
            **run_coordinates(setup),
            control="untrained model",
            attack=name,
            target=truth.target,
            expected="AUC of 0.5 within the interval on untrained models",
        )
        yield run_control(control, partial(outcome, attack))


class Untrained(NamedTuple):
    """Measurements of untrained models.

    Attributes:
        all_signals: One round, measured with all signals.
        cheap_signals: Two rounds, measured only with signals that need no gradients.
    """

    all_signals: dict[str, Measurements]
    cheap_signals: dict[str, Measurements]


def measurements_for(attack: Attack, measured: Untrained) -> dict[str, Measurements]:
    """Return two rounds if cheap signals suffice for the attack, else the single round."""
    is_slow = any(signal.name not in measured.cheap_signals for signal in attack.signals)
    return measured.all_signals if is_slow else measured.cheap_signals


def _for_unpoisoned_rounds(attack: Attack) -> Attack:
    """Return an attack that uses all rounds, even if it waits for poisoned ones in the run."""
    if not isinstance(attack.rule, Recovery):
        return attack
    return replace(attack, rule=replace(attack.rule, first=0))


def measured_untrained(
    setup: Setup, positions: Int[ndarray, " samples"], device: torch.device = CPU
) -> Untrained:
    """Measure untrained models on the samples at the given positions."""
    if setup.recording_info is not None:
        indices = torch.from_numpy(positions)
        rounds = tuple(
            replace(untrained, signals={n: v[:, indices] for n, v in untrained.signals.items()})
            for untrained in setup.recording_info.untrained
        )
    else:
        samples = setup.assignment.measured.take(torch.from_numpy(positions))
        rounds = untrained_rounds(setup, samples, device)
    # There is no second round if no signal is cheap.
    first, *second = rounds
    shared = [
        replace(first, signals={n: v for n, v in first.signals.items() if n in round.signals})
        for round in second
    ]
    return Untrained(stacked([first]), stacked([*shared, *second]) if second else {})


def untrained_rounds(
    setup: Setup,
    samples: Samples,
    device: torch.device = CPU,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[MeasuredRound, ...]:
    """Measure an untrained round with all signals, and a second one with cheap signals.

    Attacks that follow a signal over rounds need two rounds. Signals that need gradients take too
    long for a second round.
    """
    cheap = [s for s in setup.signals if not s.needs & (Sees.GLOBAL_MODEL | Sees.UPDATE)]
    # A round of a large federation holds many models, so one is generated at a time.
    rounds = seen_from((_untrained_round(setup, index) for index in (1, 2)), setup.view)
    if device.type == "cpu":
        first = measure_by_block(next(rounds), setup.signals, samples, progress=progress)
    else:
        progress(0, len(samples))
        first = measure_round(next(rounds), setup.signals, samples, device=device)
        progress(len(samples), len(samples))
    if not cheap:
        return (first,)
    return first, measure_round(next(rounds), cheap, samples, device=device)


def _repetitions(setup: Setup) -> int:
    """Return the number of times that a study runs each control: once per target and seed."""
    return len(setup.study.audit.targets) * len(setup.study.seeds)


def _untrained_round(setup: Setup, index: int) -> Round:
    """Return a round in which every client's update is a random direction."""
    # The seed of the first round has no index, so that results of early versions are reproduced.
    draw = () if index == 1 else (index,)
    base = setup.algorithm.architecture.initial(seed_for(setup.seed, "untrained"))
    exposed = {}
    for client in _clients_of_untrained_round(setup):
        step = _random_step(base.params, seeded(setup.seed, "untrained", client, *draw))
        local = Model(base.architecture, plus(base.params, step), base.buffers)
        exposed[client] = Exposed(base, local, step, gradient_scale=1.0)
    clients = tuple(exposed)
    after = Model(
        base.architecture,
        plus(base.params, _random_step(base.params, seeded(setup.seed, "untrained after", *draw))),
        base.buffers,
    )
    return Round(
        index=index,
        exposed=exposed,
        sent={},
        uploads={},
        weights=dict.fromkeys(clients, 1 / len(clients)),
        asked=clients,
        answered=clients,
        after={"global": after},
    )


def _clients_of_untrained_round(setup: Setup) -> list[ClientId]:
    """Return the clients of an untrained round: all, or for a large federation a random subset.

    The subset contains all audited clients and all owners of audited samples.
    """
    clients = sorted(setup.assignment.clients)
    if len(clients) <= _MAX_UNTRAINED:
        return clients
    cohort = round(setup.study.training.participation * len(clients))
    count = min(cohort, _MAX_UNTRAINED)
    owners = setup.assignment.audit.owner
    required = {*setup.study.audit.targets, *setup.study.audit.merge}
    required |= {int(owner) for owner in owners[owners >= 0]}
    required |= (
        set(setup.assignment.source_samples.owner.tolist())
        if setup.assignment.source_samples
        else set()
    )
    others = [client for client in clients if client not in required]
    order = seeded_numpy(setup.seed, "untrained clients").permutation(len(others))
    return sorted([*required, *(others[i] for i in order[: max(0, count - len(required))])])


def _random_step(like: Params, rng: torch.Generator) -> Params:
    return {
        name: _RANDOM_STEP * torch.randn(value.shape, dtype=value.dtype, generator=rng)
        for name, value in like.items()
    }


def planted_leak(setup: Setup, resources: Resources) -> Iterator[ControlResult]:
    """Train a twin federation whose target memorises mislabelled samples, and attack it.

    Without such a control, an AUC of 0.51 may mean that the attack is broken. The canaries are
    samples with random wrong labels. The target trains on several copies of half of them, so that
    the global model memorises these, too, and attacks on it can find them. No client trains on the
    other half. The twin has no defense. It uses federated averaging with a small, fixed learning
    rate, as attacks on gradients find nothing after convergence or in unstable training.
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
    canaries, is_member = _canaries(setup)
    measured = _measured_twin(setup, canaries, is_member, resources)
    needs_references = any(extension.table == "references" for extension in setup.extensions)
    references = [
        _measured_twin(setup, canaries, is_member, resources, reference=number)
        for number in range(1, 1 + needs_references * _REFERENCE_FEDERATIONS)
    ]

    def outcome(name: str, attack: Attack) -> Outcome:
        # Without a defense, the target trains on all of its data in every round.
        rounds = range(1, _TWIN_ROUNDS + 1)
        informed = attack.with_side_information(dict.fromkeys(rounds, torch.tensor(True)))
        if references:
            # No reference federation trains on a canary.
            is_trained_on = torch.zeros((len(references), len(canaries)), dtype=torch.bool)
            informed = informed.with_references(references, 0, is_trained_on)
        scores = _for_unpoisoned_rounds(informed).scores(measured, 0).numpy()
        auc = auc_interval(scores, is_member, confidence=_PLANTED_CONFIDENCE)
        is_found, learns = auc.low > 0.5, attack_named(name).learns
        # The twin trains differently from the run. An attack that was fitted to another federation
        # with the run's training may miss the canaries, although it works.
        passed = None if learns and not is_found else is_found
        note = auc.method + "; learned on a run with other training than the twin" * learns
        return Outcome(auc.value, auc.low, auc.high, passed, note)

    for name, attack in setup.membership_attacks.items():
        yield run_control(partial(control, attack=name), partial(outcome, name, attack))


def _measured_twin(
    setup: Setup, canaries: Samples, is_member: np.ndarray, resources: Resources, reference: int = 0
) -> dict[str, Measurements]:
    """Measure the canaries in every round of the twin except the first.

    Args:
        setup: The run.
        canaries: The canaries.
        is_member: Whether the twin's target trains on each canary.
        resources: Resources.
        reference: Number of a reference federation, in which the target has another client's first
            samples instead of canaries; 0 for the twin.
    """
    members = canaries.take(torch.from_numpy(is_member))
    others = [data.take(slice(0, len(members))) for data in setup.assignment.clients.values()][1:]
    repeated = others[reference % len(others)] if reference else members
    clients = {0: Samples.joined(*[repeated] * _CANARY_COPIES)} | dict(
        enumerate(others[:_OTHER_CLIENTS], 1)
    )
    training = _twin_training([len(data) for data in clients.values()])
    rounds = simulate(
        FedAvg(setup.algorithm.architecture, training),
        clients,
        rounds=_TWIN_ROUNDS,
        seed=seed_for(setup.seed, "planted leak", *([reference] if reference else ())),
        engine=resources.engine,
        device=resources.device,
    )
    phase = f"seed {setup.seed}: planted leak"
    resources.progress(phase, 0, _TWIN_ROUNDS)
    measured = []
    view, merged = setup.view, len(setup.study.audit.merge)
    if merged:
        # If clients of the run are attacked as one, so are equally many clients of the twin.
        view = merged_view(
            view_named(setup.study.audit.view), range(min(merged, _OTHER_CLIENTS - 1))
        )
    for round in seen_from(rounds, view):
        if round.index > 1:
            measured.append(measure_round(round, setup.signals, canaries, device=resources.device))
        resources.progress(phase, round.index, _TWIN_ROUNDS)
    return stacked(measured)


def _twin_training(sizes: Sequence[int]) -> LocalTraining:
    # The last batch must not be a single sample, which batch normalisation refuses.
    batch_sizes = count(_TWIN_TRAINING.batch_size)
    batch_size = next(b for b in batch_sizes if all(size % b != 1 for size in sizes))
    return replace(_TWIN_TRAINING, batch_size=batch_size)


def _canaries(setup: Setup) -> tuple[Samples, np.ndarray]:
    """Return held-out samples with wrong labels, and whether the twin's target trains on each."""
    audit = setup.assignment.audit
    pool = audit.samples.take(torch.from_numpy(audit.owner < 0))
    rng = seeded(setup.seed, "canaries")
    canaries = pool.take(torch.randperm(len(pool), generator=rng)[: 2 * _CANARIES])
    # A shift of at least 1 never gives the true label.
    shift = torch.randint(1, setup.dataset.classes, (len(canaries),), generator=rng)
    wrong_labels = (canaries.labels + shift) % setup.dataset.classes
    is_member = np.arange(len(canaries)) < len(canaries) // 2
    return Samples(canaries.features, wrong_labels, canaries.ids), is_member
