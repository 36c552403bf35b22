"""The manifest of a pack: its files with their hashes, and where the record is from."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from fedaudit.gate.outcome import Outcome
from fedaudit.gate.verdict import Verdict
from fedaudit.results.fields import Part, Whole
from fedaudit.results.record import Record

PACK_FORMAT = "fedaudit-pack"
MANIFEST_FILE = "manifest.json"

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class PackedFile(Part):
    """A file of a pack.

    Attributes:
        name: In the pack's folder, without any folder of its own.
        bytes: Its size.
        sha256: Over all of it.
    """

    name: str
    bytes: Whole
    sha256: Hash


class Manifest(Part):
    """Contents and origin of a pack.

    All follows from its files but ``made_with`` and, of ``suppressed``, what is gone as a whole:
    of that the files show the number of findings and the least number of some others. The
    recording of the run shows every count. Of games nothing is suppressed, whatever
    ``smallest_group`` says.

    Attributes:
        record: Name of the record.
        kind: "study" or "games".
        content_hash: That of the record.
        settings_hash: SHA-256 over the record's configuration.
        data: Name of the data set, as the configuration has it; empty where it has none.
        data_digest: SHA-256 of the data where the record has it; None where it has not.
        seeds: Root seeds of the runs.
        versions: Of what the record was made with.
        commit: Of the code that made the record; "+" marks uncommitted changes.
        device: That it was made on.
        policy: Name of the policy.
        policy_hash: SHA-256 over its settings.
        outcome: What the policy says of the packed record.
        smallest_group: Groups with fewer samples are suppressed.
        suppressed: How many entries of each of the record's lists were, as far as the record that
            was packed still had them.
        untested: What the record says nothing about.
        made_with: Versions of what made the pack.
        files: All files but the manifest.
        digest: SHA-256 over all of the above; keep it elsewhere, and nobody can replace the pack.
    """

    format: Literal["fedaudit-pack"] = "fedaudit-pack"
    version: Literal[1] = 1
    record: str
    kind: Literal["study", "games"]
    content_hash: str
    settings_hash: Hash
    data: str
    data_digest: str | None
    seeds: list[int]
    versions: dict[str, str]
    commit: str
    device: str
    policy: str
    policy_hash: Hash
    outcome: Outcome
    smallest_group: Whole
    suppressed: dict[str, Whole]
    untested: list[str]
    made_with: dict[str, str]
    files: Annotated[list[PackedFile], Field(max_length=100)]
    digest: str = ""


def manifest_of(
    record: Record,
    verdict: Verdict,
    files: Sequence[PackedFile],
    *,
    smallest_group: int,
    suppressed: Mapping[str, int],
    made_with: Mapping[str, str],
) -> Manifest:
    """The manifest of a pack, with its digest.

    Args:
        record: As it is packed.
        verdict: Of the policy on it.
        files: All files but the manifest.
        smallest_group: Groups with fewer samples are suppressed.
        suppressed: How many entries of each of the record's lists were.
        made_with: Versions of what makes the pack.
    """
    data = record.config.get("data")
    about = data if isinstance(data, dict) else {}
    digest = about.get("digest")
    manifest = Manifest(
        record=record.name,
        kind=verdict.kind,
        content_hash=record.content_hash,
        settings_hash=_hash(record.config),
        data=str(about.get("name", "")),
        data_digest=digest if isinstance(digest, str) else None,
        seeds=record.seeds,
        versions=record.environment.versions,
        commit=record.environment.commit,
        device=record.environment.device,
        policy=verdict.policy,
        policy_hash=verdict.policy_hash,
        outcome=verdict.outcome,
        smallest_group=smallest_group,
        suppressed=dict(suppressed),
        untested=record.untested,
        made_with=dict(made_with),
        files=list(files),
    )
    return manifest.model_copy(update={"digest": digest_of(manifest)})


def digest_of(manifest: Manifest) -> str:
    """SHA-256 over all of a manifest but its digest."""
    return _hash(manifest.model_dump(mode="json", exclude={"digest"}))


def manifest_text(manifest: Manifest) -> str:
    """The manifest as a file: one way to write it, so that no byte can be another."""
    return manifest.model_dump_json(indent=1) + "\n"


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
