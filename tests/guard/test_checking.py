"""Check of a site's policy before a job."""

from pathlib import Path

import pytest
import torch

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.guard.checking import Statement, check_site_policy, with_permuted_targets
from fedaudit.guard.site import site_guard
from tests.guard.client import data
from tests.guard.test_site import CODE, POLICY, REFUSED, site
from tests.programs import exit_code

FILTERED = f'{POLICY}filter = "site.py:noisy"\n'


def check(path: Path, seconds: float = 60) -> dict[str, str]:
    """Return the statements by topic, and the warnings joined."""
    texts = dict[str, list[str]]()
    for statement in check_site_policy(path, seconds=seconds):
        texts.setdefault(statement.topic, []).append(statement.text)
    return {topic: "\n".join(lines) for topic, lines in texts.items()}


def test_a_check_states_what_the_guard_measures_sends_and_withholds(tmp_path: Path) -> None:
    path = site(tmp_path, f"{FILTERED}most_uploads = 50\n".replace("0.6", "0.65"))
    stated = check(path)
    assert stated["audit"] == "345 members, 355 held-out samples"
    assert stated["attacks"].endswith("avg-projres; after the first upload was sent, also fta-l")
    assert "upper confidence limit (99.9 %) of each attack's AUC is at most 0.65" in stated["sent"]
    assert "is changed by site.py:noisy and measured again" in stated["filtered"]
    assert "all uploads after the first 50" in stated["withheld"]
    assert stated["metrics"] == "not sent"
    assert stated["log"].startswith(f"{tmp_path / 'guards' / 'RUN' / 'decisions.jsonl'}, where")
    assert stated["cost"].startswith("3 signals of 700 samples are measured every round")
    assert stated["upload of noise"].startswith("sent: AUC 0.5")
    assert stated["planted leak"].startswith("sent after the filter: AUC 0.5")
    assert "found by blackbox-loss (AUC 0.9" in stated["planted leak"]
    assert "fta-l (AUC 0.9" in stated["planted leak"]
    assert "warning" not in stated
    written = {file.name for file in tmp_path.iterdir()} - {"__pycache__"}
    assert written == {"guard.toml", "part.safetensors", "site.py"}


def test_without_a_filter_the_planted_leak_is_withheld(tmp_path: Path) -> None:
    stated = check(site(tmp_path))
    assert stated["planted leak"].startswith("withheld: AUC 0.9")
    assert "filtered" not in stated


def test_the_planted_leak_can_be_omitted(tmp_path: Path) -> None:
    assert check(site(tmp_path), seconds=0)["planted leak"].startswith("not tested")


def test_permuted_targets_keep_features_and_membership() -> None:
    audit = data().split.audit
    permuted = with_permuted_targets(audit, "classification")
    assert torch.equal(permuted.samples.features, audit.samples.features)
    assert (permuted.owner == audit.owner).all()
    assert torch.equal(permuted.samples.targets.sort().values, audit.samples.targets.sort().values)
    assert (permuted.samples.targets != audit.samples.targets).float().mean() > 0.8
    sequences = with_permuted_targets(audit, "next-token")
    assert torch.equal(sequences.samples.targets, audit.samples.targets)


@pytest.mark.parametrize(
    ("settings", "warning", "seconds"),
    [
        # No leak is planted in 0 s. After a short time, it is an upload after one round.
        ("metrics = true\n", "metrics of a job are sent without a check", 0),
        (
            'filter = "site.py:failing"\n',
            "the upload with a planted leak was withheld because of an error",
            1e-6,
        ),
        ('attacks = ["avg-projres"]\n', "no attack found the planted leak", 60),
    ],
)
def test_a_check_warns_of_what_a_job_would_reveal(
    settings: str, warning: str, seconds: float, tmp_path: Path
) -> None:
    path = site(tmp_path, POLICY + settings)
    (tmp_path / "site.py").write_text(f"{CODE}\ndef failing(update):\n    return 5\n")
    assert warning in check(path, seconds)["warning"]


def test_a_check_warns_of_a_high_limit_and_of_files_that_others_can_change(tmp_path: Path) -> None:
    path = site(tmp_path, POLICY.replace("0.6", "0.99"))
    path.chmod(0o664)
    (tmp_path / "site.py").chmod(0o646)
    (tmp_path / "guards").mkdir()
    (tmp_path / "guards").chmod(0o777)
    high, *writable = check(path, seconds=0)["warning"].split("\n")
    assert "may send uploads with an AUC of up to 0.99" in high
    expected = [path, tmp_path / "site.py", tmp_path / "guards"]
    assert [text.split(",")[0] for text in writable] == [
        f"other users can write to {file}" for file in expected
    ]
    (tmp_path / "guards").chmod(0o1777)
    path.chmod(0o600)
    (tmp_path / "site.py").chmod(0o600)
    tmp_path.chmod(0o770)
    warnings = check(path, seconds=0)["warning"]
    assert f"other users can write to {tmp_path}, so they can change" in warnings
    assert "guards" not in warnings


@pytest.mark.parametrize(("change", "says"), REFUSED)
def test_a_check_refuses_what_the_guard_refuses(
    change: tuple[str, str], says: str, tmp_path: Path
) -> None:
    path = site(tmp_path, POLICY.replace(*change))
    with pytest.raises((BadInput, Damaged), match=says) as of_guard:
        site_guard(path, "job-1", log=lambda line: None)
    with pytest.raises((BadInput, Damaged)) as of_check:
        check(path)
    assert str(of_check.value) == str(of_guard.value)


def test_a_file_as_folder_of_the_records_is_refused(tmp_path: Path) -> None:
    path = site(tmp_path, POLICY.replace('"guards"', '"site.py"'))
    with pytest.raises(BadInput, match="is not a folder; set folder in the policy"):
        check(path)


def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*args: object, **settings: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = site(tmp_path)
    monkeypatch.setattr("fedaudit.guard.checking.tempfile.TemporaryDirectory", denied)
    with pytest.raises(BadInput, match="run the check as the user that runs the site"):
        check(path)


def test_the_command_has_the_exit_code_of_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = site(tmp_path, POLICY.replace("0.6", "0.99"))
    assert exit_code("check-guard", path, "--seconds", 0) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "warning: the policy may send uploads" in printed
    # Long paths are wrapped.
    assert printed.replace(" ", "").endswith(f"{path}isvalid,with1warning")
    assert "blackbox-loss, loss-series, avg-cosine, avg-projres" in printed
    path.write_text(POLICY.replace("0.6", "0.4"))
    assert exit_code("check-guard", path) == 2
    path.write_text('name = "site"\n[membership]\nauc = 0.65\n')
    assert exit_code("check-guard", path) == 2
    assert "is a policy and not the policy of a guard" in capsys.readouterr().err


def test_statements_that_are_warnings_are_counted() -> None:
    assert Statement("warning", "").is_warning
    assert not Statement("sent", "").is_warning
