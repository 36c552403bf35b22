"""Guard of a client, which measures the client's uploads and decides which of them are sent."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock as ThreadLock
from types import TracebackType
from typing import overload

import numpy as np
from torch import nn

from fedaudit.core.devices import device_named, raise_if_several_workers
from fedaudit.core.display import describe, repr_html
from fedaudit.core.errors import BadInput, format_option, type_of
from fedaudit.core.files import lock_folder
from fedaudit.core.progress import print_to_stderr
from fedaudit.core.tasks import CLASSIFICATION, PerSampleLoss, Task
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.guard.arrays import Arrays, Filter, Sendable, Upload, copy_arrays, digest
from fedaudit.guard.candidates import Candidate, Candidates
from fedaudit.guard.policy import ATTACKS, GuardPolicy
from fedaudit.guard.uploads import discard_undecided
from fedaudit.live.clients import number_of
from fedaudit.live.decisions import Decision, append_decision, log_size, opened_decisions
from fedaudit.live.record import record
from fedaudit.live.recording import is_recording
from fedaudit.live.weights import Array
from fedaudit.observe.tensors import MAX_ROUND
from fedaudit.plan.values import settings_from
from fedaudit.results.runs import DecideBy
from fedaudit.results.text import clean_text, log_line
from fedaudit.signals.measure import NotFinite

LIMITS = (
    "the guard measures only this client's uploads, but some attacks also use other clients' "
    "uploads (FedMIA); a server may therefore learn more than the guard's figures show"
)


class Guard:
    """Guard of a client, which measures each upload of the client before it is sent.

    Attacks are run on all uploads that were sent so far, together with the new upload, and the AUC
    of each attack is compared with a limit. If an AUC is above the limit, the site's filter is
    applied to the upload, and the filtered upload is measured. If an AUC is still above the limit,
    the upload is withheld. An upload is also withheld after any error.

    The folder is a recording, so ``fedaudit attack``, reports and the gate can read it. Each
    decision is a line of ``decisions.jsonl``, which is written to the disk before :meth:`check`
    returns. Only one process at a time can use the folder.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> data = {0: (torch.randn(800, 2), torch.arange(800) % 2)}
        >>> split = fa.fair_split(data, audited=600)
        >>> net = torch.nn.Linear(2, 2)
        >>> quiet = lambda line: None
        >>> with fa.Guard("runs/guard", net, split.audit, limit=0.65, log=quiet) as guard:
        ...     upload = guard.check(1, sent=net, upload=net)
        >>> upload is not None, guard.decisions[-1].outcome
        (True, 'sent')
    """

    def __init__(
        self,
        path: Path | str,
        model: nn.Module | Callable[[], nn.Module],
        samples: AuditSet,
        *,
        limit: float,
        filter: Filter | None = None,
        decide_by: DecideBy = "upper",
        attacks: Collection[str] = ATTACKS,
        confidence: float = 0.95,
        smallest_audit: int = 50,
        most_uploads: int | None = None,
        task: str | Task | PerSampleLoss = CLASSIFICATION,
        not_uploaded: Collection[str] = (),
        workers: int = 1,
        device: str = "cpu",
        client: str = "",
        log: Callable[[str], None] = print_to_stderr,
    ) -> None:
        """Open a guard; if the folder has the records of an earlier guard, continue them.

        Args:
            path: Folder of the guard.
            model: The module that the client trains, or a function that builds it.
            samples: The client's audit set, from :func:`fair_split` on its data alone.
            limit, decide_by, attacks, confidence, smallest_audit, most_uploads: See
                :class:`fedaudit.guard.policy.GuardPolicy`.
            filter: Function that is applied to updates above the limit, such as clipping and noise.
                It receives the difference from the received model. With None, these uploads are
                withheld.
            task, not_uploaded, workers, device: See :func:`fedaudit.record`.
            client: Name of the client in :func:`fair_split`, for reports.
            log: Function that receives a line for each decision; prints to standard error by
                default.

        Raises:
            BadInput: A setting or the audit set is invalid, the audit set is too small for the
                policy, or another process uses the folder.
            Damaged: The folder lacks the measurement of a sent upload, or cannot be read.
        """
        values: dict[str, object] = {
            "limit": limit,
            "decide_by": decide_by,
            "attacks": tuple(attacks),
            "confidence": confidence,
            "smallest_audit": smallest_audit,
            "most_uploads": most_uploads,
        }
        self.policy = settings_from(values, GuardPolicy, source="the guard")
        if workers < 1:
            raise BadInput(f"workers is {workers}; give at least 1")
        # Raise here, since otherwise every upload would be withheld because of this setting.
        raise_if_several_workers(device_named(device), workers)
        self._folder, self._filter, self._log = Path(path), filter, log
        self._client = _client_of(samples)
        if client and number_of(client) != self._client:
            raise BadInput(
                f"client is {client!r}, but the audited samples belong to another client; give the "
                "name that the client has in fair_split"
            )
        members = int((samples.owner >= 0).sum())
        # Check this before the folder is created, so that a corrected call can use the same folder.
        self.policy.raise_if_audit_too_small(members, len(samples) - members)
        self.policy.catalogue()
        self._busy = ThreadLock()
        self._fault, self._is_closed = "", False
        lock = lock_folder(_create_folder(self._folder))
        self._decisions = opened_decisions(self._folder, is_new=not is_recording(self._folder))
        if is_recording(self._folder):
            discard_undecided(self._folder, self._decisions, self._client)
        self._recorder = record(
            path,
            model,
            samples,
            attacks=self.policy.attacks,
            task=task,
            not_uploaded=not_uploaded,
            strict=True,
            workers=workers,
            device=device,
            # A guard measures every round, so the advice to skip rounds does not apply.
            log=lambda line: log(line.partition(f"; {format_option('every')}")[0]),
        )
        # The recorder holds the same lock until it is closed.
        del lock
        try:
            if client:
                self._recorder.name_client(client)
            self._candidates = Candidates(
                self._folder, self._recorder, self._client, self.policy, self._decisions
            )
        except Exception:
            self._recorder.close()
            raise
        self._log_size = log_size(self._folder)
        log(LIMITS)
        if warning := self.policy.warning(members, len(samples) - members):
            log(f"warning: {warning}")

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return describe(self)

    def __enter__(self) -> "Guard":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_closed = True
        self._recorder.__exit__(kind, error, trace)

    def close(self) -> None:
        """Release the folder; later uploads are withheld."""
        self._is_closed = True
        self._recorder.close()

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All decisions in the guard's folder, oldest first."""
        return tuple(self._decisions)

    def prepare(self, *, sent: Sendable) -> None:
        """Measure the received model in a second process, while the client trains.

        This shortens :meth:`check` and does not change its decisions. If :meth:`check` gets another
        model as ``sent``, or if the second process fails, it measures everything itself. The second
        process uses another core and up to 1 GiB of memory, and ends with this process. On a GPU,
        or on a system without fork, this method does nothing. It raises no errors; :meth:`check`
        reports them.

        Args:
            sent: The global model that the client received.
        """
        with self._busy, suppress(Exception):
            if not self._is_closed and not self._fault:
                self._recorder.prepare(sent)

    @overload
    def check(
        self,
        number: int,
        *,
        sent: Sendable,
        upload: nn.Module | Mapping[str, Array],
        is_update: bool = False,
    ) -> dict[str, Array] | None: ...
    @overload
    def check(
        self, number: int, *, sent: Sendable, upload: Sequence[Array], is_update: bool = False
    ) -> list[Array] | None: ...
    def check(
        self, number: int, *, sent: Sendable, upload: Sendable, is_update: bool = False
    ) -> Arrays | None:
        """Measure an upload, and return the arrays to send; never raise an error.

        If the same upload is passed again with the same received model, the earlier decision is
        repeated, unless it was due to an error. If a different upload is passed for the same round,
        it is measured together with the upload that was already sent.

        Args:
            number: Number of the round, from 1.
            sent: The global model that the client received.
            upload: What the client wants to send: a module, a state dict or a list of arrays.
            is_update: True if the upload is the difference from ``sent``, False if it is the model
                after training. Arrays that are missing in an update count as unchanged.

        Returns:
            A copy of the upload (for a module, its state dict) or of the filtered upload; None if
            it is withheld. Send only this copy, because the loop may change the original.
        """
        with self._busy:
            try:
                decision, released = self._decide(number, sent, upload, is_update=is_update)
            # Catch every error, because an upload that cannot be measured must not be sent.
            except Exception as error:
                decision, released = self._withhold(number, error), None
        # The decision is already stored, so ignore an error of the user's log function.
        with suppress(Exception):
            self._log(log_line(str(decision)))
        return released

    def _decide(
        self, number: int, sent: Sendable, upload: Sendable, *, is_update: bool
    ) -> tuple[Decision, Arrays | None]:
        if self._is_closed or self._fault:
            raise BadInput(self._fault or "the guard is closed; open it again")
        self._raise_if_shared()
        index = _round_number(number)
        client_upload = Upload(
            copy_arrays(upload, "the upload"),
            copy_arrays(sent, "the received model (sent)"),
            is_update,
        )
        draft = Decision(
            round=index,
            outcome="withheld",
            limit=self.policy.limit,
            decide_by=self.policy.decide_by,
            received=digest(client_upload.received),
            upload=client_upload.digest(),
            version=sum(
                decision.was_sent for decision in self._decisions if decision.round == index
            ),
        )
        earlier = self._find_earlier(draft)
        if earlier is not None and earlier.was_sent:
            decisions_so_far = self._decisions[: self._decisions.index(earlier) + 1]
            self._candidates.verify(earlier, decisions_so_far, client_upload)
            return earlier, client_upload.arrays
        if earlier is not None:
            return earlier, None
        candidate = self._candidates.measure_and_judge(index, client_upload)
        changes: dict[str, object] = {"outcome": "sent"}
        if candidate.judgement.exceeds and self._filter is not None:
            changes = {"outcome": "filtered", "unfiltered": candidate.judgement.aucs}
            filtered_upload = client_upload.filtered(self._filter)
            candidate = self._candidates.measure_and_judge(index, filtered_upload)
        changes["figures"] = candidate.judgement.aucs
        if candidate.judgement.exceeds:
            changes["outcome"] = "withheld"
            return self._store(draft.model_copy(update=changes), None), None
        changes["released"] = candidate.upload.digest()
        decision = self._store(draft.model_copy(update=changes), candidate)
        return decision, candidate.upload.arrays

    def _find_earlier(self, draft: Decision) -> Decision | None:
        """Return an earlier decision on an identical upload; None if the upload must be measured.

        An upload that was filtered is measured again, since the filter may draw new noise.
        """
        digests = (draft.round, draft.received, draft.upload)
        for decision in reversed(self._decisions):
            if decision.is_error or digests != (
                decision.round,
                decision.received,
                decision.upload,
            ):
                continue
            is_same_policy = (decision.limit, decision.decide_by) == (draft.limit, draft.decide_by)
            is_final = decision.outcome == "sent" or (not decision.was_sent and is_same_policy)
            return decision if is_final else None
        return None

    def _store(self, decision: Decision, candidate: Candidate | None) -> Decision:
        """Write the measurement of the upload, unless it is withheld, and then the decision."""
        self._raise_if_shared()
        try:
            if candidate is not None:
                self._candidates.write(candidate, decision.version)
            append_decision(decision, self._folder)
            self._log_size = log_size(self._folder)
        except Exception:
            # Measurements without a decision are deleted when the guard is opened again.
            self._fault = (
                "an earlier decision could not be stored; free some disk space, and open the guard "
                "again"
            )
            raise
        self._decisions.append(decision)
        if candidate is not None:
            self._candidates.add_sent(candidate, decision)
        else:
            with suppress(BadInput, OSError):
                self._recorder.log_withheld(decision.round, self._client, f"withheld: {decision}")
        return decision

    def _raise_if_shared(self) -> None:
        """Raise if another guard, in this process or a forked one, has written to the folder.

        This guard would measure an upload without those that the other guard has sent.
        """
        if log_size(self._folder) != self._log_size:
            self._fault = (
                "another guard has written to the folder; use one guard for a folder, and open it "
                "again"
            )
            raise BadInput(self._fault)

    def _withhold(self, number: object, error: Exception) -> Decision:
        """Log that an upload is withheld because of an error, and return the decision."""
        is_valid = isinstance(number, int) and 0 < number <= MAX_ROUND
        decision = Decision(
            round=number if isinstance(number, int) and is_valid else 0,
            outcome="withheld",
            limit=self.policy.limit,
            decide_by=self.policy.decide_by,
            reason=_reason(error),
        )
        self._decisions.append(decision)
        # Do not write to the folder of a closed guard, since another process may use it. Ignore
        # errors, since the disk may be full.
        with suppress(Exception):
            if not self._is_closed:
                append_decision(decision, self._folder)
                # A fault stays: the size then includes the lines of another guard.
                self._log_size = log_size(self._folder)
                note = f"withheld: {decision.reason}"
                self._recorder.log_withheld(decision.round, self._client, note)
        return decision


