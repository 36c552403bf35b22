"""Controls: checks that the figures of a run mean what they say.

Members are permuted, inputs classified without a model, untrained models attacked, and a small
twin of the run has a leak that every attack must find.
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
from fedaudit.datasets.copies import number_rows
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
from fedaudit.observe.views import View, as_one, seen_from, view_named
from fedaudit.plan.parts import Setup, Work
from fedaudit.results.record import ControlResult
from fedaudit.signals.measure import measure_by_block, measure_round

_FALSE_ALARM = 0.01
"""How often a sound study may see a control of one kind fail by chance, whatever its size."""

_COPIES_TOLERATED = 0.05
"""Tables have a few copies by nature (Adult: 0.1 %), which move an AUC by as much at most."""

_ALL_UNTRAINED = 100
"""So many clients are all in an untrained round; of more, as many as a round has, or so many."""
_RANDOM_STEP = 0.01

_BLIND_AGAINST = {Origin.UNSEEN: "unseen samples", Origin.OTHER_CLIENT: "other clients' samples"}

_NO_POWER = 0.85
"""A classifier of inputs whose AUC may be above this rules out too little to count as a check."""
_PLANTED_CONFIDENCE = 0.99
_CANARIES = 100
_REPEATS = 5
"""How often the twin's target holds each canary that it trains on."""
_OTHERS = 4
_REFERENCES = 2
"""Reference federations of the twin, for attacks that compare with some."""
_ROUNDS = 6
_GENTLY = LocalTraining(epochs=2, batch_size=16, lr=0.1)


def controls(
    setup: Setup, findings: Findings, device: torch.device = CPU, progress: Progress = quiet
) -> Iterator[ControlResult]:
    """Yield all controls of one run that need no further training.

    Args:
        setup: The run.
        findings: Its figures, for the scores in them.
        device: Where untrained models are measured.
        progress: Called after each control.
    """
    phase = f"seed {setup.seed}: controls"
    blind = _BLIND_AGAINST if setup.study.figures.blind_classifier else {}
    # Some may not be possible, so that there are at most this many.
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
    """The outcome of a control, for the fields of a record's control."""

    value: float | None
    low: float | None = None
    high: float | None = None
    passed: bool | None = None
    note: str = ""


def attempted(
    control: Callable[..., ControlResult], outcome: Callable[[], Outcome]
) -> ControlResult:
    """Return a control with its outcome; without one and with the reason if it cannot be made."""
    try:
        found = outcome()
    except FedauditError as refusal:
        found = Outcome(None, note=str(refusal))
    return control(**found._asdict())


