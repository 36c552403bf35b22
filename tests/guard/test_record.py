"""The record of a guard states which uploads were sent, filtered and withheld."""

import re
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import EXIT_CODES, Outcome
from fedaudit.gate.policy import Policy, read_policy
from fedaudit.gate.verdict import Verdict
from fedaudit.guard.site import read_site_policy
from fedaudit.live.attack import attack_recording
from fedaudit.live.decisions import Decision, guard_coverage
from fedaudit.live.tables.export import signal_table
from fedaudit.report.deciding.caveats import guard_decisions
from fedaudit.report.first import first_screen
from fedaudit.report.page import write_report
from fedaudit.report.text.membership import member_headline
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.record import Record
from fedaudit.summary.page import summary_markdown
from tests.guard.client import guard, honest, initial, memorising, noisy
from tests.programs import exit_code
from tests.report.test_plain import none_found

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare" / "guarded"
DECISIONS = (
    "The guard, whose limit is an AUC of 0.6 (upper confidence limit), sent 1 upload (round 1), "
    "sent 1 upload after the filter (round 3) and withheld 2 uploads (rounds 2 and 4; 1 could not "
    "be measured)"
)


@cache
def attacked() -> tuple[Path, Record]:
    """Return the record of a guard that sent, filtered and withheld uploads, and its folder."""
    folder = Path(mkdtemp())
    with guard(folder) as opened:
        assert opened.check(1, sent=initial(), upload=honest()) is not None
        assert opened.check(2, sent=initial(), upload=memorising()) is None
    with guard(folder, filter=noisy) as opened:
        assert opened.check(3, sent=initial(), upload=memorising()) is not None
        assert opened.check(4, sent=initial(), upload={}) is None
    attacks, figures = ["blackbox-loss"], {"permutations": 20}
    return folder, attack_recording(folder, attacks, folder / "attacked", figures=figures)


def test_the_record_has_the_numbers_and_rounds_of_each_outcome() -> None:
    _, record = attacked()
    assert record.coverage is not None
    assert record.coverage.guard is not None
    assert record.coverage.is_whole
    assert {
        uploads.outcome: (uploads.count, [str(series) for series in uploads.rounds])
        for uploads in record.coverage.guard.uploads
    } == {"sent": (1, ["1"]), "filtered": (1, ["3"]), "withheld": (2, ["2", "4"])}
    assert record.coverage.guard.n_unmeasured == 1
    assert guard_decisions(record) == DECISIONS


def test_report_summary_and_gate_state_the_decisions_in_the_same_words(tmp_path: Path) -> None:
    _, record = attacked()
    conclusion = summarise_verdict(record)
    headline = member_headline(record, "weak leak", alone=True)
    assert headline.startswith("Weak leakage: for the uploads that were sent, members can be")
    assert DECISIONS in conclusion.headline
    assert DECISIONS in summary_markdown(record)
    write_report(record, tmp_path / "report.html")
    assert DECISIONS in (tmp_path / "report.html").read_text()
    policy = Policy.model_validate({"name": "site", "membership": {"auc": 0.9}})
    outcome = evaluate_policy(record, policy)
    assert f"{DECISIONS}; the gate judges the uploads that were sent." in outcome.reason
    assert any("the guard withheld" in text for text in outcome.unjudged)
    assert "all planned measurements of the uploads that were sent" in {
        c.name for c in outcome.checks
    }
    untested = " ".join(record.untested)
    assert "round 2" not in untested
    assert "round 4" not in untested


def test_a_planted_leak_that_was_not_checked_is_stated() -> None:
    _, record = attacked()
    (untested,) = [text for text in record.untested if "planted leak" in text]
    assert "no leak was planted in this run" in untested
    assert "`fedaudit check-guard` plants one" in untested
    assert untested.split(":")[0] in summary_markdown(record)
    policy = Policy.model_validate(
        {"name": "x", "membership": {"auc": 0.9}, "controls": {"required": ["planted leak"]}}
    )
    (unjudged,) = [text for text in evaluate_policy(record, policy).unjudged if "planted" in text]
    assert unjudged.endswith("run fedaudit check-guard before a job")
    quiet = none_found().model_copy(update={"coverage": record.coverage, "watched": True})
    assert "fedaudit check-guard plants one" in summarise_verdict(quiet).meaning


def test_the_next_steps_are_for_a_site() -> None:
    _, record = attacked()
    steps = " ".join(first_screen(record, summarise_verdict(record)).next)
    assert "compare" not in steps
    assert "owner" in steps
    assert "file its verdict" in steps


def test_consecutive_rounds_are_listed_as_one_series() -> None:
    rounds = [1, 2, 3, 5, 0]
    decisions = [
        Decision(round=number, outcome="withheld", limit=0.6, decide_by="lower", reason="full")
        for number in rounds
    ]
    coverage = guard_coverage(decisions)
    assert coverage is not None
    (withheld,) = coverage.uploads
    assert (withheld.count, [str(series) for series in withheld.rounds]) == (5, ["1–3", "5"])
    assert coverage.n_unmeasured == 5
    assert guard_coverage([]) is None


