"""State of an audit at one moment, as it is read from its folder while it is running."""

from typing import Literal, NamedTuple

from fedaudit.live.decisions import AttackAuc
from fedaudit.report.first import FirstScreen
from fedaudit.results.ladder import Auc
from fedaudit.results.runs import DecideBy, GuardOutcome

Kind = Literal["study", "games", "recording", "guard", "result"]

Phase = Literal["waiting", "training", "adversary", "evaluating", "recording", "finished"]
"""Phase of an audit. In "adversary", auxiliary federations are trained, such as those with which
the adversary calibrates its attacks. In "evaluating", attacks and controls are computed."""


class RoundEstimates(NamedTuple):
    """Provisional estimates from the signals of all rounds up to a measured round.

    Attributes:
        round: Number of the round.
        aucs: AUC of each attack, averaged over audited clients, with limits that are not corrected
            for the number of attacks.
        clients: Name of each audited client with the AUC of its strongest attack.
        gap: Gap in loss of the uploads of this round (:func:`fedaudit.results.ladder.loss_gap`);
            None if it was not measured.
    """

    round: int
    aucs: tuple[Auc, ...] = ()
    clients: tuple[tuple[str, Auc], ...] = ()
    gap: float | None = None

    @property
    def strongest(self) -> Auc | None:
        """The attack with the largest AUC; None if no attack can be computed yet."""
        return max(self.aucs, key=lambda auc: auc.value, default=None)


class RunState(NamedTuple):
    """Progress of one federation.

    Attributes:
        title: Title of the run, such as "seed 1".
        done: Number of the last round that is known to be complete.
        total: Number of rounds; None if it is unknown.
        estimates: Estimates of the measured rounds, ascending. With many rounds, some are left out.
        omitted: Sentences on attacks without provisional estimates.
    """

    title: str
    done: int
    total: int | None
    estimates: tuple[RoundEstimates, ...] = ()
    omitted: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """True if all rounds are complete."""
        return self.total is not None and self.done >= self.total


class Participation(NamedTuple):
    """Clients in the last known round.

    Attributes:
        round: Number of the round.
        n_received: Number of clients whose uploads were received.
        expected: Number of clients that were sent the model; None if it is unknown.
        missing: Names of clients without an upload.
    """

    round: int
    n_received: int
    expected: int | None
    missing: tuple[str, ...] = ()


class GuardedUpload(NamedTuple):
    """Decision of a guard on one upload, with the AUC nearest to the limit."""

    round: int
    outcome: GuardOutcome
    auc: AttackAuc | None


class GuardState(NamedTuple):
    """Decisions of a guard.

    Attributes:
        limit: Largest AUC that the policy allows.
        decide_by: Value that is compared with the limit.
        uploads: Decisions on single uploads, oldest first.
        last: The last decision as a sentence.
    """

    limit: float
    decide_by: DecideBy
    uploads: tuple[GuardedUpload, ...]
    last: str

    def count(self, outcome: GuardOutcome) -> int:
        """Return the number of uploads with an outcome."""
        return sum(upload.outcome == outcome for upload in self.uploads)


class WatchState(NamedTuple):
    """State of an audit; estimates are provisional until it is finished.

    Attributes:
        name: Name of the study, recording or folder.
        kind: What the folder contains.
        phase: What the audit does now.
        runs: Runs of all seeds, or the recorded federation.
        additional: Further federations, such as those with which the adversary calibrates attacks.
        current: Index in ``runs`` of the run that changed last; None without a run.
        seconds_per_round: Median duration of recent rounds; None before two rounds are known.
        seconds_left: Estimated seconds of training that is left in all federations; None if
            unknown.
        last_change: Time in seconds since the epoch at which a file of the audit last changed.
        is_silent: True if no file has changed for much longer than a round takes.
        clients: Clients in the last known round.
        ladder: Sentence that compares the gap with the leak ladder; empty if it does not apply.
        expected: Range of AUCs that federations of the ladder have at this gap.
        guard: Decisions of a guard.
        has_report: True if the audit has a record, from which a report can be shown.
        is_final: True if the audit is finished and the record has all of its rounds.
        result: Verdict and main numbers of the record; None unless the record is final.
        notes: Sentences on what the estimates do not contain.
        problems: Damaged or unreadable files, one sentence for each.
    """

    name: str
    kind: Kind
    phase: Phase
    runs: tuple[RunState, ...] = ()
    additional: tuple[RunState, ...] = ()
    current: int | None = None
    seconds_per_round: float | None = None
    seconds_left: float | None = None
    last_change: float = 0.0
    is_silent: bool = False
    clients: Participation | None = None
    ladder: str = ""
    expected: tuple[float, float] | None = None
    guard: GuardState | None = None
    has_report: bool = False
    is_final: bool = False
    result: FirstScreen | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def run(self) -> RunState | None:
        """The run that changed last."""
        return None if self.current is None else self.runs[self.current]

    @property
    def estimates(self) -> RoundEstimates | None:
        """Figures of the last measured round of this run; None before the first."""
        run = self.run
        return run.estimates[-1] if run and run.estimates else None
