"""The control on peer updates."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedaudit
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.policy import policy_from
from fedaudit.live.attack import attack_recording
from fedaudit.results.record import ControlResult, Record
from tests.live.federation import POLICY, trained_linear

ROUNDS, WIDTH = 6, 8
Upload = Callable[[int, dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]]


def recorded(
    folder: Path, peer: Upload, *, clients: int = 4, copied: bool = False, signs: bool = False
) -> Record:
    """A federation whose last client, ``odd``, uploads what a function makes of its training."""
    generator = torch.Generator().manual_seed(1)
    names = [f"site-{number}" for number in range(clients - 1)] + ["odd"]
    data = {
        name: (
            torch.randn(80, WIDTH, generator=generator),
            torch.randint(0, 3, (80,), generator=generator),
        )
        for name in names
    }
    split = fedaudit.fair_split(data, audited=40)
    torch.manual_seed(2)
    net = nn.Linear(WIDTH, 3)
    sent = {name: value.clone() for name, value in net.state_dict().items()}
    attacks = ["fedmia-1", "blackbox-loss"]
    with fedaudit.record(
        folder / "run",
        net,
        split.audit,
        attacks=attacks,
        uploads="updates" if signs else "models",
        log=lambda text: None,
    ) as recorder:
        for index in range(1, ROUNDS + 1):
            uploads = {}
            for name in names:
                rows = torch.from_numpy(split.train[name])
                uploads[name] = trained_linear(
                    sent, data[name][0][rows], data[name][1][rows], lr=0.2, steps=3
                )
            uploads["odd"] = uploads["site-0"] if copied else peer(index, sent, uploads["odd"])
            if signs:
                uploads = {
                    name: {n: 0.05 * (upload[n] - sent[n]).sign() for n in upload}
                    for name, upload in uploads.items()
                }
            recorder.round(index, sent=sent, uploads=uploads, after=sent)
    figures = {"blind_classifier": False, "permutations": 20}
    return attack_recording(folder / "run", [], folder / "result", figures=figures)


def moved(sent: dict[str, Tensor], upload: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    return {name: sent[name] + share * (upload[name] - sent[name]) for name in sent}


def peers(record: Record) -> ControlResult:
    controls = [control for control in record.controls if control.control == "peer updates"]
    assert [control.attack for control in controls] == ["fedmia-1"], (
        "the attack that compares clients"
    )
    return controls[0]


@pytest.mark.parametrize(
    "share", [0.0, 0.001, 1000.0, -500.0], ids=["as sent", "tiny", "enormous", "ascending"]
)
def test_a_degenerate_peer_is_reported_and_inconclusive(share: float, tmp_path: Path) -> None:
    record = recorded(tmp_path, lambda index, sent, upload: moved(sent, upload, share))
    control = peers(record)
    assert control.passed is False
    assert "client odd sent updates of" in control.note
    assert control.target is None, "it concerns every client that is compared with this one"
    outcome = evaluate_policy(record, policy_from(POLICY)).outcome
    assert outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("share", [0.05, 1.0, 30.0], ids=["few steps", "usual", "much data"])
def test_clients_that_train_more_or_less_than_others_pass(share: float, tmp_path: Path) -> None:
    control = peers(recorded(tmp_path, lambda index, sent, upload: moved(sent, upload, share)))
    assert control.passed is True
    assert control.note == f"4 clients in {ROUNDS} rounds"


def test_with_two_clients_neither_is_reported_as_different(tmp_path: Path) -> None:
    record = recorded(tmp_path, lambda index, sent, upload: dict(sent), clients=2)
    assert not [control for control in record.controls if control.control == "peer updates"]


def test_a_peer_with_a_copied_update_is_reported(tmp_path: Path) -> None:
    record = recorded(tmp_path, lambda index, sent, upload: dict(upload), copied=True)
    control = peers(record)
    assert control.passed is False
    assert "client odd sent" in control.note
    assert "client site-0 sent" in control.note
    assert "the same as another client's" in control.note


@pytest.mark.slow
def test_different_updates_of_equal_norm_are_not_reported_as_copies(tmp_path: Path) -> None:
    control = peers(recorded(tmp_path, lambda index, sent, upload: upload, signs=True))
    assert control.passed is True
