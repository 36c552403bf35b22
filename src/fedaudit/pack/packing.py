"""Packing of a record for release, with its report, verdict, answers and manifest."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import closing
from datetime import date
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from fedaudit import __version__
from fedaudit.core.errors import BadInput, Damaged, format_option
from fedaudit.core.files import (
    LOCK_FILE,
    MANIFEST_FILE,
    MAX_RESULT_BYTES,
    MAX_USER_FILE_BYTES,
    RECORD_FILE,
    REPORT_FILE,
    Lock,
    raise_if_unreadable,
    read_text,
    write_atomically,
)
from fedaudit.formatting.fixed import fixed_text
from fedaudit.formatting.grid import shorten
from fedaudit.formatting.wording import (
    join_parts,
    printable_record,
    with_full_stop,
    without_capital,
)
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outputs import junit_xml, policy_section, verdict_json
from fedaudit.gate.policy import Policy, read_policy
from fedaudit.gate.verdict import Verdict
from fedaudit.pack.manifest import (
    SIGNATURE_FILE,
    Manifest,
    ModelFile,
    PackedFile,
    manifest_of,
    manifest_text,
    private_key,
)
from fedaudit.pack.statement import STATEMENT_FILE, read_valid_statement
from fedaudit.pack.suppressing import suppress_small_groups, total_suppressed
from fedaudit.report.clauses import CAVEAT, CLAUSES, Clause, ClauseAnswer, caveats, origin
from fedaudit.report.page import report_html
from fedaudit.report.reproducing import study_file
from fedaudit.results.fields import SMALLEST_GROUP
from fedaudit.results.older import resolve_older_settings
from fedaudit.results.read import read_record
from fedaudit.results.record import Record, games_hash, record_json
from fedaudit.summary.page import SUMMARY_FILE, PackFacts, summary_html
from fedaudit.summary.statement import Statement

POLICY_FILE = "policy.toml"
VERDICT_FILE = "verdict.json"
JUNIT_FILE = "gate.xml"
STUDY_FILE = "study.toml"
CLAUSES_FILE = "clauses.json"
FILES = {
    *(RECORD_FILE, POLICY_FILE, VERDICT_FILE, JUNIT_FILE),
    *(REPORT_FILE, STUDY_FILE, CLAUSES_FILE, SUMMARY_FILE),
}
"""Files of every pack, except the manifest and its signature."""
BASELINE_FILE = "baseline.json"
"""Record of the last release, without small groups."""
OPTIONAL_FILES = frozenset({STATEMENT_FILE, BASELINE_FILE})
"""Files that only some packs have."""
CLAUSES_VERSION = 5
_OPEN_ANSWERS = ("not tested", "not stated", "out of scope")
"""Kinds of answers of records that do not answer a question."""


class PackInputs(NamedTuple):
    """What determines the computed files of a pack.

    Attributes:
        record: The packed record.
        policy: The policy.
        policy_text: Text of the policy's file.
        smallest_group: Groups with fewer samples are suppressed.
        statement: Statement of the packer; None if there is none.
        baseline: Packed record of the last release; None if there is none.
        model_file: File of the released model; None if none was named.
    """

    record: Record
    policy: Policy
    policy_text: str
    smallest_group: int
    statement: Statement | None = None
    baseline: Record | None = None
    model_file: ModelFile | None = None


class ComputedFiles(NamedTuple):
    """Files of a pack that are computed from its inputs.

    Attributes:
        verdict: Verdict of the policy on the packed record.
        texts: Text by file name.
    """

    verdict: Verdict
    texts: dict[str, str]


def write_pack(
    record: Path,
    policy: Path,
    folder: Path,
    *,
    smallest_group: int = SMALLEST_GROUP,
    sign: Path | None = None,
    statement: Path | None = None,
    baseline: Record | None = None,
    model_file: ModelFile | None = None,
    replaces_pack: bool = False,
) -> Manifest:
    """Write a pack to a new folder.

    Args:
        record: File of a record of a study or of games.
        policy: File of a policy.
        folder: New or empty folder.
        smallest_group: Groups with fewer samples are suppressed.
        sign: Ed25519 private key (PEM) that signs the manifest.
        statement: File of the packer's statement, which must not have expired.
        baseline: Record of the last release, with which the policy compares this one. The pack
            contains it without small groups.
        model_file: File of the released model, as :func:`fedaudit.pack.models.released_file`
            describes it.
        replaces_pack: Whether to replace a pack without a statement and signature in the folder.

    Raises:
        BadInput: The key, record, policy or statement is invalid, the baseline cannot be
            compared, the folder is not empty, or suppression would change the verdict.
        Damaged: The file is not a valid record, or it is a record of games that was changed.
    """
    _raise_if_nonempty(folder, replaces_pack=replaces_pack)
    _raise_if_file_name(folder)
    key = private_key(sign) if sign is not None else None
    original, gate_policy = read_record(record), read_policy(policy)
    texts = {POLICY_FILE: read_text(policy, max_bytes=MAX_USER_FILE_BYTES)}
    packer_statement = None
    if statement is not None:
        packer_statement = read_valid_statement(statement, date.today())
        texts[STATEMENT_FILE] = read_text(statement, max_bytes=MAX_USER_FILE_BYTES)
    packed, counts = _packed_record(original, smallest_group)
    texts[RECORD_FILE] = record_json(packed)
    packed_baseline = None
    if baseline is not None:
        packed_baseline, _ = _packed_record(baseline, smallest_group)
        texts[BASELINE_FILE] = record_json(packed_baseline)
    inputs = PackInputs(
        packed,
        gate_policy,
        texts[POLICY_FILE],
        smallest_group,
        packer_statement,
        packed_baseline,
        model_file,
    )
    computed = compute_files(inputs)
    _raise_if_other_verdict(
        evaluate_policy(original, gate_policy, baseline), computed.verdict, smallest_group
    )
    texts |= computed.texts
    manifest = manifest_of(
        packed,
        computed.verdict,
        [_packed_file(name, text) for name, text in sorted(texts.items())],
        smallest_group=smallest_group,
        suppressed=counts,
        made_with=package_versions(),
        model_file=model_file,
    )
    texts[MANIFEST_FILE] = manifest_text(manifest)
    _raise_if_unreadable(folder, texts)
    signature = None if key is None else key.sign(texts[MANIFEST_FILE].encode("utf-8"))
    _write(folder, texts, signature, replaces_pack=replaces_pack)
    return manifest


def _packed_record(record: Record, smallest_group: int) -> tuple[Record, Mapping[str, int]]:
    """Return a record without small groups, and the number of suppressed entries by list."""
    if record.kind == "games":
        # A record of games is not changed, since verification recomputes its content hash.
        _raise_if_other_hash(record)
        return record, {}
    packed, changes = suppress_small_groups(record, smallest_group)
    return packed, total_suppressed(changes, packed)


UNFINISHED = ".unfinished"
"""Folder in a pack for files while they are being written."""


def _write(
    folder: Path, texts: Mapping[str, str], signature: bytes | None, *, replaces_pack: bool
) -> None:
    """Write all files of a pack to a temporary folder, and then move them to the pack's folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with closing(Lock(folder)) as lock:
            if not lock.acquire() or not _is_at(folder / LOCK_FILE, lock):
                raise BadInput(
                    f"another process writes a pack to {folder}; give another folder with "
                    f"{format_option('out')}"
                )
            try:
                # Another process may have written a pack since the first check.
                _raise_if_nonempty(folder, replaces_pack=replaces_pack)
                # Without its manifest, a partly replaced pack is not taken for a complete one.
                (folder / MANIFEST_FILE).unlink(missing_ok=True)
                if replaces_pack and BASELINE_FILE not in texts:
                    (folder / BASELINE_FILE).unlink(missing_ok=True)
                _fill(folder, texts, signature)
            finally:
                (folder / LOCK_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be written ({error}); give another folder with {format_option('out')}"
        ) from error


