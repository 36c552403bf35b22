"""Export to a Five Safes RO-Crate, which describes the audit for trusted research environments."""

import base64
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from fedaudit import __version__
from fedaudit.core.errors import BadInput, option
from fedaudit.core.files import MANIFEST_FILE, RECORD_FILE, REPORT_FILE
from fedaudit.core.importing import raise_if_missing
from fedaudit.exports.evidence import Evidence, identifier
from fedaudit.pack.manifest import SIGNATURE_FILE
from fedaudit.pack.packing import CLAUSES_FILE, JUNIT_FILE, POLICY_FILE, STUDY_FILE, VERDICT_FILE
from fedaudit.pack.statement import STATEMENT_FILE
from fedaudit.report.wording import printable
from fedaudit.summary.page import SUMMARY_FILE

PROFILE = "https://w3id.org/5s-crate/1.0"
_VERSION = "1.3"
"""Version of RO-Crate on which the profile is based."""
_COMPLETED = {"@id": "http://schema.org/CompletedActionStatus"}
_TITLES = {
    RECORD_FILE: "Estimates, controls and settings of the audit",
    REPORT_FILE: "Report of the audit",
    SUMMARY_FILE: "Summary of the audit, for signature",
    VERDICT_FILE: "Verdict of the policy",
    JUNIT_FILE: "Verdict of the policy in JUnit XML",
    POLICY_FILE: "Policy",
    STUDY_FILE: "Study file that repeats the audit",
    CLAUSES_FILE: "Answers to legal questions",
    STATEMENT_FILE: "Statement of the packer",
    MANIFEST_FILE: "Manifest with the hashes of all files",
    SIGNATURE_FILE: "Ed25519 signature of the manifest",
}
_BINARY = "application/octet-stream"
_MEDIA_TYPES = {
    ".html": "text/html",
    ".json": "application/json",
    ".toml": "application/toml",
    ".xml": "application/xml",
    ".sig": _BINARY,
}
_NAMED = re.compile(r"\s*([^<>\s][^<>]*?)\s*(?:<([a-z][a-z0-9+.-]*:[^<>\s]+)>)?\s*", re.IGNORECASE)


def write_crate(evidence: Evidence, folder: Path, *, agent: str, organisation: str) -> None:
    """Write an RO-Crate with the audit as its only process.

    The audit is described as an assessment with the policy's verdict as its result; a person
    decides about the release. The crate describes the model's file but does not contain it.

    Args:
        evidence: The verified pack.
        folder: New or empty folder.
        agent: Person who ran the audit, as "Name" or "Name <IRI>".
        organisation: Organisation that operates the environment, in the same form.

    Raises:
        BadInput: The package rocrate is not installed, the folder is not empty, or agent or
            organisation is missing.

    Source: Five Safes RO-Crate 1.0 (working draft), on RO-Crate 1.3.
    """
    raise_if_missing("this export", "exports", "rocrate")
    from rocrate.model import ContextEntity
    from rocrate.rocrate import ROCrate

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(
            f"{folder} exists and is not empty; give a new or empty folder with {option('out')}"
        )
    record, manifest = printable(evidence.record), evidence.manifest
    person = _named(agent, "agent")
    provider = _named(organisation, "organisation")
    begin = evidence.started
    end = begin + timedelta(seconds=record.environment.seconds or 0)
    crate = ROCrate(version=_VERSION)

    def add_entity(identifier: str, kind: str | list[str], **properties: object) -> ContextEntity:
        return crate.add(ContextEntity(crate, identifier, properties={"@type": kind, **properties}))

    add_entity(PROFILE, ["CreativeWork", "Profile"], name="Five Safes RO-Crate", version="1.0")
    organisation_entity = add_entity(provider[1], "Organization", name=provider[0])
    add_entity(person[1], "Person", name=person[0], affiliation={"@id": provider[1]})
    software_iri = _urn(__version__, "software")
    software = add_entity(
        software_iri, "SoftwareApplication", name="fedaudit", version=__version__, url=software_iri
    )
    terms = add_entity(
        _urn(manifest.digest, "terms"),
        "CreativeWork",
        name="Conditions of access",
        description=f"{provider[0]} decides who may use the files and the model.",
    )
    files = [
        crate.add_file(
            evidence.folder / name,
            name,
            properties={
                "name": name,
                "description": title,
                "encodingFormat": _MEDIA_TYPES[Path(name).suffix],
                "contentSize": str((evidence.folder / name).stat().st_size),
            },
        )
        for name, title in _TITLES.items()
        if (evidence.folder / name).is_file()
    ]
    model = evidence.model
    released = model and crate.add_file(
        _model_iri(model.sha256),
        properties={
            "name": model.name,
            "description": "Released model, which the crate does not contain",
            "encodingFormat": _MEDIA_TYPES.get(Path(model.name).suffix, _BINARY),
            "contentSize": str(model.bytes),
            "sha256": model.sha256,
        },
    )
    process = add_entity(
        _urn(manifest.digest, "audit"),
        ["AssessAction", "prov:Activity"],
        name="Audit of privacy leakage from the federated training of a model",
        description=f"Outcome of the policy {manifest.policy!r}: {evidence.verdict.outcome}.",
        agent={"@id": person[1]},
        provider=organisation_entity,
        actionStatus=_COMPLETED,
        startTime=begin.isoformat(),
        endTime=end.isoformat(),
        instrument=software,
        result=files,
        **({"object": released} if released else {}),
    )
    root: Mapping[str, object] = {
        "conformsTo": {"@id": PROFILE},
        "identifier": {"@id": _urn(manifest.digest, "pack")},
        "dct:isVersionOf": {"@id": _urn(manifest.content_hash, "record")},
        "name": f"Privacy audit {record.name}",
        "description": "Evidence pack of an audit of privacy leakage from federated learning.",
        "dateCreated": end.isoformat(),
        "datePublished": end.isoformat(),
        "publisher": organisation_entity,
        "license": terms,
        "version": 1,
        "mentions": process,
    }
    for name, value in root.items():
        crate.root_dataset[name] = value
    crate.write(folder)


def _urn(digest: str, kind: str) -> str:
    return identifier(digest, kind).urn


def _model_iri(sha256: str) -> str:
    """Return the identifier of a file by its hash (RFC 6920)."""
    encoded = base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip("=")
    return f"ni:///sha-256;{encoded}"


def _named(text: str, argument: str) -> tuple[str, str]:
    """Return the name of a person or organisation, and an identifier."""
    match = _NAMED.fullmatch(text)
    if match is None:
        raise BadInput(
            f"an RO-Crate needs the name of the {argument}; give {option(argument)} as 'NAME' or "
            "'NAME <https://...>', where the address may be an ORCID or ROR identifier"
        )
    name, iri = match[1], match[2]
    return name, iri or _urn(name, argument)
