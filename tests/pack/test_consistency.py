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


def raise_if_fedmia(document: Json) -> None:
    """Mark an attack as refused and drop its results."""
    for attack in document["attacks"]:
        if attack["name"] == "fedmia-2":
            attack |= {"status": "refused", "note": "it could not run"}
    document["estimates"] = [e for e in document["estimates"] if e.get("attack") != "fedmia-2"]
    document["curves"] = [c for c in document["curves"] if c["attack"] != "fedmia-2"]
    document["controls"] = [c for c in document["controls"] if c.get("attack") != "fedmia-2"]


def need_more(document: Json) -> None:
    """Mark an attack as refused for a need that it does not have."""
    raise_if_fedmia(document)
    for attack in document["attacks"]:
        if attack["name"] == "fedmia-2":
            attack["needs"].append("reference_models")


def drop_fedmia(document: Json) -> None:
    raise_if_fedmia(document)
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


def hide_uploads(document: Json) -> None:
    """Explain a refused attack by an adversary that sees less."""
    raise_if_fedmia(document)
    document["view"]["sees"].remove("uploads")


def change_view(document: Json) -> None:
    """Explain refused attacks by another adversary."""
    raise_if_fedmia(document)
    document["view"] |= {"name": "globals", "sees": document["view"]["sees"]}


def choose_attacks(document: Json) -> None:
    """Replace the set of attacks by the attacks that find nothing."""
    drop_fedmia(document)
    del document["config"]["attack_set"]
    document["config"]["attacks"] = {row["name"]: {} for row in document["attacks"]}


def shrink_all(document: Json) -> None:
    """State fewer members for the results of all attacks."""
    for estimates in document["estimates"]:
        for figure in estimates.get("figures", ()) if estimates.get("attack") else ():
            if figure.get("n_members"):
                figure["n_members"] -= 5


def shrink_clients(document: Json) -> None:
    """State fewer members everywhere."""
    shrink_all(document)
    document["clients"][0]["audited"] -= 5


def drop_seed(document: Json) -> None:
    """Leave out the results of a seed that the settings have."""
    document["config"]["seeds"] = [1, 2]


def drop_client(document: Json) -> None:
    """Leave out the results of a client that the settings audit."""
    document["config"]["audit"]["targets"] = [0, 1]


def drop_results(document: Json) -> None:
    """Leave out the results of an attack that ran."""
    document["estimates"] = [e for e in document["estimates"] if e.get("attack") != "fedmia-2"]
    document["curves"] = [c for c in document["curves"] if c["attack"] != "fedmia-2"]


def drop_controls(document: Json) -> None:
    """Leave out controls that failed."""
    document["controls"] = []


def lower_all(document: Json) -> None:
    """State smaller leaks, with limits that fit them."""
    for estimates in document["estimates"]:
        for figure in estimates.get("figures", ()):
            if figure["metric"] == "auc" and "by" not in estimates:
                figure.update(value=0.5, low=0.48, high=0.52)


def lower_all_without_curves(document: Json) -> None:
    """State smaller leaks, and leave out the curves that contradict them."""
    lower_all(document)
    document["curves"] = []


def start_tomorrow(document: Json) -> None:
    document["environment"]["started"] = "2999-01-01T00:00:00+00:00"


def start_recently(document: Json) -> None:
    """Replay an older result with a new date."""
    document["environment"]["started"] = "2026-06-30T00:00:00+00:00"


def change_versions(document: Json) -> None:
    """Avoid comparisons with the catalogue by the statement of another version."""
    need_more(document)
    document["environment"]["versions"]["fedaudit"] = "0.0.1"


@pytest.mark.parametrize(
    ("forge", "is_found", "text"),
    [
        (need_more, True, "states that fedmia-2 needs "),
        (hide_uploads, True, "does not see uploads, but the view 'uploads' shows it"),
        (change_view, True, "has the view 'globals', but its settings 'uploads'"),
        (drop_fedmia, True, "the record lacks attacks of its set 2026-3: fedmia-2"),
        (drop_seed, True, "has the seeds 1, but its settings 1, 2"),
        (start_tomorrow, True, "its run started on 2999-01-01, but today is "),
        (
            raise_if_fedmia,
            False,
            "whether these attacks could not run: fedmia-2 (it could not run)",
        ),
        (drop_results, False, "why fedmia-2 has no results for client 0 in seed 1"),
        (drop_client, False, "has no results for client 1 in seed 1"),
        (shrink_audit, False, "fewer than other attacks on the same client"),
        (shrink_all, False, "were evaluated on only "),
        (shrink_clients, False, "clients, samples, seeds, rounds or evaluation settings"),
        (choose_attacks, False, "whether attacks, clients, samples"),
        (drop_controls, False, "whether every estimate, control and count"),
        (lower_all, True, "is 0.500, but the record's curve has an area of "),
        (lower_all_without_curves, False, "whether every estimate, control and count"),
        (start_recently, False, "the origin of the record (commit "),
        (change_versions, False, "whether these attacks could not run: fedmia-2"),
    ],
)
def test_a_forgery_with_valid_hashes_is_found_or_named(
    forge: Callable[[Json], None], is_found: bool, text: str, document: Json, tmp_path: Path
) -> None:
    result = verified(forged(document, forge), tmp_path)
    if is_found:
        assert any(text in problem for problem in result.problems), result.problems
    else:
        assert result.problems == []
        assert any(text in line for line in result.unchecked), result.unchecked


def test_choices_that_a_pack_cannot_show_are_named_until_they_are_checked(
    document: Json, tmp_path: Path
) -> None:
    """Another policy, an older result and another model need the receiver's own knowledge."""
    older = forged(document, lambda record: record["coverage"].pop("models"))
    lines = verified(older, tmp_path).unchecked
    policy, age = "is yours (--policy)", "recent enough (start of the run: 2026-"
    for text in (policy, age, "which model the record is about: it has no digest"):
        assert any(text in line for line in lines), lines
    (tmp_path / "mine.toml").write_text(POLICY.replace("0.6", "0.55"))
    checked = verify(tmp_path / "pack", policy=tmp_path / "mine.toml", not_before=date(2999, 1, 1))
    assert not any(policy in line or age in line for line in checked.unchecked)
    assert {problem.partition(" ")[0] for problem in checked.problems} == {"the", "policy.toml"}


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
