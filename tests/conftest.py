"""Settings and fixtures for all tests: one thread, time limits and data folders."""

import gc
import os
from pathlib import Path

import hypothesis
import pytest
import torch

from tests.typechecking import install

# Imported modules and tests live until the end of the run. Garbage collection over them took a
# third of the time of test collection.
gc.disable()

install()

# What a test has written need not survive a loss of power, and each study would wait 15 times.
os.fsync = lambda fd: None

# Small tensors gain nothing from a second thread, and workers of pytest-xdist would fight for it.
torch.set_num_threads(1)

# No deadline, and no limit for drawing inputs: a slow example is usually a busy machine. Every run
# uses the same examples, so that a failure has its cause in the change;
# `--hypothesis-profile=explore` draws new examples.
_ANY_SPEED = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("repeatable", _ANY_SPEED, derandomize=True)
hypothesis.settings.register_profile("explore", _ANY_SPEED)
hypothesis.settings.load_profile("repeatable")


# Slow modules run first; otherwise one worker would still run them when the other is finished.
_FIRST = {"test_budget.py", "test_ending.py", "test_results.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slow files first, and keep the tests of a file together."""
    items.sort(key=lambda item: item.path.name not in _FIRST)


def pytest_collection_finish() -> None:
    """Limit garbage collection to objects that tests create."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def data_dir() -> Path:
    """Return the folder with data sets, or skip the test if there is no such folder."""
    stated = os.environ.get("FEDAUDIT_DATA")
    if not stated:
        pytest.skip("FEDAUDIT_DATA names no folder with data sets")
    return Path(stated)