def _is_at(path: Path, lock: Lock) -> bool:
    """Return False if the file of a lock was deleted or replaced by another process."""
    return path.exists() and os.fstat(lock.descriptor).st_ino == path.stat().st_ino


def _fill(folder: Path, texts: Mapping[str, str], signature: bytes | None) -> None:
    unfinished = folder / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        for name, text in sorted(texts.items()):
            write_atomically(unfinished / name, text)
        if signature is not None:
            (unfinished / SIGNATURE_FILE).write_bytes(signature)
    except BaseException:
        # The incomplete pack is useless, and the disk may be full.
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    # The manifest is moved last, so that an incomplete pack has no manifest.
    for name in sorted(path.name for path in unfinished.iterdir() if path.name != MANIFEST_FILE):
        (unfinished / name).replace(folder / name)
    (unfinished / MANIFEST_FILE).replace(folder / MANIFEST_FILE)
    unfinished.rmdir()


def _raise_if_unreadable(folder: Path, texts: Mapping[str, str]) -> None:
    """Raise if a file would be too large to be read back."""
    for name, text in texts.items():
        if name == MANIFEST_FILE:
            raise_if_unreadable(folder / name, text)
        elif len(text.encode("utf-8")) > MAX_RESULT_BYTES:
            raise BadInput(
                f"{folder / name} would have more than the {MAX_RESULT_BYTES:,} bytes that are "
                "read back; pack a record of fewer attacks or targets"
            )


