"""AUCs of attacks on one client, from the rounds that are measured so far."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from fedaudit.attacks.base import Attack
from fedaudit.core.errors import TooFewRounds
from fedaudit.core.values import ClientId
from fedaudit.evaluation.truth import target_truth
from fedaudit.live.decisions import AttackAuc
from fedaudit.metrics import auc_interval
from fedaudit.observe.measurements import Measurements
from fedaudit.plan.parts import RecordingInfo, Setup

_CONTRAST = "unseen"


class ClientAucs:
    """Comparison of a client's members with held-out samples, as in a record of the recording.

    Attributes:
        members: Number of members.
        nonmembers: Number of held-out samples.
    """

    def __init__(self, run: Setup, client: ClientId) -> None:
        # In a recording, it is unknown whether clients have equal label distributions.
        run = replace(run, recording_info=RecordingInfo(untrained=(), config={}, limitations=()))
        self._client, truth = client, target_truth(run, client)
        self._positions = torch.from_numpy(truth.positions)
        self._compared = truth.comparisons[_CONTRAST].mask
        self._is_member = truth.is_member[self._compared]
        self.members = int(self._is_member.sum())
        self.nonmembers = len(self._is_member) - self.members

    def select(self, measurements: Mapping[str, Measurements]) -> dict[str, Measurements]:
        """Return the measurements of the client's members and non-members, for :meth:`auc_of`."""
        return {name: m.on_samples(self._positions) for name, m in measurements.items()}

    def auc_of(
        self,
        name: str,
        attack: Attack,
        selected: Mapping[str, Measurements],
        confidence: float = 0.95,
    ) -> AttackAuc | None:
        """Return the AUC of an attack; None if it needs more measured rounds.

        Args:
            name: Name of the attack in the result.
            attack: The attack.
            selected: Measurements that :meth:`select` returns, once for all attacks.
            confidence: Confidence level of the limits, in (0, 1).

        Raises:
            FedauditError: The attack cannot be run.
        """
        attack = attack.on_samples(self._positions)
        try:
            scores = attack.scores(selected, self._client).numpy()
            interval = auc_interval(scores[self._compared], self._is_member, confidence=confidence)
        except TooFewRounds:
            return None
        return AttackAuc(attack=name, value=interval.value, low=interval.low, high=interval.high)
