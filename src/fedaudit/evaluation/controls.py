"""Controls, which check that the figures of a run are valid.

Membership labels are permuted, inputs are classified without a model, untrained models are
attacked, and attacks must find a leak that is planted in a small twin of the run.
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
from fedaudit.core.values import NOBODY, ClientId, Model, Params, Samples, Sees, plus
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
from fedaudit.plan.parts import Setup, Work
from fedaudit.results.record import ControlResult
from fedaudit.signals.measure import measure_by_block, measure_round

_FALSE_ALARM = 0.01
"""Probability that some control of one kind fails by chance in a study."""

_COPIES_TOLERATED = 0.05
"""Share of exact copies that is tolerated. Tables have a few copies (Adult: 0.1 %), which change
an AUC by at most this share."""

_MAX_UNTRAINED = 100
"""Largest number of clients in an untrained round, apart from those that must be in it."""
_RANDOM_STEP = 0.01

_BLIND_AGAINST = {Origin.UNSEEN: "unseen samples", Origin.OTHER_CLIENT: "other clients' samples"}

_NO_POWER = 0.85
"""Largest upper limit of the blind classifier's AUC at which the control is conclusive."""
_PLANTED_CONFIDENCE = 0.99
_CANARIES = 100
_REPEATS = 5
"""Number of copies of each canary in the training data of the twin's target."""
_OTHERS = 4
_REFERENCES = 2
"""Number of reference federations of the twin, for attacks that need them."""
_ROUNDS = 6
_TWIN_TRAINING = LocalTraining(epochs=2, batch_size=16, lr=0.1)


def controls(
    setup: Setup, findings: Findings, device: torch.device = CPU, progress: Progress = quiet
) -> Iterator[ControlResult]:
    """Yield all controls of one run that need no further training."""
    phase = f"seed {setup.seed}: controls"
    blind = _BLIND_AGAINST if setup.study.figures.blind_classifier else {}
    # An upper bound, as some controls may be impossible.
    total = len(setup.study.audit.targets) * (2 * len(setup.on_membership) + len(blind) + 1)
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
            yield from _blind(setup, truth)
        yield from _untrained(setup, truth, device)


class Outcome(NamedTuple):
    """Outcome of a control, with the fields of :class:`ControlResult`."""

    value: float | None
    low: float | None = None
    high: float | None = None
    passed: bool | None = None
    note: str = ""


def attempted(
    control: Callable[..., ControlResult], outcome: Callable[[], Outcome]
) -> ControlResult:
    """Return a control with its outcome, or with the reason why it has none."""
    try:
        result = outcome()
    except FedauditError as refusal:
        result = Outcome(None, note=str(refusal))
    return control(**result._asdict())


def exact_copies(setup: Setup) -> Iterator[ControlResult]:
    """Yield a control for each target with non-members that are exact copies of training samples.

    Unseen samples are compared with the training samples of all clients, and other clients' samples
    with those of the target. The samples are not changed. There is no control without features.
    """
    audit, clients = setup.deal.audit, setup.deal.clients
    if not audit.samples.features.flatten(1).shape[1]:
        # A recording without features: all samples of one class would count as copies.
        return
    audited, *by_client = number_rows(audit.samples, *clients.values())
    # Samples that a client holds out of training do not count as training samples.
    unused = audit.samples.ids.numpy()[audit.owner == NOBODY]
    trained = {
        client: rows[~np.isin(clients[client].ids.numpy(), unused)]
        for client, rows in zip(clients, by_client, strict=True)
    }
    in_any = np.isin(audited, np.concatenate(list(trained.values())))
    for target in setup.study.audit.targets:
        origin = origin_of(setup, target)
        in_target = np.isin(audited, trained.get(target, []))
        unseen, others = origin == Origin.UNSEEN, origin == Origin.OTHER_CLIENT
        copies = int((unseen & in_any).sum() + (others & in_target).sum())
        nonmembers = int((unseen | others).sum())
        if copies:
            yield ControlResult(
                **run_coordinates(setup),
                control="exact copies",
                target=target,
                expected="fewer than 5 % of non-members are exact copies of training samples",
                value=copies / nonmembers,
                passed=copies / nonmembers < _COPIES_TOLERATED,
                note=f"{copies} of {nonmembers} non-members are exact copies of training samples, "
                "which hides leakage; remove copies from the data set",
            )


def _permuted(setup: Setup, truth: TargetTruth, findings: Findings) -> Iterator[ControlResult]:
    """Yield the control that counts false alarms of intervals for shuffled membership."""
    for name in setup.on_membership:
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


