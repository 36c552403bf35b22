"""Settings and fixtures for all tests: one thread, time limits and data folders."""

import gc
import os
from pathlib import Path

import hypothesis
import pytest
import torch

from tests.typechecking import install

# What is imported to be tested, and the tests, stay to the end: to go through them for garbage took
# a third of the time in which they are collected.
gc.disable()

install()

# Small tensors gain nothing from a second thread, and workers of pytest-xdist would fight for it.
torch.set_num_threads(1)

# No deadline: a slow example is usually a busy machine. Every run uses the same examples, so that
# a change fails only by what it changes; `--hypothesis-profile=explore` draws new ones.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile("repeatable")


# Of these one worker would be at its last for seconds when the other has nothing left to do.
_FIRST = {"test_budget.py", "test_ending.py", "test_results.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest of the last files begin first, and files stay whole."""
    items.sort(key=lambda item: item.path.name not in _FIRST)


def pytest_collection_finish() -> None:
    """Garbage is looked for among what tests make."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def data_dir() -> Path:
    """The folder with data sets; a test that needs one is skipped where there is none."""
    stated = os.environ.get("FEDAUDIT_DATA")
    if not stated:
        pytest.skip("FEDAUDIT_DATA names no folder with data sets")
    return Path(stated)
