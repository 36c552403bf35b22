"""The packer's statement: reading, packing, showing and verifying it."""

import json
from datetime import date, timedelta
from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.exports.evidence import read_evidence
from fedaudit.exports.model_card import model_card
from fedaudit.exports.ro_crate import write_crate
from fedaudit.pack.manifest import manifest_text
from fedaudit.pack.packing import clauses_json, write_pack
from fedaudit.pack.statement import read_statement
from fedaudit.pack.verifying import verify
from fedaudit.results.record import Record
from fedaudit.summary.page import summary_html, summary_markdown, summary_of
from fedaudit.summary.statement import TOPICS, Statement
from tests.gate.parts import auc, control, record_of
from tests.pack.test_pack import manifest as manifest_in
from tests.pack.test_pack import packed, resealed, rewritten
from tests.programs import exit_code
from tests.report.games import played
from tests.report.records import HOSTILE, HOSTILE_TAG
from tests.report.test_browser import is_harmless

NOTE = "fedaudit cannot check this statement of the packer."
LAST_DAY = date(2099, 6, 30)
TEXT = f"""
role = "data holder"
purpose = "Triage of chest radiographs in one hospital"
valid_until = {LAST_DAY}

[not_applicable]
deletion = "No person asked for deletion"
membership = "All records are of public figures"
"""


def statement_of(text: str, folder: Path) -> Statement:
    (folder / "statement.toml").write_text(text, encoding="utf-8")
    return read_statement(folder / "statement.toml")


def leaking() -> Record:
    return record_of(auc(0.72, 0.8))


def packed_with(folder: Path, text: str = TEXT, record: Record | None = None) -> Path:
    """Write the pack of a record with a statement."""
    packed(record or leaking(), folder)
    (folder / "statement.toml").write_text(text, encoding="utf-8")
    write_pack(
        folder / "record.json",
        folder / "policy.toml",
        folder / "stated",
        statement=folder / "statement.toml",
    )
    return folder / "stated"


def test_a_statement_is_read(tmp_path: Path) -> None:
    statement = statement_of(TEXT, tmp_path)
    assert (statement.role, statement.valid_until) == ("data holder", LAST_DAY)
    assert list(statement.not_applicable) == ["deletion", "membership"]
    minimal = statement_of('role = "deployer"\npurpose = "x"\n', tmp_path)
    assert (minimal.valid_until, minimal.last_day, minimal.not_applicable) == (None, "", {})
    quoted = statement_of('role = "a"\npurpose = "b"\nvalid_until = "2030-01-31"', tmp_path)
    assert quoted.valid_until == date(2030, 1, 31)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('purpose = "x"', "role in .*: it has no default"),
        ('role = ""\npurpose = "x"', "role in .*: it should be one line of printable"),
        ('role = "  "\npurpose = "x"', "role in .*: it should be one line of printable"),
        ('role = "a"\npurpose = "x\\ny"', "purpose in .*: it should be one line of printable"),
        ('role = "a"\npurpose = "\\u001b[2J"', "purpose in .*: it should be one line of printable"),
        ('role = "a"\npurpose = "\\u202e"', "purpose in .*: it should be one line of printable"),
        (f'role = "{"a" * 61}"\npurpose = "x"', "role in .*at most 60 characters"),
        (f'role = "a"\npurpose = "{"x" * 201}"', "purpose in .*at most 200 characters"),
        ("role = 3\npurpose = 'x'", "role in .*: it should be a text"),
        ('role = "a"\npurpose = "x"\nvalid_until = 3', "valid_until in .*: it should be a date"),
        ('role = "a"\npurpose = "x"\nvalid_until = "soon"', "it should be a date, such as"),
        (
            'role = "a"\npurpose = "x"\nvalid_until = 2030-01-01T00:00:00',
            "valid_until in .*: it should be a date",
        ),
        ('role = "a"\npurpose = "x"\nowner = "y"', "no setting in .* named 'owner'"),
        (
            'role = "a"\npurpose = "x"\n[not_applicable]\ndeletions = "y"',
            "'deletions' is not the id of a question; did you mean 'deletion'",
        ),
        (
            'role = "a"\npurpose = "x"\n[not_applicable]\nzzzz = "y"',
            "'zzzz' is not the id of a question; allowed: verdict, membership",
        ),
        (
            f'role = "a"\npurpose = "x"\n[not_applicable]\ndeletion = "{"y" * 301}"',
            "not_applicable.deletion in .*at most 300 characters",
        ),
        ('role = "a"\npurpose = "x"\n[not_applicable]\ndeletion = 1', "it should be a text"),
        ('role = "a"\npurpose = "x"\nnot_applicable = "deletion"', "should be a table of settings"),
        ("role = [", "not valid TOML"),
    ],
)
def test_wrong_statements_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        statement_of(text, tmp_path)


