"""Checks a pack: every hash, and the verdict made again from record and policy.

Its policy, its names and its coverage are compared with the expected ones.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import (
    LONGEST_RESULT,
    LONGEST_SETTINGS,
    RECORD_FILE,
    open_regular,
    parsed_json,
    read_bytes,
    read_text,
    refuse_absent,
    refuse_many_values,
)
from fedaudit.core.importing import installed, is_own
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import Policy, read_policy
from fedaudit.gate.verdict import Verdict
from fedaudit.pack.manifest import (
    MANIFEST_FILE,
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
    POLICY_FILE,
    VERDICT_FILE,
    made_from,
    made_with,
)
from fedaudit.pack.suppressing import least_suppressed, suppressed, wrongly_blank
from fedaudit.report.grid import shortened
from fedaudit.report.verdict import coverage_gaps
from fedaudit.results.read import read_record
from fedaudit.results.record import OF_A_RECORDER, OF_A_RECORDING, Record, own_hash

MOST_NAMED = 20
"""Attacks and settings that are listed one by one."""
ABSENT = object()


class Findings(NamedTuple):
    """Results of one comparison, in words.

    Attributes:
        problems: Differences that make a pack unsound.
        checked: Comparisons that hold.
        unchecked: Differences for the receiver to judge.
    """

    problems: list[str]
    checked: list[str]
    unchecked: list[str]


_LABELS = (("name",), ("owner",))
"""Settings of a policy that judge nothing."""


def compare_policy(record: Record, packed: Policy, own: Policy, source: Path) -> Findings:
    """Compare the policy of a pack with that of its receiver.

    Args:
        record: As it is packed.
        packed: The policy in the pack.
        own: The receiver's policy.
        source: File of the receiver's policy.
    """
    given, wanted = (policy.model_dump(mode="json") for policy in (packed, own))
    differences = [path for path in differing_paths(given, wanted) if path not in _LABELS]
    missing = sorted(asked_attacks(own) - attacks_of(record))
    problems = []
    if differences:
        outcome = evaluate_policy(record, own).outcome
        problems.append(
            f"policy.toml is not your policy {source.name}: "
            f"{listed(change_at(path, given, wanted) for path in differences)}; by your policy the "
            f"verdict on the packed record is {outcome}"
        )
    if missing:
        problems.append(f"the record lacks attacks that your policy asks for: {listed(missing)}")
    held = [] if problems else [f"policy.toml has the settings of your policy {source.name}"]
    return Findings(problems, held, [])


def foreign_names(record: Record, policy: Policy) -> Findings:
    """Find names that only look like those of the catalogue.

    Args:
        record: As it is packed.
        policy: In the pack.
    """
    attacks = attacks_of(record) | {one.attack for one in record.controls if one.attack}
    attacks |= {one.attack for one in record.estimates if one.attack} | asked_attacks(policy)
    attacks |= {one.attack for one in record.curves} | {one.attack for one in record.sources}
    names = attacks | {record.view.name} | {one.control for one in record.controls}
    for one in record.estimates:
        names |= {one.metric, one.contrast, one.view, one.algorithm, one.against, one.topic}
    odd = sorted(name for name in names if not (name.isascii() and name.isprintable()))
    known = {*ATTACKS, *SOURCE_ATTACKS, *installed("attack")}
    others = sorted(name for name in attacks - known - set(odd) if not is_own(name))
    owned = sorted(name for name in attacks - set(odd) if is_own(name))
    unchecked = []
    if others:
        unchecked.append(f"attacks that this fedaudit does not know: {listed(others)}")
    if owned:
        unchecked.append(f"what attacks of the sender's own compute: {listed(owned)}")
    problems = [f"names with letters outside ASCII: {listed(ascii(one) for one in odd)}"]
    return Findings(problems if odd else [], [], unchecked)


def coverage_notes(record: Record) -> Iterator[str]:
    """Yield what the coverage of a record leaves open."""
    gaps = coverage_gaps(record)
    if gaps:
        yield f"what was {gaps[:1].lower()}{gaps[1:]}; the record's figures say nothing about it"
    elif record.watched and record.coverage is None:
        yield "which rounds and uploads were measured: the record does not state its coverage"


def differing_paths(
    one: object, other: object, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield paths of settings that differ in value or type: 1, 1.0 and true are three."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys([*one, *other]):
            pair = one.get(key, ABSENT), other.get(key, ABSENT)
            yield from differing_paths(*pair, (*path, key))
    elif ABSENT in (one, other) or _text(one) != _text(other):
        yield path


def setting_at(config: object, path: tuple[str, ...]) -> object:
    """Return the value at a path of keys; ``ABSENT`` if there is none."""
    for key in path:
        config = config.get(key, ABSENT) if isinstance(config, Mapping) else ABSENT
    return config


def change_at(path: tuple[str, ...], given: object, expected: object, table: str = "") -> str:
    """Describe how the setting at a path differs, by its dotted name with both values."""
    values = (setting_at(config, path) for config in (given, expected))
    one, other = ("absent" if value is ABSENT else repr(value) for value in values)
    name = ".".join([*([table] if table else []), *path])
    return f"{shortened(name)} is {shortened(one, 80)} instead of {shortened(other, 80)}"


def attacks_of(record: Record) -> set[str]:
    """Attacks that a record names in its settings or has a row for."""
    return {one.name for one in record.attacks} | set(as_table(record.config.get("attacks")))


def asked_attacks(policy: Policy) -> set[str]:
    """Attacks that a policy names; empty if it judges all attacks of a record."""
    tables = [one for one in (policy.membership, policy.sources) if one is not None]
    if not all(one.attacks for one in tables):
        return set()
    return {name for one in tables for name in one.attacks}


def as_table(value: object) -> dict[str, object]:
    """Return a table of settings; an empty one for any other value."""
    return dict(value) if isinstance(value, dict) else {}


def listed(names: Iterator[str] | list[str]) -> str:
    """Join names with commas; after :data:`MOST_NAMED` only their number follows."""
    given = [shortened(name, 160) for name in names]
    more = f" and {len(given) - MOST_NAMED} more" if len(given) > MOST_NAMED else ""
    return ", ".join(given[:MOST_NAMED]) + more


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SOUND = 0
UNSOUND = 1
"""Exit code for a pack in which something is wrong."""
OTHER_VERSION = 4
"""Exit code for one that nothing is wrong with, made by another version; 3 is of the gate."""

FROM_THE_RUN = (
    "every figure, control and count of the record is that of what the run has measured, and every "
    "setting the run's"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


class Verified(NamedTuple):
    """The result of checking a pack.

    Attributes:
        problems: What is wrong, each naming its file; a pack is sound without any.
        checked: What was done and held, in words.
        record: The packed record; None where it could not be read.
        manifest: That of the pack; None likewise.
        unchecked: What could not be checked, in words.
        policy: The policy in the pack; None where it could not be read.
        own_policy: The receiver's policy; None without one.
        other_version: Another version of fedaudit or its parts made the pack, so that what follows
            from the record may be written otherwise.
    """

    problems: list[str]
    checked: list[str]
    record: Record | None = None
    manifest: Manifest | None = None
    unchecked: Sequence[str] = ()
    policy: Policy | None = None
    own_policy: Policy | None = None
    other_version: bool = False

    @property
    def kind(self) -> str:
        """ "study" or "games"; empty where the record could not be read."""
        if self.record is None:
            return ""
        return self.record.kind


def verify(
    folder: Path, *, digest: str = "", signer: Path | None = None, policy: Path | None = None
) -> Verified:
    """Checks a pack that anybody may have written or changed.

    Nothing outside of the folder is opened, whatever the manifest names, and no link is followed.

    Args:
        folder: Of the pack.
        digest: That the manifest must have, as it was printed when the pack was made. Without it
            a pack can be made anew around another record, and only that would show it, or
            its signature.
        signer: A public key of Ed25519 (PEM), by whose private key the pack must be signed.
        policy: The receiver's policy, whose settings the policy in the pack must have.

    Raises:
        BadInput: There is no such folder, or the digest, the key or the policy is none.
    """
    refuse_absent(folder, "the folder of a pack, which `fedaudit pack` made")
    if not folder.is_dir():
        raise BadInput(f"{folder} is no folder; give that of a pack, which `fedaudit pack` made")
    if digest and not re.fullmatch("[0-9a-f]{64}", digest):
        raise BadInput(
            "a digest is 64 digits from 0 to 9 and a to f, as `fedaudit pack` printed it"
        )
    key = public_key(signer) if signer is not None else None
    own = read_policy(policy) if policy is not None else None
    fault = _unreadable(folder / MANIFEST_FILE)
    if fault and not any((folder / name).exists() for name in (MANIFEST_FILE, VERDICT_FILE)):
        raise BadInput(
            f"{folder} is no pack: it has no {MANIFEST_FILE}; give the folder that `fedaudit pack` "
            "wrote"
        )
    if fault:
        return Verified([f"{MANIFEST_FILE} {fault}"], [])
    read = _manifest(folder / MANIFEST_FILE)
    if isinstance(read, str):
        return Verified([f"{MANIFEST_FILE} {read}"], [])
    problems = [f"{MANIFEST_FILE} {fault}" for fault in _against_digest(read, digest)]
    checked = ["the manifest is as it was printed"] if digest and not problems else []
    if key is not None:
        fault = _unsigned(folder, key)
        problems += [fault] if fault else []
        checked += [] if fault else [f"the manifest is signed by the key of {signer}"]
    files = [*_strange_names(read), *_strange_files(folder, read), *_changed(folder, read)]
    if problems or files:
        return Verified([*problems, *files], checked)
    checked.append(f"{len(read.files)} files have the sizes and SHA-256 hashes of the manifest")
    found = _made_again(folder, read)
    unsure = [f"{SIGNATURE_FILE}, as no key was given (--signer)"]
    signed = key is None and (folder / SIGNATURE_FILE).exists()
    whole = found._replace(
        problems=[*problems, *found.problems],
        checked=[*checked, *found.checked],
        manifest=read,
        unchecked=[*(unsure if signed else []), *found.unchecked],
    )
    if whole.record is None or whole.policy is None:
        return whole
    names = foreign_names(whole.record, whole.policy)
    left = [*whole.unchecked, *names.unchecked, *not_shown_alone(whole.record)]
    left += coverage_notes(whole.record)
    problems, checked = [*whole.problems, *names.problems], whole.checked
    if own is None or policy is None:
        left.append(
            f"whether the policy {shortened(whole.policy.name)!r} in the pack is yours (--policy)"
        )
    else:
        compared = compare_policy(whole.record, whole.policy, own, policy)
        problems += compared.problems
        checked = [*checked, *compared.checked]
    return whole._replace(problems=problems, checked=checked, unchecked=left, own_policy=own)


def not_shown_alone(record: Record) -> Iterator[str]:
    """Statements in the files of a pack that they do not show, in words."""
    if record.kind == "games":
        yield "whether the games ended so, which only playing them again shows"
        yield f"{made_where(record)}, and the name and hours, which nothing in the pack shows"
        return
    yield f"whether {FROM_THE_RUN}, which only the folder of its run shows (--recording)"
    yield (
        "whether attacks, targets, seeds or settings of figures of the run were left out or "
        "changed, which only the folder of its run shows (--recording)"
    )
    yield f"{made_where(record)}, which nothing in the pack shows"
    unsure = ", ".join(sorted(suppressed(record).counts.keys() - {"findings"}))
    yield (
        f"how many of {unsure} were suppressed, as {MANIFEST_FILE} says: only that of findings "
        "follows from the record, and the folder of its run shows all (--recording)"
    )


def made_where(record: Record) -> str:
    """Place, time and versions that a record says it was made with; nothing follows from that."""
    made = record.environment
    versions = ", ".join(f"{name} {version}" for name, version in sorted(made.versions.items()))
    said = [
        f"commit {shortened(made.commit) or 'not said'}",
        f"device {shortened(made.device, 80) or 'not said'}",
        f"started {shortened(made.started) or 'not said'}",
        f"versions {shortened(versions, 200) or 'not said'}",
    ]
    return f"where, when and with what the record was made ({'; '.join(said)})"


def _unsigned(folder: Path, key: "Ed25519PublicKey") -> str:
    """Reason why the manifest is not signed by a key; empty where it is."""
    fault = _unreadable(folder / SIGNATURE_FILE, most=SIGNATURE_BYTES)
    if fault:
        return f"{SIGNATURE_FILE} {fault}: the pack is not signed by that key"
    content = read_bytes(folder / MANIFEST_FILE, max_bytes=LONGEST_SETTINGS)
    signature = read_bytes(folder / SIGNATURE_FILE, max_bytes=SIGNATURE_BYTES)
    if not is_signed(content, signature, key):
        return f"{SIGNATURE_FILE} is not that key's signature of {MANIFEST_FILE}"
    return ""


def _manifest(path: Path) -> Manifest | str:
    try:
        text = read_text(path, max_bytes=LONGEST_SETTINGS)
        refuse_many_values(text)
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"is not a manifest of this version ({shortened(place)}: {shortened(first['msg'])})"
    except (OSError, ValueError) as error:
        return f"cannot be read ({shortened(str(error), 120)})"
    if manifest_text(manifest) != text:
        return "is not written as a manifest is (a space, a key or a number is another)"
    return manifest


def _against_digest(manifest: Manifest, digest: str) -> Iterator[str]:
    if digest_of(manifest) != manifest.digest:
        yield "does not have its own digest: something in it was changed"
    if digest and manifest.digest != digest:
        yield "is not that of this digest: the pack was replaced or changed"


def _strange_names(manifest: Manifest) -> Iterator[str]:
    """Names that a pack has no business with, which are never opened."""
    expected, names = FILES, [one.name for one in manifest.files]
    for name in names:
        if not _NAME.fullmatch(name):
            yield f"{MANIFEST_FILE} names {shortened(name)!r}, which is no plain file name"
        elif name not in expected:
            yield f"{MANIFEST_FILE} names {name}, which no pack has"
    for name in sorted(expected - set(names)):
        yield f"{MANIFEST_FILE} does not name {name}"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{MANIFEST_FILE} names {shortened(name)} twice"


def _strange_files(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Files that lie in the folder and do not belong there."""
    known = {*FILES, MANIFEST_FILE, SIGNATURE_FILE}
    with os.scandir(folder) as entries:
        extra = sorted(entry.name for entry in entries if entry.name not in known)
    for name in extra[:MOST_NAMED]:
        yield f"{shortened(name)} is not in the manifest"
    if len(extra) > MOST_NAMED:
        yield f"{len(extra) - MOST_NAMED} more are not in the manifest"


