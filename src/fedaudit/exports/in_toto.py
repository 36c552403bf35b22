"""Verdict of the gate as a signed statement (attestation) in the in-toto format.

The gate compares an audit's result with a policy. In-toto is a format for statements about software
artifacts, such as the file of a released model.
"""

import json
from pathlib import Path

from fedaudit.core.files import RECORD_FILE
from fedaudit.core.importing import raise_if_missing
from fedaudit.exports.evidence import Evidence, describe_check
from fedaudit.gate.outcome import Outcome
from fedaudit.pack.manifest import private_key
from fedaudit.pack.packing import POLICY_FILE

PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"

_RESULTS = {
    Outcome.PASS: "PASSED",
    Outcome.NOT_REFUTED: "PASSED",
    Outcome.INCONCLUSIVE: "WARNED",
    Outcome.FAIL: "FAILED",
}
"""Results in the attestation. Verifiers must require PASSED, since WARNED means inconclusive.

NOT_REFUTED is the outcome of a lower bound on epsilon that is not above its ceiling. It does not
prevent a pass, as in the gate.
"""


def statement(evidence: Evidence, sign: Path | None = None) -> str:
    """Return an in-toto statement, whose body (predicate) is a test result, as JSON.

    The subject is the file of the released model, or the audit's record (result file) if no model
    was given.

    Args:
        evidence: The verified evidence pack.
        sign: Ed25519 private key (PEM). With a key, the result is signed: a DSSE envelope (Dead
            Simple Signing Envelope) that contains the statement.

    Raises:
        BadInput: A package is not installed, or the key is invalid.

    Source: in-toto Attestation Framework, Statement v1 and Test Result v0.1.
    """
    raise_if_missing(
        "in_toto_attestation", "securesystemslib", needed_by="this export", extra="exports"
    )
    from google.protobuf.json_format import MessageToDict
    from in_toto_attestation.predicates.test_result.v0.test_result_pb2 import TestResult
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
    from in_toto_attestation.v1.statement import Statement

    hashes = {file.name: file.sha256 for file in evidence.manifest.files}
    model = evidence.model
    subject = (RECORD_FILE, hashes[RECORD_FILE]) if model is None else (model.name, model.sha256)
    policy = ResourceDescriptor(name=POLICY_FILE, digest={"sha256": hashes[POLICY_FILE]})
    checks = {
        result: [
            describe_check(c) for c in evidence.verdict.checks if _RESULTS[c.outcome] == result
        ]
        for result in ("PASSED", "WARNED", "FAILED")
    }
    predicate = TestResult(
        result=_RESULTS[evidence.verdict.outcome],
        configuration=[policy.pb],
        passed_tests=checks["PASSED"],
        warned_tests=checks["WARNED"],
        failed_tests=checks["FAILED"],
    )
    attestation = Statement(
        [ResourceDescriptor(name=subject[0], digest={"sha256": subject[1]}).pb],
        PREDICATE_TYPE,
        MessageToDict(predicate),
    )
    attestation.validate()
    text = json.dumps(MessageToDict(attestation.pb), indent=1, sort_keys=True) + "\n"
    return text if sign is None else _envelope(text, sign)


def _envelope(text: str, key_file: Path) -> str:
    """Sign a statement, and return the DSSE envelope as JSON."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner

    envelope = Envelope(text.encode("utf-8"), PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(private_key(key_file)))
    return json.dumps(envelope.to_dict(), indent=1) + "\n"
