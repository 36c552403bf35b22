"""Controls: checks that the figures of a run mean what they say."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.devices import CPU
from fedaudit.core.errors import Refusal
from fedaudit.core.origin import Origin
from fedaudit.core.params import plus
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.seeds import seed_for, seeded, seeded_numpy
from fedaudit.core.values import Model, Params, Samples, Sees
from fedaudit.metrics import auc_interval, blind_classifier, permuted_membership
from fedaudit.observe.measurements import MeasuredRound, Measurements, stacked
from fedaudit.observe.round import Exposed, Round
from fedaudit.observe.views import seen_from
from fedaudit.results.record import ControlResult
from fedaudit.signals.measure import measure_by_block, measure_round
from fedaudit.study.figures.truth import Findings, TargetTruth, target_truth
from fedaudit.study.setup.parts import Setup

FALSE_ALARM = 0.01
"""How often a sound study may see a control of one kind fail by chance, whatever its size."""

RANDOM_STEP = 0.01

_BLIND_AGAINST = {
    Origin.UNSEEN: "unseen samples",
    Origin.OTHER_CLIENT: "other clients' samples",
}


def controls(
    setup: Setup, findings: Findings, device: torch.device = CPU, progress: Progress = quiet
) -> Iterator[ControlResult]:
    """All controls of one run that need no further training.

    Args:
        setup: The run.
        findings: Its figures, for the scores in them.
        device: Where untrained models are measured.
        progress: Called after each control.
    """
    phase = f"seed {setup.seed}: controls"
    blind = _BLIND_AGAINST if setup.study.figures.blind_classifier else {}
    # Some may not be possible, so that there are at most this many.
    total = len(setup.study.audit.targets) * (2 * len(setup.on_membership) + len(blind))
    progress(phase, 0, total)
    for done, result in enumerate(_controls(setup, findings, device), 1):
        yield result
        progress(phase, done, total)
    progress(phase, total, total)


def _controls(setup: Setup, findings: Findings, device: torch.device) -> Iterator[ControlResult]:
    for target in setup.study.audit.targets:
        truth = target_truth(setup, target)
        yield from _permuted(setup, truth, findings)
        if setup.study.figures.blind_classifier:
            yield from _blind(setup, truth)
        yield from _untrained(setup, truth, device)


def _permuted(setup: Setup, truth: TargetTruth, findings: Findings) -> Iterator[ControlResult]:
    """Membership shuffled among the same scores: intervals must not find what is not there."""
    for name in setup.on_membership:
        scores = findings.scores.get((setup.seed, truth.target, name))
        if scores is None:
            continue
        null = permuted_membership(
            scores,
            truth.is_member,
            rng=seeded_numpy(setup.seed, "permuted", truth.target, name),
            permutations=setup.study.figures.permutations,
        )
        yield ControlResult(
            control="permuted members",
            attack=name,
            defense=setup.study.defense.label,
            target=truth.target,
            seed=setup.seed,
            expected="no more false alarms than 95 % intervals promise when membership is shuffled",
            value=null.mean,
            low=null.low,
            high=null.high,
            passed=null.passed,
            note=f"{null.alarms} of {null.permutations} shuffles raised an alarm",
        )


def _blind(setup: Setup, truth: TargetTruth) -> Iterator[ControlResult]:
    """A classifier that sees inputs and no model: whatever it finds is no leakage."""
    features = _as_columns(setup.deal.audit.samples.features).numpy()[truth.kept]
    for origin, against in _BLIND_AGAINST.items():
        chosen = np.isin(truth.origin, [Origin.MEMBER, origin])
        if truth.is_member[chosen].all():
            continue
        result = ControlResult(
            control="blind classifier",
            defense=setup.study.defense.label,
            target=truth.target,
            seed=setup.seed,
            # The same for both, since tables show one line a kind; the note tells them apart.
            expected="inputs alone do not tell members from non-members",
            value=None,
            passed=None,
        )
        try:
            blind = blind_classifier(
                features[chosen],
                truth.is_member[chosen],
                rng=seeded_numpy(setup.seed, "blind", truth.target, int(origin)),
                labels=truth.labels[chosen],
                confidence=1 - FALSE_ALARM / (2 * _repetitions(setup)),
            )
        except Refusal as refusal:
            yield result.model_copy(update={"note": f"against {against}: {refusal}"})
            continue
        yield result.model_copy(
            update={
                "value": blind.auc,
                "low": blind.low,
                "high": blind.high,
                "passed": not blind.shifted,
                "note": f"against {against}: {blind.classifier}, {blind.method}",
            }
        )


def _as_columns(features: Tensor) -> Tensor:
    """Inputs as a classifier takes them: numbers side by side, tokens as how often each occurs."""
    flat = features.flatten(1)
    if flat.is_floating_point():
        return flat
    kept, counts = flat.unique(), torch.zeros(len(flat), int(flat.max()) + 1)
    counts.scatter_add_(1, flat.long(), torch.ones(flat.shape))
    return counts[:, kept.long()]


def _untrained(setup: Setup, truth: TargetTruth, device: torch.device) -> Iterator[ControlResult]:
    """All attacks on untrained models: the measuring itself must find nothing."""
    once, twice = measured_untrained(setup, truth.kept, device)
    confidence = 1 - FALSE_ALARM / (len(setup.on_membership) * _repetitions(setup))
    for name, attack in setup.on_membership.items():
        result = ControlResult(
            control="untrained model",
            attack=name,
            defense=setup.study.defense.label,
            target=truth.target,
            seed=setup.seed,
            expected="AUC of 0.5 within the interval on models that nobody trained",
            value=None,
            passed=None,
        )
        try:
            slow = any(signal.name not in twice for signal in attack.signals)
            # An untrained model can have been trained on anything.
            informed = attack.with_side_information(dict.fromkeys((1, 2), torch.tensor(True)))
            scores = informed.scores(once if slow else twice, truth.target).numpy()
        except Refusal as refusal:
            yield result.model_copy(update={"note": str(refusal)})
            continue
        auc = auc_interval(scores, truth.is_member, confidence=confidence)
        yield result.model_copy(
            update={
                "value": auc.value,
                "low": auc.low,
                "high": auc.high,
                "passed": auc.low <= 0.5 <= auc.high,
                "note": auc.method,
            }
        )


def measured_untrained(
    setup: Setup, kept: Int[ndarray, " samples"], device: torch.device = CPU
) -> tuple[dict[str, Measurements], dict[str, Measurements]]:
    """Every signal of one untrained round, and those that cost little of two.

    Rules that follow a signal need two rounds; gradients take too long to be measured again.

    Args:
        setup: The run.
        kept: Positions in the audit set of the samples to be measured.
        device: Where models are run.
    """
    if setup.watched is not None:
        chosen = torch.from_numpy(kept)
        rounds = tuple(
            replace(one, signals={n: values[:, chosen] for n, values in one.signals.items()})
            for one in setup.watched.untrained
        )
    else:
        samples = setup.deal.audit.samples.take(torch.from_numpy(kept))
        rounds = untrained_rounds(setup, samples, device)
    first, *more = rounds
    shared = [
        replace(first, signals={n: v for n, v in first.signals.items() if n in one.signals})
        for one in more
    ]
    return stacked([first]), stacked([*shared, *more]) if more else {}


def untrained_rounds(
    setup: Setup,
    samples: Samples,
    device: torch.device = CPU,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[MeasuredRound, ...]:
    """One untrained round with every signal, and a second with those that cost little, if any.

    Args:
        setup: The run.
        samples: To be measured.
        device: Where models are run.
        progress: Called with (samples done, samples in all) as the first is measured.
    """
    cheap = [s for s in setup.signals if not s.needs & (Sees.GLOBAL_MODEL | Sees.UPDATE)]
    first, second = seen_from([_untrained_round(setup, index) for index in (1, 2)], setup.view)
    if device.type == "cpu":
        one = measure_by_block(first, setup.signals, samples, progress=progress)
    else:
        progress(0, len(samples))
        one = measure_round(first, setup.signals, samples, device=device)
        progress(len(samples), len(samples))
    return (one, measure_round(second, cheap, samples, device=device)) if cheap else (one,)


def _repetitions(setup: Setup) -> int:
    """Number of times that a study makes each control: once a target and seed."""
    return len(setup.study.audit.targets) * len(setup.study.seeds)


def _untrained_round(setup: Setup, index: int) -> Round:
    """A round in which every client's change is a random direction."""
    # The first round's draws are named as they were when there was no second.
    draw = () if index == 1 else (index,)
    base = setup.algorithm.architecture.initial(seed_for(setup.seed, "untrained"))
    exposed = {}
    for client in sorted(setup.deal.clients):
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


def _random_step(like: Params, rng: torch.Generator) -> Params:
    return {
        name: RANDOM_STEP * torch.randn(value.shape, dtype=value.dtype, generator=rng)
        for name, value in like.items()
    }
