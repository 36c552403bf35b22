"""A study as server and nodes read it: the app's file, and what the run sets otherwise."""

from collections.abc import Mapping
from pathlib import Path

from fedaudit.study.config import Study
from fedaudit.study.study_file import read_studies


def studies_of(file: Path, run_config: Mapping[str, object]) -> list[Study]:
    """The study of a file and its variants, with the settings of a run.

    Args:
        file: The TOML file.
        run_config: Of the run; names with a dot are settings of the study, such as
            ``training.rounds``. Flower knows only names that stand in the app's ``pyproject.toml``.

    Raises:
        BadInput: As :func:`fedaudit.study.study_file.read_studies`.
    """
    return read_studies(file, {name: value for name, value in run_config.items() if "." in name})