def compute_files(inputs: PackInputs) -> ComputedFiles:
    """Compute all files that are determined by the inputs of a pack."""
    record, policy, statement = inputs.record, inputs.policy, inputs.statement
    verdict = evaluate_policy(record, policy, inputs.baseline)
    section = policy_section(record, verdict, policy, Path(POLICY_FILE), inputs.policy_text)
    facts = pack_facts(record, inputs.smallest_group, inputs.model_file)
    texts = {
        VERDICT_FILE: verdict_json(verdict),
        JUNIT_FILE: junit_xml(verdict),
        STUDY_FILE: study_file(resolve_older_settings(record.config)),
        REPORT_FILE: report_html(record),
        CLAUSES_FILE: clauses_json(record, statement),
        SUMMARY_FILE: summary_html(record, section, statement=statement, pack=facts),
    }
    return ComputedFiles(verdict, texts)


def pack_facts(record: Record, smallest_group: int, model_file: ModelFile | None) -> PackFacts:
    """Return what a pack contains, for its summary."""
    named = model_file and f"{shorten(model_file.name, 80)} (SHA-256 {model_file.sha256})"
    if record.kind == "games":
        return PackFacts("", named or "")
    limits = {"smallest": smallest_group, "default": SMALLEST_GROUP}
    return PackFacts(fixed_text("pack.left_out", **limits), named or "")


def package_versions() -> dict[str, str]:
    """Return the versions of packages on which the bytes of a pack's files depend."""
    packages = ("numpy", "scipy", "jinja2", "pydantic")
    return {"fedaudit": __version__} | {name: _version_of(name) for name in packages}


@cache
def _version_of(package: str) -> str:
    # The metadata of a package is a file, and verification of a pack asks for it four times.
    return metadata.version(package)


