"""Attacks on a client's uploads, and comparison of their AUCs with the policy's limit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from fedaudit.attacks.base import Attack
from fedaudit.core.errors import BadInput, FedauditError, TooFewRounds
from fedaudit.evaluation.truth import target_truth
from fedaudit.guard.policy import GuardPolicy
from fedaudit.live.decisions import Figure
from fedaudit.metrics import auc_interval
from fedaudit.observe.measurements import MeasuredRound, stacked
from fedaudit.plan.parts import RecordingInfo, Setup

_CONTRAST = "unseen"


class Judgement(NamedTuple):
    """Figures of an upload.

    Attributes:
        figures: AUC of each attack with confidence limits, without attacks that need more measured
            rounds.
        exceeds: True if at least one figure is above the policy's limit.
    """

    figures: tuple[Figure, ...]
    exceeds: bool


class Judge:
    """Attacks of a policy on one client of a recording."""

    def __init__(self, run: Setup, attacks: Mapping[str, Attack], policy: GuardPolicy) -> None:
        """Select members and held-out samples, in the same way as for a record of this recording.

        Raises:
            BadInput: There are too few samples for the policy.
        """
        (self._client,) = run.study.audit.targets
        # The label distributions of other clients are unknown, as in any recording.
        run = replace(run, recording_info=RecordingInfo(untrained=(), config={}, limitations=()))
        self._attacks, self._policy = attacks, policy
        self._truth = target_truth(run, self._client)
        self._compared = self._truth.comparisons[_CONTRAST].mask
        self._is_member = self._truth.is_member[self._compared]
        members = int(self._is_member.sum())
        policy.raise_if_audit_too_small(members, len(self._is_member) - members)

    def judge(self, rounds: Sequence[MeasuredRound]) -> Judgement:
        """Run each attack on the sent uploads and the new upload.

        Attacks that compare rounds are omitted until two rounds are measured.

        Raises:
            BadInput: No attack could be measured, or one failed.
        """
        positions = torch.from_numpy(self._truth.positions)
        measurements = {
            name: measured.on_samples(positions)
            for name, measured in stacked(rounds, {self._client}).items()
        }
        figures = list[Figure]()
        for name, attack in self._attacks.items():
            try:
                scores = attack.on_samples(positions).scores(measurements, self._client).numpy()
                interval = auc_interval(
                    scores[self._compared], self._is_member, confidence=self._policy.level
                )
            except TooFewRounds:
                continue
            except FedauditError as error:
                # Do not log the original message, which may contain numbers of samples.
                raise BadInput(f"the attack {name!r} could not be measured") from error
            figures.append(
                Figure(attack=name, value=interval.value, low=interval.low, high=interval.high)
            )
        if not figures:
            raise BadInput(
                "every attack of the policy needs several rounds, so the first upload cannot be "
                "measured; add an attack that needs only one round, such as blackbox-loss"
            )
        exceeds = any(self._policy.exceeds(f.value, f.low, f.high) for f in figures)
        return Judgement(tuple(figures), exceeds)
