"""The gate command on complete runs."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedaudit import cli
from fedaudit.gate.policy import DEFAULT_POLICY
from fedaudit.plan.values import study_from
from fedaudit.study.running.run import run_study
from tests.programs import exit_code

POLICY = """
name = "tiny"
[membership]
auc = 0.59
contrasts = ["unseen"]
[controls]
required = ["permuted members", "untrained model"]
"""


def carried(folder: Path, training: dict[str, object], fair: int) -> Path:
    """A tiny federation, trained and attacked."""
    study = study_from(
        {
            "name": folder.name,
            "partition": {"clients": 4},
            "training": {"batch_size": 10, **training},
            "audit": {"fair": fair, "every": 1, "background": 0},
            "figures": {"permutations": 20, "blind_classifier": False},
            "attacks": {"loss-series": {}},
        }
    )
    run_study(study, folder)
    return folder


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learns, on many samples: little to find, and enough to say so."""
    return carried(tmp_path_factory.mktemp("quiet"), {"rounds": 1, "epochs": 1, "lr": 0.05}, 600)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a study that barely learns, on few samples."""
    return carried(tmp_path_factory.mktemp("small"), {"rounds": 2, "epochs": 1, "lr": 0.001}, 60)


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a study that memorises its samples."""
    return carried(tmp_path_factory.mktemp("leaking"), {"rounds": 8, "epochs": 6, "lr": 0.1}, 300)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "ceiling", "code", "message"),
    [
        ("quiet", "0.66", 0, "PASS"),
        ("leaking", "0.59", 1, "FAIL"),
        ("small", "0.59", 3, "INCONC"),
    ],
)
def test_example_runs_have_the_expected_outcomes(
    run: str,
    ceiling: str,
    code: int,
    message: str,
    policy: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy.write_text(POLICY.replace("0.59", ceiling))
    folder: Path = request.getfixturevalue(run)
    out = tmp_path / "verdict.json"
    exit_status = exit_code("gate", folder, "--policy", policy, "--json", out)
    assert exit_status == code, capsys.readouterr().out
    printed = capsys.readouterr().out
    assert any(line.startswith(message) for line in printed.splitlines())
    verdict = json.loads(out.read_text())
    assert verdict["outcome"].upper().startswith(message)
    if code == 3:
        open_figure = verdict["checks"][0]["worst"]
        assert open_figure["more"]["count"] > 0
        assert open_figure["more"]["text"] in verdict["reason"]


def test_a_barely_trained_run_passes_only_if_the_policy_allows_it(
    small: Path, policy: Path, tmp_path: Path
) -> None:
    policy.write_text(POLICY.replace("0.59", "0.99"))
    out = tmp_path / "verdict.json"
    assert exit_code("gate", small, "--policy", policy, "--json", out) == 3
    assert "close to guessing" in json.loads(out.read_text())["reason"]
    policy.write_text(policy.read_text() + "[evidence]\nleast_learned = 0.0\n")
    assert exit_code("gate", small, "--policy", policy, "--json", out) == 0


def test_repeated_verdicts_are_byte_identical(small: Path, policy: Path, tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    for folder in (first, second):
        folder.mkdir()
        files = ("--json", folder / "v.json", "--junit", folder / "v.xml")
        assert exit_code("gate", small, "--policy", policy, *files) == 3
    for name in ("v.json", "v.xml"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_only_earlier_verdicts_are_replaced(
    quiet: Path, small: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    xml, other = tmp_path / "gate.xml", tmp_path / "notes.txt"
    assert exit_code("gate", small, "--policy", policy, "--junit", xml) == 3
    policy.write_text(POLICY.replace("0.59", "0.66"))
    assert exit_code("gate", quiet, "--policy", policy, "--junit", xml) == 0
    root = ElementTree.parse(xml).getroot()
    assert root is not None
    assert root.attrib["errors"] == "0"
    other.write_text("mine")
    own_folder = tmp_path / "own"
    shutil.copytree(quiet, own_folder)
    record_bytes = (own_folder / "record.json").read_bytes()
    for target in (
        other,
        policy,
        own_folder / "record.json",
        tmp_path,
        tmp_path / "gone" / "x.xml",
    ):
        assert exit_code("gate", own_folder, "--policy", policy, "--junit", target) == 2
        assert exit_code("gate", own_folder, "--policy", policy, "--json", target) == 2
    for option, name in (("--junit", "x.json"), ("--json", "x.xml"), ("--json", "x.html")):
        assert exit_code("gate", own_folder, "--policy", policy, option, tmp_path / name) == 2
        assert not (tmp_path / name).exists()
    assert other.read_text() == "mine"
    assert policy.read_text() == POLICY.replace("0.59", "0.66")
    assert (own_folder / "record.json").read_bytes() == record_bytes
    assert "fedaudit: " in capsys.readouterr().err


@pytest.mark.parametrize("words", [(), ("record.json",), ("--policy", "x.toml")])
def test_a_gate_without_a_record_or_a_policy_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("gate", *words) == 2
    assert "a gate needs a result and a policy" in capsys.readouterr().err


def test_refusals_are_one_sentence_and_exit_code_two(
    small: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, cut = tmp_path / "bad.toml", tmp_path / "record.json"
    bad.write_text('name = "x"\n[membership]\nauk = 0.6')
    cut.write_text((small / "record.json").read_text()[:-100])
    for words in ((small, "--policy", bad), (cut, "--policy", policy), (small, "--policy", small)):
        assert exit_code("gate", *words) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_template_of_a_policy_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    cli.gate(print_policy=True)
    assert capsys.readouterr().out == DEFAULT_POLICY
