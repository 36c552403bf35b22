"""Files of `fedaudit init`, which are also the CI example of the gate, and the GitHub action."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from fedaudit.api.target_names import read_study
from fedaudit.gate.policy import read_policy
from tests.programs import exit_code

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "gate"
STARTED = {
    "github": (".github/workflows/privacy-gate.yml", "study.toml", "policy.toml"),
    "gitlab": (".gitlab-ci.yml", "study.toml", "policy.toml"),
    "none": ("study.toml", "policy.toml"),
}
SMALL = """
name = "small"
data.name = "diabetes"
partition.clients = 3
training = { rounds = 2, epochs = 2, batch_size = 10, lr = 0.1 }
audit = { samples = 300, background = 0, every = 1 }
figures = { permutations = 20, blind_classifier = false }
attacks.loss-series = {}
"""
RULES = """
name = "small"
membership = { auc = 0.7, contrasts = ["mixed"] }
controls.required = ["permuted members"]
baseline.relevant = 0.2
"""


def files_in(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_the_policy_of_the_example_applies_to_its_study() -> None:
    study, policy = read_study(EXAMPLE / "study.toml"), read_policy(EXAMPLE / "policy.toml")
    assert policy.membership is not None
    assert policy.baseline is not None
    assert {f"{rate:g}" for rate in study.figures.fprs} >= set(policy.membership.tpr)
    assert study.audit.view in policy.evidence.views
    assert len(study.seeds) >= policy.evidence.least_seeds
    assert study.figures.planted_leak


@pytest.mark.parametrize("ci", STARTED)
def test_init_writes_the_files_of_the_example_and_replaces_none(
    ci: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "repository"
    assert exit_code("init", folder, "--ci", ci) == 0
    assert files_in(folder) == set(STARTED[ci])
    for name in STARTED[ci]:
        assert (folder / name).read_bytes() == (EXAMPLE / name).read_bytes()
    (folder / "policy.toml").unlink()
    assert exit_code("init", folder, "--ci", ci) == 2
    assert "study.toml" in capsys.readouterr().err
    assert not (folder / "policy.toml").exists(), "nothing is written if a file exists"


def test_the_wheel_contains_the_files_of_init() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"cli/starter/*"' in text


class Step(NamedTuple):
    """Shell step of a workflow."""

    script: str
    variables: Mapping[str, str]
    is_always: bool


def steps_of(action: Mapping[str, object], given: Mapping[str, str]) -> Iterator[Step]:
    """Yield the shell steps of a composite action, with the values of the given inputs."""
    inputs, runs = action["inputs"], action["runs"]
    assert isinstance(inputs, dict)
    assert isinstance(runs, dict)
    values = {name: given.get(name, declared["default"]) for name, declared in inputs.items()}

    def resolved(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.([\w-]+) }}", lambda name: values[name[1]], text)

    for step in runs["steps"]:
        if "run" in step:
            assert "${{" not in step["run"], "an input in a script could be run as a command"
            env = {name: resolved(value) for name, value in step.get("env", {}).items()}
            yield Step(step["run"], env, step.get("if") == "always()")


def run_action(workspace: Path, path: str, **given: str) -> tuple[int, str]:
    """Run the action's shell steps as a runner does, and return exit code and summary."""
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    files = {name: workspace / f"{name}.txt" for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    environment = {
        "PATH": path,
        "HOME": str(workspace),
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_WORKSPACE": str(workspace),
        **{name: str(file) for name, file in files.items()},
    }
    code = 0
    for file in files.values():
        file.write_text("")
    for step in steps_of(yaml.safe_load(text), given):
        if code and not step.is_always:
            continue
        shell = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step.script]
        done = subprocess.run(
            shell,
            cwd=workspace,
            env={**environment, **step.variables},
            capture_output=True,
            text=True,
        )
        code = code or done.returncode
        assert done.returncode in (0, 1, 2, 3), done.stderr
    assert f"exit-code={code}" in files["GITHUB_OUTPUT"].read_text()
    return code, files["GITHUB_STEP_SUMMARY"].read_text()


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A PATH with fedaudit, and a python that records installations and installs nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "python": f'echo "$@" >> {tmp_path}/installed.txt',
        "fedaudit": f'PYTHONPATH={ROOT}/src OMP_NUM_THREADS=1 {sys.executable} -m fedaudit "$@"',
    }
    for name, line in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return os.pathsep.join([str(folder), "/usr/bin", "/bin"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="the action needs bash")
def test_the_action_stops_a_release_that_leaks_more(bare_path: str, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(SMALL)
    (tmp_path / "policy.toml").write_text(RULES)
    code, summary = run_action(tmp_path, bare_path)
    assert (code, "PASS" in summary) == (0, True)
    assert f"pip install {ROOT}" in (tmp_path / "installed.txt").read_text()
    outputs = {"gate.xml", "verdict.json", "summary.md", "evidence/manifest.json"}
    assert outputs <= files_in(tmp_path / "privacy-gate")
    shutil.copytree(tmp_path / "privacy-gate" / "evidence", tmp_path / "last")

    given = {"baseline": "last", "out": "again"}
    code, summary = run_action(tmp_path, bare_path, **given)
    assert (code, "since the baseline" in summary) == (0, True)

    memorising = SMALL.replace("rounds = 2, epochs = 2", "rounds = 5, epochs = 40")
    (tmp_path / "study.toml").write_text(memorising)
    (tmp_path / "policy.toml").write_text(RULES.replace("auc = 0.7", "auc = 1.0"))
    code, summary = run_action(tmp_path, bare_path, **given | {"out": "leaking"})
    assert (code, "FAIL" in summary) == (1, True)

    code, summary = run_action(tmp_path, bare_path, baseline="missing", out="refused")
    assert (code, summary) == (2, "")


def test_workflows_run_the_commands_of_the_action() -> None:
    github = (EXAMPLE / ".github/workflows/privacy-gate.yml").read_text(encoding="utf-8")
    gitlab = (EXAMPLE / ".gitlab-ci.yml").read_text(encoding="utf-8")
    action = (ROOT / "action.yml").read_text(encoding="utf-8")
    torch = "python -m pip install torch --index-url"
    for text in (github, gitlab, action):
        yaml.safe_load(text)
        assert torch in text
        assert "--pool .fedaudit/pool" in text
        assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    command = "fedaudit check study.toml --policy policy.toml --pool .fedaudit/pool --out"
    assert command in github
    assert command in gitlab


def test_no_page_installs_fedaudit_from_an_index_without_it() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.y*ml")]
    for page in pages:
        # An extra is one of the fedaudit that is installed.
        text = re.search(r"pip install [\"']?fedaudit(?!\[)", page.read_text(encoding="utf-8"))
        assert text is None, f"{page}: {text}"
