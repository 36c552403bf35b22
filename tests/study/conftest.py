"""Finished studies that tests share and only read."""

import pytest

from fedaudit.study.running.run import run_study
from tests.study.studies import Carried, quick_study, small_study


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    folder = tmp_path_factory.mktemp("small")
    return Carried(run_study(small_study(), folder), folder)


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    folder = tmp_path_factory.mktemp("quick")
    return Carried(run_study(quick_study(), folder), folder)
