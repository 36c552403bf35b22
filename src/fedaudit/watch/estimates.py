"""Provisional estimates of a run from its measured rounds, each computed once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

import torch
from jaxtyping import Bool
from numpy import ndarray

from fedaudit.attacks.base import Attack
from fedaudit.core.errors import FedauditError
from fedaudit.core.metric_names import Origin
from fedaudit.core.values import ClientId
from fedaudit.evaluation.analysis import trajectories
from fedaudit.evaluation.truth import TargetTruth, UnitTruth, target_truth
from fedaudit.formatting.wording import attack_name
from fedaudit.metrics import auc_interval
from fedaudit.observe.measurements import MeasuredRound, Measurements, stacked
from fedaudit.plan.parts import Setup
from fedaudit.plan.sections import Study
from fedaudit.results.ladder import Auc, loss_gaps
from fedaudit.watch.state import RoundEstimates

_MAX_POINTS = 60
"""Number of measured rounds from which every second one gets no estimates, then three of four."""

_MAX_VALUES = 2_000_000
"""Number of values of one round above which only those of audited clients are kept in memory."""

_LOSS = "loss"


class Stamp(NamedTuple):
    """Time of the last change of a file in nanoseconds, and its size."""

    changed: int
    size: int


def is_provisional(attack: Attack) -> bool:
    """Return True if an attack needs only the signals that were measured so far."""
    return not (
        attack.infers_source
        or attack.learns
        or attack.needs_references
        or attack.needs_side_information
    )


class RunEstimates:
    """Estimates of one run after each of its measured rounds.

    Estimates of a round are computed when the round is added. They are computed again only if the
    file of an earlier round has changed since.
    """

    def __init__(self, run: Setup) -> None:
        self._run = run
        self._attacks = {n: a for n, a in run.attacks.items() if is_provisional(a)}
        self._truths = {t: target_truth(run, t) for t in run.study.audit.targets}
        self._rounds: list[MeasuredRound] = []
        self._stamps: list[Stamp] = []
        self._estimates: dict[int, RoundEstimates] = {}
        self.is_reduced = False
        """True if only the values of audited clients are kept."""

    def n_unchanged(self, stamps: Sequence[Stamp]) -> int:
        """Return how many of the first rounds are as they were when they were added."""
        pairs = zip(stamps, self._stamps, strict=False)
        return next((i for i, pair in enumerate(pairs) if pair[0] != pair[1]), len(self._stamps))

    def keep(self, count: int) -> None:
        """Forget all rounds after the first ones."""
        del self._rounds[count:], self._stamps[count:]
        self._estimates = {i: row for i, row in self._estimates.items() if i < count}

    def add(self, measured: MeasuredRound, stamp: Stamp) -> None:
        """Add the next measured round."""
        self._rounds.append(self._reduced(measured))
        self._stamps.append(stamp)

    @property
    def study(self) -> Study:
        """Settings of the run."""
        return self._run.study

    @property
    def rounds(self) -> Sequence[MeasuredRound]:
        """The measured rounds that were added."""
        return self._rounds

    def reason_invalid(self, measured: MeasuredRound) -> str:
        """Return why a measured round does not belong to the run; empty if it may belong to it."""
        samples = min(values.shape[1] for values in measured.signals.values())
        n_audited = len(self._run.assignment.audit)
        if samples < n_audited:
            return f"it has {samples} samples, but {n_audited} are audited"
        if self._rounds and measured.signals.keys() != self._rounds[0].signals.keys():
            return "it has other signals than the first measured round"
        return ""

    def cohort(self, index: int) -> Sequence[ClientId]:
        """Return the clients that participate in a round."""
        return self._run.cohort(index)

    def estimates(self) -> tuple[RoundEstimates, ...]:
        """Return the estimates of the rounds, without some of them if there are many."""
        count = len(self._rounds)
        stride = 1
        while count > _MAX_POINTS * stride:
            stride *= 2
        shown_rounds = sorted({*range(0, count, stride), count - 1} - {-1})
        for position in shown_rounds:
            if position not in self._estimates:
                self._estimates[position] = self._compute(self._rounds[: position + 1])
        return tuple(self._estimates[position] for position in shown_rounds)

    def omitted(self) -> tuple[str, ...]:
        """Return sentences on the attacks that have no provisional estimates."""
        measured = self._rounds[0].signals.keys() if self._rounds else ()
        without = [
            name
            for name, attack in self._run.attacks.items()
            if name not in self._attacks
            or any(signal.name not in measured for signal in attack.signals)
            or (self.is_reduced and attack.compares_clients)
        ]
        if not without or not self._rounds:
            return ()
        names = ", ".join(map(attack_name, without))
        return (
            f"No provisional estimates: {names}. They need more than the signals of these rounds, "
            "and are computed at the end.",
        )

    def _reduced(self, measured: MeasuredRound) -> MeasuredRound:
        """Return a large round with the values of audited clients and of their groups only."""
        if sum(values.numel() for values in measured.signals.values()) <= _MAX_VALUES:
            return measured
        self.is_reduced = True
        kept_clients = {*self._truths} | {
            measured.group_of.get(target, -1) for target in self._truths
        }
        rows = [i for i, client in enumerate(measured.clients) if client in kept_clients] or [0]
        return replace(
            measured,
            clients=tuple(measured.clients[row] for row in rows),
            bases=measured.bases[rows],
            signals={name: values[rows] for name, values in measured.signals.items()},
        )

    def _compute(self, rounds: Sequence[MeasuredRound]) -> RoundEstimates:
        by_client: dict[ClientId, list[Auc]] = {}
        gaps: list[float] = []
        for target, truth in self._truths.items():
            positions = torch.from_numpy(truth.positions)
            measured = {
                name: values.on_samples(positions)
                for name, values in stacked(rounds, {target}).items()
            }
            if aucs := self._aucs(measured, truth):
                by_client[target] = aucs
            gaps += self._gaps(rounds[-1], truth)
        return RoundEstimates(
            rounds[-1].index,
            _averaged([*self._attacks], [*by_client.values()]),
            tuple(
                (self._run.client_name(client), max(aucs, key=lambda auc: auc.value))
                for client, aucs in by_client.items()
            ),
            fmean(gaps) if gaps else None,
        )

    def _aucs(self, measured: Mapping[str, Measurements], truth: TargetTruth) -> list[Auc]:
        compared, positions = _compared(truth.units), torch.from_numpy(truth.positions)
        is_member = truth.units.is_member[compared]
        aucs = []
        for name, attack in self._attacks.items():
            if self.is_reduced and attack.compares_clients:
                continue
            try:
                scores = attack.on_samples(positions).scores(measured, truth.target).numpy()
                interval = auc_interval(truth.unit_scores(scores)[compared], is_member)
            # An attack may need more rounds or clients than were measured until now.
            except FedauditError:
                continue
            aucs.append(Auc(interval.value, interval.low, interval.high, name))
        return aucs

    def _gaps(self, measured: MeasuredRound, truth: TargetTruth) -> list[float]:
        if _LOSS not in measured.signals:
            return []
        values = stacked([measured], {truth.target})[_LOSS]
        try:
            of_samples = values.on_samples(torch.from_numpy(truth.positions))
            return loss_gaps([*trajectories(self._run, _LOSS, of_samples, truth)])
        except FedauditError:  # The client has no upload in this round.
            return []


def _averaged(names: Sequence[str], by_client: Sequence[Sequence[Auc]]) -> tuple[Auc, ...]:
    """Return the mean over clients for each attack that all of these clients have."""
    means = []
    for name in names:
        aucs = [auc for client in by_client for auc in client if auc.attack == name]
        if aucs and len(aucs) == len(by_client):
            value, low, high = (
                fmean(part) for part in zip(*((a.value, a.low, a.high) for a in aucs), strict=True)
            )
            means.append(Auc(value, low, high, name))
    return tuple(means)


def _compared(truth: UnitTruth) -> Bool[ndarray, " units"]:
    """Return the mask of members and held-out units; of all non-members if none is held out."""
    has_held_out = bool((truth.origin == Origin.UNSEEN).any())
    return truth.comparisons["unseen" if has_held_out else "mixed"].mask
