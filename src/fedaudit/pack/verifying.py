"""Verification of a pack: all hashes are checked, and files are recomputed from record and policy.

The packed policy, the validity of the packer's statement, the names of attacks and the coverage of
the recording are also checked.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import (
    MANIFEST_FILE,
    MAX_RESULT_BYTES,
    MAX_SETTINGS_BYTES,
    RECORD_FILE,
    open_regular,
    parse_json,
    read_bytes,
    read_text,
    refuse_absent,
    refuse_many_values,
)
from fedaudit.core.importing import installed_entry_points, is_custom
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import Policy, read_policy
from fedaudit.gate.verdict import Verdict
from fedaudit.pack.consistency import check_attacks, describe_age, unequal_sizes
from fedaudit.pack.manifest import (
    SIGNATURE_BYTES,
    SIGNATURE_FILE,
    Manifest,
    digest_of,
    is_signed,
    manifest_of,
    manifest_text,
    public_key,
)
from fedaudit.pack.packing import (
    FILES,
    OPTIONAL_FILES,
    POLICY_FILE,
    VERDICT_FILE,
    compute_files,
    package_versions,
)
from fedaudit.pack.statement import STATEMENT_FILE, read_statement
from fedaudit.pack.suppressing import least_suppressed, suppressed, wrongly_suppressed
from fedaudit.report.deciding.caveats import coverage_gaps
from fedaudit.report.grid import shortened
from fedaudit.report.statement import Statement
from fedaudit.report.wording import without_capital
from fedaudit.results.read import read_record
from fedaudit.results.record import RECORDER_SETTINGS, RECORDING_KEYS, Record, games_hash

MOST_NAMED = 20
"""Maximum number of attacks or settings that are listed individually."""
ABSENT = object()
"""Placeholder for the value of a missing setting."""


class Findings(NamedTuple):
    """Results of one check of a pack.

    Attributes:
        problems: Descriptions of faults. A pack with a fault is unsound.
        checked: Statements that are confirmed.
        unchecked: Statements that are not confirmed, which the receiver must judge.
    """

    problems: Sequence[str] = ()
    checked: Sequence[str] = ()
    unchecked: Sequence[str] = ()


_LABELS = (("name",), ("owner",))
"""Settings of a policy that do not affect its outcome."""


def compare_policy(record: Record, packed: Policy, receiver: Policy, source: Path) -> Findings:
    """Compare the policy of a pack with the receiver's policy, read from ``source``."""
    packed_settings, expected = (policy.model_dump(mode="json") for policy in (packed, receiver))
    differences = [
        path for path in differing_paths(packed_settings, expected) if path not in _LABELS
    ]
    missing = sorted(required_attacks(receiver) - attacks_of(record))
    problems = []
    if differences:
        outcome = evaluate_policy(record, receiver).outcome
        problems.append(
            f"policy.toml is not your policy {source.name}: "
            f"{listed(change_at(path, packed_settings, expected) for path in differences)}; by "
            f"your policy the verdict on the packed record is {outcome}"
        )
    if missing:
        problems.append(f"the record lacks attacks that your policy requires: {listed(missing)}")
    checked = [] if problems else [f"policy.toml has the settings of your policy {source.name}"]
    return Findings(problems, checked)


def suspicious_names(record: Record, policy: Policy) -> Findings:
    """Report names with non-ASCII letters as problems, and unknown and custom attacks as unchecked.

    A name with non-ASCII letters can look the same as a name of the catalogue.
    """
    attacks = attacks_of(record) | {row.attack for row in record.controls if row.attack}
    attacks |= {row.attack for row in record.estimates if row.attack} | required_attacks(policy)
    attacks |= {row.attack for row in record.curves} | {row.attack for row in record.sources}
    names = attacks | {record.view.name} | {row.control for row in record.controls}
    for row in record.estimates:
        names |= {row.metric, row.contrast, row.view, row.algorithm, row.against, row.topic}
    not_ascii = sorted(name for name in names if not (name.isascii() and name.isprintable()))
    catalogue = {*ATTACKS, *SOURCE_ATTACKS, *installed_entry_points("attack")}
    unknown = sorted(name for name in attacks - catalogue - set(not_ascii) if not is_custom(name))
    custom = sorted(name for name in attacks - set(not_ascii) if is_custom(name))
    unchecked = []
    if unknown:
        unchecked.append(f"attacks that this version of fedaudit does not know: {listed(unknown)}")
    if custom:
        unchecked.append(f"what the sender's custom attacks compute: {listed(custom)}")
    problems = [f"names with letters outside ASCII: {listed(ascii(name) for name in not_ascii)}"]
    return Findings(problems if not_ascii else [], [], unchecked)


