"""Verification of a pack: all hashes are checked, and files are recomputed from record and policy.

The packed policy, the validity of the packer's statement, the names of attacks and the coverage of
the recording are also checked.
"""

import os
import re
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import (
    MANIFEST_FILE,
    MAX_RESULT_BYTES,
    MAX_USER_FILE_BYTES,
    RECORD_FILE,
    parse_json,
    raise_if_absent,
    read_bytes,
    read_text,
)
from fedaudit.formatting.grid import shorten
from fedaudit.formatting.wording import join_and
from fedaudit.gate.policy import Policy, read_policy
from fedaudit.gate.verdict import Verdict
from fedaudit.pack.choices import (
    MOST_NAMED,
    CheckResults,
    compare_policy,
    coverage_notes,
    list_names,
    suspicious_names,
)
from fedaudit.pack.consistency import (
    check_attacks,
    check_lineage,
    curve_faults,
    describe_age,
    fewer_than_audited,
    missing_results,
    seed_faults,
    start_faults,
    unequal_sizes,
)
from fedaudit.pack.integrity import (
    changed_files,
    digest_faults,
    read_manifest,
    reading_fault,
    signature_fault,
    unexpected_files,
    wrong_names,
)
from fedaudit.pack.manifest import SIGNATURE_FILE, Manifest, ModelFile, manifest_of, public_key
from fedaudit.pack.packing import (
    BASELINE_FILE,
    POLICY_FILE,
    VERDICT_FILE,
    PackInputs,
    compute_files,
    package_versions,
)
from fedaudit.pack.statement import STATEMENT_FILE, read_statement
from fedaudit.pack.suppressing import least_suppressed, suppress_small_groups, wrongly_suppressed
from fedaudit.results.read import read_record
from fedaudit.results.record import RECORDER_SETTINGS, RECORDING_KEYS, Record, games_hash
from fedaudit.summary.statement import Statement

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


