"""Exports of packs, read back by the tools of each format."""

import base64
import csv
import io
import json
import os
import shutil
import subprocess
from datetime import datetime
from itertools import chain
from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.exports.estimates import estimates_csv
from fedaudit.exports.evidence import Evidence, read_evidence
from fedaudit.exports.formats import FORMATS, Options, write_export
from fedaudit.gate.outcome import Outcome
from fedaudit.results.read import read_record
from tests.estimates import changed
from tests.live.federation import ROUNDS
from tests.pack.test_models import models_after, recorded_pack, saved
from tests.pack.test_pack import keys, needs_openssl, resealed, rewritten
from tests.programs import exit_code
from tests.report.records import source, with_sources

AGENTS = Options(agent="Ada <https://orcid.org/0000-0002-1825-0097>", organisation="TRE 72")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_pack(tmp_path_factory.mktemp("exports"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("released"), models_after()[ROUNDS])


@pytest.fixture(scope="module")
def evidence(pack: Path, model: Path) -> Evidence:
    return read_evidence(pack, model)


def exported(evidence: Evidence, name: str, folder: Path) -> Path:
    out = folder / f"out{FORMATS[name].suffix}"
    write_export(evidence, name, out, AGENTS)
    return out


def sha256(path: Path) -> str:
    return subprocess.run(
        ["sha256sum", str(path)], check=True, capture_output=True, text=True
    ).stdout.split()[0]


def test_in_toto_statement_names_the_model_and_the_checks(
    evidence: Evidence, model: Path, tmp_path: Path
) -> None:
    from google.protobuf.json_format import ParseDict
    from in_toto_attestation.v1.statement import Statement
    from in_toto_attestation.v1.statement_pb2 import Statement as Message

    document = json.loads(exported(evidence, "in-toto", tmp_path).read_text())
    Statement.copy_from_pb(ParseDict(document, Message())).validate()
    assert document["subject"] == [{"name": model.name, "digest": {"sha256": sha256(model)}}]
    predicate = document["predicate"]
    assert predicate["result"] == "PASSED"
    assert evidence.verdict.outcome is Outcome.PASS
    listed = [*predicate["passedTests"], *predicate.get("warnedTests", [])]
    assert len(listed) == len(evidence.verdict.checks)


@pytest.mark.parametrize(
    ("outcome", "result"), [("pass", "PASSED"), ("inconclusive", "WARNED"), ("fail", "FAILED")]
)
def test_only_a_pass_is_attested_as_passed(
    outcome: str, result: str, evidence: Evidence, tmp_path: Path
) -> None:
    verdict = evidence.verdict.model_copy(update={"outcome": Outcome(outcome)})
    out = exported(evidence._replace(verdict=verdict), "in-toto", tmp_path)
    assert json.loads(out.read_text())["predicate"]["result"] == result


@needs_openssl
def test_a_signed_attestation_is_a_dsse_envelope(evidence: Evidence, tmp_path: Path) -> None:
    private, public = keys(tmp_path, "key")
    out = tmp_path / "envelope.json"
    write_export(evidence, "in-toto", out, Options(sign=private))
    envelope = json.loads(out.read_text())
    payload = base64.b64decode(envelope["payload"])
    assert json.loads(payload)["_type"] == "https://in-toto.io/Statement/v1"
    # Pre-authentication encoding of DSSE, verified by openssl.
    kind = envelope["payloadType"].encode()
    (tmp_path / "message").write_bytes(
        b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    )
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    (tmp_path / "signature").write_bytes(signature)
    check = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public), "-rawin"]
    files = ["-in", str(tmp_path / "message"), "-sigfile", str(tmp_path / "signature")]
    subprocess.run([*check, *files], check=True, capture_output=True)