def _blind(setup: Setup, truth: TargetTruth) -> Iterator[ControlResult]:
    """Yield the success of classifiers that see inputs but no model; it is not leakage."""
    features = _as_columns(setup.deal.audit.samples.features).numpy()[truth.positions]
    units, labels = truth.units, truth.labels
    if truth.subject is not None:
        # One row per person: a classifier could recognise people by their other samples.
        one_hot = np.eye(setup.dataset.classes)[labels]
        columns = np.concatenate([features.astype(float), one_hot], axis=1)
        features = mean_by(truth.subject, columns)
    for origin, against in _BLIND_AGAINST.items():
        compared = units.comparisons[origin.name.lower()]
        chosen = compared.chosen
        # If other non-members are from a fair draw, no figure is computed from these.
        skipped = not compared.fair and units.for_controls.fair
        if skipped or not chosen.any() or units.is_member[chosen].all():
            continue
        yield _of_inputs(
            setup,
            against,
            features[chosen],
            units.is_member[chosen],
            labels[chosen] if truth.subject is None else None,
            draw=("blind", truth.target, int(origin)),
            target=truth.target,
        )


def _blind_over_clients(setup: Setup, truths: Sequence[TargetTruth]) -> Iterator[ControlResult]:
    """Yield the control on inputs over the fairly drawn samples of all audited clients.

    A single client may have too few samples for a classifier.
    """
    fair = [
        truth.positions[truth.fair & (truth.origin != Origin.OTHER_CLIENT)]
        for truth in truths
        if truth.subject is None and truth.comparisons["unseen"].fair
    ]
    if len(fair) > 1:
        positions, audit = np.concatenate(fair), setup.deal.audit
        yield _of_inputs(
            setup,
            "unseen samples of the same client, over all audited clients",
            _as_columns(audit.samples.features).numpy()[positions],
            audit.owner[positions] >= 0,
            audit.samples.labels.numpy()[positions],
            draw=("blind over clients",),
        )


def _of_inputs(
    setup: Setup,
    against: str,
    features: ndarray,
    is_member: Bool[ndarray, " units"],
    labels: ndarray | None,
    *,
    draw: tuple[str | int, ...],
    target: ClientId | None = None,
) -> ControlResult:
    """Return the control on inputs; with too few samples it neither passes nor fails."""

    def outcome() -> Outcome:
        blind = blind_classifier(
            features,
            is_member,
            rng=seeded_numpy(setup.seed, *draw),
            labels=labels,
            confidence=1 - _FALSE_ALARM / (2 * _repetitions(setup)),
        )
        is_conclusive = blind.shifted or blind.high <= _NO_POWER
        note = f"{blind.classifier}, {blind.method}"
        note += "" if is_conclusive else "; inconclusive with so few samples, audit more"
        passed = not blind.shifted if is_conclusive else None
        return Outcome(blind.auc, blind.low, blind.high, passed, note)

    result = attempted(
        partial(
            ControlResult,
            **run_coordinates(setup),
            control="blind classifier",
            target=target,
            # The text is the same for all, as tables have one row for each; the note is specific.
            expected="inputs alone do not distinguish members from non-members",
        ),
        outcome,
    )
    return result.model_copy(update={"note": f"against {against}: {result.note}"})


def _as_columns(features: Tensor) -> Tensor:
    """Return inputs as columns of numbers, and tokens as a count of each."""
    flat = features.flatten(1)
    if flat.is_floating_point():
        return flat
    tokens, counts = torch.unique(flat), torch.zeros(len(flat), int(flat.max()) + 1)
    counts.scatter_add_(1, flat.long(), torch.ones(flat.shape))
    return counts[:, tokens.long()]


def _untrained(setup: Setup, truth: TargetTruth, device: torch.device) -> Iterator[ControlResult]:
    """Yield the control that attacks untrained models, which cannot leak."""
    if setup.recorded is not None and not setup.recorded.untrained:
        return
    measured = measured_untrained(setup, truth.positions, device)
    confidence = 1 - _FALSE_ALARM / (len(setup.on_membership) * _repetitions(setup))
    units = truth.units
    chosen = units.for_controls.chosen
    is_member = units.is_member[chosen]

    def outcome(attack: Attack) -> Outcome:
        # The side information states that every sample could be trained on in both rounds.
        informed = attack.with_side_information(dict.fromkeys((1, 2), torch.tensor(True)))
        informed = _for_unpoisoned_rounds(informed.on_samples(torch.from_numpy(truth.positions)))
        scores = informed.scores(cubes_for(attack, measured), truth.target).numpy()
        if not 0 < is_member.sum() < len(is_member):
            return Outcome(None, note="no class has both sides")
        auc = auc_interval(truth.of_units(scores)[chosen], is_member, confidence=confidence)
        passed = auc.low <= 0.5 <= auc.high
        return Outcome(auc.value, auc.low, auc.high, passed, auc.method)

    for name, attack in setup.on_membership.items():
        control = partial(
            ControlResult,
            **run_coordinates(setup),
            control="untrained model",
            attack=name,
            target=truth.target,
            expected="AUC of 0.5 within the interval on untrained models",
        )
        yield attempted(control, partial(outcome, attack))