def test_a_pack_with_a_statement_verifies(tmp_path: Path) -> None:
    pack = packed_with(tmp_path)
    assert (pack / "statement.toml").read_text() == TEXT
    assert "statement.toml" in {file.name for file in manifest_in(pack).files}
    verified = verify(pack)
    assert verified.problems == []
    assert verified.statement == read_statement(tmp_path / "statement.toml")
    assert f"the packer's statement is valid until {LAST_DAY}" in verified.checked
    (claim,) = [text for text in verified.unchecked if "packer's statement" in text]
    assert "data holder" in claim
    assert "not applicable: deletion, membership" in claim


def test_a_pack_without_a_statement_mentions_none(tmp_path: Path) -> None:
    pack = packed(leaking(), tmp_path)
    verified = verify(pack)
    assert verified.statement is None
    assert not any(
        "statement" in text for text in (*verified.checked, *verified.unchecked) if "packer" in text
    )
    document = json.loads((pack / "clauses.json").read_text())
    assert document["statement"] is None
    assert {row["not_applicable"] for row in document["clauses"]} == {""}
    assert "Stated by the packer" not in (pack / "summary.html").read_text()


def test_clauses_state_role_purpose_validity_and_reasons(tmp_path: Path) -> None:
    document = json.loads((packed_with(tmp_path) / "clauses.json").read_text())
    assert document["statement"] == {
        "about": NOTE,
        "role": "data holder",
        "purpose": "Triage of chest radiographs in one hospital",
        "valid_until": "2099-06-30",
    }
    by_id = {row["id"]: row for row in document["clauses"]}
    assert list(by_id) == list(TOPICS)
    deletion = by_id["deletion"]
    assert deletion["kind"] == "not applicable"
    assert deletion["text"] == "Not applicable, because no person asked for deletion"
    assert deletion["more"] == f"{NOTE} Nothing was unlearned in this record."
    assert deletion["not_applicable"] == "No person asked for deletion"
    purpose = by_id["purpose"]
    assert purpose["kind"] == "stated"
    assert purpose["text"] == (
        "Triage of chest radiographs in one hospital; valid until 2099-06-30"
    )
    assert purpose["more"] == NOTE
    assert "Role by the packer’s statement: data holder." in by_id["tester"]["more"]
    assert "role" not in by_id["tester"]["text"]


@pytest.mark.parametrize("passed", [True, False])
def test_a_reason_never_hides_a_figure_or_a_failed_control(passed: bool, tmp_path: Path) -> None:
    record = record_of(auc(0.72, 0.8), controls=[control("untrained model", passed=passed)])
    without = json.loads(clauses_json(record))["clauses"][1]
    with_reason = json.loads(clauses_json(record, statement_of(TEXT, tmp_path)))["clauses"][1]
    assert without["kind"] == ("figure" if passed else "inconclusive")
    reason = "All records are of public figures"
    assert with_reason == {**without, "not_applicable": reason}


@pytest.mark.parametrize("record", [leaking(), played()], ids=["study", "games"])
def test_a_summary_has_the_statement(record: Record, tmp_path: Path) -> None:
    statement = statement_of(TEXT, tmp_path)
    summary = summary_of(record, statement=statement)
    assert dict(summary.sections[1].facts)["Stated by the packer"] == (
        "role: data holder; purpose: Triage of chest radiographs in one hospital (fedaudit cannot "
        "check this)"
    )
    assert summary.valid_until.startswith("2099-06-30, or ")
    for make in (summary_html, summary_markdown):
        page = make(record, statement=statement)
        assert "Triage of chest radiographs in one hospital" in page
    earlier = summary_of(record, valid_until="2098-01-01", statement=statement)
    assert earlier.valid_until.startswith("2098-01-01")