def test_cyclonedx_document_is_valid_and_has_limits(
    evidence: Evidence, model: Path, tmp_path: Path
) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = exported(evidence, "cyclonedx", tmp_path).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    component = json.loads(text)["components"][0]
    assert component["hashes"] == [{"alg": "SHA-256", "content": sha256(model)}]
    metrics = component["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    check = next(check for check in evidence.verdict.checks if check.metric == "auc")
    assert check.worst is not None
    figure = next(metric for metric in metrics if metric["type"].startswith("auc"))
    assert float(figure["value"]) == pytest.approx(check.worst.value, rel=1e-5)
    assert float(figure["confidenceInterval"]["upperBound"]) == pytest.approx(
        check.worst.high, rel=1e-5
    )


def test_model_card_is_read_by_the_hub_library(evidence: Evidence, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    card = ModelCard.load(exported(evidence, "model-card", tmp_path))
    results = {result.metric_type: result.metric_value for result in card.data.eval_results}
    check = next(check for check in evidence.verdict.checks if check.metric == "auc")
    assert check.worst is not None
    assert results["auc"] == check.worst.value
    assert "## 3. The answer" in card.text


def test_crate_has_the_files_and_the_audit_as_an_assessment(
    evidence: Evidence, tmp_path: Path
) -> None:
    from rocrate.rocrate import ROCrate

    folder = exported(evidence, "ro-crate", tmp_path)
    crate = ROCrate(folder)
    audit = crate.root_dataset["mentions"]
    assert set(audit.type) == {"AssessAction", "prov:Activity"}
    # The policy is what the model was checked with, and not a result.
    results = {file.id for file in audit["result"]}
    assert results == {path.name for path in evidence.folder.iterdir()} - {"policy.toml"}
    policy = crate.dereference("policy.toml")["encodesCreativeWork"]
    assert policy in audit["instrument"]
    for path in evidence.folder.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert audit["agent"].id == "https://orcid.org/0000-0002-1825-0097"
    # The model is identified by its hash, and not copied.
    assert audit["object"]["sha256"] == evidence.model.sha256 if evidence.model else False
    with pytest.raises(BadInput, match="new or empty folder"):
        write_export(evidence, "ro-crate", folder, AGENTS)
    with pytest.raises(BadInput, match="needs the name of the agent"):
        write_export(evidence, "ro-crate", tmp_path / "new", Options(organisation="TRE 72"))
    with pytest.raises(BadInput, match="needs the name of the agent"):
        write_export(evidence, "ro-crate", tmp_path / "new", AGENTS._replace(agent=" <x:y>"))


def test_crate_follows_the_rules_of_ro_crate(evidence: Evidence, tmp_path: Path) -> None:
    """The rules are read from the metadata's JSON, without the library that writes it.

    Source: RO-Crate 1.3, rules on the metadata document, the root data entity and data entities.
    """
    folder = exported(evidence, "ro-crate", tmp_path)
    document = json.loads((folder / "ro-crate-metadata.json").read_text())
    assert document.keys() == {"@context", "@graph"}
    entities = {entity["@id"]: entity for entity in document["@graph"]}
    assert len(entities) == len(document["@graph"])
    assert all(entity["@type"] for entity in entities.values())
    descriptor = entities["ro-crate-metadata.json"]
    assert descriptor["@type"] == "CreativeWork"
    assert descriptor["about"] == {"@id": "./"}
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.3"}
    root = entities["./"]
    assert root["@type"] == "Dataset"
    assert all(root[name] for name in ("name", "description", "license"))
    assert datetime.fromisoformat(root["datePublished"]).tzinfo is not None
    files = {part["@id"] for part in root["hasPart"]}
    assert files == {id for id, entity in entities.items() if entity["@type"] == "File"}
    for id in files:
        is_local = ":" not in id
        assert not is_local or int(entities[id]["contentSize"]) == (folder / id).stat().st_size
    written = {path.name for path in folder.iterdir()} - {"ro-crate-metadata.json"}
    assert {id for id in files if ":" not in id} == written
    for entity in entities.values():
        listed = [value if isinstance(value, list) else [value] for value in entity.values()]
        for value in chain.from_iterable(listed):
            # Entities are flat, and a reference without a scheme is to an entity of the crate.
            assert not isinstance(value, dict) or value.keys() == {"@id"}
            if isinstance(value, dict):
                assert value["@id"] in entities or ":" in value["@id"]


@pytest.mark.parametrize("has_model", [True, False])
def test_crate_follows_the_rules_of_the_five_safes_profile(
    has_model: bool, pack: Path, model: Path, tmp_path: Path
) -> None:
    """The rules are those with MUST that apply to a first snapshot with one output check.

    Source: Five Safes RO-Crate 1.0, working draft of eScienceLab/Five-Safes-RO-Crate at commit
    d80ffde, docs/five-safes-profile.md. There are no published shapes for version 1.0.
    """
    evidence = read_evidence(pack, model if has_model else None)
    folder = exported(evidence, "ro-crate", tmp_path)
    document = json.loads((folder / "ro-crate-metadata.json").read_text())
    entities = {entity["@id"]: entity for entity in document["@graph"]}
    root = entities["./"]

    def types(id: str) -> set[str]:
        value = entities[id]["@type"]
        return {value} if isinstance(value, str) else set(value)

    def references(value: object) -> list[str]:
        values = value if isinstance(value, list) else [value]
        return [value["@id"] for value in values if isinstance(value, dict)]

    # JSON-LD and entity identifiers.
    assert document["@context"] == ["https://w3id.org/ro/crate/1.3/context"]
    parts = references(root["hasPart"])
    assert all(id in {"./", "ro-crate-metadata.json", *parts} or ":" in id for id in entities)
    # Root data entity, representation state and dates. A first snapshot has version 1.
    (profile,) = references(root["conformsTo"])
    assert profile == "https://w3id.org/5s-crate/1.0"
    assert "Profile" in types(profile)
    assert entities[profile]["name"]
    identifiers = references(root["identifier"])
    (snapshot,) = [id for id in identifiers if "PropertyValue" not in types(id)]
    (activity,) = references(root["dct:isVersionOf"])
    assert snapshot != activity
    others = [entities[id] for id in identifiers if id != snapshot]
    assert [other["value"] for other in others] == [evidence.manifest.digest]
    assert root["name"]
    assert root["description"]
    assert root["version"] == 1
    assert type(root["version"]) is int
    assert not {"dateModified", "pav:previousVersion"} & root.keys()
    for name in ("dateCreated", "datePublished"):
        assert datetime.fromisoformat(root[name]).tzinfo is not None
    # Process shape.
    (process_id,) = references(root["mentions"])
    process = entities[process_id]
    assert types(process_id) == {"AssessAction", "prov:Activity"}
    assert {type for id in references(process["agent"]) for type in types(id)} == {"Person"}
    assert {type for id in references(process["provider"]) for type in types(id)} == (
        {"Organization"}
    )
    assert process["actionStatus"] == {"@id": "http://schema.org/CompletedActionStatus"}
    assert process["startTime"] <= process["endTime"]
    # Output checks: each output is identified by an absolute address.
    outputs = references(process["object"])
    assert outputs
    assert all(":" in id and id in entities for id in outputs)
    assert not {*outputs} & {*references(process["result"])}
    assert all(("File" in types(id)) == (id in parts) for id in outputs)
    # Packaged copies of identified assets.
    (policy,) = references(entities["policy.toml"]["encodesCreativeWork"])
    assert "CreativeWork" in types(policy)
    assert policy in references(process["instrument"])


VALIDATOR = shutil.which("rocrate-validator")


@pytest.mark.slow
@pytest.mark.skipif(VALIDATOR is None, reason="rocrate-validator is not on the PATH")
@pytest.mark.parametrize("has_model", [True, False])
def test_crate_passes_the_required_checks_of_roc_validator(
    has_model: bool, pack: Path, model: Path, tmp_path: Path
) -> None:
    assert VALIDATOR is not None
    crate = exported(read_evidence(pack, model if has_model else None), "ro-crate", tmp_path)
    cache, result = tmp_path / "cache", tmp_path / "result.json"
    program = Path(__file__).with_name("fill_context_cache.py")
    python = str(Path(VALIDATOR).resolve().with_name("python"))
    # The tests' modules would hide those of the validator's environment.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def validate(folder: Path) -> dict[str, object]:
        options = ["--offline", "--cache-path", str(cache), "-p", "ro-crate-1.3", "-l", "required"]
        output = ["-f", "json", "-o", str(result)]
        command = [str(VALIDATOR), "-y", "validate", *options, *output, str(folder)]
        subprocess.run(command, capture_output=True, env=environment)
        document: dict[str, object] = json.loads(result.read_text())
        return document

    subprocess.run([python, str(program), str(cache)], check=True, env=environment)
    assert validate(crate)["passed"] is True
    # Without a required property, the same command fails.
    path = crate / "ro-crate-metadata.json"
    document = json.loads(path.read_text())
    for entity in document["@graph"]:
        entity.pop("datePublished", None)
    path.write_text(json.dumps(document))
    assert validate(crate)["passed"] is False


def test_tables_have_every_figure_of_the_record(evidence: Evidence, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [*csv.DictReader(io.StringIO(exported(evidence, "csv", tmp_path).read_text()))]
    assert len(rows) == len(evidence.record.estimates)
    table = parquet.read_table(exported(evidence, "parquet", tmp_path))
    assert table.num_rows == len(rows)
    assert [float(row["value"]) if row["value"] else None for row in rows] == (
        table["value"].to_pylist()
    )


def test_figures_with_different_tests_share_the_columns_of_a_table() -> None:
    record = with_sources(source(), membership=True)
    rows = [*csv.DictReader(io.StringIO(estimates_csv(record)))]
    assert len(rows) == len(record.estimates)
    assert all(None not in row for row in rows)
    assert len({frozenset(row) for row in rows}) == 1


def test_no_cell_of_a_table_begins_like_a_formula(evidence: Evidence) -> None:
    record = evidence.record
    hostile = changed(record.estimates[0], note="=HYPERLINK(1)")
    record = record.model_copy(update={"estimates": [hostile, *record.estimates[1:]]})
    cells = [cell for row in csv.reader(io.StringIO(estimates_csv(record))) for cell in row]
    assert "'=HYPERLINK(1)" in cells


def test_the_same_pack_gives_the_same_bytes(evidence: Evidence, tmp_path: Path) -> None:
    for name in ("in-toto", "cyclonedx", "model-card", "csv"):
        first = exported(evidence, name, tmp_path).read_bytes()
        (tmp_path / f"out{FORMATS[name].suffix}").unlink()
        assert exported(evidence, name, tmp_path).read_bytes() == first
        (tmp_path / f"out{FORMATS[name].suffix}").unlink()


def test_unsound_packs_and_other_models_are_not_exported(tmp_path: Path, pack: Path) -> None:
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    (copy / "verdict.json").write_text("{}")
    with pytest.raises(Damaged, match="fails verification"):
        read_evidence(copy)
    with pytest.raises(Damaged, match="none of the models of the record"):
        read_evidence(
            pack, saved(tmp_path, {"weight": models_after()[1][next(iter(models_after()[1]))]})
        )


def test_a_pack_of_another_version_is_not_exported(tmp_path: Path, pack: Path) -> None:
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    rewritten(copy, made_with={"fedaudit": "0.0.1"})
    with pytest.raises(BadInput, match="written by another version"):
        read_evidence(copy)


def test_a_record_without_a_valid_time_is_refused(tmp_path: Path, pack: Path) -> None:
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    record = json.loads((copy / "record.json").read_text())
    record["environment"]["started"] = "yesterday"
    (copy / "record.json").write_text(json.dumps(record, indent=1))
    resealed(copy)
    with pytest.raises((Damaged, BadInput)):
        read_evidence(copy)


def test_the_command_exports_and_refuses(
    pack: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "statement.json"
    words = ("export", pack, "--format", "in-toto", "--out", out)
    assert exit_code(*words, "--model", model) == 0
    assert "an in-toto attestation:" in capsys.readouterr().out
    assert exit_code(*words) == 2
    assert "exists" in capsys.readouterr().err
    assert exit_code("export", pack, "--format", "intoto", "--out", tmp_path / "x") == 2
    assert "in-toto" in capsys.readouterr().err
    assert exit_code("export", pack, "--format", "csv", "--out", tmp_path / "x.json") == 2
    key = ("--sign", tmp_path / "key.pem")
    assert exit_code("export", pack, "--format", "csv", "--out", tmp_path / "x.csv", *key) == 2
    assert not (tmp_path / "x.csv").exists()
    assert read_record(pack / "record.json").kind == "study"