class Untrained(NamedTuple):
    """Measurements of one untrained round with all signals, and of two with cheap signals only."""

    once: dict[str, Measurements]
    twice: dict[str, Measurements]


def cubes_for(attack: Attack, measured: Untrained) -> dict[str, Measurements]:
    """Return the two rounds if they have all signals of the attack, else the single round."""
    is_slow = any(signal.name not in measured.twice for signal in attack.signals)
    return measured.once if is_slow else measured.twice


def _for_unpoisoned_rounds(attack: Attack) -> Attack:
    """Treat all rounds of an attack as poisoned, since the control's rounds have no poison."""
    if not isinstance(attack.rule, Recovery):
        return attack
    return replace(attack, rule=replace(attack.rule, first=0))


def measured_untrained(
    setup: Setup, positions: Int[ndarray, " samples"], device: torch.device = CPU
) -> Untrained:
    """Measure untrained models on the samples at the given positions."""
    if setup.recorded is not None:
        chosen = torch.from_numpy(positions)
        rounds = tuple(
            replace(untrained, signals={n: v[:, chosen] for n, v in untrained.signals.items()})
            for untrained in setup.recorded.untrained
        )
    else:
        samples = setup.deal.measured.take(torch.from_numpy(positions))
        rounds = untrained_rounds(setup, samples, device)
    first, *later = rounds
    shared = [
        replace(first, signals={n: v for n, v in first.signals.items() if n in second.signals})
        for second in later
    ]
    return Untrained(stacked([first]), stacked([*shared, *later]) if later else {})


