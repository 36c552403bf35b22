"""Reported training metrics are compared with those of the measured uploads."""

import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import fedaudit
from fedaudit.core.modules import outputs_of
from fedaudit.core.values import Architecture, Model
from fedaudit.evaluation.uploads import metrics_in, reported_controls
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.policy import DEFAULT_POLICY, policy_from
from fedaudit.live.measuring import MeasurementTime
from fedaudit.live.record import record
from fedaudit.live.recording import new_recording, read_round_log
from fedaudit.live.rounds import UploadKind
from fedaudit.live.setup import setup_of_recording
from fedaudit.observe.measurements import MeasuredRound, StoredRound
from fedaudit.report.terminal import print_record
from fedaudit.results.record import ControlResult, Record
from tests.live.federation import NET, data, network, rounds

AUDIT = data().split.audit
QUICK = {"permutations": 20, "blind_classifier": False}
Metrics = Mapping[str, object]
Report = Callable[[int, int, dict[str, float]], Metrics]


def honest(number: int, client: int, metrics: dict[str, float]) -> Metrics:
    return metrics


def on_training_data(params: dict[str, torch.Tensor], client: int) -> dict[str, float]:
    samples = data().clients[client]
    outputs = outputs_of(Model(NET, params), samples.features)
    return {
        "accuracy": float((outputs.argmax(1) == samples.labels).float().mean()),
        "loss": float(nn.functional.cross_entropy(outputs, samples.labels)),
    }


def attacked(
    folder: Path,
    report: Report = honest,
    make: Callable[[], nn.Module] = network,
    *,
    measure: MeasurementTime = "now",
    kind: UploadKind = "models",
    view: str = "uploads",
) -> Record:
    with record(
        folder,
        make,
        AUDIT,
        attacks=["blackbox-loss"],
        strict=True,
        measure=measure,
        uploads=kind,
        view=view,
    ) as recorder:
        for live_round in rounds():
            reported = {
                c: report(live_round.number, c, on_training_data(params, c))
                for c, params in live_round.uploads.items()
            }
            uploads = live_round.uploads
            if kind != "models":
                uploads = {
                    c: {n: value - live_round.sent[n] for n, value in params.items()}
                    for c, params in uploads.items()
                }
            recorder.round(
                live_round.number,
                sent=live_round.sent,
                uploads=uploads,
                reported=reported,  # type: ignore[arg-type]
            )
    return fedaudit.attack_recording(folder, [], folder / "attacked", figures=QUICK)


def reconciled(record: Record) -> dict[int | None, ControlResult]:
    return {c.target: c for c in record.controls if c.control == "reported training metrics"}


class OtherInput(nn.Module):
    """The clients' network on other input than theirs, as where their loader normalises."""

    def __init__(self) -> None:
        super().__init__()
        for name, part in network().named_children():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = 1 - x
        for part in self.children():
            shifted = part(shifted)
        return shifted


@pytest.mark.parametrize("measure", ["now", "background", "after"])
def test_honest_metrics_pass_whenever_rounds_are_measured(
    measure: MeasurementTime, tmp_path: Path
) -> None:
    controls = reconciled(attacked(tmp_path, measure=measure))
    assert {c: control.passed for c, control in controls.items()} == {0: True, 1: True, 2: True}
    assert "accuracy reported" in controls[0].note
    assert not any(entry.reported for entry in read_round_log(tmp_path))


def test_a_client_with_another_normalisation_fails_the_control(tmp_path: Path) -> None:
    record = attacked(tmp_path, make=OtherInput)
    controls = reconciled(record)
    assert {c: control.passed for c, control in controls.items()} == {0: False, 1: False, 2: False}
    assert "normalises" in controls[0].note
    assert "reported 0.75, measured 0.02" in controls[0].note
    verdict = evaluate_policy(record, policy_from(DEFAULT_POLICY, source="the default"))
    (check,) = [check for check in verdict.checks if "reported training metrics" in check.name]
    assert check.outcome is Outcome.INCONCLUSIVE
    assert verdict.outcome is not Outcome.PASS
    with io.StringIO() as text:
        print_record(record, Console(file=text, width=200))
        assert re.search(r"✗ [0-9]+ of [0-9]+ controls passed", text.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("report", "expected"),
    [
        pytest.param(lambda n, c, m: {"accuracy": m["accuracy"] * 100}, True, id="percent"),
        pytest.param(lambda n, c, m: {"loss": m["loss"]}, True, id="loss alone"),
        pytest.param(lambda n, c, m: {"accuracy": 0.3, "loss": 4.0}, True, id="epoch average"),
        pytest.param(lambda n, c, m: {"loss": m["loss"] / 64}, None, id="divided once more"),
        pytest.param(
            lambda n, c, m: {"loss": 0.1**n * m["loss"]}, False, id="loss of another network"
        ),
        pytest.param(lambda n, c, m: {"loss": m["loss"] * 64}, True, id="sum"),
    ],
)
def test_metrics_of_other_kinds_are_read(
    report: Report, expected: bool | None, tmp_path: Path
) -> None:
    make = OtherInput if expected is False else network
    controls = reconciled(attacked(tmp_path, report, make))
    assert {control.passed for control in controls.values()} == {expected}