def coverage_notes(record: Record) -> Iterator[str]:
    """Yield descriptions of rounds and uploads that a record does not cover.

    Each text completes the sentence "Not checked: ...".
    """
    gaps = coverage_gaps(record)
    if gaps:
        yield f"what was {without_capital(gaps)}; the record has no figures for it"
    elif record.watched and record.coverage is None:
        yield "which rounds and uploads were measured: the record does not state its coverage"


def differing_paths(
    first: object, second: object, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield paths of settings that differ in value or type; 1, 1.0 and true all differ."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in dict.fromkeys([*first, *second]):
            pair = first.get(key, ABSENT), second.get(key, ABSENT)
            yield from differing_paths(*pair, (*path, key))
    elif ABSENT in (first, second) or _text(first) != _text(second):
        yield path


def setting_at(config: object, path: tuple[str, ...]) -> object:
    """Return the value at a path of keys; ``ABSENT`` if there is none."""
    for key in path:
        config = config.get(key, ABSENT) if isinstance(config, Mapping) else ABSENT
    return config


def change_at(path: tuple[str, ...], config: object, expected: object, table: str = "") -> str:
    """Describe a difference between settings: the dotted name and both values."""
    values = (setting_at(config, path) for config in (config, expected))
    first, second = ("absent" if value is ABSENT else repr(value) for value in values)
    name = ".".join([*([table] if table else []), *path])
    return f"{shortened(name)} is {shortened(first, 80)} instead of {shortened(second, 80)}"


def attacks_of(record: Record) -> set[str]:
    """Return the attacks that are listed in a record or in its settings."""
    return {row.name for row in record.attacks} | set(as_table(record.config.get("attacks")))


def required_attacks(policy: Policy) -> set[str]:
    """Return the attacks that a policy names; empty if the policy judges all attacks."""
    tables = [table for table in (policy.membership, policy.sources) if table is not None]
    if not all(table.attacks for table in tables):
        return set()
    return {name for table in tables for name in table.attacks}


def as_table(value: object) -> dict[str, object]:
    """Return a table of settings; an empty table for any other value."""
    return dict(value) if isinstance(value, dict) else {}


def listed(names: Iterator[str] | list[str]) -> str:
    """Join at most :data:`MOST_NAMED` names with commas, and count the others."""
    texts = [shortened(name, 160) for name in names]
    others = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return ", ".join(texts[:MOST_NAMED]) + others


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SOUND = 0
UNSOUND = 1
"""Exit code for a pack that fails a check."""
OTHER_VERSION = 4
"""Exit code for a sound pack of another version of fedaudit. Exit code 3 is that of an inconclusive
gate."""

FROM_THE_RUN = (
    "every estimate, control and count of the record follows from the run's measurements, and "
    "every setting is the run's"
)
_PASS_RECORDING = "to check this, pass the run folder with --recording"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


class Verified(NamedTuple):
    """Result of the verification of a pack.

    Attributes:
        problems: Descriptions of faults, with the file of each. A pack without faults is sound.
        checked: Statements that are confirmed.
        record: The packed record; None if it could not be read.
        manifest: The manifest; None if it could not be read.
        unchecked: What could not be checked; each text completes the sentence "Not checked: ...".
        policy: The policy in the pack; None if it could not be read.
        own_policy: The receiver's policy; None if none was given.
        statement: Statement of the packer; None if the pack has none.
        other_version: True if another version of fedaudit or its dependencies made the pack, so
            that its files may differ from the files that this version would make.
    """

    problems: Sequence[str]
    checked: Sequence[str] = ()
    record: Record | None = None
    manifest: Manifest | None = None
    unchecked: Sequence[str] = ()
    policy: Policy | None = None
    own_policy: Policy | None = None
    statement: Statement | None = None
    other_version: bool = False

    def extended(self, findings: Findings) -> "Verified":
        """Return the result with the findings of a further check."""
        return self._replace(
            problems=[*self.problems, *findings.problems],
            checked=[*self.checked, *findings.checked],
            unchecked=[*self.unchecked, *findings.unchecked],
        )

    @property
    def kind(self) -> str:
        """Kind of the record: "study" or "games"; empty if the record could not be read."""
        return "" if self.record is None else self.record.kind


def verify(
    folder: Path,
    *,
    digest: str = "",
    signer: Path | None = None,
    policy: Path | None = None,
    not_before: date | None = None,
    today: date | None = None,
) -> Verified:
    """Check an untrusted pack.

    No file outside the folder is opened except ``signer`` and ``policy``, and no link is followed.

    Args:
        folder: Folder of the pack.
        digest: Digest that was printed when the pack was made. Without digest or signer, a
            replacement of the whole pack would not be noticed.
        signer: Ed25519 public key (PEM) of the expected signer.
        policy: The receiver's policy, which must have the same settings as the packed policy.
        not_before: First day on which the audit may have started, by the statement of its record.
        today: Day with which the last day of validity is compared; by default, the present day.

    Raises:
        BadInput: The folder does not exist or is not a pack, or digest, key or policy is invalid.
    """
    refuse_absent(folder, "the folder of a pack, which `fedaudit pack` made")
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder; give the folder that `fedaudit pack` wrote")
    if digest and not re.fullmatch("[0-9a-f]{64}", digest):
        raise BadInput(
            "a digest is 64 digits from 0 to 9 and a to f, as `fedaudit pack` printed it"
        )
    key = public_key(signer) if signer is not None else None
    own_policy = read_policy(policy) if policy is not None else None
    fault = _reading_fault(folder / MANIFEST_FILE)
    if fault and not any((folder / name).exists() for name in (MANIFEST_FILE, VERDICT_FILE)):
        raise BadInput(
            f"{folder} is not a pack: it has no {MANIFEST_FILE}; give the folder that `fedaudit "
            "pack` wrote"
        )
    manifest = fault or _manifest(folder / MANIFEST_FILE)
    if isinstance(manifest, str):
        return Verified([f"{MANIFEST_FILE} {manifest}"])
    problems = [f"{MANIFEST_FILE} {fault}" for fault in _digest_faults(manifest, digest)]
    checked = ["the manifest has the given digest"] if digest and not problems else []
    if key is not None:
        fault = _signature_fault(folder, key)
        problems += [fault] if fault else []
        checked += [] if fault else [f"the manifest is signed by the key of {signer}"]
    problems += [
        *_wrong_names(manifest),
        *_unexpected_files(folder, manifest),
        *_changed_files(folder, manifest),
    ]
    if problems:
        return Verified(problems, checked)
    checked.append(f"{len(manifest.files)} files have the sizes and SHA-256 hashes of the manifest")
    verified = _check_contents(folder, manifest)
    record, packed_policy = verified.record, verified.policy
    is_ignored = key is None and (folder / SIGNATURE_FILE).exists()
    unchecked = [f"{SIGNATURE_FILE}, since no key was given (--signer)"] if is_ignored else []
    parts = [
        Findings(problems, checked, unchecked),
        Findings(verified.problems, verified.checked, verified.unchecked),
    ]
    if record is not None and packed_policy is not None:
        parts.append(suspicious_names(record, packed_policy))
        if verified.statement is not None:
            parts.append(_check_statement(verified.statement, today or date.today()))
        attacks = check_attacks(record)
        parts.append(Findings(attacks.problems, attacks.checked))
        if not_before is not None:
            age = describe_age(record, not_before)
            recent = f"the record states that its run started on {not_before} or later"
            parts.append(Findings([age] if age else [], [] if age else [recent]))
        parts.append(Findings(unchecked=[*not_shown_by_pack(record), *coverage_notes(record)]))
        if own_policy is not None and policy is not None:
            parts.append(compare_policy(record, packed_policy, own_policy, policy))
        else:
            name = shortened(packed_policy.name)
            question = f"whether the policy {name!r} in the pack is yours (--policy)"
            parts.append(Findings(unchecked=[question]))
    problems, checked, unchecked = ([*chain(*lists)] for lists in zip(*parts, strict=True))
    return verified._replace(
        problems=problems,
        checked=checked,
        unchecked=unchecked,
        manifest=manifest,
        own_policy=own_policy,
    )


def _check_statement(statement: Statement, today: date) -> Findings:
    """Check the last day of validity of a statement, the only part that can be checked."""
    claim = (
        f"whether the packer's statement is true (role: {shortened(statement.role, 80)}; purpose: "
        f"{shortened(statement.purpose, 120)}; not applicable: "
        f"{', '.join(statement.not_applicable) or 'none'})"
    )
    if statement.valid_until is None:
        return Findings(unchecked=[claim, "how long the pack is valid: it states no last day"])
    if statement.has_expired(today):
        expired = f"the packer's statement was valid until {statement.last_day}; today is {today}"
        return Findings([expired], unchecked=[claim])
    return Findings([], [f"the packer's statement is valid until {statement.last_day}"], [claim])


def not_shown_by_pack(record: Record) -> Iterator[str]:
    """Yield statements that cannot be confirmed with only the files of a pack.

    Each text completes the sentence "Not checked: ...".
    """
    if record.kind == "games":
        yield "whether the games had these outcomes; to check this, play them again"
        environment = describe_environment(record)
        yield f"{environment}, and the record's name and run time: a pack cannot prove them"
        return
    yield f"whether {FROM_THE_RUN}; {_PASS_RECORDING}"
    if unexplained := check_attacks(record).unexplained:
        yield f"whether these attacks could not run: {listed(unexplained)}; {_PASS_RECORDING}"
    for text in unequal_sizes(record)[:MOST_NAMED]:
        yield f"{text}; {_PASS_RECORDING}"
    yield (
        "whether attacks, targets, seeds or evaluation settings of the run were omitted or "
        f"changed; {_PASS_RECORDING}"
    )
    yield f"{describe_environment(record)}: a pack cannot prove this"
    unconfirmed = ", ".join(sorted(suppressed(record).counts.keys() - {"findings"}))
    yield (
        f"the numbers of suppressed {unconfirmed} in {MANIFEST_FILE}, since the record confirms "
        f"only the number of suppressed findings; {_PASS_RECORDING}"
    )


def describe_environment(record: Record) -> str:
    """Describe the commit, device, time and versions that a record states without proof."""
    environment = record.environment
    versions = ", ".join(
        f"{name} {version}" for name, version in sorted(environment.versions.items())
    )
    statements = [
        f"commit {shortened(environment.commit) or 'not stated'}",
        f"device {shortened(environment.device, 80) or 'not stated'}",
        f"started {shortened(environment.started) or 'not stated'}",
        f"versions {shortened(versions, 200) or 'not stated'}",
    ]
    return f"the origin of the record ({'; '.join(statements)})"


def _signature_fault(folder: Path, key: "Ed25519PublicKey") -> str:
    """Return the reason why the signature of a key is not valid; empty if it is valid."""
    fault = _reading_fault(folder / SIGNATURE_FILE, limit=SIGNATURE_BYTES)
    if fault:
        return f"{SIGNATURE_FILE} {fault}: the pack is not signed by that key"
    content = read_bytes(folder / MANIFEST_FILE, max_bytes=MAX_SETTINGS_BYTES)
    signature = read_bytes(folder / SIGNATURE_FILE, max_bytes=SIGNATURE_BYTES)
    if not is_signed(content, signature, key):
        return f"{SIGNATURE_FILE} is not that key's signature of {MANIFEST_FILE}"
    return ""


def _manifest(path: Path) -> Manifest | str:
    try:
        text = read_text(path, max_bytes=MAX_SETTINGS_BYTES)
        refuse_many_values(text)
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        return f"is not a manifest of this version ({shortened(field)}: {shortened(first['msg'])})"
    except (OSError, ValueError) as error:
        return f"cannot be read ({shortened(str(error), 120)})"
    if manifest_text(manifest) != text:
        return "is not in the canonical form of a manifest (a space, a key or a number differs)"
    return manifest


def _digest_faults(manifest: Manifest, digest: str) -> Iterator[str]:
    if digest_of(manifest) != manifest.digest:
        yield "does not match its digest: it was changed"
    if digest and manifest.digest != digest:
        yield "does not have the given digest: the pack was replaced or changed"


def _wrong_names(manifest: Manifest) -> Iterator[str]:
    """Describe wrong file names in the manifest. Files with these names are never opened."""
    names = [file.name for file in manifest.files]
    for name in names:
        if not _NAME.fullmatch(name):
            yield f"{MANIFEST_FILE} names {shortened(name)!r}, which is not a plain file name"
        elif name not in FILES | OPTIONAL_FILES:
            yield f"{MANIFEST_FILE} names {name}, which no pack has"
    for name in sorted(FILES - set(names)):
        yield f"{MANIFEST_FILE} does not name {name}"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{MANIFEST_FILE} names {shortened(name)} twice"


def _unexpected_files(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Describe files in the folder that the manifest does not name."""
    optional = OPTIONAL_FILES & {file.name for file in manifest.files}
    expected = {*FILES, *optional, MANIFEST_FILE, SIGNATURE_FILE}
    with os.scandir(folder) as entries:
        extra = sorted(entry.name for entry in entries if entry.name not in expected)
    for name in extra[:MOST_NAMED]:
        yield f"{shortened(name)} is not in the manifest"
    if len(extra) > MOST_NAMED:
        yield f"{len(extra) - MOST_NAMED} more are not in the manifest"


def _changed_files(folder: Path, manifest: Manifest) -> Iterator[str]:
    for file in manifest.files:
        if file.name not in FILES | OPTIONAL_FILES:
            continue
        path = folder / file.name
        fault = _reading_fault(path)
        if fault:
            yield f"{file.name} {fault}"
            continue
        size, sha256 = _size_and_hash(path)
        if size != file.bytes:
            yield f"{file.name} has {size:,} bytes, but {file.bytes:,} in the manifest"
        elif sha256 != file.sha256:
            yield f"{file.name} was changed: its SHA-256 is {sha256}, which the manifest lacks"


def _reading_fault(path: Path, *, limit: int = MAX_RESULT_BYTES) -> str:
    """Return the reason why a file cannot be read; empty if it can. Links are not followed."""
    try:
        status = path.lstat()
    except OSError as error:
        return "is missing" if isinstance(error, FileNotFoundError) else f"({error.strerror})"
    if stat.S_ISLNK(status.st_mode):
        return "is a link, which no pack has"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_size > limit:
        return f"is larger than {limit:,} bytes"
    return ""


def _size_and_hash(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with open_regular(path) as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def _check_contents(folder: Path, manifest: Manifest) -> Verified:
    """Recompute the files that follow from record, policy and statement, and compare them."""
    try:
        record, policy = read_record(folder / RECORD_FILE), read_policy(folder / POLICY_FILE)
        if record.kind != manifest.kind:
            return Verified([f"{RECORD_FILE} is a record of another kind"])
        problems = list(_record_faults(record, manifest))
        has_statement = any(file.name == STATEMENT_FILE for file in manifest.files)
        statement = read_statement(folder / STATEMENT_FILE) if has_statement else None
        computed = compute_files(record, policy, statement)
    except FedauditError as error:
        # The message must not depend on the path of the pack.
        reason = str(error).replace(f"{folder}{os.sep}", "")
        return Verified([f"the contents of the pack are invalid: {shortened(reason, 300)}"])
    checked = [
        "the record's content hash follows from its settings and points"
        if record.kind == "games"
        else f"the record names no sample and shows no group of fewer than "
        f"{manifest.smallest_group}"
    ]
    has_same_versions = manifest.made_with == package_versions()
    problems += _manifest_faults(record, computed.verdict, manifest)
    mismatched = [
        name
        for name, text in computed.texts.items()
        if read_bytes(folder / name, max_bytes=MAX_RESULT_BYTES) != text.encode("utf-8")
    ]
    packed_verdict = _verdict(folder / VERDICT_FILE)
    if packed_verdict is None or _outcomes(packed_verdict) != _outcomes(computed.verdict):
        problems.append(
            f"{VERDICT_FILE} is not the verdict of the policy on the record "
            f"({computed.verdict.outcome})"
        )
    unchecked = []
    inputs = "record and policy" if statement is None else "record, policy and statement"
    if has_same_versions:
        problems += [f"{name} does not follow from {inputs}" for name in mismatched]
    elif mismatched:
        unchecked.append(
            f"{', '.join(mismatched)}: the manifest states that other versions made the pack "
            f"({_other_versions(manifest)}), and this version generates different content; the "
            "packed files may contain anything, including scripts"
        )
    verdict = f"the verdict ({computed.verdict.outcome}, by the policy in the pack)"
    matching = [verdict, *sorted(computed.texts.keys() - {VERDICT_FILE, *mismatched})]
    checked.append(f"{', '.join(matching)} follow from {inputs}")
    return Verified(
        problems,
        [] if problems else checked,
        record,
        unchecked=unchecked,
        policy=policy,
        statement=statement,
        other_version=not has_same_versions,
    )


def _other_versions(manifest: Manifest) -> str:
    """Return the versions in the manifest that differ from the installed versions."""
    present = package_versions()
    names = sorted({*present, *manifest.made_with})
    different = [name for name in names if manifest.made_with.get(name) != present.get(name)]
    texts = [f"{name} {manifest.made_with.get(name, 'unknown')}" for name in different[:MOST_NAMED]]
    return shortened(", ".join(texts), 200)


def _record_faults(record: Record, manifest: Manifest) -> Iterator[str]:
    if record.kind == "games":
        if games_hash(record) != record.content_hash:
            yield f"{RECORD_FILE} does not match its content hash: it was changed"
        if manifest.suppressed:
            yield (
                f"{MANIFEST_FILE} states that entries were suppressed, but a record of games is "
                "never changed"
            )
        return
    if record.watched:
        unknown = _unknown_settings(record)
        if unknown:
            yield f"{RECORD_FILE} has settings that no recorder writes: {unknown}"
    counts = suppressed(record, manifest.smallest_group).counts
    if any(counts.values()):
        yield f"{RECORD_FILE} shows samples or groups that must be suppressed by the manifest"
    if counts.keys() != manifest.suppressed.keys():
        yield f"{MANIFEST_FILE} lists the wrong categories of suppressed entries"
    for name, minimum in least_suppressed(record).items():
        stated = manifest.suppressed.get(name, 0)
        if stated < minimum or (name == "findings" and stated != minimum):
            at_least = "" if name == "findings" else "at least "
            yield (
                f"{MANIFEST_FILE} states that {stated} {name} were suppressed, but {RECORD_FILE} "
                f"implies {at_least}{minimum}"
            )
    wrong = wrongly_suppressed(record, manifest.smallest_group)
    if wrong:
        yield (
            f"{RECORD_FILE} marks figures as suppressed that have at least "
            f"{manifest.smallest_group} members and non-members, or whose note states another "
            f"minimum group size, such as {shortened(wrong[0].metric)} of "
            f"{shortened(wrong[0].attack)}"
        )


def _unknown_settings(record: Record) -> str:
    """List settings of a recording that no recorder writes; empty if there are none."""
    table = record.config.get("recording")
    unknown_keys = table.keys() - RECORDING_KEYS if isinstance(table, dict) else set()
    unknown = {f"recording.{key}" for key in unknown_keys}
    unknown |= record.config.keys() - RECORDER_SETTINGS
    return ", ".join(shortened(name) for name in sorted(unknown)[:MOST_NAMED])


def _manifest_faults(record: Record, verdict: Verdict, manifest: Manifest) -> Iterator[str]:
    """Describe fields of the manifest that do not follow from the record."""
    expected = manifest_of(
        record,
        verdict,
        manifest.files,
        smallest_group=manifest.smallest_group,
        suppressed=manifest.suppressed,
        made_with=manifest.made_with,
    )
    for field in Manifest.model_fields:
        if field != "digest" and getattr(expected, field) != getattr(manifest, field):
            yield (
                f"{MANIFEST_FILE} has another {field.replace('_', ' ')} than record and policy "
                "determine"
            )


def _verdict(path: Path) -> Verdict | None:
    try:
        return Verdict.model_validate(parse_json(read_text(path, max_bytes=MAX_RESULT_BYTES)))
    except (OSError, ValueError, RecursionError):
        return None


def _outcomes(verdict: Verdict) -> tuple[object, ...]:
    checks = [(c.section, c.name, c.ceiling, c.outcome, c.figures) for c in verdict.checks]
    return (verdict.rules, verdict.outcome, verdict.policy_hash, verdict.content_hash, *checks)
