"""Study files name audited clients as their data do."""

from pathlib import Path

import pytest

import fedaudit
from fedaudit.api.target_names import with_target_numbers
from fedaudit.core.errors import BadInput
from fedaudit.plan.file import read_studies

STUDY = """
name = "named"
[data]
name = "csv:patients"
[data.options]
label = "outcome"
client = "hospital"
[partition]
scheme = "natural"
clients = 3
[audit]
targets = [TARGETS]
"""


def targets_of(folder: Path, targets: str, *, label: str = "hospital") -> tuple[int, ...]:
    rows = [f"{n % 7},{n % 2},{('north', 'south', 'east')[n % 3]}" for n in range(30)]
    (folder / "patients.csv").write_text("\n".join(["age,outcome,hospital", *rows]))
    text = STUDY.replace("TARGETS", targets).replace('client = "hospital"', f'client = "{label}"')
    (folder / "study.toml").write_text(text if label else text.replace('client = ""\n', ""))
    (study,) = read_studies(
        folder / "study.toml",
        resolve_names=lambda settings: with_target_numbers(settings, data_dir=folder),
    )
    return study.audit.targets


def test_names_give_the_same_study_as_numbers(tmp_path: Path) -> None:
    assert targets_of(tmp_path, '"south", "east"') == (2, 0) == targets_of(tmp_path, "2, 0")


def test_a_study_that_is_read_in_python_may_name_clients(tmp_path: Path) -> None:
    targets_of(tmp_path, '"south"')
    path = tmp_path / "study.toml"
    assert fedaudit.read_study(path, data_dir=tmp_path).audit.targets == (2,)
    overrides: dict[str, object] = {"audit.targets": ["east", 1]}
    assert fedaudit.read_study(path, overrides, data_dir=tmp_path).audit.targets == (0, 1)
    with pytest.raises(BadInput, match="no client named 'sout'; did you mean 'south'"):
        fedaudit.read_study(path, {"audit.targets": ["sout"]}, data_dir=tmp_path)


def test_settings_without_a_file_refuse_names_and_state_what_takes_them() -> None:
    says = r"should contain numbers of clients; .* and fedaudit.audit also accept names"
    with pytest.raises(BadInput, match=says):
        fedaudit.study_from({"name": "x", "audit": {"targets": [0, "south"]}})
    with pytest.raises(BadInput, match=says):
        fedaudit.Audit(targets=["south"])  # type: ignore[arg-type]


def test_an_unknown_name_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no client named 'sout'; did you mean 'south'"):
        targets_of(tmp_path, '"sout"')


def test_a_name_is_refused_if_the_data_name_no_clients(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="names the client 'south', but the data set"):
        targets_of(tmp_path, '"south"', label="")
