"""The printed default policy passes recordings without a leak."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch import Tensor, nn

import fedaudit
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.policy import DEFAULT_POLICY, policy_from
from fedaudit.gate.verdict import Verdict
from fedaudit.live.attack import attack_recording
from fedaudit.live.audited import Split
from tests.live.federation import trained_linear

WIDTH, CLASSES = 20, 4
Data = Mapping[int, tuple[Tensor, Tensor]]


def classes_of(sizes: Mapping[int, int], only: Mapping[int, int] | None = None) -> Data:
    """Gaussian classes; each client has samples of all of them or of one."""
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(CLASSES, WIDTH, generator=generator)
    classes = {}
    for client, size in sizes.items():
        labels = torch.randint(0, CLASSES, (size,), generator=generator)
        labels = torch.full((size,), only[client]) if only else labels
        classes[client] = (centres[labels] + torch.randn(size, WIDTH, generator=generator), labels)
    return classes


def judged(
    folder: Path,
    data: Data,
    samples: Split,
    *,
    view: str = "uploads",
    passed_rounds: tuple[int, ...] = (1, 2),
) -> Verdict:
    """The verdict of the printed policy on two rounds of training that memorise nothing."""
    torch.manual_seed(0)
    sent = {name: value.clone() for name, value in nn.Linear(WIDTH, CLASSES).state_dict().items()}
    attacks = ["blackbox-loss"] if view == "uploads" else []
    with fedaudit.record(
        folder / "run",
        nn.Linear(WIDTH, CLASSES),
        samples.audit,
        view=view,
        attacks=attacks,
        log=lambda text: None,
    ) as recorder:
        for index in (1, 2):
            uploads = {
                client: trained_linear(
                    sent, x[samples.train[client]], y[samples.train[client]], lr=0.1, steps=5
                )
                for client, (x, y) in data.items()
            }
            mean = {n: sum(upload[n] for upload in uploads.values()) / len(uploads) for n in sent}
            if index in passed_rounds:
                answers = {"uploads": uploads} if view == "uploads" else {"after": mean}
                recorder.round(index, sent=sent, **answers)
            sent = mean
    record = attack_recording(folder / "run", [], folder / "out", figures={"permutations": 20})
    return evaluate_policy(record, policy_from(DEFAULT_POLICY))


MANY = {0: 1500, 1: 1500, 2: 1500}


def test_a_recording_of_a_single_client_can_pass_the_gate(tmp_path: Path) -> None:
    data = classes_of({0: 2500})
    verdict = judged(tmp_path, data, fedaudit.fair_split(data, audited=1200))
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert any(line.startswith("v. other clients' samples") for line in verdict.unjudged)


@pytest.mark.slow
def test_clients_that_share_no_class_can_pass_the_gate(tmp_path: Path) -> None:
    data = classes_of(dict.fromkeys(range(4), 900), only={0: 0, 1: 1, 2: 2, 3: 3})
    verdict = judged(tmp_path, data, fedaudit.fair_split(data, audited=400))
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert any(line.startswith("v. other clients' samples") for line in verdict.unjudged)


@pytest.mark.slow
def test_a_client_with_too_few_coins_for_a_bound_does_not_fail_others(tmp_path: Path) -> None:
    data = classes_of({0: 1500, 1: 1500, 2: 16})
    verdict = judged(tmp_path, data, fedaudit.fair_split(data, audited={0: 600, 1: 600, 2: 8}))
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert any(
        line.startswith("a lower bound on epsilon for client 2") for line in verdict.unjudged
    )


@pytest.mark.slow
def test_a_gate_needs_no_bound_on_epsilon_for_an_audit_without_coins(tmp_path: Path) -> None:
    data = classes_of(MANY)
    members = {client: (x[:300], y[:300]) for client, (x, y) in data.items()}
    samples = fedaudit.audit_samples(members, (data[2][0][600:], data[2][1][600:]))
    rows: dict[int | str, ndarray] = {client: np.arange(600) for client in data}
    verdict = judged(tmp_path, data, Split(audit=samples, train=rows))
    assert not any("epsilon" in check.name for check in verdict.checks)
    assert any(line.startswith("a lower bound on epsilon for clients") for line in verdict.unjudged)


@pytest.mark.slow
@pytest.mark.parametrize(("view", "outcome"), [("final", "pass"), ("globals", "inconclusive")])
def test_only_the_final_view_needs_no_earlier_rounds(
    view: str, outcome: str, tmp_path: Path
) -> None:
    data = classes_of(MANY)
    split = fedaudit.fair_split(data, audited=600)
    assert judged(tmp_path, data, split, view=view, passed_rounds=(2,)).outcome.value == outcome