def _changed(folder: Path, manifest: Manifest) -> Iterator[str]:
    expected = FILES
    for one in manifest.files:
        if one.name not in expected:
            continue
        path = folder / one.name
        fault = _unreadable(path)
        if fault:
            yield f"{one.name} {fault}"
            continue
        size, sha256 = _hashed(path)
        if size != one.bytes:
            yield f"{one.name} has {size:,} bytes, and {one.bytes:,} in the manifest"
        elif sha256 != one.sha256:
            yield f"{one.name} was changed: its SHA-256 is {sha256}, not that in the manifest"


def _unreadable(path: Path, *, most: int = LONGEST_RESULT) -> str:
    """Reason why a file is not read; empty where it is. A link is never followed."""
    try:
        kind = path.lstat()
    except OSError as error:
        return "is missing" if isinstance(error, FileNotFoundError) else f"({error.strerror})"
    if stat.S_ISLNK(kind.st_mode):
        return "is a link, which no pack has"
    if not stat.S_ISREG(kind.st_mode):
        return "is no regular file"
    if kind.st_size > most:
        return f"is larger than {most:,} bytes"
    return ""


def _hashed(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with open_regular(path) as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def _made_again(folder: Path, manifest: Manifest) -> Verified:
    """The check that all that follows from record and policy is there."""
    try:
        record, policy = read_record(folder / RECORD_FILE), read_policy(folder / POLICY_FILE)
        if record.kind != manifest.kind:
            return Verified([f"{RECORD_FILE} is a record of another kind"], [])
        problems = list(_of_record(record, manifest))
        made = made_from(record, policy)
    except FedauditError as refusal:
        # Paths of this machine are no part of what is said of a pack.
        said = str(refusal).replace(f"{folder}{os.sep}", "")
        return Verified([f"what the pack holds is refused: {shortened(said, 300)}"], [])
    checked = []
    if record.kind == "games":
        checked.append("the record's content hash follows from its settings and points")
    else:
        checked.append(
            f"the record names no sample and shows no group of fewer than {manifest.smallest_group}"
        )
    same = manifest.made_with == made_with()
    problems += _of_manifest(record, made.verdict, manifest)
    others = list(_other_files(folder, made.files))
    there = _verdict(folder / VERDICT_FILE)
    if there is None or _outcomes(there) != _outcomes(made.verdict):
        problems.append(
            f"{VERDICT_FILE} is not what the policy says of the record ({made.verdict.outcome})"
        )
    unchecked = []
    if same:
        problems += [f"{name} is not what record and policy give" for name in others]
    elif others:
        unchecked.append(
            f"{', '.join(others)}: the manifest says that other versions made the pack "
            f"({_versions(manifest)}), and this one makes other files of record and policy; these "
            "may hold anything, scripts too"
        )
    verdict = f"the verdict ({made.verdict.outcome}, by the policy in the pack)"
    held = [verdict, *sorted(made.files.keys() - {VERDICT_FILE, *others})]
    checked.append(f"{', '.join(held)} are what record and policy give")
    return Verified(
        problems,
        [] if problems else checked,
        record,
        unchecked=unchecked,
        policy=policy,
        other_version=not same,
    )


def _versions(manifest: Manifest) -> str:
    """Versions that differ from those here, as the manifest has them."""
    here = made_with()
    names = sorted({*here, *manifest.made_with})
    odd = [name for name in names if manifest.made_with.get(name) != here.get(name)]
    said = [f"{name} {manifest.made_with.get(name, 'unknown')}" for name in odd[:MOST_NAMED]]
    return shortened(", ".join(said), 200)


def _of_record(record: Record, manifest: Manifest) -> Iterator[str]:
    if record.kind == "games":
        if own_hash(record) != record.content_hash:
            yield f"{RECORD_FILE} does not have its own content hash: something in it was changed"
        if manifest.suppressed:
            yield f"{MANIFEST_FILE} says that parts of games were suppressed, of which none are"
        return
    if record.watched:
        foreign = _foreign_settings(record)
        if foreign:
            yield f"{RECORD_FILE} has settings that no recorder writes: {foreign}"
    counts = suppressed(record, manifest.smallest_group).counts
    if any(counts.values()):
        yield f"{RECORD_FILE} shows samples or groups that the manifest says are suppressed"
    if counts.keys() != manifest.suppressed.keys():
        yield f"{MANIFEST_FILE} counts other things as suppressed than a pack leaves out"
    for name, least in least_suppressed(record).items():
        said = manifest.suppressed.get(name, 0)
        if said < least or (name == "findings" and said != least):
            at_least = "" if name == "findings" else "at least "
            yield (
                f"{MANIFEST_FILE} says that {said} {name} were suppressed, and {RECORD_FILE} has "
                f"{at_least}{least} of these"
            )
    blank = wrongly_blank(record, manifest.smallest_group)
    if blank:
        yield (
            f"{RECORD_FILE} calls figures suppressed that are on {manifest.smallest_group} samples "
            f"a side or more, or by another size, such as {shortened(blank[0].metric)} of "
            f"{shortened(blank[0].attack)}"
        )


def _foreign_settings(record: Record) -> str:
    """Settings in the record of a live recording that none has; empty where there are none."""
    said = record.config.get("recording")
    within = said.keys() - OF_A_RECORDING if isinstance(said, dict) else set()
    foreign = [*(record.config.keys() - OF_A_RECORDER), *(f"recording.{name}" for name in within)]
    return ", ".join(shortened(name) for name in sorted(foreign)[:MOST_NAMED])


def _of_manifest(record: Record, verdict: Verdict, manifest: Manifest) -> Iterator[str]:
    """Statements of the manifest on the record that do not follow from it."""
    made = manifest_of(
        record,
        verdict,
        manifest.files,
        smallest_group=manifest.smallest_group,
        suppressed=manifest.suppressed,
        made_with=manifest.made_with,
    )
    for field in Manifest.model_fields:
        if field != "digest" and getattr(made, field) != getattr(manifest, field):
            yield f"{MANIFEST_FILE} has another {field.replace('_', ' ')} than record and policy"


def _other_files(folder: Path, made: Mapping[str, str]) -> Iterator[str]:
    """Names of files that are not what this version makes of record and policy."""
    for name, text in made.items():
        if read_bytes(folder / name, max_bytes=LONGEST_RESULT) != text.encode("utf-8"):
            yield name


def _verdict(path: Path) -> Verdict | None:
    try:
        return Verdict.model_validate(parsed_json(read_text(path, max_bytes=LONGEST_RESULT)))
    except (OSError, ValueError, RecursionError):
        return None


def _outcomes(verdict: Verdict) -> tuple[object, ...]:
    checks = [(c.section, c.name, c.ceiling, c.outcome, c.figures) for c in verdict.checks]
    return (verdict.rules, verdict.outcome, verdict.policy_hash, verdict.content_hash, *checks)