def test_the_model_card_has_the_statement(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    assert "Triage of chest radiographs" in model_card(read_evidence(packed_with(tmp_path)))


def test_a_crate_has_the_statement(tmp_path: Path) -> None:
    pytest.importorskip("rocrate")
    evidence = read_evidence(packed_with(tmp_path))
    write_crate(evidence, tmp_path / "crate", agent="A. Tester", organisation="A Hospital")
    assert (tmp_path / "crate" / "statement.toml").read_text() == TEXT


def test_a_hostile_statement_is_escaped(tmp_path: Path) -> None:
    text = f"role = {json.dumps(HOSTILE[:60])}\npurpose = {json.dumps(HOSTILE_TAG)}\n"
    text += f"[not_applicable]\ndeletion = {json.dumps('::set-output name=x::' + HOSTILE)}\n"
    pack = packed_with(tmp_path, text)
    page = (pack / "summary.html").read_text()
    assert HOSTILE_TAG not in page
    assert is_harmless(page)
    markdown = summary_markdown(leaking(), statement=read_statement(pack / "statement.toml"))
    assert HOSTILE_TAG not in markdown
    assert verify(pack).problems == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("data holder", "provider"),
        ("one hospital", "all hospitals"),
        (str(LAST_DAY), str(LAST_DAY + timedelta(days=1))),
        ("No person asked", "Every person declined"),
    ],
)
def test_a_changed_statement_is_found(old: str, new: str, tmp_path: Path) -> None:
    pack = packed_with(tmp_path)
    digest = manifest_in(pack).digest
    (pack / "statement.toml").write_text(TEXT.replace(old, new))
    assert "statement.toml" in "\n".join(verify(pack).problems)
    resealed(pack)
    problems = "\n".join(verify(pack).problems)
    assert "clauses.json does not follow from record, policy and statement" in problems
    assert "does not have the given digest" in "\n".join(verify(pack, digest=digest).problems)


def test_a_removed_or_added_statement_is_found(tmp_path: Path) -> None:
    pack = packed_with(tmp_path)
    text = (pack / "manifest.json").read_text()
    (pack / "statement.toml").unlink()
    assert "statement.toml is missing" in "\n".join(verify(pack).problems)
    rewritten(pack, files=[f for f in manifest_in(pack).files if f.name != "statement.toml"])
    assert "clauses.json does not follow from record and policy" in "\n".join(verify(pack).problems)
    (pack / "manifest.json").write_text(text)
    plain = tmp_path / "pack"
    assert verify(plain).problems == []
    (plain / "statement.toml").write_text(TEXT)
    assert "statement.toml is not in the manifest" in "\n".join(verify(plain).problems)


def test_an_invalid_statement_in_a_pack_is_found(tmp_path: Path) -> None:
    pack = packed_with(tmp_path)
    (pack / "statement.toml").write_text('role = "a"\n')
    resealed(pack)
    (problem,) = verify(pack).problems
    assert problem.startswith("the contents of the pack are invalid: purpose in statement.toml: ")


def test_an_expired_statement_is_a_problem(tmp_path: Path) -> None:
    pack = packed_with(tmp_path)
    assert verify(pack, today=LAST_DAY).problems == []
    tomorrow = LAST_DAY + timedelta(days=1)
    assert verify(pack, today=tomorrow).problems == [
        f"the packer's statement was valid until {LAST_DAY}; today is {tomorrow}"
    ]


def test_the_export_of_an_expired_pack_asks_for_a_later_day(tmp_path: Path) -> None:
    pack = packed_with(tmp_path)
    tomorrow = LAST_DAY + timedelta(days=1)
    with pytest.raises(BadInput, match=f"valid until {LAST_DAY}.*with a later valid_until"):
        read_evidence(pack, today=tomorrow)


@pytest.mark.parametrize("last_day", ["2020-01-01", str(date.today() - timedelta(days=1))])
def test_an_expired_statement_is_not_packed(last_day: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"valid_until in .* is {last_day}, which has passed"):
        packed_with(tmp_path, TEXT.replace(str(LAST_DAY), last_day))
    assert not (tmp_path / "stated").exists()


def test_a_statement_may_not_end_before_the_audit(tmp_path: Path) -> None:
    record = leaking()
    environment = record.environment.model_copy(update={"started": "2099-07-01T00:00:00+00:00"})
    late = record.model_copy(update={"environment": environment})
    with pytest.raises(BadInput, match="before the audit of 2099-07-01"):
        packed_with(tmp_path, record=late)


def test_a_statement_without_a_last_day_leaves_validity_open(tmp_path: Path) -> None:
    pack = packed_with(tmp_path, 'role = "deployer"\npurpose = "x"\n')
    verified = verify(pack)
    assert verified.problems == []
    assert "how long the pack is valid: it states no last day" in verified.unchecked


def test_commands_take_a_statement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed(leaking(), tmp_path)
    (tmp_path / "statement.toml").write_text(TEXT)
    files = ("--policy", tmp_path / "policy.toml", "--statement", tmp_path / "statement.toml")
    pack = tmp_path / "stated"
    assert exit_code("pack", tmp_path / "record.json", *files, "--out", pack) == 0
    assert exit_code("verify", pack) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "verified: the packer's statement is valid until 2099-06-30" in printed
    assert "not checked: whether the packer's statement is true" in printed
    assert exit_code("summary", pack, "--out", tmp_path / "again.html") == 0
    assert (tmp_path / "again.html").read_text() == (pack / "summary.html").read_text()
    assert manifest_text(manifest_in(pack)) == (pack / "manifest.json").read_text()