class Verified(NamedTuple):
    """Result of the verification of a pack.

    Attributes:
        problems: Descriptions of faults, with the file of each. A pack without faults is sound.
        checked: Statements that are confirmed.
        record: The packed record; None if it could not be read.
        manifest: The manifest; None if it could not be read.
        unchecked: What could not be checked; each text completes the sentence "Not checked: ...".
        policy: The policy in the pack; None if it could not be read.
        receiver_policy: The receiver's policy; None if none was given.
        statement: Statement of the packer; None if the pack has none.
        baseline: Packed record of the last release; None if the pack has none.
        other_version: True if another version of fedaudit or its dependencies made the pack, so
            that its files may differ from the files that this version would make.
    """

    problems: Sequence[str]
    checked: Sequence[str] = ()
    record: Record | None = None
    manifest: Manifest | None = None
    unchecked: Sequence[str] = ()
    policy: Policy | None = None
    receiver_policy: Policy | None = None
    statement: Statement | None = None
    baseline: Record | None = None
    other_version: bool = False

    def extended(self, results: CheckResults) -> "Verified":
        """Return the result with the results of a further check."""
        return self._replace(
            problems=[*self.problems, *results.problems],
            checked=[*self.checked, *results.checked],
            unchecked=[*self.unchecked, *results.unchecked],
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
    raise_if_absent(folder, "the folder of a pack, which `fedaudit pack` made")
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder; give the folder that `fedaudit pack` wrote")
    if digest and not re.fullmatch("[0-9a-f]{64}", digest):
        raise BadInput(
            "a digest is 64 digits from 0 to 9 and a to f, as `fedaudit pack` printed it"
        )
    key = public_key(signer) if signer is not None else None
    receiver_policy = read_policy(policy) if policy is not None else None
    fault = reading_fault(folder / MANIFEST_FILE)
    if fault and not any((folder / name).exists() for name in (MANIFEST_FILE, VERDICT_FILE)):
        raise BadInput(
            f"{folder} is not a pack: it has no {MANIFEST_FILE}; give the folder that `fedaudit "
            "pack` wrote"
        )
    manifest = fault or read_manifest(folder / MANIFEST_FILE)
    if isinstance(manifest, str):
        return Verified([f"{MANIFEST_FILE} {manifest}"])
    problems = [f"{MANIFEST_FILE} {fault}" for fault in digest_faults(manifest, digest)]
    checked = ["the manifest has the given digest"] if digest and not problems else []
    if key is not None:
        fault = signature_fault(folder, key)
        problems += [fault] if fault else []
        checked += [] if fault else [f"the manifest is signed by the key of {signer}"]
    problems += [
        *wrong_names(manifest),
        *unexpected_files(folder, manifest),
        *changed_files(folder, manifest),
    ]
    if problems:
        return Verified(problems, checked)
    checked.append(f"{len(manifest.files)} files have the sizes and SHA-256 hashes of the manifest")
    verified = _check_contents(folder, manifest)
    record, packed_policy = verified.record, verified.policy
    is_ignored = key is None and (folder / SIGNATURE_FILE).exists()
    unchecked = [f"{SIGNATURE_FILE}, since no key was given (--signer)"] if is_ignored else []
    parts = [
        CheckResults(problems, checked, unchecked),
        CheckResults(verified.problems, verified.checked, verified.unchecked),
    ]
    if record is not None and packed_policy is not None:
        parts.append(suspicious_names(record, packed_policy))
        if verified.statement is not None:
            parts.append(_check_statement(verified.statement, today or date.today()))
        attacks = check_attacks(record)
        faults = [*attacks.problems, *seed_faults(record), *curve_faults(record)]
        parts += [CheckResults(faults, attacks.checked), check_lineage(record)]
        if verified.baseline is not None:
            parts.append(_check_baseline(verified.baseline, packed_policy))
        if manifest.model_file is not None:
            parts.append(CheckResults(unchecked=[question_on_file(manifest.model_file)]))
        parts.append(_check_age(record, not_before, today or date.today()))
        parts.append(CheckResults(unchecked=[*not_shown_by_pack(record), *coverage_notes(record)]))
        if receiver_policy is not None and policy is not None:
            baseline = verified.baseline
            parts.append(compare_policy(record, packed_policy, receiver_policy, policy, baseline))
        else:
            name = shorten(packed_policy.name)
            question = f"whether the policy {name!r} in the pack is yours (--policy)"
            parts.append(CheckResults(unchecked=[question]))
    problems, checked, unchecked = ([*chain(*lists)] for lists in zip(*parts, strict=True))
    return verified._replace(
        problems=problems,
        checked=checked,
        unchecked=unchecked,
        manifest=manifest,
        receiver_policy=receiver_policy,
    )


def question_on_file(model_file: ModelFile) -> str:
    """Return what is not checked about the file of the released model without the file."""
    name = shorten(repr(model_file.name), 120)
    return (
        f"whether the released file is {name} (SHA-256 {model_file.sha256}), as the packer states "
        "(--model)"
    )


def _check_baseline(baseline: Record, policy: Policy) -> CheckResults:
    """Check the record of the last release as far as this is possible without its pack and run."""
    names = suspicious_names(baseline, policy)
    faults = [*names.problems, *check_attacks(baseline).problems]
    faults += [*seed_faults(baseline), *curve_faults(baseline)]
    question = (
        f"whether {BASELINE_FILE} ({shorten(baseline.name)}, digest "
        f"{shorten(baseline.content_hash, 80)}) is the record of your last release, and whether "
        "its estimates follow from its run; compare the digest with the manifest of its pack"
    )
    return CheckResults([f"{BASELINE_FILE}: {fault}" for fault in faults], unchecked=[question])


def _check_age(record: Record, not_before: date | None, today: date) -> CheckResults:
    """Compare the start of the run, as the record states it, with the first allowed day."""
    faults = [*start_faults(record, today)]
    if not_before is None:
        started = shorten(record.environment.started[:10], 40) or "not stated"
        question = f"whether the pack is recent enough (start of the run: {started}; --not-before)"
        return CheckResults(faults, unchecked=[question])
    if age := describe_age(record, not_before):
        return CheckResults([*faults, age])
    return CheckResults(
        faults, [f"the record states that its run started on {not_before} or later"]
    )


def _check_statement(statement: Statement, today: date) -> CheckResults:
    """Check the last day of validity of a statement, the only part that can be checked."""
    claim = (
        f"whether the packer's statement is true (role: {shorten(statement.role, 80)}; purpose: "
        f"{shorten(statement.purpose, 120)}; not applicable: "
        f"{', '.join(statement.not_applicable) or 'none'})"
    )
    if statement.valid_until is None:
        return CheckResults(unchecked=[claim, "how long the pack is valid: it states no last day"])
    if statement.has_expired(today):
        expired = f"the packer's statement was valid until {statement.last_day}; today is {today}"
        return CheckResults([expired], unchecked=[claim])
    return CheckResults(
        [], [f"the packer's statement is valid until {statement.last_day}"], [claim]
    )


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
        yield f"whether these attacks could not run: {list_names(unexplained)}; {_PASS_RECORDING}"
    for texts in (missing_results(record), unequal_sizes(record), fewer_than_audited(record)):
        for text in texts[:MOST_NAMED]:
            yield f"{text}; {_PASS_RECORDING}"
    yield (
        "whether attacks, clients, samples, seeds, rounds or evaluation settings of the run were "
        f"omitted or changed, and digests of models changed; {_PASS_RECORDING}"
    )
    yield f"{describe_environment(record)}: a pack cannot prove this"
    if record.coverage is None or not record.coverage.models:
        yield "which model the record is about: it has no digest of a model"
    elif unidentified := record.coverage.unidentified:
        yield f"which models these are, as the record has no digest: {list_names(unidentified)}"
    unconfirmed = ", ".join(sorted(suppress_small_groups(record).counts.keys() - {"findings"}))
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
        f"commit {shorten(environment.commit) or 'not stated'}",
        f"device {shorten(environment.device, 80) or 'not stated'}",
        f"started {shorten(environment.started) or 'not stated'}",
        f"versions {shorten(versions, 200) or 'not stated'}",
    ]
    return f"the origin of the record ({'; '.join(statements)})"


