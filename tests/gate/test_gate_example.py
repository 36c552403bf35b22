"""The CI example of the gate."""

import re
from pathlib import Path

from fedaudit.gate.policy import read_policy
from fedaudit.study.front.target_names import read_study

EXAMPLE = Path(__file__).parents[2] / "examples" / "gate"


def test_the_policy_of_the_example_applies_to_its_study() -> None:
    study, policy = read_study(EXAMPLE / "study.toml"), read_policy(EXAMPLE / "policy.toml")
    assert policy.membership is not None
    assert {f"{rate:g}" for rate in study.figures.fprs} >= set(policy.membership.tpr)
    assert study.audit.view in policy.evidence.views
    assert len(study.seeds) >= policy.evidence.least_seeds
    assert study.figures.planted_leak


def test_files_and_outputs_in_the_workflow_exist() -> None:
    text = (EXAMPLE / "fedaudit-gate.yml").read_text(encoding="utf-8")
    for path in re.findall(r"examples/gate/[\w.-]+", text):
        assert (EXAMPLE / Path(path).name).is_file(), path
    assert "--junit gate.xml" in text
    assert "path: |\n            gate.xml\n            evidence/" in text
    assert "if: always()" in text
    assert 'pip install "$FEDAUDIT"' in text
    assert "FEDAUDIT: ${{ vars.FEDAUDIT || '.' }}" in text
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)


def test_no_page_installs_fedaudit_from_an_index_without_it() -> None:
    root = EXAMPLE.parents[1]
    pages = [root / "README.md", *root.glob("docs/*.md"), *root.glob("examples/**/*.y*ml")]
    for page in pages:
        # An extra is one of the fedaudit that is installed.
        text = re.search(r"pip install [\"']?fedaudit(?!\[)", page.read_text(encoding="utf-8"))
        assert text is None, f"{page}: {text}"
