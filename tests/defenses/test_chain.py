from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Batch, Model, Params, Samples, flat
from fedaudit.defenses.clip import ClientDP
from fedaudit.defenses.cofedmid import CoFedMID
from fedaudit.defenses.cofedmid.neutral import NeutralNoise
from fedaudit.defenses.cofedmid.partition import ClassGuided
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.defenses.hamp import Hamp
from fedaudit.defenses.mixup import MixUp
from fedaudit.defenses.noise import GradientNoise
from fedaudit.defenses.quantize import GradientQuantization
from fedaudit.defenses.relaxloss import RelaxLoss
from fedaudit.defenses.sampling import DataSampling
from fedaudit.defenses.sparsify import GradientSparsification
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import (
    UNDEFENDED,
    ClientContext,
    DataUse,
    Defense,
    Guarantee,
    Objective,
    TrainingContext,
    apply_upload_hook,
)
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Gradient, Logits, Round, Update, Upload
from tests.defenses.turns import context


def samples(client: int) -> Samples:
    rng = seeded(3, "data", client)
    labels = torch.randint(0, 2, (8,), generator=rng)
    return Samples(torch.randn(8, 2, generator=rng), labels, torch.arange(8) + 8 * client)


DATA = {0: samples(0), 1: samples(1)}
FEDAVG = FedAvg(Architecture("net", partial(nn.Linear, 2, 2)), LocalTraining(batch_size=4))


def run(defense: Defense | None, *, rounds: int = 2, path: Path | None = None) -> Iterator[Round]:
    defenses = {} if defense is None else {0: defense}
    return simulate(FEDAVG, DATA, rounds=rounds, seed=1, defenses=defenses, checkpoint=path)


def uploads(rounds: Iterator[Round]) -> list[Tensor]:
    return [flat(round.uploads[0].values) for round in rounds]


@dataclass(frozen=True)
class RecordingDefense(Defense):
    """A defense that records which of its hooks are called."""

    name: str
    calls: list[str]

    def prepare(self, data: Samples, client_context: ClientContext) -> Samples:
        self.calls.append(f"prepare {self.name}")
        return data

    def select(self, data: Samples, context: TrainingContext) -> Samples:
        self.calls.append(f"select {self.name}")
        return data

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        self.calls.append(f"batch {self.name}")
        return batch

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        self.calls.append(f"upload {self.name}")
        return upload

    def after(self, start: Model, end: Model, context: TrainingContext) -> None:
        self.calls.append(f"after {self.name}")


@dataclass(frozen=True)
class Doubled(Defense):
    """A defense that overrides the loss and the gradient."""

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        return 2 * super().loss(outputs, batch, context)


@dataclass(frozen=True)
class Reversed(Defense):
    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        return {n: -v for n, v in super().gradient(objective, batch, context).items()}


@dataclass
class Counting(Defense):
    """A defense that adds its number of rounds to each upload."""

    step: float = 1.0
    seen: Tensor = field(default_factory=lambda: torch.zeros(()), compare=False)

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        return type(upload)({n: v + self.step * self.seen for n, v in upload.values.items()})

    def after(self, start: Model, end: Model, context: TrainingContext) -> None:
        self.seen = self.seen + 1

    def state(self) -> Params:
        return {"seen": self.seen}

    def restore(self, state: Params) -> None:
        self.seen = state["seen"]


class Plain(Defense):
    """A defense that is no dataclass."""

    def __init__(self, strength: float) -> None:
        self.strength = strength


def test_each_hook_is_called_on_every_part_in_order() -> None:
    calls: list[str] = []
    chain = Chain((RecordingDefense("a", calls), RecordingDefense("b", calls)))
    model, training_context = Model(FEDAVG.architecture, {}), context()
    chain.prepare(DATA[0], training_context)
    chain.select(DATA[0], training_context)
    chain.batch(Batch(DATA[0].features, DATA[0].labels, DATA[0].ids), training_context)
    chain.upload(Update({}), training_context)
    chain.after(model, model, training_context)
    hooks = ("prepare", "select", "batch", "upload", "after")
    assert calls == [f"{hook} {name}" for hook in hooks for name in "ab"]


