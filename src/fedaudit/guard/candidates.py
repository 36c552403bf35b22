"""Measurements of an upload that awaits a decision and of sent uploads, and attacks on them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from fedaudit.attacks.base import Attack
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import sync_folder
from fedaudit.core.values import ClientId
from fedaudit.guard.arrays import Upload
from fedaudit.guard.policy import GuardPolicy
from fedaudit.guard.uploads import measured_uploads, write_repeated
from fedaudit.live.aucs import ClientAucs
from fedaudit.live.decisions import DECISIONS_FILE, AttackAuc, Decision
from fedaudit.live.measuring import Measurement
from fedaudit.live.recorder import Recorder
from fedaudit.observe.measurements import MeasuredRound, stacked
from fedaudit.plan.parts import Setup

_ROUNDING = 1e-4
"""Tolerance for repeated measurements of an upload, since processors round differently."""


class Judgement(NamedTuple):
    """Figures of an upload.

    Attributes:
        aucs: AUC of each attack with confidence limits, without attacks that need more measured
            rounds.
        exceeds: True if at least one AUC is above the policy's limit.
    """

    aucs: tuple[AttackAuc, ...]
    exceeds: bool


class Judge:
    """Attacks of a policy on one client of a recording."""

    def __init__(self, run: Setup, attacks: Mapping[str, Attack], policy: GuardPolicy) -> None:
        """Select members and held-out samples, in the same way as for a record of this recording.

        Raises:
            BadInput: There are too few samples for the policy.
        """
        (self._client,) = run.study.audit.targets
        self._aucs = ClientAucs(run, self._client)
        self._attacks, self._policy = attacks, policy
        policy.raise_if_audit_too_small(self._aucs.members, self._aucs.nonmembers)

    def judge(self, rounds: Sequence[MeasuredRound]) -> Judgement:
        """Run each attack on the sent uploads and the new upload.

        Attacks that compare rounds are omitted until two rounds are measured.

        Raises:
            BadInput: No attack could be measured, or one failed.
        """
        selected, aucs = self._aucs.select(stacked(rounds, {self._client})), list[AttackAuc]()
        for name, attack in self._attacks.items():
            try:
                auc = self._aucs.auc_of(name, attack, selected, self._policy.level)
            except FedauditError as error:
                # Do not log the original message, which may contain numbers of samples.
                raise BadInput(f"the attack {name!r} could not be measured") from error
            if auc is not None:
                aucs.append(auc)
        if not aucs:
            raise BadInput(
                "every attack of the policy needs several rounds, so the first upload cannot be "
                "measured; add an attack that needs only one round, such as blackbox-loss"
            )
        exceeds = any(self._policy.exceeds(f.value, f.low, f.high) for f in aucs)
        return Judgement(tuple(aucs), exceeds)


class Candidate(NamedTuple):
    """Measured upload that awaits a decision, with the figures of the attacks."""

    upload: Upload
    measurement: Measurement
    judgement: Judgement


class Candidates:
    """Measurements and figures of a client's uploads, in the folder of a guard."""

    def __init__(
        self,
        folder: Path,
        recorder: Recorder,
        client: ClientId,
        policy: GuardPolicy,
        decisions: Sequence[Decision],
    ) -> None:
        """Read the measurements of uploads that were sent.

        Raises:
            BadInput: There are too few samples for the policy.
            Damaged: A measurement cannot be read.
        """
        self._folder, self._recorder, self._client = folder, recorder, client
        self._judge = Judge(recorder.run, policy.catalogue(), policy)
        self._sent = measured_uploads(folder, decisions)
        self._max_uploads = policy.most_uploads
        # An upload that was filtered was measured twice: without and with the filter.
        self._n_measured = sum(
            bool(decision.figures) + bool(decision.unfiltered) for decision in decisions
        )

    def measure_and_judge(self, round: int, upload: Upload) -> Candidate:
        """Measure an upload, and judge it together with the uploads that were sent.

        Raises:
            BadInput: The upload cannot be measured, or the policy allows no more measurements.
        """
        if self._max_uploads is not None and self._n_measured >= self._max_uploads:
            raise BadInput(
                f"the policy allows {self._max_uploads} measured uploads in a run (most_uploads), "
                "and all were used; start another run with a new audit set"
            )
        self._n_measured += 1
        measurement = self._measure(round, upload)
        judgement = self._judge.judge([*self._sent.values(), measurement.measured])
        return Candidate(upload, measurement, judgement)

    def verify(
        self, decision: Decision, decisions_so_far: Sequence[Decision], upload: Upload
    ) -> None:
        """Raise if a new measurement of a sent upload differs from the stored one.

        The log of decisions alone is not sufficient evidence, since lines can be added to it.

        Args:
            decision: The decision.
            decisions_so_far: All decisions up to and including this one.
            upload: The upload.

        Raises:
            BadInput: The measurement differs, or exceeds the limit of the current policy.
        """
        sent = {d.key: self._sent[d.key] for d in decisions_so_far if d.was_sent}
        repeated = self._measure(decision.round, upload).measured
        stored = sent[decision.key]
        is_same = all(
            torch.allclose(values, stored.signals[name], rtol=_ROUNDING, atol=_ROUNDING)
            for name, values in repeated.signals.items()
        )
        if not is_same or self._judge.judge([*sent.values()]).exceeds:
            raise BadInput(
                f"{DECISIONS_FILE} lists this upload as sent, but a new measurement differs from "
                "the stored one or exceeds the policy's limit; restore the guard's folder from a "
                "copy, or use a new folder"
            )

    def write(self, candidate: Candidate, version: int) -> None:
        """Write the measurement of an upload to the disk before the decision is logged.

        Args:
            candidate: The upload.
            version: Number of uploads that were sent in this round before.
        """
        measurement = candidate.measurement
        if not version:
            self._recorder.store(measurement)
            sync_folder(self._folder / "measured")
            return
        # A recording has one upload per round, so its log lists later uploads as not measured.
        version_folder = write_repeated(self._folder, version, measurement)
        self._recorder.log_conflict(measurement.entry.round)
        sync_folder(version_folder / "measured")

    def add_sent(self, candidate: Candidate, decision: Decision) -> None:
        """Add a sent upload. Later uploads are judged together with it."""
        self._sent[decision.key] = candidate.measurement.measured

    def _measure(self, round: int, upload: Upload) -> Measurement:
        # The argument ``sent`` is the model that the client received from the server.
        return self._recorder.measure(
            round, sent=upload.received, uploads={self._client: upload.model()}
        )
