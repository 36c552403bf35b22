"""Recordings of clients with different label distributions."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedaudit
from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import Origin
from fedaudit.evaluation.sample_scores import read_scores
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.policy import DEFAULT_POLICY, policy_from
from fedaudit.live.attack import attack_recording
from fedaudit.metrics import auc
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.record import Record
from tests.study.studies import SMALL

CLASSES, WIDTH = 10, 20
Data = Mapping[str, tuple[Tensor, Tensor]]


def federation(clients: int, samples: int, beta: float, seed: int) -> Data:
    """Gaussian classes, dealt to sites by a Dirichlet distribution over labels."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, WIDTH))
    parts = {}
    for client in range(clients):
        labels = rng.choice(CLASSES, samples, p=rng.dirichlet(np.full(CLASSES, beta)))
        features = centres[labels] + rng.normal(size=(samples, WIDTH))
        parts[f"site-{client}"] = (
            torch.tensor(features, dtype=torch.float32),
            torch.tensor(labels),
        )
    return parts


def audited(
    data: Data, folder: Path, *, samples: int, epochs: int, seed: int = 1, wrong: str = ""
) -> Record:
    """A linear model trained for two rounds; the site ``wrong`` has noisy labels."""
    if wrong:
        rng = np.random.default_rng(seed)
        features, labels = data[wrong]
        noisy = torch.tensor(rng.integers(0, CLASSES, len(labels)))
        data = {**data, wrong: (features, noisy)}
    split = fedaudit.fair_split(data, audited=samples, seed=seed)
    torch.manual_seed(seed)
    sent = nn.Linear(WIDTH, CLASSES).state_dict()
    attacks = ["blackbox-loss", "avg-cosine"]
    with fedaudit.record(
        folder / "run",
        nn.Linear(WIDTH, CLASSES),
        split.audit,
        attacks=attacks,
        log=lambda text: None,
    ) as recorder:
        for index in (1, 2):
            uploads = {
                site: _trained(sent, features[rows], labels[rows], epochs)
                for site, (features, labels) in data.items()
                for rows in [torch.from_numpy(split.train[site])]
            }
            recorder.round(index, sent=sent, uploads=uploads)
            sent = {
                n: torch.stack([upload[n] for upload in uploads.values()]).mean(0) for n in sent
            }
    figures = {**SMALL["figures"], "blind_classifier": True}
    return attack_recording(folder / "run", [], folder / "result", figures=figures)


def _trained(
    sent: Mapping[str, Tensor], features: Tensor, labels: Tensor, epochs: int
) -> dict[str, Tensor]:
    model = nn.Linear(WIDTH, CLASSES)
    model.load_state_dict(dict(sent))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(labels)), 32):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(features[batch]), labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return dict(model.state_dict())


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Path]:
    folder = tmp_path_factory.mktemp("skewed")
    return audited(federation(6, 1000, 0.3, 1), folder, samples=60, epochs=1), folder


@pytest.mark.slow
def test_different_label_distributions_are_not_reported_as_a_leak(
    skewed: tuple[Record, Path],
) -> None:
    record, _ = skewed
    assert summarise_verdict(record).status in ("no leak shown", "inconclusive")
    outcome = evaluate_policy(record, policy_from(DEFAULT_POLICY)).outcome
    assert outcome is not Outcome.FAIL
    assert not [control for control in record.controls if control.passed is False]


def test_members_are_compared_with_held_out_samples_of_the_same_draw(
    skewed: tuple[Record, Path],
) -> None:
    record, folder = skewed
    scores = read_scores(folder / "result" / "scores.safetensors")
    for estimate in record.where(contrast="unseen", metric="auc", attack="blackbox-loss"):
        if estimate.target is None:
            continue
        assert estimate.fair
        assert estimate.n_members + estimate.n_nonmembers == 60
        target_scores = scores[1, estimate.target]
        chosen = target_scores.origin != Origin.OTHER_CLIENT
        is_member = target_scores.origin[chosen] == Origin.MEMBER
        assert estimate.value == pytest.approx(
            auc(target_scores.by_attack[estimate.attack][chosen], is_member)
        )


def test_samples_of_other_clients_are_class_matched_and_marked_unfair(
    skewed: tuple[Record, Path],
) -> None:
    record, _ = skewed
    others = record.where(contrast="other_client", metric="auc", by="")
    assert others
    assert all(estimate.within == "class" and not estimate.fair for estimate in others)
    verdict = evaluate_policy(record, policy_from(DEFAULT_POLICY))
    assert any("were not chosen at random" in line for line in verdict.unjudged)
    assert not any("other clients'" in check.name for check in verdict.checks)


