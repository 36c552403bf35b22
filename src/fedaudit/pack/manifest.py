"""Manifest of a pack: its files with their hashes, the origin of its record, and its signature.

A signature is an Ed25519 signature of the manifest's bytes, by the package cryptography.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedaudit.core.errors import BadInput
from fedaudit.core.files import TooLarge, read_text
from fedaudit.core.importing import raise_if_missing
from fedaudit.formatting.wording import printable_record
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.verdict import Verdict
from fedaudit.report.deciding.caveats import untested
from fedaudit.results.fields import SMALLEST_GROUP, Count, RecordPart
from fedaudit.results.record import Record
from fedaudit.results.runs import Coverage

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

SIGNATURE_FILE = "manifest.sig"
SIGNATURE_BYTES = 64
_MAX_KEY_BYTES = 10_000
_PRIME = 2**255 - 19
"""Order of the finite field of Ed25519."""
_ORDER_8 = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
_SMALL_ORDER = {0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8}
"""The y-coordinates of the eight points whose order divides the cofactor 8."""
_KEY_ADVICE = "make one with `openssl genpkey -algorithm ed25519 -out key.pem`"


class PackedFile(RecordPart):
    """File of a pack."""

    name: str
    bytes: Count
    sha256: Hash


class ModelFile(RecordPart):
    """File of the released model, which a pack names but does not contain.

    Attributes:
        name: Name of the file.
        bytes: Size of the file.
        sha256: SHA-256 of the file.
        tensors_digest: SHA-256 of the tensors, by which the record identifies the model.
    """

    name: Annotated[str, Field(min_length=1, max_length=255)]
    bytes: Count
    sha256: Hash
    tensors_digest: Hash


class Manifest(RecordPart):
    """Contents and origin of a pack.

    All fields can be recomputed from the files, except ``made_with`` and parts of ``suppressed``.
    For ``suppressed``, the files determine the number of findings, and lower bounds of some other
    numbers. The recording of the run determines all numbers. Nothing is suppressed in games.

    Attributes:
        record: Name of the record.
        kind: "study" or "games".
        content_hash: Content hash of the record.
        settings_hash: SHA-256 of the record's configuration.
        data: Name of the data set in the configuration; empty if it names no data set.
        data_digest: SHA-256 of the data; None if the record lacks it.
        seeds: Root seeds of the runs.
        versions: Versions of the packages with which the record was made.
        commit: Commit of the code with which the record was made; "+" marks uncommitted changes.
        device: Device on which the record was made.
        policy: Name of the policy.
        policy_hash: SHA-256 of the policy's settings.
        outcome: Outcome of the policy on the packed record.
        smallest_group: Groups with fewer samples are suppressed.
        smallest_group_default: Default of this setting; 0 in packs of older versions.
        suppressed: Number of suppressed entries in each list of the record.
        untested: Sentences on what the audit did not test.
        coverage: Numbers of measured and missing rounds and uploads; empty if unknown.
        identity: SHA-256 of the models that the server sent in all rounds; empty if unknown.
        initial_model: SHA-256 of the model that was sent in the first round; empty if unknown.
        base_model: SHA-256 of the tensors that no client trained, the base model of an adapter;
            empty if clients trained all tensors, or if it is unknown.
        model: SHA-256 of the only model after the last round, or of its adapter, over tensors by
            name; empty if unknown, or if there are several.
        models: SHA-256 of each model after the last round by seed and name, if there are several.
        model_file: File of the released model that the packer named; None if none was named.
        baseline: Content hash of the packed record of the last release; empty if there is none.
        baseline_outcome: Outcome of the comparison with it; None if there is none.
        made_with: Versions of the packages with which the pack was made.
        files: All files except the manifest.
        digest: SHA-256 of all other fields. A receiver who knows the digest notices if the pack was
            replaced.
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
    smallest_group: Count
    smallest_group_default: Count = 0
    suppressed: dict[str, Count]
    untested: list[str]
    coverage: dict[str, Count] = Field(default_factory=dict)
    identity: str = ""
    initial_model: str = ""
    base_model: str = ""
    model: str = ""
    models: dict[str, Hash] = Field(default_factory=dict)
    model_file: ModelFile | None = None
    baseline: str = ""
    baseline_outcome: Outcome | None = None
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
    model_file: ModelFile | None = None,
) -> Manifest:
    """Return the manifest of a pack, with its digest."""
    data = record.config.get("data")
    data_settings = data if isinstance(data, dict) else {}
    digest = data_settings.get("digest")
    manifest = Manifest(
        record=record.name,
        kind=verdict.kind,
        content_hash=record.content_hash,
        settings_hash=_hash(record.config),
        data=str(data_settings.get("name", "")),
        data_digest=digest if isinstance(digest, str) else None,
        seeds=record.seeds,
        versions=record.environment.versions,
        commit=record.environment.commit,
        device=record.environment.device,
        policy=verdict.policy,
        policy_hash=verdict.policy_hash,
        outcome=verdict.outcome,
        smallest_group=smallest_group,
        smallest_group_default=SMALLEST_GROUP,
        suppressed=dict(suppressed),
        untested=untested(printable_record(record)),
        coverage=_coverage_counts(record.coverage) if record.coverage else {},
        identity=record.coverage.identity if record.coverage else "",
        initial_model=record.coverage.initial_model if record.coverage else "",
        base_model=record.coverage.base_model if record.coverage else "",
        model=record.coverage.final_model if record.coverage else "",
        models=record.coverage.several_final_models if record.coverage else {},
        model_file=model_file,
        baseline=verdict.baseline,
        baseline_outcome=verdict.baseline_outcome,
        made_with=dict(made_with),
        files=list(files),
    )
    return manifest.model_copy(update={"digest": digest_of(manifest)})