def _create_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder} cannot be used ({error}); choose another folder") from error
    return folder


def _client_of(samples: AuditSet) -> int:
    """Return the only client whose members are audited."""
    if not isinstance(samples, AuditSet):
        hint = "; give its attribute audit" if hasattr(samples, "audit") else ""
        raise BadInput(f"samples must be audited samples, got {type_of(samples)}{hint}")
    if samples.person is not None:
        raise BadInput(
            "the audit set has people with several samples, but a guard compares single samples, "
            "so its confidence limits would be too narrow; audit one sample of each person"
        )
    clients = np.unique(samples.owner[samples.owner >= 0]).tolist()
    if len(clients) != 1:
        raise BadInput(
            f"a guard audits one client, but the audited samples have members of {len(clients)} "
            "clients; pass only the client's data to fair_split"
        )
    return int(clients[0])


def _round_number(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= MAX_ROUND:
        raise BadInput(f"the round number is invalid; give a whole number from 1 to {MAX_ROUND}")
    return number


def _reason(error: Exception) -> str:
    """Describe an error without numbers that could reveal measurements."""
    if isinstance(error, NotFinite):
        return "its measurements are not finite numbers"
    if isinstance(error, BadInput):
        return clean_text(str(error))[:2000]
    return f"it could not be checked ({type(error).__name__})"
