"""Coverage: which rounds and uploads of a run an audit measured, and what is missing."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from fedaudit.results.fields import Count, Part

MOST_LISTED = 1000
"""Limit of the missing uploads and rounds that a record lists singly; the counts are always
complete."""
Reason = Annotated[str, Field(max_length=2000)]


class MissingUpload(Part):
    """Upload that was not measured.

    Attributes:
        client: Its sender.
        round: Its round.
        reason: Why it could not be measured.
        aggregated: False if the server excluded it from the aggregate, so that no released model
            depends on it. True if the server may have used it.
    """

    client: Count
    round: Count
    reason: Reason
    aggregated: bool = True


class MissingRounds(Part):
    """Consecutive rounds that were not measured for one reason.

    Attributes:
        first: The first of them.
        last: The last of them.
        reason: Why they were not measured.
    """

    first: Count
    last: Count
    reason: Reason


class ClientCoverage(Part):
    """Participation of one audited client.

    Attributes:
        client: Its number.
        answered: Rounds in which it sent an upload.
        measured: Rounds in which its upload was measured.
        first: The first measured round; None without one.
        last: The last measured round; None without one.
    """

    client: Count
    answered: Count
    measured: Count
    first: Count | None = None
    last: Count | None = None

    @classmethod
    def of(cls, client: int, answered: int, rounds: Sequence[int]) -> "ClientCoverage":
        """Return the coverage of a client.

        Args:
            client: Its number.
            answered: Known rounds in which it sent an upload.
            rounds: Rounds in which it was measured.
        """
        return cls(
            client=client,
            answered=max(answered, len(rounds)),
            measured=len(rounds),
            first=min(rounds, default=None),
            last=max(rounds, default=None),
        )


class Coverage(Part):
    """Rounds and uploads of a run that were measured.

    A client that was not sampled in a round is not missing from it.

    Attributes:
        rounds: Rounds that are known to have run: the number of the last one.
        measured: Number of rounds that were measured.
        last_measured: The last measured round.
        every: Interval between measured rounds that the user chose.
        clients: Every audited client, including those that never took part.
        is_open: True if the recorder was not closed, because the run was killed or still continues.
            Later rounds may have run.
        unattacked: Audited clients that were left out by choice (``--targets``), so that they have
            no figures.
        missing_uploads: Uploads of audited clients that were not measured in measured rounds.
        missing_rounds: Rounds that ran and should have been measured but were not.
        n_missing_uploads: Number of all missing uploads that may have been aggregated.
        n_missing_rounds: Number of missing rounds.
        identity: SHA-256 over the models that were sent, round by round; empty if unknown.
        sampled_rounds: True if ``every`` left out rounds in which clients took part.
    """

    rounds: Count
    measured: Count
    last_measured: Count
    every: Annotated[int, Field(ge=1)] = 1
    clients: list[ClientCoverage] = Field(default_factory=list)
    is_open: bool = False
    unattacked: list[Count] = Field(default_factory=list)
    missing_uploads: list[MissingUpload] = Field(default_factory=list)
    missing_rounds: list[MissingRounds] = Field(default_factory=list)
    n_missing_uploads: Count = 0
    n_missing_rounds: Count = 0
    identity: Annotated[str, Field(max_length=64)] = ""
    sampled_rounds: bool = False

    @property
    def is_whole(self) -> bool:
        """True if every aggregated upload of every audited client was measured.

        Rounds that the user chose not to measure (``every``) are reported and judged by a gate's
        policy.
        """
        return not (self.n_missing_uploads or self.n_missing_rounds)

    @property
    def never_measured(self) -> list[int]:
        """Audited clients without a measured upload."""
        return [client.client for client in self.clients if not client.measured]