def digest_of(manifest: Manifest) -> str:
    """Return the SHA-256 of a manifest without its digest."""
    excluded = {"digest", *_empty_fields(manifest)}
    return _hash(manifest.model_dump(mode="json", exclude=excluded))


def manifest_text(manifest: Manifest) -> str:
    """Return the canonical JSON text of the manifest."""
    return manifest.model_dump_json(indent=1, exclude=_empty_fields(manifest)) + "\n"


def _empty_fields(manifest: Manifest) -> set[str]:
    """Return the fields that older manifests lack and that are empty.

    They are left out, so that digests of older manifests stay valid.
    """
    names = (
        *("coverage", "identity", "initial_model", "base_model", "model", "models"),
        *("smallest_group_default", "model_file", "baseline", "baseline_outcome"),
    )
    return {name for name in names if not getattr(manifest, name)}


def _coverage_counts(coverage: Coverage) -> dict[str, int]:
    return {
        "rounds": coverage.rounds,
        "measured": coverage.measured,
        "last_measured": coverage.last_measured,
        "missing_rounds": coverage.n_missing_rounds,
        "missing_uploads": coverage.n_missing_uploads,
        "clients_never_measured": len(coverage.never_measured),
    }


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def private_key(path: Path) -> "Ed25519PrivateKey":
    """Read the private key in a PEM file."""
    raise_if_missing("cryptography", needed_by="signing", extra="sign")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_pem(path), password=None)
    # An unknown key format raises a ValueError, and a key with a password a TypeError.
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput(
            f"{path} is not a private key in PEM without a password ({error}); {_KEY_ADVICE}"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(f"{path} is not an Ed25519 private key; {_KEY_ADVICE}")
    return key


def public_key(path: Path) -> "Ed25519PublicKey":
    """Read the public key in a PEM file; raise for weak keys, whose signatures can be forged."""
    raise_if_missing("cryptography", needed_by="signing", extra="sign")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    advice = "write it with `openssl pkey -in key.pem -pubout -out public.pem`"
    try:
        key = load_pem_public_key(_pem(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{path} is not a public key in PEM ({error}); {advice}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise BadInput(f"{path} is not an Ed25519 public key; {advice}")
    if _is_weak(key.public_bytes_raw()):
        raise BadInput(
            f"{path} is a weak public key (a point of small order, or a non-canonical encoding), "
            f"for which signatures can be forged without the private key; {advice}"
        )
    return key


def _is_weak(key: bytes) -> bool:
    """Return True if the point has small order, or its y-coordinate is not below the prime.

    For a point of small order, a signature of zeros is valid for one message in eight. RFC 8032
    allows such keys, and the package cryptography accepts them.
    """
    # The highest bit encodes the sign of x.
    y = int.from_bytes(key, "little") & (2**255 - 1)
    return y >= _PRIME or y in _SMALL_ORDER


def is_signed(content: bytes, signature: bytes, key: "Ed25519PublicKey") -> bool:
    """Return True if the signature is valid for content and key."""
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _pem(path: Path) -> bytes:
    try:
        return read_text(path, max_bytes=_MAX_KEY_BYTES).encode()
    except (OSError, TooLarge, UnicodeDecodeError) as error:
        raise BadInput(f"the key {path} cannot be read ({error}); give a PEM file") from error
