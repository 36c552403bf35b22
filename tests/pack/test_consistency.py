"""Packs of forged records, examined without their recording."""

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from fedaudit.pack.consistency import check_attacks, describe_age, unequal_sizes
from fedaudit.pack.packing import write_pack
from fedaudit.pack.verifying import Verified, verify
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.study.running.run import run_study
from tests.digests import write_with_digest
from tests.programs import exit_code
from tests.study.studies import quick_study

Json = dict[str, Any]
POLICY = 'name = "x"\n[membership]\nauc = 0.6\n[controls]\nrequired = []\n'


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """The record of a study that runs a whole set of attacks."""
    out = tmp_path_factory.mktemp("consistency") / "run"
    run_study(quick_study(attacks={}, attack_set="2026-3"), out)
    document: Json = json.loads((out / "record.json").read_text())
    return document


@pytest.fixture
def record_of(tmp_path: Path) -> Callable[[Json], Record]:
    def read(document: Json) -> Record:
        write_with_digest(document, tmp_path / "record.json")
        return read_record(tmp_path / "record.json")

    return read


def forged(document: Json, change: Callable[[Json], None]) -> Json:
    copy: Json = json.loads(json.dumps(document))
    change(copy)
    return copy


def verified(document: Json, folder: Path, *, not_before: date | None = None) -> Verified:
    write_with_digest(document, folder / "record.json")
    (folder / "policy.toml").write_text(POLICY)
    write_pack(folder / "record.json", folder / "policy.toml", folder / "pack")
    return verify(folder / "pack", not_before=not_before)


def refuse_fedmia(document: Json) -> None:
    """Mark an attack as refused and drop its results."""
    for attack in document["attacks"]:
        if attack["name"] == "fedmia-2":
            attack |= {"status": "refused", "note": "it could not run"}
    document["estimates"] = [e for e in document["estimates"] if e.get("attack") != "fedmia-2"]
    document["curves"] = [c for c in document["curves"] if c["attack"] != "fedmia-2"]
    document["controls"] = [c for c in document["controls"] if c.get("attack") != "fedmia-2"]


def need_more(document: Json) -> None:
    """Mark an attack as refused for a need that it does not have."""
    refuse_fedmia(document)
    for attack in document["attacks"]:
        if attack["name"] == "fedmia-2":
            attack["needs"].append("reference_models")


def drop_fedmia(document: Json) -> None:
    refuse_fedmia(document)
    document["attacks"] = [row for row in document["attacks"] if row["name"] != "fedmia-2"]


def shrink_audit(document: Json) -> None:
    """State fewer members for the results of one attack."""
    for estimates in document["estimates"]:
        is_of_attack = estimates.get("attack") == "fedmia-2"
        for figure in estimates.get("figures", ()) if is_of_attack else ():
            figure["n_members"] = max(1, figure["n_members"] - 5)


def test_an_honest_record_is_consistent(
    document: Json, record_of: Callable[[Json], Record], tmp_path: Path
) -> None:
    findings = check_attacks(record_of(document))
    assert findings.problems == []
    assert findings.unexplained == []
    (statement,) = findings.checked
    assert "rmia" in statement
    assert "lira" in statement
    assert unequal_sizes(record_of(document)) == []
    result = verified(document, tmp_path)
    assert result.problems == []
    assert statement in result.checked


def test_an_attack_without_a_reason_for_its_refusal_is_listed(
    document: Json, tmp_path: Path
) -> None:
    result = verified(forged(document, refuse_fedmia), tmp_path)
    assert result.problems == []
    (line,) = (line for line in result.unchecked if "fedmia-2" in line)
    assert line.startswith("whether these attacks could not run: fedmia-2 (it could not run); ")


def test_needs_that_an_attack_does_not_have_are_found(document: Json, tmp_path: Path) -> None:
    (problem,) = verified(forged(document, need_more), tmp_path).problems
    assert "fedmia-2 needs" in problem
    assert "reference_models" in problem


def test_an_attack_that_is_missing_from_its_set_is_found(document: Json, tmp_path: Path) -> None:
    (problem,) = verified(forged(document, drop_fedmia), tmp_path).problems
    assert problem == "the record lacks attacks of its set 2026-3: fedmia-2"


def test_a_smaller_audit_of_one_attack_is_listed(document: Json, tmp_path: Path) -> None:
    result = verified(forged(document, shrink_audit), tmp_path)
    (line,) = (line for line in result.unchecked if line.startswith("why fedmia-2"))
    assert "fewer than other attacks on the same client" in line


def test_an_older_record_is_found(document: Json, tmp_path: Path) -> None:
    started = date.fromisoformat(document["environment"]["started"][:10])
    result = verified(document, tmp_path, not_before=started)
    assert result.problems == []
    assert f"the record states that its run started on {started} or later" in result.checked
    pack = str(tmp_path / "pack")
    assert exit_code("verify", pack, "--not-before", f"{started}") == 0
    assert exit_code("verify", pack, "--not-before", "2999-01-01") == 1
    assert exit_code("verify", pack, "--not-before", "tomorrow") == 2


def test_a_record_without_a_start_is_not_recent(
    document: Json, record_of: Callable[[Json], Record]
) -> None:
    def without_start(record: Json) -> None:
        record["environment"]["started"] = ""

    record = record_of(forged(document, without_start))
    assert "does not state" in describe_age(record, date(2026, 1, 1))