def _check_contents(folder: Path, manifest: Manifest) -> Verified:
    """Recompute the files that follow from record, policy and statement, and compare them."""
    try:
        record, policy = read_record(folder / RECORD_FILE), read_policy(folder / POLICY_FILE)
        if record.kind != manifest.kind:
            return Verified([f"{RECORD_FILE} is a record of another kind"])
        problems = list(_record_faults(record, manifest))
        policy_text = read_text(folder / POLICY_FILE, max_bytes=MAX_USER_FILE_BYTES)
        names = {file.name for file in manifest.files}
        statement = baseline = None
        if STATEMENT_FILE in names:
            statement = read_statement(folder / STATEMENT_FILE)
        if BASELINE_FILE in names:
            baseline = read_record(folder / BASELINE_FILE)
            problems += _small_groups(baseline, manifest.smallest_group)
        inputs = PackInputs(
            record,
            policy,
            policy_text,
            manifest.smallest_group,
            statement,
            baseline,
            manifest.model_file,
        )
        computed = compute_files(inputs)
    except FedauditError as error:
        # The message must not depend on the path of the pack.
        reason = str(error).replace(f"{folder}{os.sep}", "")
        return Verified([f"the contents of the pack are invalid: {shorten(reason, 300)}"])
    checked = [
        "the digest of the result (content_hash) follows from its settings and points"
        if record.kind == "games"
        else f"the record names no sample, and every figure is about at least "
        f"{manifest.smallest_group} samples; counts of an attack's successes may be smaller"
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
    further = {"statement": statement, "last release": baseline, "model file": manifest.model_file}
    sources = ["record", "policy", *(name for name, part in further.items() if part is not None)]
    origins = join_and(sources)
    if has_same_versions:
        problems += [f"{name} does not follow from {origins}" for name in mismatched]
    elif mismatched:
        unchecked.append(
            f"{', '.join(mismatched)}: the manifest states that other versions made the pack "
            f"({_other_versions(manifest)}), and this version generates different content; the "
            "packed files may contain anything, including scripts"
        )
    verdict = f"the verdict ({computed.verdict.outcome}, by the policy in the pack)"
    matching = [verdict, *sorted(computed.texts.keys() - {VERDICT_FILE, *mismatched})]
    checked.append(f"{', '.join(matching)} follow from {origins}")
    return Verified(
        problems,
        [] if problems else checked,
        record,
        unchecked=unchecked,
        policy=policy,
        statement=statement,
        baseline=baseline,
        other_version=not has_same_versions,
    )


def _other_versions(manifest: Manifest) -> str:
    """Return the versions in the manifest that differ from the installed versions."""
    present = package_versions()
    names = sorted({*present, *manifest.made_with})
    different = [name for name in names if manifest.made_with.get(name) != present.get(name)]
    texts = [f"{name} {manifest.made_with.get(name, 'unknown')}" for name in different[:MOST_NAMED]]
    return shorten(", ".join(texts), 200)


def _record_faults(record: Record, manifest: Manifest) -> Iterator[str]:
    if record.kind == "games":
        if games_hash(record) != record.content_hash:
            yield f"{RECORD_FILE} does not match its digest (content_hash): it was changed"
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
    counts = suppress_small_groups(record, manifest.smallest_group).counts
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
            f"minimum group size, such as {shorten(wrong[0].metric)} of "
            f"{shorten(wrong[0].attack)}"
        )


