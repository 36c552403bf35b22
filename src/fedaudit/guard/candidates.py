"""Measurements of uploads that wait for a decision, and of uploads that were sent."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.files import sync_folder
from fedaudit.core.values import ClientId
from fedaudit.guard.arrays import Upload
from fedaudit.guard.judging import Judge, Judgement
from fedaudit.guard.policy import GuardPolicy
from fedaudit.guard.uploads import measured_uploads, write_repeated
from fedaudit.live.decisions import DECISIONS_FILE, Decision
from fedaudit.live.measuring import Measurement
from fedaudit.live.recorder import Recorder

_ROUNDING = 1e-4
"""Largest difference between two measurements of one upload, as on other processors."""


class Candidate(NamedTuple):
    """Measured upload that waits for a decision, with its figures."""

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
        self._left = measured_uploads(folder, decisions)
        self._most = policy.most_uploads
        self._n_measured = sum(
            bool(decision.figures) + bool(decision.unfiltered) for decision in decisions
        )

    def measured(self, index: int, upload: Upload) -> Candidate:
        """Measure an upload, and judge it together with the uploads that were sent.

        Raises:
            BadInput: It cannot be measured, or the policy allows no more uploads.
        """
        if self._most is not None and self._n_measured >= self._most:
            raise BadInput(
                f"the policy shares its error between {self._most} uploads (most_uploads), which "
                "were measured; start another run with a new audit set"
            )
        self._n_measured += 1
        measurement = self._measurement(index, upload)
        judgement = self._judge.judge([*self._left.values(), measurement.measured])
        return Candidate(upload, measurement, judgement)

    def verify(self, decision: Decision, before: Sequence[Decision], upload: Upload) -> None:
        """Raise unless a sent upload has the measurement on which its decision was based.

        The log of decisions alone is not sufficient, because a line could have been added to it.

        Args:
            decision: The decision.
            before: All decisions up to and including this one.
            upload: The upload.
        """
        left = {d.key: self._left[d.key] for d in before if d.was_sent}
        measured, stored = self._measurement(decision.round, upload).measured, left[decision.key]
        is_same = all(
            torch.allclose(values, stored.signals[name], rtol=_ROUNDING, atol=_ROUNDING)
            for name, values in measured.signals.items()
        )
        if not is_same or self._judge.judge([*left.values()]).exceeds:
            raise BadInput(
                f"{DECISIONS_FILE} lists this upload as sent, and its measurement, or the policy, "
                "is another one; restore the folder from a copy, or give the guard another one"
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
        # A recording has one upload for each round; it lists the later ones as not measured.
        place = write_repeated(self._folder, version, measurement)
        self._recorder.log_conflict(measurement.entry.round)
        sync_folder(place / "measured")

    def leave(self, candidate: Candidate, decision: Decision) -> None:
        """Add a sent upload, so that later uploads are judged together with it."""
        self._left[decision.key] = candidate.measurement.measured

    def _measurement(self, index: int, upload: Upload) -> Measurement:
        return self._recorder.measure(
            index, sent=upload.received, uploads={self._client: upload.model()}
        )