def run_command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Run a command, and return its exit code and its output on one line."""
    code = exit_code(*words)
    printed = capsys.readouterr()
    return code, " ".join((printed.out + printed.err).split())


def withheld_all(folder: Path) -> Path:
    with guard(folder) as opened:
        assert opened.check(1, sent=initial(), upload=memorising()) is None
        assert opened.check(2, sent=initial(), upload=memorising()) is None
        assert opened.check(3, sent=initial(), upload={}) is None
    return folder


NOTHING_SENT = (
    "nothing left the site, so there is nothing to attack: the guard withheld all 3 uploads "
    "(rounds 1–3; 1 could not be measured)"
)


def test_attacks_on_a_guard_that_sent_nothing_are_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = withheld_all(tmp_path)
    with pytest.raises(BadInput, match=re.escape(f"{folder}: {NOTHING_SENT}")):
        attack_recording(folder, [], folder / "attacked")
    with pytest.raises(BadInput, match=re.escape(NOTHING_SENT)):
        signal_table(folder)
    for command in (
        ["report"],
        ["summary"],
        ["ask"],
        ["pack", "--policy", EXAMPLE / "policy.toml", "--out", tmp_path / "pack"],
    ):
        code, text = run_command(capsys, command[0], folder, *command[1:])
        assert code == 2
        assert NOTHING_SENT in text
        assert "fedaudit attack" not in text


def test_the_gate_of_a_guard_that_sent_nothing_is_inconclusive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, policy = withheld_all(tmp_path / "guard"), EXAMPLE / "policy.toml"
    files = {suffix: tmp_path / f"verdict.{suffix}" for suffix in ("json", "xml")}
    outputs = ["--json", files["json"], "--junit", files["xml"]]
    code, text = run_command(capsys, "gate", folder, "--policy", policy, *outputs)
    assert code == EXIT_CODES[Outcome.INCONCLUSIVE] == 3
    assert text.startswith("INCONCLUSIVE: “guard” under the policy “site”. Nothing left the site")
    verdict = Verdict.model_validate_json(files["json"].read_text())
    assert (verdict.outcome, verdict.content_hash) == ("inconclusive", "")
    assert NOTHING_SENT in verdict.checks[0].reason
    assert NOTHING_SENT in files["xml"].read_text()
    assert str(folder) not in files["json"].read_text()
    games = tmp_path / "games.toml"
    games.write_text('name = "games"\n[games]\nsuccess = 0.6\n')
    code, text = run_command(capsys, "gate", folder, "--policy", games)
    assert code == 2
    assert "has no ceiling for a study" in text


def test_a_guard_that_checked_no_upload_has_nothing_to_attack(tmp_path: Path) -> None:
    guard(tmp_path).close()
    with pytest.raises(BadInput, match="the guard has checked no upload; run a job first"):
        attack_recording(tmp_path, [], tmp_path / "attacked")
    with guard(tmp_path) as opened:
        assert opened.check(7, sent=initial(), upload=memorising()) is None
    with pytest.raises(BadInput, match=r"the guard withheld its only upload \(round 7\); dec"):
        attack_recording(tmp_path, [], tmp_path / "attacked")


def test_commands_on_the_folder_of_all_jobs_name_the_folder_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = withheld_all(tmp_path / "job-1")
    for words in (["attack"], ["report"], ["gate", "--policy", EXAMPLE / "policy.toml"]):
        code, text = run_command(capsys, words[0], tmp_path, *words[1:])
        assert code == 2
        assert text.endswith(f"give the folder of one of them, such as {job}")


def judging(targets: list[Any]) -> Policy:
    return Policy.model_validate({"name": "x", "membership": {"auc": 0.9, "targets": targets}})


@pytest.mark.parametrize(
    ("targets", "error"),
    [
        (["site-1"], ""),
        (["site-2"], "there is no client named 'site-2'; did you mean 'site-1'?"),
    ],
)
def test_a_policy_names_clients_as_the_record_does(targets: list[str], error: str) -> None:
    _, record = attacked()
    (row,) = [row for row in record.clients if row.samples]
    config = {**record.config, "recording": {"names": {str(row.client): "site-1"}}}
    named = record.model_copy(update={"config": config})
    policy = judging(targets)
    if error:
        with pytest.raises(BadInput, match=re.escape(error)):
            evaluate_policy(named, policy)
        return
    by_number = judging([row.client])
    assert evaluate_policy(named, policy).checks == evaluate_policy(named, by_number).checks


def test_the_example_policy_judges_the_record_of_a_guard() -> None:
    _, record = attacked()
    verdict_of_example = evaluate_policy(record, read_policy(EXAMPLE / "policy.toml"))
    checks = {check.name: check.outcome for check in verdict_of_example.checks}
    assert checks["AUC against unseen samples"] == "pass"
    assert not [name for name in checks if name.startswith("control") and checks[name] != "pass"]
    assert not [text for text in verdict_of_example.unjudged if "planted" in text]


def test_the_example_of_a_site_is_valid() -> None:
    policy = read_site_policy(EXAMPLE / "guard.toml")
    assert (policy.limit, policy.client) == (0.65, "site-1")
    policy.raise_if_audit_too_small(200, 200)


def test_an_attack_on_several_rounds_does_not_block_the_gate_of_a_guard_that_sent_one(
    tmp_path: Path,
) -> None:
    with guard(tmp_path) as opened:
        assert opened.check(1, sent=initial(), upload=honest()) is not None
    record = attack_recording(tmp_path, [], tmp_path / "attacked")
    (row,) = [row for row in record.attacks if row.status != "run"]
    assert (row.name, row.status) == ("fta-l", "refused")
    assert row.note.endswith(
        "the guard sent uploads of one round, so that no adversary can run it here"
    )
    write_report(record, tmp_path / "report.html")
    assert row.note in (tmp_path / "report.html").read_text()
    checks = {check.name: check.outcome for check in evaluate_policy(record, judging([])).checks}
    assert checks["no failed attack"] == "pass"
    assert "inconclusive" not in checks.values()
