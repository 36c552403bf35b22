"""Contents of a verified evidence pack, in the form that exports use."""

from datetime import date, datetime
from pathlib import Path
from typing import NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

from fedaudit.core.errors import BadInput, Damaged, format_option
from fedaudit.formatting.grid import shorten
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.verdict import Check, FigureCheck, Verdict
from fedaudit.pack.manifest import Manifest, ModelFile
from fedaudit.pack.models import compare_model, describe_file
from fedaudit.pack.verifying import verify
from fedaudit.results.record import Record
from fedaudit.summary.statement import Statement


class Evidence(NamedTuple):
    """A verified evidence pack, and the file of the audited model.

    Attributes:
        folder: Folder of the pack.
        manifest: Manifest of the pack.
        record: The packed record, in which results on small groups are left out.
        verdict: Verdict of the policy on the record.
        started: Time at which the audit started.
        model: File of the released model; None if it was not given.
        statement: Role of the person who made the pack, purpose of the audited model, and last day
            on which the pack is valid, as this person states; None if the pack has no statement.
    """

    folder: Path
    manifest: Manifest
    record: Record
    verdict: Verdict
    started: datetime
    model: ModelFile | None
    statement: Statement | None

    @property
    def judged(self) -> list[tuple[Check, FigureCheck, float]]:
        """Checks of estimates against ceilings, with the worst estimate and its value."""
        return [
            (check, worst, worst.value)
            for check in self.verdict.checks
            if (worst := check.worst) is not None and worst.value is not None
        ]


def identifier(digest: str, kind: str) -> UUID:
    """Return an identifier of an object with a digest, such as a pack.

    Every export gives the object the same identifier.
    """
    return uuid5(NAMESPACE_URL, f"fedaudit:{kind}:{digest}")


def read_evidence(
    folder: Path, model: Path | None = None, *, today: date | None = None
) -> Evidence:
    """Verify and read an evidence pack.

    Args:
        folder: Folder of the pack.
        model: File of the released model, which must be the final model of the record, or its
            adapter.
        today: Day on which the packer's statement must be valid; by default, the current date.

    Raises:
        BadInput: The folder is not a pack, another version wrote it, the packer's statement has
            expired, or the model cannot be compared with the record or is not the final model.
        Damaged: The pack fails verification, or the model is not in the record.
    """
    today = today or date.today()
    tensors_digest = ""
    verified = verify(folder, today=today)
    has_expired = verified.statement is not None and verified.statement.has_expired(today)
    if has_expired and len(verified.problems) == 1:
        raise BadInput(
            f"{verified.problems[0]}, so {folder} is not exported; pack the record again with a "
            "later valid_until (fedaudit pack --statement), or ask the packer to do so"
        )
    if model is not None and verified.record is not None and not verified.problems:
        findings, tensors_digest = compare_model(verified.record, model)
        verified = verified.extended(findings)
        if not tensors_digest and not findings.problems:
            raise BadInput(
                f"{folder} is not exported as evidence of {model.name}: the export cannot confirm "
                f"that this is the final model of the audit ({findings.unchecked[0]}); give the "
                "model after the last round of a study or of a closed recording, or omit "
                f"{format_option('model')}"
            )
    record, manifest, policy = verified.record, verified.manifest, verified.policy
    if verified.problems or record is None or manifest is None or policy is None:
        raise Damaged(
            f"{folder} fails verification ({'; '.join(verified.problems[:3])}), so nothing is "
            "exported; use an intact copy of the pack"
        )
    if verified.other_version:
        raise BadInput(
            f"{folder} was written by another version of fedaudit, so the report in it cannot be "
            "generated again and compared; export the pack with that version"
        )
    return Evidence(
        folder,
        manifest,
        record,
        evaluate_policy(record, policy, verified.baseline),
        _time(record.environment.started),
        None if model is None else describe_file(model, tensors_digest),
        verified.statement,
    )


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Damaged(
            f"the record has an invalid time of the audit ({shorten(text, 40)!r}); use the "
            "original pack"
        ) from None


def describe_check(check: Check) -> str:
    """Return the name of a check, with its ceiling if it has one."""
    ceiling = "" if check.ceiling is None else f" at most {check.ceiling:g}"
    return f"{check.name}{ceiling}"