def test_defenses_apply_in_the_given_order() -> None:
    upload = Update({"w": torch.tensor([4.0, 1.0, 0.0])})
    clipped, sparse = ClientDP(clip=1.0, noise_multiplier=0.0), GradientSparsification(0.6)
    sparse_first = Chain((sparse, clipped)).upload(upload, context()).values["w"]
    other = Chain((clipped, sparse)).upload(upload, context()).values["w"]
    assert sparse_first.tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert other.tolist() == pytest.approx([4 / 17**0.5, 0.0, 0.0])


def test_two_noise_defenses_draw_independently() -> None:
    upload = Update({"w": torch.zeros(10_000)})
    sent = Chain((GradientNoise(3.0), GradientNoise(4.0))).upload(upload, context()).values["w"]
    assert float(sent.std()) == pytest.approx(5.0, rel=0.03)


def test_parts_that_replace_different_things_work_together() -> None:
    parts = (Doubled(), Reversed(), DataSampling(0.5), GradientNoise(0.0))
    (ours,) = uploads(run(Chain(parts), rounds=1))
    (half,) = uploads(run(DataSampling(0.5), rounds=1))
    # The gradient of the step is doubled, and its sign is reversed.
    torch.testing.assert_close(ours, -2 * half)


@pytest.mark.parametrize("part", [Doubled(), Reversed(), DataSampling(0.5)])
def test_two_defenses_that_replace_the_same_hook_raise(part: Defense) -> None:
    name, noise = type(part).__name__, GradientNoise(0.1)
    with pytest.raises(Unsupported, match=f"{name} and {name} both replace the .*; put at most"):
        Chain((part, noise, part))
    with pytest.raises(Unsupported, match=f"{name} and Chain both replace"):
        Chain((part, Chain((noise, part))))


def test_neutral_defenses_replace_no_hook() -> None:
    chain = Chain((DataSampling(1.0), DataSampling(0.5), UNDEFENDED))
    assert chain.acts_in("batches")
    assert not Chain((DataSampling(1.0), GradientNoise(0.0))).acts_in("batches")
    neutral = Chain((DataSampling(1.0), GradientNoise(0.0), GradientQuantization(32)))
    for ours, bare in zip(uploads(run(neutral)), uploads(run(None)), strict=True):
        assert torch.equal(ours, bare)


@pytest.mark.parametrize(
    "asking",
    [
        Hamp(0.5, 0.1),
        RelaxLoss(1.0),
        CoFedMID(clients=(0, 1)),
        Chain((GradientNoise(0.1), RelaxLoss(1.0))),
    ],
)
def test_mixup_with_a_defense_that_needs_classes_raises(asking: Defense) -> None:
    name = type(asking).__name__
    for parts in ((MixUp(1.0), asking), (asking, MixUp(1.0))):
        with pytest.raises(Unsupported, match=f"MixUp mixes labels, but {name} needs the class"):
            Chain(parts)


def test_cancelling_noise_before_another_upload_change_raises() -> None:
    cancelling, sparse = NeutralNoise(clients=(0, 1)), GradientSparsification(0.5)
    message = "GradientSparsification follows in the chain and changes it; put .* before it"
    with pytest.raises(Unsupported, match=message):
        Chain((cancelling, sparse))
    with pytest.raises(Unsupported, match=message):
        Chain((Chain((DataSampling(0.5), cancelling)), sparse))
    assert Chain((sparse, cancelling)).cancels
    assert not Chain((NeutralNoise(clients=(0, 1), sigma=0.0), sparse)).cancels


def test_mixup_is_allowed_if_no_defense_needs_classes() -> None:
    quiet = CoFedMID(clients=(0, 1), regularise=False)
    for part in (Hamp(0.0, 0.0, divide_by_classes=False), RelaxLoss(0.0), quiet):
        assert Chain((MixUp(1.0), part)).mixes_labels
    assert Chain((MixUp(0.0), RelaxLoss(1.0))).needs_class_labels


def test_an_empty_chain_is_refused() -> None:
    with pytest.raises(BadInput, match="at least one defense"):
        Chain(())


def test_a_chain_accepts_what_all_its_parts_accept() -> None:
    dp = ClientDP(clip=1.0, noise_multiplier=0.0)
    assert Chain((GradientNoise(0.1),)).accepts == (Update, Gradient, Logits)
    assert Chain((GradientNoise(0.1), dp)).accepts == (Update, Gradient)


