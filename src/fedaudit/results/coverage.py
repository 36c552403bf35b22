"""Coverage: which rounds and uploads of a run an audit measured, and what is missing."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from fedaudit.results.fields import Part, Whole

MOST_LISTED = 1000
"""Missing uploads and rounds that a record lists one by one; the counts are always complete."""
Reason = Annotated[str, Field(max_length=2000)]


class MissingUpload(Part):
    """An upload that was not measured.

    Attributes:
        client: Its sender.
        round: The round.
        reason: Why it could not be measured.
        aggregated: Whether the server may have used it; False where it was kept out of the
            aggregate, so that no released model depends on it.
    """

    client: Whole
    round: Whole
    reason: Reason
    aggregated: bool = True


class MissingRounds(Part):
    """Consecutive rounds that were not measured for one reason.

    Attributes:
        first: The first of them.
        last: The last of them.
        reason: Why they were not measured.
    """

    first: Whole
    last: Whole
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

    client: Whole
    answered: Whole
    measured: Whole
    first: Whole | None = None
    last: Whole | None = None

    @classmethod
    def of(cls, client: int, answered: int, rounds: Sequence[int]) -> "ClientCoverage":
        """Return the coverage of a client.

        Args:
            client: Its number.
            answered: Rounds in which it sent an upload, as far as is known.
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
    """Which rounds and uploads of a run were measured.

    A client that was not sampled in a round is not missing from it.

    Attributes:
        rounds: Rounds that ran, as far as is known: the number of the last one.
        measured: Rounds that were measured.
        last_measured: The last of them.
        every: Rounds are measured this far apart by the user's choice.
        clients: Every audited client, those that never took part included.
        is_open: True if the recorder was not closed, as where the run was killed or still goes on:
            later rounds may have run.
        unattacked: Audited clients that were left out by choice (``--targets``), so that nothing is
            said about them.
        missing_uploads: Uploads of audited clients that were not measured, in rounds that were.
        missing_rounds: Rounds that ran and should have been measured, and were not.
        n_missing_uploads: Number of missing uploads that may have been aggregated, listed or not.
        n_missing_rounds: Number of missing rounds.
        identity: SHA-256 over the models that were sent, round by round; empty where not known.
        sampled_rounds: True if rounds were left out by ``every`` although clients took part in
            them.
    """

    rounds: Whole
    measured: Whole
    last_measured: Whole
    every: Annotated[int, Field(ge=1)] = 1
    clients: list[ClientCoverage] = Field(default_factory=list)
    is_open: bool = False
    unattacked: list[Whole] = Field(default_factory=list)
    missing_uploads: list[MissingUpload] = Field(default_factory=list)
    missing_rounds: list[MissingRounds] = Field(default_factory=list)
    n_missing_uploads: Whole = 0
    n_missing_rounds: Whole = 0
    identity: Annotated[str, Field(max_length=64)] = ""
    sampled_rounds: bool = False

    @property
    def is_whole(self) -> bool:
        """True if every aggregated upload of every audited client was measured.

        Rounds that the user chose not to measure (``every``) are reported, and judged by the
        policy of a gate.
        """
        return not (self.n_missing_uploads or self.n_missing_rounds)

    @property
    def never_measured(self) -> list[int]:
        """Audited clients of which no upload was measured."""
        return [one.client for one in self.clients if not one.measured]
