"""Custom upload filters in a complete study."""

from pathlib import Path

import pytest
import torch

from fedaudit.core.values import Params
from fedaudit.results.record import Record, UsageRow
from fedaudit.study.running.run import run_study
from tests.study.studies import small_study


def without_every_second(update: Params) -> Params:
    """Keeps entries 0, 2, 4, ...: of a vector of ones it keeps a cosine of the root of a half."""
    return {n: v * (torch.arange(v.numel()) % 2 == 0).reshape(v.shape) for n, v in update.items()}


def nothing(update: Params) -> Params:
    return {name: torch.zeros_like(value) for name, value in update.items()}


def record_of(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    path = f"{Path(__file__).stem}:{name}"
    study = small_study(
        training={"rounds": 2},
        attacks={"blackbox-loss": {}},
        defense={"name": "filter", "clients": [0, 2], "options": {"path": path}},
    )
    return run_study(study, folder)


def test_the_record_has_the_filter_cosine_of_each_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage_by_client = {
        row.client: row for row in record_of("without_every_second", tmp_path, monkeypatch).usage
    }
    assert [client for client, row in usage_by_client.items() if row.defended] == [0, 2]
    for client in (0, 2):
        cosine = usage_by_client[client].filter_cosine
        assert cosine is not None
        assert 0.5 < cosine < 0.9
    assert usage_by_client[1].filter_cosine is None


def test_a_filter_that_sends_nothing_has_no_cosine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = record_of("nothing", tmp_path, monkeypatch).usage
    assert [row.filter_cosine for row in rows] == [None] * 4


def test_a_row_of_an_older_record_is_read() -> None:
    old = (
        '{"seed": 1, "client": 0, "defended": true, "samples": 2, "distinct": [2],'
        ' "times_used": [0, 2], "times_recycled": [2]}'
    )
    assert UsageRow.model_validate_json(old).filter_cosine is None
