"""Recordings of tasks other than classification."""

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import fedaudit as fa
from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.live.audited import Split
from fedaudit.live.files import read_audit
from tests.networks import Denoiser, LowRank
from tests.study.studies import SMALL

TOKENS, LENGTH, EACH = 30, 8, 60
RNG = torch.Generator().manual_seed(2)


def language() -> "Language":
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Language()


class Language(nn.Module):
    """Predicts the next token; nothing but adapters is trained. Reads inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, 24).requires_grad_(False)
        self.hidden, self.out = LowRank(24, 48, 4), LowRank(48, TOKENS, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        return SimpleNamespace(logits=self.out(torch.tanh(self.hidden(self.table(input_ids)))))


def texts(count: int) -> Tensor:
    return torch.randint(1, TOKENS, (count, LENGTH), generator=RNG)


def by_name(tokens: Tensor) -> dict[str, Tensor]:
    return {"input_ids": tokens, "attention_mask": tokens != 0}


DATA = {client: texts(EACH) for client in range(3)}


def trained(start: nn.Module, tokens: Tensor, task: fa.tasks.Task) -> dict[str, Tensor]:
    """A client's round: its adapters afterwards."""
    net = deepcopy(start)
    adapters = {n: p for n, p in net.named_parameters() if p.requires_grad}
    optimizer = torch.optim.Adam(adapters.values(), lr=0.02)
    for _ in range(6):
        for batch in torch.split(tokens, 8):
            optimizer.zero_grad()
            task.losses(net(batch).logits, batch).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return {name: value.detach().clone() for name, value in adapters.items()}


@pytest.mark.slow
@pytest.mark.parametrize("with_names", [False, True])
def test_adapters_of_a_language_model_are_recorded_and_attacked(
    with_names: bool, tmp_path: Path
) -> None:
    pairs = {c: (by_name(t) if with_names else t, t) for c, t in DATA.items()}
    split, net, task = fa.fair_split(pairs, audited=40), language(), fa.tasks.next_token()
    attacks = ["fedmia-1", "fedmia-2", "min-k", "min-k-plus-plus"]
    with fa.record(
        tmp_path / "run", net, split.audit, task="next-token", attacks=attacks, strict=True
    ) as recorder:
        for index in (1, 2, 3):
            uploads = {c: trained(net, t[split.train[c]], task) for c, t in DATA.items()}
            recorder.round(index, sent=net, uploads=uploads)
            mean = {n: torch.stack([u[n] for u in uploads.values()]).mean(0) for n in uploads[0]}
            net.load_state_dict(mean, strict=False)
    record = fa.attack_recording(
        tmp_path / "run", [], tmp_path / "attacked", figures=SMALL["figures"]
    )
    aucs = record.where(topic="membership", metric="auc", contrast="mixed")
    assert {estimate.attack for estimate in aucs} == set(attacks)
    assert max(estimate.number for estimate in aucs if estimate.low and estimate.low > 0.5) > 0.7
    assert "test negative log-likelihood" in {
        estimate.metric for estimate in record.where(topic="utility")
    }
    assert all(control.passed is not False for control in record.controls)


@pytest.mark.slow
def test_embeddings_of_a_denoiser_are_recorded_and_attacked(tmp_path: Path) -> None:
    points = torch.randn(3 * EACH, 6, generator=RNG)
    data = {c: (points[c * EACH : (c + 1) * EACH], torch.arange(EACH) % 20) for c in range(3)}
    split, net = fa.fair_split(data, audited=40), Denoiser(20, (6,))
    with fa.record(tmp_path / "run", net, split.audit, task="denoising", strict=True) as recorder:
        for index in (1, 2, 3):
            uploads = {}
            for client, (x, concept) in data.items():
                trained_rows, moved = split.train[client], net.concepts.weight.detach().clone()
                for row in range(20):
                    mine = x[trained_rows][concept[trained_rows] == row]
                    moved[row] += 0.5 * (mine.sum(0) - len(mine) * moved[row])
                uploads[client] = {"concepts.weight": moved}
            recorder.round(index, sent=net, uploads=uploads)
    record = fa.attack_recording(
        tmp_path / "run", [], tmp_path / "attacked", figures=SMALL["figures"]
    )
    aucs = record.where(topic="membership", metric="auc", contrast="mixed")
    assert {"fedmia-1", "fedmia-2", "avg-cosine"} <= {estimate.attack for estimate in aucs}
    assert max(estimate.number for estimate in aucs if estimate.low and estimate.low > 0.5) > 0.7
    assert all(control.passed is not False for control in record.controls)


def test_a_client_split_contains_named_inputs_and_targets(tmp_path: Path) -> None:
    pairs = {c: (by_name(t), torch.rand(EACH, 2, generator=RNG)) for c, t in DATA.items()}
    audit = fa.fair_split(pairs, audited=20).audit
    parts: list[Path] = []
    for client, pair in pairs.items():
        alone: Split = fa.fair_split({client: pair}, audited=20)
        alone.save(tmp_path / f"{client}.safetensors")
        parts.append(tmp_path / f"{client}.safetensors")
    joined = fa.join_audits(parts)
    assert joined.samples.inputs == audit.samples.inputs
    assert torch.equal(joined.samples.features, audit.samples.features)
    assert torch.equal(joined.samples.targets, audit.samples.targets)
    assert joined.samples.labels.tolist() == [0] * 60


def test_a_recording_stores_named_inputs_and_targets(tmp_path: Path) -> None:
    pairs = {c: (by_name(t), t) for c, t in DATA.items()}
    audit = fa.fair_split(pairs, audited=20).audit
    with fa.record(tmp_path, Language(), audit, task="next-token", attacks=["loss-series"]):
        pass
    stored_audit = read_audit(tmp_path)
    assert stored_audit.samples.inputs == audit.samples.inputs
    assert torch.equal(stored_audit.samples.features, audit.samples.features)
    assert torch.equal(stored_audit.samples.targets, audit.samples.targets)


def test_impossible_task_recordings_raise_before_training(tmp_path: Path) -> None:
    audit = fa.fair_split({c: (t, t) for c, t in DATA.items()}, audited=20).audit

    def record(**changes: object) -> None:
        fa.record(tmp_path, Language(), audit, **{"task": "next-token", **changes})  # type: ignore[arg-type]

    with pytest.raises(NotVisible, match="'fta-c' needs probabilities of classes"):
        record(attacks=["fta-c"])
    with pytest.raises(BadInput, match="loss is for classification"):
        record(loss=lambda outputs, targets: outputs.sum((1, 2)))
    with pytest.raises(BadInput, match="did you mean 'next-token'"):
        record(task="nextoken")
    with pytest.raises(BadInput, match="class indices from 0"):
        record(task="classification")
    with pytest.raises(BadInput, match=r"must return one number per target"):
        record(task="regression")


def _absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).abs()


def test_a_custom_loss_can_be_the_task(tmp_path: Path) -> None:
    x, y = torch.randn(30, 4, generator=RNG), torch.rand(30, generator=RNG)
    samples = fa.audit_samples({0: (x, y)}, (x + 1, y))
    with fa.record(tmp_path / "own", nn.Linear(4, 1), samples, task=_absolute) as recorder:
        assert recorder.recording.task.name == "_absolute"