def untrained_rounds(
    setup: Setup,
    samples: Samples,
    device: torch.device = CPU,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[MeasuredRound, ...]:
    """Measure an untrained round with all signals, and a second one with cheap signals.

    Attacks that follow a signal over rounds need two rounds. Gradients take too long to be measured
    twice.
    """
    cheap = [s for s in setup.signals if not s.needs & (Sees.GLOBAL_MODEL | Sees.UPDATE)]
    # Rounds are generated one after the other, as those of a large federation have many models.
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
    """Return the number of targets and seeds for which a study makes each control."""
    return len(setup.study.audit.targets) * len(setup.study.seeds)


def _untrained_round(setup: Setup, index: int) -> Round:
    """Return a round in which every client's update is a random direction."""
    # The random streams of the first round have no index, as the first version had one round.
    draw = () if index == 1 else (index,)
    base = setup.algorithm.architecture.initial(seed_for(setup.seed, "untrained"))
    exposed = {}
    for client in _untrained_clients(setup):
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


def _untrained_clients(setup: Setup) -> list[ClientId]:
    """Return the clients of an untrained round: all, or some clients of a large federation.

    Audited clients and owners of audited samples are always among them.
    """
    clients = sorted(setup.deal.clients)
    if len(clients) <= _MAX_UNTRAINED:
        return clients
    cohort = round(setup.study.training.participation * len(clients))
    count = min(cohort, _MAX_UNTRAINED)
    owners = setup.deal.audit.owner
    required = {*setup.study.audit.targets, *setup.study.audit.merge}
    required |= {int(owner) for owner in owners[owners >= 0]}
    required |= (
        set(setup.deal.source_samples.owner.tolist()) if setup.deal.source_samples else set()
    )
    others = [client for client in clients if client not in required]
    order = seeded_numpy(setup.seed, "untrained clients").permutation(len(others))
    return sorted([*required, *(others[i] for i in order[: max(0, count - len(required))])])


def _random_step(like: Params, rng: torch.Generator) -> Params:
    return {
        name: _RANDOM_STEP * torch.randn(value.shape, dtype=value.dtype, generator=rng)
        for name, value in like.items()
    }


def planted_leak(setup: Setup, work: Work) -> Iterator[ControlResult]:
    """Train a small twin federation whose target memorises mislabelled samples, and attack it.

    Without such a control, an AUC of 0.51 may mean that the attack is broken. The canaries are
    samples with random wrong labels. The target trains on several copies of half of them, so that
    the global model memorises these, too, and attacks on it can find them. No client trains on the
    other half. There is no defense, and the twin uses federated averaging with a fixed, small
    learning rate: after convergence, or with unstable training, updates show nothing to attacks on
    gradients.
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
    measured = _measured_twin(setup, canaries, is_member, work)
    compares = any(extension.table == "references" for extension in setup.extensions)
    references = [
        _measured_twin(setup, canaries, is_member, work, reference=number)
        for number in range(1, 1 + compares * _REFERENCES)
    ]

    def outcome(name: str, attack: Attack) -> Outcome:
        # Without a defense, the target trains on all of its data in every round.
        rounds = range(1, _ROUNDS + 1)
        informed = attack.with_side_information(dict.fromkeys(rounds, torch.tensor(True)))
        if references:
            never = torch.zeros((len(references), len(canaries)), dtype=torch.bool)
            informed = informed.with_references(references, 0, never)
        scores = _for_unpoisoned_rounds(informed).scores(measured, 0).numpy()
        auc = auc_interval(scores, is_member, confidence=_PLANTED_CONFIDENCE)
        is_found, learns = auc.low > 0.5, attack_named(name).learns
        # An attack that learned from different training may miss the canaries without being broken.
        passed = None if learns and not is_found else is_found
        note = auc.method + "; learned on a run with other training than the twin" * learns
        return Outcome(auc.value, auc.low, auc.high, passed, note)

    for name, attack in setup.on_membership.items():
        yield attempted(partial(control, attack=name), partial(outcome, name, attack))


def _measured_twin(
    setup: Setup, canaries: Samples, is_member: np.ndarray, work: Work, reference: int = 0
) -> dict[str, Measurements]:
    """Measure the canaries in every round of the twin except the first.

    Args:
        setup: The run.
        canaries: The canaries.
        is_member: Whether the twin's target trains on each canary.
        work: Resources.
        reference: Number of a reference federation, in which the target has another client's first
            samples instead of canaries; 0 for the twin.
    """
    members = canaries.take(torch.from_numpy(is_member))
    others = [data.take(slice(0, len(members))) for data in setup.deal.clients.values()][1:]
    repeated = others[reference % len(others)] if reference else members
    clients = {0: Samples.joined(*[repeated] * _REPEATS)} | dict(enumerate(others[:_OTHERS], 1))
    training = _twin_training([len(data) for data in clients.values()])
    rounds = simulate(
        FedAvg(setup.algorithm.architecture, training),
        clients,
        rounds=_ROUNDS,
        seed=seed_for(setup.seed, "planted leak", *([reference] if reference else ())),
        engine=work.engine,
        device=work.device,
    )
    phase = f"seed {setup.seed}: planted leak"
    work.progress(phase, 0, _ROUNDS)
    measured = []
    view, merged = setup.view, len(setup.study.audit.merge)
    if merged:
        # As many clients of the twin are attacked as one as in the run.
        view = merged_view(view_named(setup.study.audit.view), range(min(merged, _OTHERS - 1)))
    for round in seen_from(rounds, view):
        if round.index > 1:
            measured.append(measure_round(round, setup.signals, canaries, device=work.device))
        work.progress(phase, round.index, _ROUNDS)
    return stacked(measured)


def _twin_training(sizes: Sequence[int]) -> LocalTraining:
    # Batch normalisation refuses a batch of one sample.
    batch_sizes = count(_TWIN_TRAINING.batch_size)
    batch_size = next(b for b in batch_sizes if all(size % b != 1 for size in sizes))
    return replace(_TWIN_TRAINING, batch_size=batch_size)


def _canaries(setup: Setup) -> tuple[Samples, np.ndarray]:
    """Return unseen samples with wrong labels, and whether the twin's target trains on each."""
    audit = setup.deal.audit
    pool = audit.samples.take(torch.from_numpy(audit.owner < 0))
    rng = seeded(setup.seed, "canaries")
    chosen = pool.take(torch.randperm(len(pool), generator=rng)[: 2 * _CANARIES])
    shift = torch.randint(1, setup.dataset.classes, (len(chosen),), generator=rng)
    wrong = (chosen.labels + shift) % setup.dataset.classes
    is_member = np.arange(len(chosen)) < len(chosen) // 2
    return Samples(chosen.features, wrong, chosen.ids), is_member