def _packed_file(name: str, text: str) -> PackedFile:
    data = text.encode("utf-8")
    return PackedFile(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _raise_if_nonempty(folder: Path, *, replaces_pack: bool) -> None:
    """Raise if a folder has files other than those of an unfinished or a replaceable pack."""
    if not folder.exists():
        return
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
    replaceable = {LOCK_FILE}
    if UNFINISHED in present:
        replaceable |= {UNFINISHED, *FILES, *OPTIONAL_FILES, SIGNATURE_FILE}
    if replaces_pack and MANIFEST_FILE in present:
        # `fedaudit check` writes packs with a baseline, but none with a statement.
        replaceable |= {MANIFEST_FILE, BASELINE_FILE, *FILES}
    if not present <= replaceable:
        raise BadInput(
            f"{folder} exists and is not empty; give a new or empty folder with "
            f"{format_option('out')}"
        )


_FILE_SUFFIXES = {
    ".7z",
    ".gz",
    ".html",
    ".json",
    ".pdf",
    ".tar",
    ".tgz",
    ".toml",
    ".xml",
    ".xz",
    ".zip",
}
"""Suffixes of files. A pack is a folder, so its name must not have one of them."""


def _raise_if_file_name(folder: Path) -> None:
    """Raise if the name of a new folder looks like the name of an archive or another file."""
    if folder.suffix.lower() in _FILE_SUFFIXES and not folder.is_dir():
        stem = folder
        # There may be several suffixes, as in pack.tar.gz.
        while stem.suffix.lower() in _FILE_SUFFIXES:
            stem = stem.with_suffix("")
        endings = folder.name.removeprefix(stem.name)
        raise BadInput(
            f"a pack is a folder, but {folder.name} is the name of a file; give a name without "
            f"{endings} with {format_option('out')}, such as {stem.name}, and compress the folder "
            "afterwards"
        )


def _raise_if_other_hash(record: Record) -> None:
    if games_hash(record) != record.content_hash:
        raise Damaged(
            f"the record {record.name[:80]!r} does not match its digest (content_hash): it was "
            "changed after the games; use the original record"
        )


def _raise_if_other_verdict(original: Verdict, packed: Verdict, smallest_group: int) -> None:
    if original.outcome is not packed.outcome:
        raise BadInput(
            f"without groups of fewer than {smallest_group} samples, the verdict would be "
            f"{packed.outcome!s} instead of {original.outcome!s}; give a smaller "
            "--smallest-group, or a policy that does not judge such groups"
        )


def clauses_json(record: Record, statement: Statement | None = None) -> str:
    """Return the file ``clauses.json``: questions of assessments, and their answers.

    Verification recomputes the file. A statement that a question does not apply never replaces the
    answer of a record.
    """
    record = printable_record(record)
    reasons = {} if statement is None else statement.not_applicable
    rows = [(row, _clause_answer(row, record, statement)) for row in CLAUSES]
    answers = [
        {
            "id": row.id,
            "question": row.question,
            "sources": [source._asdict() for source in row.sources],
            **answer._asdict(),
            "not_applicable": reasons.get(row.id, ""),
        }
        for row, answer in rows
    ]
    document = {
        "format": "fedaudit-clauses",
        "version": CLAUSES_VERSION,
        "about": CAVEAT,
        "record": record.content_hash,
        "verdict": rows[0][1].text,
        "caveats": caveats(record),
        "statement": None if statement is None else _statement_json(statement),
        "clauses": answers,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _statement_json(statement: Statement) -> dict[str, str]:
    return {
        "about": fixed_text("answers.stated"),
        "role": statement.role,
        "purpose": statement.purpose,
        "valid_until": statement.last_day,
    }


def _clause_answer(row: Clause, record: Record, statement: Statement | None) -> ClauseAnswer:
    answer = row.answer(record)
    if statement is None:
        return answer
    if row.id == "purpose":
        last_day = f"valid until {statement.last_day}" if statement.valid_until else ""
        text = join_parts(with_full_stop(statement.purpose).rstrip("."), last_day, by="; ")
        answer = ClauseAnswer("stated", text, fixed_text("answers.stated"))
    elif row.id == "tester":
        answer = origin(record, statement.role)
    reason = statement.not_applicable.get(row.id, "")
    if not reason or answer.kind not in _OPEN_ANSWERS:
        return answer
    why = f"Not applicable, because {without_capital(reason)}"
    return ClauseAnswer(
        "not applicable", why, join_parts(fixed_text("answers.stated"), answer.more, by=" ")
    )