def _small_groups(baseline: Record, smallest: int) -> Iterator[str]:
    if baseline.kind == "games":
        if games_hash(baseline) != baseline.content_hash:
            yield f"{BASELINE_FILE} does not match its digest (content_hash): it was changed"
    elif any(suppress_small_groups(baseline, smallest).counts.values()):
        yield f"{BASELINE_FILE} shows samples or groups that must be suppressed by the manifest"


def _unknown_settings(record: Record) -> str:
    """List settings of a recording that no recorder writes; empty if there are none."""
    table = record.config.get("recording")
    unknown_keys = table.keys() - RECORDING_KEYS if isinstance(table, dict) else set()
    unknown = {f"recording.{key}" for key in unknown_keys}
    unknown |= record.config.keys() - RECORDER_SETTINGS
    return ", ".join(shorten(name) for name in sorted(unknown)[:MOST_NAMED])


def _manifest_faults(record: Record, verdict: Verdict, manifest: Manifest) -> Iterator[str]:
    """Describe fields of the manifest that do not follow from the record."""
    expected = manifest_of(
        record,
        verdict,
        manifest.files,
        smallest_group=manifest.smallest_group,
        suppressed=manifest.suppressed,
        made_with=manifest.made_with,
        model_file=manifest.model_file,
    )
    for field in Manifest.model_fields:
        # Other versions word what was not tested differently, and may have other defaults.
        depends_on_version = field in ("untested", "smallest_group_default")
        if depends_on_version and manifest.made_with != package_versions():
            continue
        if field != "digest" and getattr(expected, field) != getattr(manifest, field):
            yield (
                f"{MANIFEST_FILE} has another {field.replace('_', ' ')} than record and policy "
                "determine"
            )
    finals = {models.after for models in record.coverage.final_models} if record.coverage else set()
    if manifest.model_file is not None and manifest.model_file.tensors_digest not in finals:
        yield f"{MANIFEST_FILE} names the file of a model that is no final model of the record"


def _verdict(path: Path) -> Verdict | None:
    try:
        return Verdict.model_validate(parse_json(read_text(path, max_bytes=MAX_RESULT_BYTES)))
    except (OSError, ValueError, RecursionError):
        return None


def _outcomes(verdict: Verdict) -> tuple[object, ...]:
    checks = [(c.section, c.name, c.ceiling, c.outcome, c.figures) for c in verdict.checks]
    return (verdict.rules, verdict.outcome, verdict.policy_hash, verdict.content_hash, *checks)
