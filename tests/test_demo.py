"""The demo shows a leak, and what a defense changes."""

import re
from pathlib import Path

import pytest

from fedaudit import cli
from fedaudit.core.metric_names import AUC
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outputs import policy_section
from fedaudit.gate.policy import DEFAULT_POLICY, policy_from
from fedaudit.plan.file import read_studies
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.summary.page import summary_html
from tests.programs import exit_code
from tests.report.test_browser import BROWSER
from tests.report.test_print import n_pages, pdf_of
from tests.report.test_summary import STATEMENT


@pytest.mark.slow
def test_the_demo_shows_a_strong_leak_that_cofedmid_lowers(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["demo", "--out", str(tmp_path), "--workers", "2"])
    assert ended.value.code == 0
    undefended = read_record(tmp_path / "diabetes" / "record.json")
    defended = read_record(tmp_path / "diabetes-cofedmid" / "record.json")
    assert lower_limit(undefended) > 0.7
    assert lower_limit(defended) < 0.6
    controls = [*undefended.controls, *defended.controls]
    assert all(control.passed is not False for control in controls)
    page = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    after, before = (f"{100 * source_success(record):.1f}%" for record in (defended, undefended))
    _, number = page.split("Success rate of source inference", 1)
    assert re.search(rf">{after}<.*?{before} without the defense", number[:600], re.DOTALL)
    assert len(read_studies(tmp_path / "study.toml", {})) == 2
    policy = policy_from(DEFAULT_POLICY)
    for record in (undefended, defended):
        verdict = evaluate_policy(record, policy)
        section = policy_section(record, verdict, policy, Path("policy.toml"), DEFAULT_POLICY)
        page = summary_html(record, section, "2099-06-30", STATEMENT)
        assert BROWSER is None or n_pages(pdf_of(page, tmp_path)) <= 2


def lower_limit(record: Record) -> float:
    """Return the largest lower limit of an AUC against other clients' samples."""
    return max(
        estimate.low or 0
        for estimate in record.estimates
        if estimate.metric == AUC and estimate.contrast == "other_client" and not estimate.within
    )


def source_success(record: Record) -> float:
    """Return the success rate of the only source attack of the demo."""
    estimates = record.where(topic="source", seed=None, against="")
    (success,) = [estimate.number for estimate in estimates]
    return success


def test_the_demo_replaces_no_other_study_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "study.toml"
    theirs.write_text("name = 'mine'", encoding="utf-8")
    assert exit_code("demo", "--out", tmp_path) == 2
    assert "is not the study of the demo" in capsys.readouterr().err
    assert theirs.read_text(encoding="utf-8") == "name = 'mine'"