def compared(
    by_client: Mapping[int, list[float]], *, correct: int, classes: int = 100, members: int = 60
) -> dict[int | None, ControlResult]:
    """Controls of clients that reported these accuracies, of models with so many correct."""
    recording = new_recording(
        Path("recording"),
        "",
        view="uploads",
        every=1,
        keep="signals",
        attacks=(),
        targets=tuple(by_client),
        classes=classes,
    )
    architecture = Architecture("net", network)
    run = setup_of_recording(recording, AUDIT, architecture, attacks=["blackbox-loss"])
    notes = [
        {
            f"reported/client-{c}": json.dumps([{"accuracy": value}, members, 1.0, 0.1, correct])
            for c, values in by_client.items()
            for value in values[i : i + 1]
        }
        for i in range(max(map(len, by_client.values())))
    ]
    stored = [
        StoredRound(MeasuredRound(1, (), torch.zeros(0), {}), round_notes) for round_notes in notes
    ]
    return {control.target: control for control in reported_controls(run, stored)}


@pytest.mark.parametrize(
    ("by_client", "correct", "classes", "expected"),
    [
        pytest.param({0: [0.8, 2, 5]}, 2, 100, True, id="one of the client's rounds is above 1"),
        pytest.param({0: [0.8], 1: [40.0]}, 2, 10, False, id="another client is above 1"),
        pytest.param({0: [0.8], 1: [40.0]}, 30, 10, False, id="neither 0.8 nor 0.8 %"),
        pytest.param({0: [0.55], 1: [40.0]}, 30, 10, True, id="a share among percentages"),
        pytest.param({0: [0.8, 0.9]}, 2, 100, None, id="no round tells"),
        pytest.param({0: [0.8, 0.9]}, 6, 10, False, id="far below chance in percent"),
        pytest.param({0: [0.99]}, 6, 50, False, id="just below half of chance in percent"),
        pytest.param({0: [0.8, 0.9]}, 30, 100, False, id="far below the recorder's in percent"),
        pytest.param({0: [95.0, 97.0]}, 2, 100, False, id="in percent, of another network"),
        pytest.param({0: [1.0]}, 6, 10, False, id="all"),
        pytest.param({0: [0.0]}, 0, 100, True, id="nothing is correct"),
    ],
)
def test_accuracies_are_compared_as_fraction_or_percentage(
    by_client: Mapping[int, list[float]], correct: int, classes: int, expected: bool | None
) -> None:
    control = compared(by_client, correct=correct, classes=classes)[0]
    assert control.passed is expected
    if expected is None:
        assert "reported 0.85, measured 0.03" in control.note
        assert "share or a percentage" in control.note


@pytest.mark.slow
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -1, 300, "high", None, [1], 10**400, torch.zeros(2)]
)
def test_an_impossible_metric_does_not_prevent_the_recording_of_a_round(
    value: object, tmp_path: Path
) -> None:
    assert metrics_in({"accuracy": value}) == {}
    record = attacked(tmp_path, lambda n, c, m: {"accuracy": value} if c == 1 else m)
    assert sorted(c or 0 for c in reconciled(record)) == [0, 2]
    assert [entry.measured for entry in read_round_log(tmp_path)] == [True] * 4


@pytest.mark.slow
def test_metrics_are_compared_for_updates_but_not_for_gradients_or_sums(tmp_path: Path) -> None:
    assert {c.passed for c in reconciled(attacked(tmp_path / "u", kind="updates")).values()} == {
        True
    }
    assert not reconciled(attacked(tmp_path / "g", kind="gradients"))
    assert not reconciled(attacked(tmp_path / "s", view="sum"))