def exact_copies(setup: Setup) -> Iterator[ControlResult]:
    """Report each target's non-members that are exact copies of training samples, if any are.

    Of unseen samples the training samples of all clients count, and of other clients' samples those
    of the target. The draw of samples stays as it is.
    """
    audit, clients = setup.deal.audit, setup.deal.clients
    audited, *held = number_rows(audit.samples, *clients.values())
    # A client may hold samples that a defense keeps out of its training: these are no copies.
    unused = audit.samples.ids.numpy()[audit.owner == NOBODY]
    trained = {
        client: rows[~np.isin(clients[client].ids.numpy(), unused)]
        for client, rows in zip(clients, held, strict=True)
    }
    everywhere = np.isin(audited, np.concatenate(list(trained.values())))
    for target in setup.study.audit.targets:
        origin = origin_of(setup, target)
        own = np.isin(audited, trained.get(target, []))
        unseen, others = origin == Origin.UNSEEN, origin == Origin.OTHER_CLIENT
        copies = int((unseen & everywhere).sum() + (others & own).sum())
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
    """Shuffle membership among the same scores: intervals must not find what is not there."""
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
    """Classify by inputs and no model: whatever that finds is no leakage."""
    features = _as_columns(setup.deal.audit.samples.features).numpy()[truth.kept]
    units, labels = truth.units, truth.labels
    if truth.subject is not None:
        # One row a person, or a classifier would know a person of whom it saw other samples.
        each = np.eye(setup.dataset.classes)[labels]
        features = mean_by(truth.subject, np.concatenate([features.astype(float), each], axis=1))
    for origin, against in _BLIND_AGAINST.items():
        compared = units.comparisons[origin.name.lower()]
        chosen = compared.chosen
        # Where other non-members are fair, no figure that counts rests on these.
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

    One client's may be too few for a classifier to find anything in them.
    """
    fair = [
        one.kept[one.fair & (one.origin != Origin.OTHER_CLIENT)]
        for one in truths
        if one.subject is None and one.comparisons["unseen"].fair
    ]
    if len(fair) > 1:
        places, audit = np.concatenate(fair), setup.deal.audit
        yield _of_inputs(
            setup,
            "unseen samples of the same client, over all audited clients",
            _as_columns(audit.samples.features).numpy()[places],
            audit.owner[places] >= 0,
            audit.samples.labels.numpy()[places],
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
    """Return the control on inputs; no outcome if too few samples could not show one."""

    def outcome() -> Outcome:
        blind = blind_classifier(
            features,
            is_member,
            rng=seeded_numpy(setup.seed, *draw),
            labels=labels,
            confidence=1 - _FALSE_ALARM / (2 * _repetitions(setup)),
        )
        told = blind.shifted or blind.high <= _NO_POWER
        note = f"{blind.classifier}, {blind.method}"
        note += "" if told else "; too few samples to tell, audit more"
        passed = not blind.shifted if told else None
        return Outcome(blind.auc, blind.low, blind.high, passed, note)

    found = attempted(
        partial(
            ControlResult,
            **run_coordinates(setup),
            control="blind classifier",
            target=target,
            # The same for all, since tables show one line a kind; the note tells them apart.
            expected="inputs alone do not tell members from non-members",
        ),
        outcome,
    )
    return found.model_copy(update={"note": f"against {against}: {found.note}"})


def _as_columns(features: Tensor) -> Tensor:
    """Return inputs as columns of numbers; of tokens, how often each occurs."""
    flat = features.flatten(1)
    if flat.is_floating_point():
        return flat
    kept, counts = torch.unique(flat), torch.zeros(len(flat), int(flat.max()) + 1)
    counts.scatter_add_(1, flat.long(), torch.ones(flat.shape))
    return counts[:, kept.long()]


def _untrained(setup: Setup, truth: TargetTruth, device: torch.device) -> Iterator[ControlResult]:
    """Attack untrained models: the measuring itself must find nothing."""
    measured = measured_untrained(setup, truth.kept, device)
    confidence = 1 - _FALSE_ALARM / (len(setup.on_membership) * _repetitions(setup))
    units = truth.units
    chosen = units.for_controls.chosen
    is_member = units.is_member[chosen]

    def outcome(attack: Attack) -> Outcome:
        # An untrained model can have been trained on anything.
        informed = attack.with_side_information(dict.fromkeys((1, 2), torch.tensor(True)))
        informed = _of_any_rounds(informed.on_samples(torch.from_numpy(truth.kept)))
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
            expected="AUC of 0.5 within the interval on models that nobody trained",
        )
        yield attempted(control, partial(outcome, attack))


class Untrained(NamedTuple):
    """Every signal of one untrained round, and those that cost little of two."""

    once: dict[str, Measurements]
    twice: dict[str, Measurements]


def cubes_for(attack: Attack, measured: Untrained) -> dict[str, Measurements]:
    """Return two rounds if these have all signals of the attack, else one."""
    slow = any(signal.name not in measured.twice for signal in attack.signals)
    return measured.once if slow else measured.twice


def _of_any_rounds(attack: Attack) -> Attack:
    """Return the attack where no client poisons: every round counts as a poisoned one."""
    if not isinstance(attack.rule, Recovery):
        return attack
    return replace(attack, rule=replace(attack.rule, first=0))


def measured_untrained(
    setup: Setup, kept: Int[ndarray, " samples"], device: torch.device = CPU
) -> Untrained:
    """Measure untrained models at some of the positions that the run measures.

    Rules that follow a signal need two rounds; gradients take too long to be measured again.
    """
    if setup.recorded is not None:
        chosen = torch.from_numpy(kept)
        rounds = tuple(
            replace(one, signals={n: values[:, chosen] for n, values in one.signals.items()})
            for one in setup.recorded.untrained
        )
    else:
        samples = setup.deal.measured.take(torch.from_numpy(kept))
        rounds = untrained_rounds(setup, samples, device)
    first, *more = rounds
    shared = [
        replace(first, signals={n: v for n, v in first.signals.items() if n in one.signals})
        for one in more
    ]
    return Untrained(stacked([first]), stacked([*shared, *more]) if more else {})


def untrained_rounds(
    setup: Setup,
    samples: Samples,
    device: torch.device = CPU,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[MeasuredRound, ...]:
    """Measure an untrained round with every signal, and a second one with those that cost little.

    Args:
        setup: The run.
        samples: To be measured.
        device: Where models are run.
        progress: Called with (samples done, samples in all) as the first is measured.
    """
    cheap = [s for s in setup.signals if not s.needs & (Sees.GLOBAL_MODEL | Sees.UPDATE)]
    # One after the other: a round of a large federation has many models.
    rounds = seen_from((_untrained_round(setup, index) for index in (1, 2)), setup.view)
    if device.type == "cpu":
        one = measure_by_block(next(rounds), setup.signals, samples, progress=progress)
    else:
        progress(0, len(samples))
        one = measure_round(next(rounds), setup.signals, samples, device=device)
        progress(len(samples), len(samples))
    return (one, measure_round(next(rounds), cheap, samples, device=device)) if cheap else (one,)


def _repetitions(setup: Setup) -> int:
    """Return how often a study makes each control: once a target and seed."""
    return len(setup.study.audit.targets) * len(setup.study.seeds)


def _untrained_round(setup: Setup, index: int) -> Round:
    """Return a round in which every client's change is a random direction."""
    # The first round's draws are named as they were when there was no second.
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
    """Return the clients of an untrained round: all, or as many as a large federation needs.

    Those under audit and those that audited samples are of are among them.
    """
    everybody = sorted(setup.deal.clients)
    if len(everybody) <= _ALL_UNTRAINED:
        return everybody
    asked = round(setup.study.training.participation * len(everybody))
    most = min(asked, _ALL_UNTRAINED)
    owners = setup.deal.audit.owner
    wanted = {*setup.study.audit.targets, *setup.study.audit.merge}
    wanted |= {int(owner) for owner in owners[owners >= 0]}
    wanted |= set(setup.deal.own.owner.tolist()) if setup.deal.own else set()
    others = [client for client in everybody if client not in wanted]
    drawn = seeded_numpy(setup.seed, "untrained clients").permutation(len(others))
    return sorted([*wanted, *(others[i] for i in drawn[: max(0, most - len(wanted))])])