def test_states_are_stored_and_restored_by_position() -> None:
    chain = Chain((UNDEFENDED, Counting(), Chain((Counting(), GradientNoise(0.1)))))
    state = {"1/seen": torch.tensor(3.0), "2/0/seen": torch.tensor(5.0)}
    chain.restore(state)
    assert chain.state() == state


def test_a_stateful_chain_resumes_after_interruption(tmp_path: Path) -> None:
    chain = Chain((Counting(1.0), GradientNoise(0.1), Counting(10.0)))
    uninterrupted = uploads(run(chain, rounds=3))
    path = tmp_path / "checkpoint.safetensors"
    stopped = run(chain, rounds=3, path=path)
    next(stopped), next(stopped)
    resumed = uploads(run(chain, rounds=3, path=path))
    assert len(resumed) == 2
    assert all(torch.equal(a, b) for a, b in zip(resumed, uninterrupted[1:], strict=True))
    # In round 3, the two defenses add 3 and 30 to every entry.
    assert float(uninterrupted[2].mean()) == pytest.approx(33, abs=1)


def test_a_checkpoint_of_another_chain_raises(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    list(run(Chain((Plain(1.0), GradientNoise(0.1))), path=path))
    for other in ((Plain(2.0), GradientNoise(0.1)), (GradientNoise(0.1), Plain(1.0))):
        with pytest.raises(BadInput, match="run with other settings"):
            next(run(Chain(other), path=path))


WORK = DataUse(rounds=3, epochs=1, batch_size=4, samples=40)


def guarantee(*parts: Defense) -> Guarantee | None:
    return Chain(parts).guarantee(WORK, delta=1e-5)


def test_a_client_level_guarantee_survives_post_processing() -> None:
    dp = ClientDP(clip=1.0, noise_multiplier=2.0)
    alone = dp.guarantee(WORK, delta=1e-5)
    assert guarantee(DataSampling(0.5), Doubled(), dp, GradientSparsification(0.5)) == alone
    assert guarantee(GradientNoise(1.0), GradientSparsification(0.5)) is None


def test_a_sample_level_guarantee_requires_unchanged_samples() -> None:
    dp = DPSGD(clip=1.0, noise_multiplier=2.0)
    alone = dp.guarantee(WORK, delta=1e-5)
    assert guarantee(dp, GradientQuantization(4), DataSampling(1.0)) == alone
    assert guarantee(dp, DataSampling(0.5, every="round")) is None
    assert guarantee(Doubled(), dp) is None


def test_a_chain_keeps_the_intersection_of_allowed_classes() -> None:
    client_context = ClientContext(round=1, rounds=1, client=0, cohort=(0, 1), weights={}, seed=3)
    guided = ClassGuided(clients=(0, 1), m_max=4, m_min=4)
    alone = ClassGuided(clients=(0, 2), m_max=4, m_min=4)
    assert bool(GradientNoise(0.1).assigned_classes(client_context, classes=6).all())
    assert Chain((GradientNoise(0.1), guided)).acts_in("assigned_classes")
    assert not Chain((GradientNoise(0.1),)).acts_in("assigned_classes")
    allowed = Chain((guided, alone)).assigned_classes(client_context, classes=6)
    parts = [part.assigned_classes(client_context, classes=6) for part in (guided, alone)]
    assert torch.equal(allowed, parts[0] & parts[1])
    assert [int(part.sum()) for part in parts] == [4, 4]


@dataclass(frozen=True)
class Shortening(Defense):
    """A defense that shortens tensors, which would be broadcast in the average."""

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        return replace(upload, values={name: value[:1] for name, value in upload.values.items()})


@pytest.mark.parametrize("defense", [Shortening(), Chain((GradientQuantization(4), Shortening()))])
def test_an_upload_of_other_shapes_is_refused(defense: Defense) -> None:
    upload = Update({"weight": torch.ones(3, 2)})
    with pytest.raises(
        BadInput, match=r"Shortening returned \(1, 2\) for 'weight' instead of \(3, 2\)"
    ):
        apply_upload_hook(defense, upload, context())
