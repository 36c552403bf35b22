"""Export to a Five Safes RO-Crate, which describes the audit for trusted research environments."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

from fedaudit import __version__
from fedaudit.core.errors import BadInput, format_option
from fedaudit.core.files import MANIFEST_FILE, RECORD_FILE, REPORT_FILE, write_atomically
from fedaudit.core.importing import raise_if_missing
from fedaudit.exports.evidence import Evidence, identifier
from fedaudit.formatting.wording import printable_record
from fedaudit.pack.manifest import SIGNATURE_FILE, Manifest
from fedaudit.pack.packing import (
    BASELINE_FILE,
    CLAUSES_FILE,
    JUNIT_FILE,
    POLICY_FILE,
    STUDY_FILE,
    VERDICT_FILE,
)
from fedaudit.pack.statement import STATEMENT_FILE
from fedaudit.summary.page import SUMMARY_FILE

PROFILE = "https://w3id.org/5s-crate/1.0"
_VERSION = "1.3"
"""Version of RO-Crate on which the profile is based."""
_COMPLETED = "http://schema.org/CompletedActionStatus"
_RISK_ASSESSMENT = "https://w3id.org/dpv/risk#RiskAssessment"
_INPUTS = frozenset({POLICY_FILE, STATEMENT_FILE, BASELINE_FILE})
"""Files that the packer provides, so they are not results of the audit."""
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
    BASELINE_FILE: "Record of the last release, with which the policy compares this one",
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

    The audit is described as an output check of the model, with the pack's files as its result and
    the policy as an instrument; a person decides about the release. The crate describes the model
    but does not contain it.

    Args:
        evidence: The verified pack.
        folder: New or empty folder.
        agent: Person who ran the audit, as "Name" or "Name <IRI>".
        organisation: Organisation that operates the environment, in the same form.

    Raises:
        BadInput: The package rocrate is not installed, the folder is not empty, or agent or
            organisation is missing.

    Source: Five Safes RO-Crate 1.0 (working draft; root data entity, process shape, output checks),
        on RO-Crate 1.3.
    """
    raise_if_missing("rocrate", needed_by="this export", extra="exports")
    from rocrate.model import ContextEntity
    from rocrate.rocrate import ROCrate

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(
            f"{folder} exists and is not empty; give a new or empty folder with "
            f"{format_option('out')}"
        )
    record, manifest = printable_record(evidence.record), evidence.manifest
    person = _named(agent, "agent")
    provider = _named(organisation, "organisation")
    begin = evidence.started
    end = begin + timedelta(seconds=record.environment.seconds or 0)
    crate = ROCrate(version=_VERSION)

    def add_entity(identifier: str, kind: str | list[str], **properties: object) -> ContextEntity:
        return crate.add(ContextEntity(crate, identifier, properties={"@type": kind, **properties}))

    add_entity(PROFILE, ["CreativeWork", "Profile"], name="Five Safes RO-Crate", version="1.0")
    has_page = provider[1].startswith(("http://", "https://"))
    page = {"url": provider[1]} if has_page else {}
    organisation_entity = add_entity(provider[1], "Organization", name=provider[0], **page)
    add_entity(person[1], "Person", name=person[0], affiliation={"@id": provider[1]})
    software_iri = _urn(__version__, "software")
    software = add_entity(
        software_iri, "SoftwareApplication", name="fedaudit", version=__version__, url=software_iri
    )
    policy = add_entity(
        _urn(manifest.policy_hash, "policy"),
        "CreativeWork",
        name=f"Policy {manifest.policy}",
        description=f"Settings with SHA-256 {manifest.policy_hash}",
    )
    terms = add_entity(
        _urn(manifest.digest, "terms"),
        "CreativeWork",
        name="Conditions of access",
        description=f"{provider[0]} decides who may use the files and the model.",
    )
    activity = add_entity(
        _urn(manifest.content_hash, "record"),
        "CreativeWork",
        name=f"Activity record of the privacy audit {record.name}",
    )
    snapshot = add_entity(
        _urn(manifest.digest, "pack"),
        "CreativeWork",
        name=f"Snapshot of the privacy audit {record.name}",
    )
    digest = add_entity(
        _urn(manifest.digest, "digest"),
        "PropertyValue",
        name="Digest of the pack",
        description="The digest with which `fedaudit verify --digest` compares the pack",
        propertyID="SHA-256",
        value=manifest.digest,
    )
    completed = add_entity(_COMPLETED, "ActionStatusType", name="Completed")
    assessment = add_entity(_RISK_ASSESSMENT, "DefinedTerm", name="Risk assessment")
    files = {
        name: crate.add_file(
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
    }
    files[POLICY_FILE]["encodesCreativeWork"] = policy
    if evidence.model is not None:
        models = [
            crate.add_file(
                _model_iri(evidence.model.sha256),
                properties={
                    "name": evidence.model.name,
                    "description": "Released model, which the crate does not contain",
                    "encodingFormat": _MEDIA_TYPES.get(Path(evidence.model.name).suffix, _BINARY),
                    "contentSize": str(evidence.model.bytes),
                    "sha256": evidence.model.sha256,
                },
            )
        ]
    else:
        models = [
            add_entity(iri, "CreativeWork", name=name, description=description)
            for iri, name, description in _models_without_file(manifest)
        ]
    process = add_entity(
        _urn(manifest.digest, "audit"),
        ["AssessAction", "prov:Activity"],
        additionalType=assessment,
        name="Audit of privacy leakage from the federated training of a model",
        description=f"Outcome of the policy {manifest.policy!r}: {evidence.verdict.outcome}.",
        agent={"@id": person[1]},
        provider=organisation_entity,
        actionStatus=completed,
        startTime=begin.isoformat(),
        endTime=end.isoformat(),
        instrument=[software, policy],
        object=models if len(models) > 1 else models[0],
        result=[file for name, file in files.items() if name not in _INPUTS],
    )
    root: Mapping[str, object] = {
        "conformsTo": {"@id": PROFILE},
        "identifier": [snapshot, digest],
        "dct:isVersionOf": activity,
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
    # The profile recommends a list of contexts. The package writes one context without a list.
    crate.write(folder)
    _list_contexts(folder / crate.metadata.id)


def _models_without_file(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Yield identifier, name and description of each audited model, by its digest if it has one."""
    digests = {"": manifest.model} if manifest.model else manifest.models
    for name, digest in digests.items():
        title = f"Final model {name}".strip()
        yield _urn(digest, "model"), title, f"SHA-256 over its stored numbers: {digest}"
    if not digests:
        text = "The record has no digest of the model"
        yield _urn(manifest.content_hash, "model"), "Audited model", text


def _list_contexts(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    document["@context"] = [document["@context"]]
    write_atomically(path, json.dumps(document, indent=4, ensure_ascii=False) + "\n")


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
            f"an RO-Crate needs the name of the {argument}; give {format_option(argument)} as "
            "'NAME' or 'NAME <https://...>', where the address may be an ORCID or ROR identifier"
        )
    name, iri = match[1], match[2]
    return name, iri or _urn(name, argument)
