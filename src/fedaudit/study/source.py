"""Source inference in one run: who has each sample that somebody has, and how often that is so."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fedaudit.attacks.base import Attack
from fedaudit.core import NOBODY, ClientId, Sees
from fedaudit.devices import CPU
from fedaudit.errors import Refusal
from fedaudit.metrics.source import (
    by_class_mix,
    confusion,
    named_owner,
    paired,
    source_null,
    source_success,
)
from fedaudit.observe.measurements import Measurements
from fedaudit.progress import Tick, quiet
from fedaudit.seeds import seeded_numpy
from fedaudit.study.accuracy import overfitting
from fedaudit.study.controls import measured_untrained
from fedaudit.study.owners import Answered, Chained, ClassSuccess, SourceResult
from fedaudit.study.parts import Setup
from fedaudit.study.record import ControlResult

LEAST_CHANCES = (0.2, 0.3, 0.5, 0.7, 0.9)
"""How sure an adversary may want to be before it names somebody."""

CHAINED_FPRS = (0.01, 0.1)
"""How many samples of nobody may be called members before owners are asked for."""

_SPREADS = 5
"""So far above shuffled owners no sound control lies, once in millions."""


class Asked(NamedTuple):
    """Samples whose owner is asked for, as many of each client.

    Attributes:
        kept: Their positions in the audit set.
        owner: Their clients, as positions among all clients.
        labels: Their classes.
        clients: All clients, ascending.
    """

    kept: Int[ndarray, " samples"]
    owner: Int[ndarray, " samples"]
    labels: Int[ndarray, " samples"]
    clients: tuple[ClientId, ...]


def asked(run: Setup) -> Asked | None:
    """As many audited samples of every client as the one with fewest has; None if one has none."""
    audit, clients = run.deal.audit, tuple(sorted(run.deal.clients))
    rng = seeded_numpy(run.seed, "source")
    theirs = [rng.permutation(np.flatnonzero(audit.owner == client)) for client in clients]
    each = min(len(positions) for positions in theirs)
    if not each:
        return None
    kept = np.sort(np.concatenate([positions[:each] for positions in theirs]))
    owner = np.searchsorted(clients, audit.owner[kept])
    return Asked(kept, owner, audit.samples.labels.numpy()[kept], clients)


def source_results(
    run: Setup,
    measured: Mapping[str, Measurements],
    failed: dict[str, dict[str, str]],
    notes: Mapping[str, str],
    tick: Tick = quiet,
) -> list[SourceResult]:
    """What each source attack of a run finds.

    Args:
        run: The run.
        measured: Its measurements by signal.
        failed: Grown in place: by attack and run, why it could not be carried out.
        notes: Of the last measured round.
        tick: Called after each attack.
    """
    samples, found = asked(run), list[SourceResult]()
    phase = f"seed {run.seed}: source inference"
    for done, (name, attack) in enumerate(run.on_source.items()):
        tick(phase, done, len(run.on_source))
        where = f"seed {run.seed}"
        if samples is None:
            why = f"{where}: a client has no audited sample; ask for more"
            failed.setdefault(name, {})[where] = why
            continue
        try:
            found.append(_result(run, name, attack, measured, samples, notes))
        except Refusal as refusal:
            failed.setdefault(name, {})[where] = f"{where}: {refusal}"
    if run.on_source:
        tick(phase, len(run.on_source), len(run.on_source))
    return found


def source_controls(run: Setup, device: torch.device = CPU) -> Iterator[ControlResult]:
    """Source attacks on models that nobody trained: they can know no more than class mixes.

    Args:
        run: The run.
        device: Where untrained models are measured.
    """
    samples = asked(run)
    if not run.on_source or samples is None:
        return
    once, twice = measured_untrained(run, samples.kept, device)
    for name, attack in run.on_source.items():
        result = ControlResult(
            control="untrained model",
            attack=name,
            defense=run.study.defense.label,
            seed=run.seed,
            expected="owners named no more often than class mixes explain, on models that nobody "
            "trained",
            value=None,
            passed=None,
        )
        slow = any(signal.name not in twice for signal in attack.signals)
        try:
            posterior = _posterior(run, attack, once if slow else twice, samples)
        except Refusal as refusal:
            yield result.model_copy(update={"note": str(refusal)})
            continue
        named = named_owner(posterior)
        rng = seeded_numpy(run.seed, "untrained owners")
        null = source_null(named, samples.owner, within=samples.labels, rng=rng)
        limit = min(null.mean + _SPREADS * null.spread, 1.0)
        value = source_success(named, samples.owner).value
        yield result.model_copy(
            update={
                "value": value,
                "high": limit,
                "passed": value <= limit,
                "note": f"shuffles of owners within classes: {null.mean:.3f}, and "
                f"{_SPREADS} of their standard deviations above it {limit:.3f}",
            }
        )


def _result(
    run: Setup,
    name: str,
    attack: Attack,
    measured: Mapping[str, Measurements],
    samples: Asked,
    notes: Mapping[str, str],
) -> SourceResult:
    cubes = _asked_alone(attack, measured, samples)
    posterior = _posterior(run, attack, cubes, samples)
    named = named_owner(posterior)
    right = named == samples.owner
    success = source_success(named, samples.owner)
    counts = run.deal.class_counts(run.dataset.classes)
    blind = by_class_mix(np.array([counts[c] for c in samples.clients]), samples.labels)
    change = paired(right, blind == samples.owner)
    rng = seeded_numpy(run.seed, "shuffled owners")
    null = source_null(named, samples.owner, rng=rng)
    mixed = source_null(named, samples.owner, within=samples.labels, rng=rng)
    rounds = _one_by_one(attack, cubes)
    return SourceResult(
        attack=name,
        defense=run.study.defense.label,
        view=run.view.name,
        seed=run.seed,
        clients=list(samples.clients),
        samples=len(samples.owner),
        success=success.value,
        low=success.low,
        high=success.high,
        null_high=null.high,
        p_value=null.p_value,
        blind=source_success(blind, samples.owner).value,
        blind_change=change.difference,
        blind_p_value=change.p_value,
        by_class_mix=mixed.mean,
        class_p_value=mixed.p_value,
        confusion=confusion(named, samples.owner, len(samples.clients)).tolist(),
        classes=_by_class(right, samples),
        answers=[_answered(posterior, samples, least) for least in LEAST_CHANCES],
        chained=_chained(run, attack, measured, right, samples),
        rounds=list(run.measured_rounds),
        by_round=[
            source_success(named_owner(_posterior(run, attack, one, samples)), samples.owner).value
            for one in rounds
        ],
        overfitting=overfitting(notes, samples.clients),
    )


def _asked_alone(
    attack: Attack, measured: Mapping[str, Measurements], samples: Asked
) -> dict[str, Measurements]:
    """The signals of an attack at the samples whose owner is asked for."""
    kept, names = torch.from_numpy(samples.kept), {signal.name for signal in attack.signals}
    return {
        name: replace(m, values=m.values[:, :, kept])
        for name, m in measured.items()
        if name in names
    }


def _posterior(
    run: Setup, attack: Attack, cubes: Mapping[str, Measurements], samples: Asked
) -> Float[ndarray, "clients samples"]:
    """Chances of all clients, in their order; none for who was never measured."""
    found = attack.posterior(cubes, run.deal.sizes).numpy()
    clients = cubes[attack.signals[0].name].clients
    chances = np.zeros((len(samples.clients), len(samples.kept)))
    chances[np.searchsorted(samples.clients, clients)] = found
    return chances


def _one_by_one(attack: Attack, cubes: Mapping[str, Measurements]) -> list[dict[str, Measurements]]:
    """The measurements of each round alone, for an attack that needs no more."""
    if Sees.ROUNDS in attack.needs:
        return []
    rounds = next(iter(cubes.values())).rounds
    return [{name: _only(m, row) for name, m in cubes.items()} for row in range(len(rounds))]


def _only(m: Measurements, row: int) -> Measurements:
    return replace(
        m,
        values=m.values[row : row + 1],
        rounds=m.rounds[row : row + 1],
        bases=m.bases[row : row + 1],
        stands_for=m.stands_for[row : row + 1],
    )


def _by_class(right: Bool[ndarray, " samples"], samples: Asked) -> list[ClassSuccess]:
    return [
        ClassSuccess(
            label=int(label),
            samples=int((samples.labels == label).sum()),
            right=int(right[samples.labels == label].sum()),
        )
        for label in np.unique(samples.labels)
    ]


def _answered(
    posterior: Float[ndarray, "clients samples"], samples: Asked, least: float
) -> Answered:
    success = source_success(named_owner(posterior, least=least), samples.owner)
    return Answered(least=least, answered=success.answered, right=success.right)


def _chained(
    run: Setup,
    attack: Attack,
    measured: Mapping[str, Measurements],
    right: Bool[ndarray, " samples"],
    samples: Asked,
) -> list[Chained]:
    """Who is called a member where some audited samples are nobody's, and whose it is then.

    A sample counts for a member where the attack's signal is high at some client: the largest
    over the clients of its mean over the rounds.
    """
    nobodys = np.flatnonzero(run.deal.audit.owner == NOBODY)
    if not len(nobodys):
        return []
    values = measured[attack.signals[0].name].values.double()
    score = values.nanmean(0).nan_to_num(-torch.inf).amax(0).numpy()
    found = []
    for fpr in CHAINED_FPRS:
        allowed = int(fpr * len(nobodys))
        threshold = np.sort(score[nobodys])[::-1][allowed] if allowed < len(nobodys) else -np.inf
        called = score[samples.kept] > threshold
        found.append(
            Chained(
                fpr=fpr,
                realised_fpr=float((score[nobodys] > threshold).mean()),
                called=int(called.sum()),
                right=int((called & right).sum()),
            )
        )
    return found
