"""Questions about a line or the values of a row of a table."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedaudit as fa
from fedaudit.api.asking import Answer, Question, answer_to
from fedaudit.api.matching import audited_table
from fedaudit.core.errors import BadInput
from fedaudit.core.files import SCORES_FILE
from fedaudit.datasets.formats.single import sample_of_cells
from fedaudit.evaluation.sample_scores import read_scores
from fedaudit.plan.values import study_from
from fedaudit.study.running.run import run_study
from tests.datasets.tables import patients, written
from tests.programs import exit_code
from tests.study.studies import Carried

ROWS = 360
COLUMNS = patients(ROWS)
PEOPLE = [f"person-{row // 3}" for row in range(ROWS)]


def audited(folder: Path, *, seeds: tuple[int, ...] = (1,), **audit: Any) -> Carried:
    written(folder, {**COLUMNS, "patient": PEOPLE})
    study = study_from(
        {
            "name": "patients",
            "data": {
                "name": "csv:patients",
                "options": {"label": "readmitted", "person": "patient", "ignore": ["hospital"]},
            },
            "partition": {"clients": 2},
            "model": {"name": "mlp"},
            "training": {"rounds": 1, "epochs": 1},
            "audit": {"samples": 120, "background": 0, **audit},
            "attacks": {"blackbox-loss": {}},
            "figures": {"permutations": 20, "blind_classifier": False},
            "seeds": list(seeds),
        }
    )
    return Carried(run_study(study, folder / "out", data_dir=folder), folder / "out")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("patients")


@pytest.fixture(scope="module")
def result(folder: Path) -> Carried:
    return audited(folder, seeds=(1, 2))


def ask(result: Carried, **settings: Any) -> Answer:
    question = Question(**settings)
    return answer_to(question, result.folder, result.record, result.folder.parent)


@pytest.fixture(scope="module")
def answers(result: Carried) -> dict[int, Answer]:
    """Answers by line, of the lines that were audited."""
    answers = {}
    for line in range(2, 32):
        with suppress(BadInput):
            answers[line] = ask(result, line=line)
    return answers


def cells_of(line: int, *names: str) -> dict[str, str]:
    return {name: COLUMNS[name][line - 2] for name in names}


def test_a_line_and_its_values_give_the_answer_of_its_row(
    result: Carried, answers: dict[int, Answer], folder: Path, tmp_path: Path
) -> None:
    # A third of the rows are audited in each run.
    assert len(answers) > 12
    lines_of_two_runs = [line for line, answer in answers.items() if len(answer.runs) == 2]
    assert lines_of_two_runs
    for line in lines_of_two_runs[:2]:
        answer = answers[line]
        cells = cells_of(line, "age", "pressure", "ward")
        by_row = ask(result, row=answer.row)
        assert answer.runs == by_row.runs
        typed = {**cells, "age": float(cells["age"]), "ward": cells["ward"] or None}
        run = fa.Run(result.folder)
        run._data_dir = folder
        assert run.ask(sample=typed) == run.ask(line=line) == answer
        path = tmp_path / "row.json"
        path.write_text(json.dumps(typed))
        assert ask(result, sample=path) == answer
        path = tmp_path / "row.csv"
        path.write_text("\n".join(map(",".join, (cells, cells.values()))))
        assert ask(result, sample=path) == answer


def test_scores_of_a_line_are_those_of_its_class(
    result: Carried, answers: dict[int, Answer]
) -> None:
    # An independent check that lines and samples belong together.
    stored = read_scores(result.folder / SCORES_FILE)[1, 0]
    source = fa.datasets.csv(result.folder.parent / "patients.csv", label="readmitted")
    names = ("no", "yes")
    dataset = fa.datasets.csv(
        source.path, label="readmitted", person="patient", ignore=["hospital"]
    ).read(1)
    for line, answer in list(answers.items())[:10]:
        if answer.runs[0].seed != 1:
            continue
        sample = dataset.samples(torch.tensor([answer.number]))
        assert answer.number == stored.ids[answer.row]
        assert names[int(sample.labels)] == COLUMNS["readmitted"][line - 2]


def test_rows_that_cannot_be_found_are_refused(result: Carried, answers: dict[int, Answer]) -> None:
    features = ("age", "pressure", "ward")
    row = cells_of(2, *features)
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"line": next(line for line in range(2, 32) if line not in answers)},
            r"line \d+ of 'patients.csv' was not among the 120 audited samples",
        ),
        ({"line": 1}, "line 1 of 'patients.csv' has no row; rows are in lines 2 to 361"),
        ({"line": 362}, "has no row; rows are in lines 2 to 361"),
        ({"line": 2, "row": 2}, "about one sample or person; give one of .*row.*line.*sample"),
        ({"cells": {**row, "age": 17}}, "no row of 'patients.csv' has these values"),
        ({"cells": cells_of(2, "age", "ward")}, "the row has no value of the column 'pressure'"),
        ({"cells": {**row, "wart": "x"}}, "no column named 'wart'; did you mean 'ward'"),
        ({"cells": {"a": 1}}, r"the columns a, and audited samples have features of the shape"),
    ]
    for settings, message in cases:
        cells = settings.pop("cells", None)
        if cells:
            settings["sample"] = sample_of_cells(cells)
        with pytest.raises(BadInput, match=message):
            ask(result, **settings)
    with pytest.raises(BadInput, match="has a list as the value of the column 'age'"):
        fa.Run(result.folder).ask(sample={"age": [1]})


def test_the_command_takes_a_line(
    result: Carried,
    answers: dict[int, Answer],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line, answer = next(iter(answers.items()))
    code = exit_code("ask", result.folder, "--line", line, "--data-dir", folder)
    assert code == 0
    assert f"sample {answer.number} (row {answer.row})" in capsys.readouterr().out


def test_a_line_of_a_person_asks_about_the_person(tmp_path: Path) -> None:
    result = audited(tmp_path, unit="person", samples=90)
    ids = read_scores(result.folder / SCORES_FILE)[1, 0].ids
    # People are numbered by their sorted names.
    names = sorted(set(PEOPLE))
    person = int(ids[4])
    line = PEOPLE.index(names[person]) + 2
    expected = ask(result, person=person)
    assert [ask(result, line=line + shift) for shift in range(3)] == [expected] * 3
    assert np.array_equal(expected.number, person)


def test_a_row_of_a_data_frame_is_asked_by_its_values(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    from tests.datasets.test_typed_tables import frame_of

    frame = frame_of(COLUMNS)
    source = fa.datasets.dataframe(frame, label="readmitted", ignore=["hospital"])
    federation = fa.Federation(source, clients=2, model="mlp", training=fa.Training(rounds=1))
    settings = fa.Audit(samples=240)
    run = fa.audit(federation, attacks=["blackbox-loss"], audit=settings, out=tmp_path / "out")
    answers = []
    for row in range(20):
        with suppress(BadInput):
            answers.append(run.ask(sample=dict(frame.iloc[row])))
    assert len(answers) > 10
    assert all(answer == run.ask(row=answer.row) for answer in answers)
    with pytest.raises(BadInput, match="'table' has no lines of text; give sample"):
        run.ask(line=3)


def test_recordings_have_no_lines(tmp_path: Path, result: Carried) -> None:
    watched = result.record.model_copy(update={"watched": True})
    with pytest.raises(BadInput, match="samples have no lines or columns"):
        audited_table(watched, None)
