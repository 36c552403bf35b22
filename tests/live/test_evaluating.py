"""The accuracy of an upload is counted from the outputs that its signals read."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedaudit.core.values import Samples
from fedaudit.evaluation import accuracy
from fedaudit.live import measuring
from fedaudit.live.record import record
from fedaudit.observe.measurements import measured_rounds_in
from tests.guard.client import CLIENT, data, honest, initial, network


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Samples]:
    """Samples that are passed through a model for accuracy alone."""
    passed = list[Samples]()
    count = accuracy.count_correct

    def watched(model: Any, samples: Samples, device: torch.device) -> int:
        passed.append(samples)
        return count(model, samples, device)

    monkeypatch.setattr(measuring, "count_correct", watched)
    return passed


def notes_of(folder: Path, attacks: list[str]) -> dict[str, str]:
    audit = data().split.audit
    with record(folder, network, audit, attacks=attacks, strict=True) as recorder:
        recorder.round(1, sent=initial(), uploads={CLIENT: honest()})
    (stored,) = measured_rounds_in(folder)
    assert "utility" not in stored.measured.signals
    return dict(stored.notes)


@pytest.mark.parametrize("attacks", [["blackbox-loss"], ["blackbox-loss", "avg-cosine"]])
def test_accuracy_of_one_upload_needs_no_separate_pass_and_is_equal(
    attacks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = counted(monkeypatch)
    notes = notes_of(tmp_path, attacks)
    assert not passed
    net, audit = network(), data().split.audit
    net.load_state_dict(honest())
    with torch.no_grad():
        is_right = net(audit.samples.features).argmax(1) == audit.samples.labels
    member = torch.from_numpy(audit.owner == CLIENT)
    assert notes["test_correct/global"] == str(int(is_right[~member].sum()))
    assert notes["train_correct/global"] == str(int(is_right[member].sum()))


def test_accuracy_needs_a_separate_pass_if_no_signal_reads_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = counted(monkeypatch)
    notes = notes_of(tmp_path / "gradients", ["avg-cosine"])
    assert len(passed) == 2
    assert notes == notes_of(tmp_path / "losses", ["blackbox-loss"]) | {"run": notes["run"]}


def test_accuracy_needs_a_separate_pass_if_the_global_model_differs_from_the_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = counted(monkeypatch)
    with record(tmp_path, network, data().split.audit, attacks=["blackbox-loss"]) as recorder:
        recorder.round(1, sent=initial(), uploads={CLIENT: honest()}, after=initial())
    assert len(passed) == 2
