"""What every test shares: one thread, patience, and data sets where somebody has put them."""

import os
from pathlib import Path

import hypothesis
import pytest
import torch

from tests.typechecking import install

install()

# Small tensors gain nothing from a second thread, and workers of pytest-xdist would fight for it.
torch.set_num_threads(1)

# Time says more about what else the machine is doing than about the code.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture
def data_dir() -> Path:
    """The folder with data sets; a test that needs one is skipped where there is none."""
    stated = os.environ.get("FEDAUDIT_DATA")
    if not stated:
        pytest.skip("FEDAUDIT_DATA names no folder with data sets")
    return Path(stated)