def _random_step(like: Params, rng: torch.Generator) -> Params:
    return {
        name: _RANDOM_STEP * torch.randn(value.shape, dtype=value.dtype, generator=rng)
        for name, value in like.items()
    }


def planted_leak(setup: Setup, work: Work) -> Iterator[ControlResult]:
    """Train a small federation whose target memorises mislabelled samples, and attack it.

    Without a control of this kind "AUC 0.51" may be a broken attack. Half of the
    canaries, samples with wrong labels drawn at random, are trained on by the target, several
    times over, so that the global model memorises them too and even attacks that look at it
    alone can find them; no client trains on the other half. No defense is in force, and the
    twin trains gently, by federated averaging with fixed settings: a run that has converged or
    jumps about leaves updates in which no attack on gradients finds anything.

    Args:
        setup: The run that is controlled; its model, view and attacks are used.
        work: Which processes train, where they and the measurements calculate, and what is
            called after each of the twin's rounds.
    """
    control = partial(
        ControlResult,
        control="planted leak",
        target=0,
        seed=setup.seed,
        expected="finds mislabelled samples that the target of a twin run has memorised",
    )
    if not setup.algorithm.architecture.task.classes:
        note = "this task has no classes, and so no sample with a wrong label"
        yield control(value=None, passed=None, note=note)
        return
    canaries, is_member = _canaries(setup)
    measured = _measured_twin(setup, canaries, is_member, work)
    compares = any(one.table == "references" for one in setup.extensions)
    references = [
        _measured_twin(setup, canaries, is_member, work, reference=number)
        for number in range(1, 1 + compares * _REFERENCES)
    ]

    def outcome(name: str, attack: Attack) -> Outcome:
        # No defense is in force: the target trains on all of its data in every round.
        rounds = range(1, _ROUNDS + 1)
        informed = attack.with_side_information(dict.fromkeys(rounds, torch.tensor(True)))
        if references:
            never = torch.zeros((len(references), len(canaries)), dtype=torch.bool)
            informed = informed.with_references(references, 0, never)
        scores = _of_any_rounds(informed).scores(measured, 0).numpy()
        auc = auc_interval(scores, is_member, confidence=_PLANTED_CONFIDENCE)
        found, learned = auc.low > 0.5, attack_named(name).learns
        # What moves otherwise than what was learned from may well be missed.
        passed = None if learned and not found else found
        note = auc.method + "; learned on a run that trains otherwise than the twin" * learned
        return Outcome(auc.value, auc.low, auc.high, passed, note)

    for name, attack in setup.on_membership.items():
        yield attempted(partial(control, attack=name), partial(outcome, name, attack))


