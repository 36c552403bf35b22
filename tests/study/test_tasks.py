"""Every task from Python and from a file: training, attacks, controls, report and gate."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import fedaudit as fa
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.task_catalogue import regression
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.evaluation.accuracy import _utilities
from fedaudit.results.record import Record
from fedaudit.study.running.run import run_study
from tests.networks import Denoiser
from tests.study.studies import quick_study

SAMPLES, FEATURES, LABELS, TOKENS, LENGTH, CONCEPTS = 260, 6, 3, 9, 7, 20
RNG = torch.Generator().manual_seed(4)
X = torch.randn(SAMPLES, FEATURES, generator=RNG)
Y = torch.rand(SAMPLES, generator=RNG)
SEQUENCES = torch.randint(1, TOKENS, (SAMPLES, LENGTH), generator=RNG)
SEQUENCES[::3, 5:] = 0
INPUTS = {"tokens": SEQUENCES, "mask": SEQUENCES != 0}


class Dense(nn.Module):
    """A hidden layer; one output has no axis of its own."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(FEATURES, 24), nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.relu(self.hidden(x)))
        return out.squeeze(1)


class Masked(nn.Module):
    """Reads two inputs by name and returns an object, as libraries of language models do."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(TOKENS, 16), nn.Linear(16, classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> SimpleNamespace:
        seen = (self.table(tokens) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return SimpleNamespace(logits=self.out(torch.tanh(seen)))


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(len(outputs), -1) - targets.reshape(len(targets), -1)).abs().mean(1)


class Case(NamedTuple):
    samples: fa.Samples
    model: object
    task: object
    utility: str = "test_accuracy"
    algorithm: str = "FedAvg"


CASES = {
    "regression": Case(
        fa.Samples(X, torch.rand(SAMPLES, generator=RNG)), Dense, "regression", "test squared error"
    ),
    "binary": Case(fa.Samples(X, torch.randint(0, 2, (SAMPLES,), generator=RNG)), Dense, "binary"),
    "multi-label": Case(
        fa.Samples(X, torch.randint(0, 2, (SAMPLES, LABELS), generator=RNG)),
        Dense,
        "multi-label",
        "test label error",
    ),
    "next-token": Case(
        fa.Samples(SEQUENCES, torch.zeros(SAMPLES, dtype=torch.int64)),
        fa.models.Transformer(width=16, heads=2, layers=1),
        "next-token",
        "test negative log-likelihood",
    ),
    "a loss of ones own": Case(
        fa.Samples(X, torch.rand(SAMPLES, 2, generator=RNG)), Dense, absolute, "test loss"
    ),
    "inputs by name": Case(
        fa.Samples(INPUTS, torch.randint(0, LABELS, (SAMPLES,), generator=RNG)),
        Masked,
        "classification",
    ),
    "denoising": Case(
        fa.Samples(X, torch.arange(SAMPLES) % CONCEPTS),
        Denoiser,
        "denoising",
        "test denoising error",
        "FedEmbedding",
    ),
}


def audited(case: Case, out: Path, attacks: Sequence[str] = ("loss-series", "fedmia-2")) -> fa.Run:
    federation = fa.Federation(
        case.samples,
        clients=3,
        model=case.model,  # type: ignore[arg-type]
        task=case.task,  # type: ignore[arg-type]
        algorithm=getattr(fa.algorithms, case.algorithm)(
            rounds=3, epochs=12, lr=0.01, optimizer="adam", batch_size=8
        ),
    )
    audit = fa.Audit(samples=90, background=0, every=1)
    return fa.audit(federation, attacks=attacks, out=out, audit=audit)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_task_is_audited_from_training_to_the_gate(name: str, tmp_path: Path) -> None:
    run = audited(CASES[name], tmp_path)
    record = run.record
    by_metric = {estimate.metric: estimate for estimate in record.where(topic="utility")}
    assert by_metric[CASES[name].utility].value is not None
    aucs = record.where(topic="membership", metric="auc", contrast="mixed")
    # Memorised samples are detected for every task.
    assert max(estimate.number for estimate in aucs if estimate.low and estimate.low > 0.5) > 0.6
    assert {control.control for control in record.controls} >= {
        "permuted members",
        "untrained model",
    }
    assert all(control.passed is not False for control in record.controls)
    page = run.save_report().read_text(encoding="utf-8")
    assert "loss-series" in page
    if not CASES[name].utility.endswith("accuracy"):
        assert CASES[name].utility.removeprefix("test ") in page


@pytest.mark.slow
def test_a_task_resumes_with_the_same_hash_on_two_workers(tmp_path: Path) -> None:
    study = quick_study(
        task={"name": "regression"},
        data={"name": "tests.study.test_tasks:numbers"},
        partition={"clients": 3, "samples_per_client": 0},
        audit={"fair": 60, "background": 0, "every": 1},
        attacks={"loss-series": {}},
    )
    record = run_study(study, tmp_path / "one")
    two = run_study(study, tmp_path / "two", workers=2)
    result = run_study(study, tmp_path / "one")
    assert record.content_hash == two.content_hash == result.content_hash
    assert other_task(tmp_path).content_hash != record.content_hash


def numbers(*, seed: int) -> object:
    return fa.datasets.samples(X, Y, name="numbers")(seed=seed)


def other_task(folder: Path) -> Record:
    study = quick_study(
        task={"name": "tests.study.test_tasks:absolute"},
        data={"name": "tests.study.test_tasks:numbers"},
        partition={"clients": 3, "samples_per_client": 0},
        audit={"fair": 60, "background": 0, "every": 1},
        attacks={"loss-series": {}},
    )
    return run_study(study, folder / "other")


@pytest.mark.slow
def test_the_default_set_omits_attacks_that_a_task_does_not_support(tmp_path: Path) -> None:
    record = audited(CASES["regression"], tmp_path, attacks=()).record
    refused = {row.name: row.note for row in record.attacks if row.status == "refused"}
    assert "probabilities of classes, which the task 'regression' does not" in refused["fta-c"]
    assert "fedmia-1" not in refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: {"attacks": ["fta-c"]}, "'fta-c' needs probabilities of classes"),
        (lambda f: {"attacks": ["min-k"]}, "'min-k' needs probabilities of tokens"),
        (
            lambda f: f.update(
                defenses=fa.defenses.Hamp(entropy_threshold=0.5, entropy_weight=0.1)
            ),
            "Hamp needs .*classes",
        ),
        (lambda f: f.update(defenses=fa.defenses.MixUp(alpha=1.0)), "MixUp .*classes"),
        (lambda f: f.update(algorithm=fa.algorithms.IFCA(rounds=2)), "'ifca' needs .*classes"),
        (lambda f: f.update(task="next-token"), "whole numbers"),
        (lambda f: f.update(task="regresion"), "'regression'"),
        (lambda f: f.update(task=3), "a task must be a catalogue name.*got an int"),
    ],
)
def test_unsupported_parts_of_a_task_raise_before_training(
    change: Callable[[dict[str, object]], dict[str, object] | None], message: str, tmp_path: Path
) -> None:
    case = CASES["regression"]
    parts: dict[str, object] = {"model": case.model, "task": case.task, "clients": 3}
    changes = change(parts) or {}
    with pytest.raises(FedauditError, match=message) as refusal:
        fa.audit(
            fa.Federation(case.samples, **parts),  # type: ignore[arg-type]
            audit=fa.Audit(samples=60),
            out=tmp_path,
            **changes,  # type: ignore[arg-type]
        )
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"name": "next-token", "options": {"paddin": 5}}, "did you mean 'padding'"),
        ({"name": "next-token", "options": {"padding": "x"}}, "padding of the task 'next-token'"),
        ({"name": "regression", "options": {"x": 3}}, "'regression' has no options; remove 'x'"),
        ({"name": "denoising", "options": {"draws": "many"}}, "draws of the task 'denoising'"),
    ],
)
def test_unknown_settings_of_a_task_are_refused(
    task: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(FedauditError, match=message):
        run_study(quick_study(task=task), tmp_path)


class Few(nn.Module):
    """Has embeddings of all tokens but the last."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(TOKENS - 1, 4), nn.Linear(4, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.table(x))
        return logits


def test_a_token_of_the_test_part_that_an_embedding_has_not_is_refused(tmp_path: Path) -> None:
    tokens = SEQUENCES.clamp(max=TOKENS - 2)
    rare = tokens[:60].clone()
    rare[0, 2] = TOKENS - 1
    data = fa.datasets.samples(tokens[60:], [0] * 200, rare, [0] * 60)
    federation = fa.Federation(data, clients=3, model=Few, task="next-token")
    with pytest.raises(FedauditError, match=r"cannot be run .*tokens are below the number of rows"):
        fa.audit(federation, out=tmp_path, audit=fa.Audit(samples=40, background=0))


def test_extreme_predictions_are_reported_as_diverged_training() -> None:
    data = Samples(torch.ones(3, 2), torch.full((3, 1), 1e9), torch.arange(3))
    net = nn.Linear(2, 1)
    model = Model.of(Architecture("net", lambda: nn.Linear(2, 1), task=regression()), net)
    with pytest.raises(BadInput, match=r"training has diverged: .* lower training\.lr"):
        _utilities(model, data, CPU)