def test_small_clients_are_pooled_and_compared_within_each_client(
    skewed: tuple[Record, Path],
) -> None:
    record, _ = skewed
    (pooled,) = record.where(attack="blackbox-loss", contrast="unseen", metric="auc", target=None)
    assert pooled.within == "client"
    assert pooled.n_members + pooled.n_nonmembers == 6 * 60
    assert pooled.low is not None
    assert pooled.high is not None
    assert pooled.low <= 0.5 <= pooled.high


@pytest.mark.slow
def test_the_printed_policy_passes_a_recording_without_a_leak(tmp_path: Path) -> None:
    record = audited(federation(3, 2000, 0.3, 1), tmp_path, samples=500, epochs=1)
    verdict = evaluate_policy(record, policy_from(DEFAULT_POLICY))
    assert verdict.outcome is Outcome.PASS
    assert any("planted leak" in line for line in verdict.unjudged)
    assert any(
        "TPR at 0.1% FPR" in line and "more audited samples" in line for line in verdict.unjudged
    )


@pytest.mark.slow
def test_a_leak_of_heterogeneous_clients_is_found(tmp_path: Path) -> None:
    record = audited(federation(6, 70, 0.3, 2), tmp_path, samples=60, epochs=60)
    assert summarise_verdict(record).status in ("clear leak", "strong leak")
    assert evaluate_policy(record, policy_from(DEFAULT_POLICY)).outcome is Outcome.FAIL


@pytest.mark.slow
def test_a_single_memorising_client_is_not_hidden_by_others(
    tmp_path: Path,
) -> None:
    data = {**federation(4, 1000, 1.0, 3), "site-9": federation(1, 260, 1.0, 4)["site-0"]}
    record = audited(data, tmp_path, samples=200, epochs=20, wrong="site-9")
    best = max(
        (
            estimate
            for estimate in record.where(contrast="unseen", metric="auc")
            if estimate.target is not None
        ),
        key=lambda estimate: estimate.low or 0.0,
    )
    assert record.config["recording"]["names"][str(best.target)] == "site-9"  # type: ignore[index]
    assert (best.low or 0.0) > 0.6
    assert "leak" in summarise_verdict(record).status


@pytest.mark.slow
def test_the_blind_classifier_does_not_pass_for_a_client_with_too_few_samples(
    tmp_path: Path,
) -> None:
    record = audited(federation(3, 300, 1.0, 5), tmp_path, samples=20, epochs=1)
    alone = [
        control
        for control in record.controls
        if control.control == "blind classifier" and control.target
    ]
    assert alone
    assert all(
        control.passed is None
        for control in alone
        if control.value is None or (control.high or 1) > 0.85
    )


@pytest.mark.slow
def test_an_audit_without_coins_matches_classes_and_has_a_label_baseline(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(6)
    centres = rng.normal(size=(CLASSES, WIDTH))

    def drawn(count: int, classes: int) -> tuple[Tensor, Tensor]:
        labels = rng.integers(0, classes, count)
        features = centres[labels] + rng.normal(size=(count, WIDTH))
        return torch.tensor(features, dtype=torch.float32), torch.tensor(labels)

    members = {"a": drawn(200, 3), "b": drawn(200, 6)}
    audit = fedaudit.audit_samples(members, drawn(400, 10))
    sent = nn.Linear(WIDTH, CLASSES).state_dict()
    with fedaudit.record(
        tmp_path / "run",
        nn.Linear(WIDTH, CLASSES),
        audit,
        attacks=["blackbox-loss"],
        log=lambda text: None,
    ) as recorder:
        uploads = {site: _trained(sent, *members[site], 1) for site in members}
        recorder.round(1, sent=sent, uploads=uploads)
    record = attack_recording(tmp_path / "run", [], tmp_path / "result")
    for estimate in record.where(contrast="unseen", metric="auc"):
        assert estimate.within == "class"
        assert not estimate.fair
        assert estimate.labels_alone == pytest.approx(0.5, abs=0.06)
        assert estimate.low is not None
        assert estimate.low <= 0.5


def test_a_run_is_opened_from_the_folder_of_a_recording(tmp_path: Path) -> None:
    record = audited(federation(3, 200, 1.0, 7), tmp_path, samples=20, epochs=1)
    (tmp_path / "result").rename(tmp_path / "run" / "attacked")
    opened = fedaudit.Run(tmp_path / "run")
    assert opened.record == record
    target = next(estimate.target for estimate in record.findings if estimate.target is not None)
    assert len(opened.scores("blackbox-loss", target=target).ids) > 0
    (tmp_path / "run" / "attacked").rename(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="is a live recording without a record in "):
        fedaudit.Run(tmp_path / "run")