def _measured_twin(
    setup: Setup, canaries: Samples, is_member: np.ndarray, work: Work, reference: int = 0
) -> dict[str, Measurements]:
    """Measure the canaries in every round of the twin but the first.

    In one of its reference federations the target holds the first samples of another client.
    """
    members = canaries.take(torch.from_numpy(is_member))
    others = [data.take(slice(0, len(members))) for data in setup.deal.clients.values()][1:]
    held = others[reference % len(others)] if reference else members
    clients = {0: Samples.joined(*[held] * _REPEATS)} | {
        place + 1: data for place, data in enumerate(others[:_OTHERS])
    }
    rounds = simulate(
        FedAvg(setup.algorithm.architecture, _gently([len(data) for data in clients.values()])),
        clients,
        rounds=_ROUNDS,
        seed=seed_for(setup.seed, "planted leak", *([reference] if reference else ())),
        engine=work.engine,
        device=work.device,
    )
    phase = f"seed {setup.seed}: planted leak"
    work.progress(phase, 0, _ROUNDS)
    measured = []
    for round in seen_from(rounds, _view(setup)):
        if round.index > 1:
            measured.append(measure_round(round, setup.signals, canaries, device=work.device))
        work.progress(phase, round.index, _ROUNDS)
    return stacked(measured)


def _gently(sizes: Sequence[int]) -> LocalTraining:
    """Return the twin's training, without batches of one sample for batch normalisation."""
    batch = next(one for one in count(_GENTLY.batch_size) if all(size % one != 1 for size in sizes))
    return replace(_GENTLY, batch_size=batch)


def _view(setup: Setup) -> View:
    """Return the adversary of the run, which attacks as many clients of the twin as one."""
    merged = len(setup.study.audit.merge)
    together = range(min(merged, _OTHERS - 1))
    return as_one(view_named(setup.study.audit.view), together) if merged else setup.view


def _canaries(setup: Setup) -> tuple[Samples, np.ndarray]:
    """Return unseen samples with wrong labels, and which of them the twin's target holds."""
    audit = setup.deal.audit
    pool = audit.samples.take(torch.from_numpy(audit.owner < 0))
    rng = seeded(setup.seed, "canaries")
    chosen = pool.take(torch.randperm(len(pool), generator=rng)[: 2 * _CANARIES])
    shift = torch.randint(1, setup.dataset.classes, (len(chosen),), generator=rng)
    wrong = (chosen.labels + shift) % setup.dataset.classes
    is_member = np.arange(len(chosen)) < len(chosen) // 2
    return Samples(chosen.features, wrong, chosen.ids), is_member
