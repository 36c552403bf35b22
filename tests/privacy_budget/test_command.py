"""Exit codes and output of `fedaudit budget`, and the set-ups of public projects."""

import json
from pathlib import Path

import pytest

import fedaudit as fa
from fedaudit.gate.policy import DEFAULT_POLICY
from tests.privacy_budget.setups import client
from tests.programs import exit_code

EXAMPLES = Path(__file__).parents[2] / "examples" / "budget"


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("tff-emnist", 0, "epsilon 1.708 for one client after 100 rounds"),
        ("flower-secagg", 1, "epsilon 164.130 for one client after 3 rounds"),
        ("nvflare-opacus", 2, "delta is above 0 and below 1 / 227,844 (the number of samples)"),
        ("nvflare-percentile", 2, "this is no mechanism: without noise no epsilon is finite"),
    ],
)
def test_set_ups_of_public_projects(
    name: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("budget", EXAMPLES / f"{name}.toml", "--every", 1000) == code
    captured = capsys.readouterr()
    assert words in (captured.err if code == 2 else captured.out)
    assert captured.err.count("\n") == (code == 2)


def test_every_example_is_tested_here() -> None:
    assert len(list(EXAMPLES.glob("*.toml"))) == 4


def test_a_smaller_delta_raises_the_epsilon_that_opacus_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = EXAMPLES / "nvflare-opacus.toml"
    assert exit_code("budget", path, "--delta", 1e-6, "--every", 10) == 1
    assert "epsilon 1.128 for one sample" in capsys.readouterr().out


@pytest.fixture
def path(tmp_path: Path) -> Path:
    lines = [
        f"{name} = {json.dumps(value)}" for name, value in client(noise_multiplier=50.0).items()
    ]
    path = tmp_path / "budget.toml"
    path.write_text("\n".join(["delta = 1e-6", "clients = 1000", "[[phase]]", *lines]))
    return path


def test_without_a_target_the_exit_code_is_zero(path: Path) -> None:
    assert exit_code("budget", path) == 0


def test_the_target_decides_the_exit_code(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("budget", path, "--target", 2.0) == 0
    assert "within the target of 2" in capsys.readouterr().out
    assert exit_code("budget", path, "--target", 2.0, "--unit", "sample") == 0
    assert exit_code("budget", path, "--target", 1.0, "--unit", "sample") == 1


def test_json_is_one_document(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("budget", path, "--target", 2.0, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "fedaudit-budget"
    assert document["epsilon"] == fa.budget(path).epsilon
    assert document["rounds_left"] == fa.budget(path, target=2.0).rounds_left


@pytest.mark.parametrize(
    "words",
    [("--delta", 0.5), ("--target", -1), ("--every", 0), ("--unit", "user"), ("--record", "none")],
)
def test_wrong_options_are_refused(
    path: Path, words: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("budget", path, *words) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_files_of_another_kind_are_named(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(DEFAULT_POLICY)
    assert exit_code("budget", policy) == 2
    assert "policy.toml is a policy and not a privacy set-up" in capsys.readouterr().err
    assert exit_code("run", path) == 2
    assert "is a privacy set-up and not a study; `fedaudit budget` takes it" in (
        capsys.readouterr().err
    )
