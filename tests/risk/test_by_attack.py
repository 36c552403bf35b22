import pytest
import torch
from torch.nn import functional

from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS
from fedaudit.attacks.base import Attack
from fedaudit.core.errors import BadInput, NotVisible, Unsupported
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Model, Samples, add_scaled
from fedaudit.models import architecture
from fedaudit.risk.catalog import (
    MEASURES,
    CatalogueAttack,
    FittedAttack,
    RiskAttack,
    ScoreThreshold,
    reason_unsuitable,
    resolve_measure,
)
from tests.samples import random_samples

KIND = architecture("mlp", shape=(4,), classes=3, hidden="5")
START = KIND.initial(1)


def samples(count: int) -> Samples:
    return random_samples(seeded(1, "samples"), count, 4, classes=3)


DATA = samples(9)


def gradients(model: Model) -> list[torch.Tensor]:
    """Return the gradient of each sample."""
    module, per_sample = model.module(), []
    for x, y in zip(DATA.features, DATA.labels, strict=True):
        loss = functional.cross_entropy(module(x[None]), y[None])
        parts = torch.autograd.grad(loss, list(module.parameters()))
        per_sample.append(torch.cat([part.flatten() for part in parts]).double())
    return per_sample


def moved() -> Model:
    rng = seeded(1, "step")
    step = {name: torch.randn(p.shape, generator=rng) for name, p in START.params.items()}
    return Model(KIND, add_scaled(START.params, step, 0.1))


def test_loss_evidence_matches_a_loop_over_samples() -> None:
    model, module = moved(), moved().module()
    evidence = CatalogueAttack(ATTACKS["blackbox-loss"]).features(model, DATA, start=START)
    slow = []
    for x, y in zip(DATA.features, DATA.labels.tolist(), strict=True):
        outputs = module(x[None])[0].double().detach()
        slow.append(float(outputs[y] - outputs.exp().sum().log()))
    torch.testing.assert_close(evidence[:, 0], torch.tensor(slow).double(), rtol=1e-5, atol=1e-6)


def test_without_an_update_gradients_are_those_of_the_model() -> None:
    evidence = CatalogueAttack(ATTACKS["grad-norm"]).features(moved(), DATA, start=START)
    slow = torch.stack([-g.square().sum() for g in gradients(moved())])
    torch.testing.assert_close(evidence[:, 0], slow, rtol=1e-4, atol=1e-6)


def test_updates_are_relative_to_the_start_model() -> None:
    model = moved()
    evidence = CatalogueAttack(ATTACKS["grad-cosine"]).features(model, DATA, start=START)
    update = torch.cat([(model.params[n] - START.params[n]).flatten() for n in model.params])
    slow = [functional.cosine_similarity(-update.double(), g, dim=0) for g in gradients(START)]
    torch.testing.assert_close(evidence[:, 0], torch.stack(slow), rtol=1e-4, atol=1e-5)


def test_attacks_on_updates_need_the_start_model() -> None:
    measure = CatalogueAttack(ATTACKS["grad-cosine"])
    decide = FittedAttack(measure, ScoreThreshold(0.0), start=START)
    with pytest.raises(NotVisible, match="needs a model that differs from its start"):
        decide(START, DATA)
    assert torch.equal(
        decide(START, DATA, start=moved()),
        measure.features(START, DATA, start=moved())[:, 0] >= 0,
    )


def test_the_fitted_threshold_is_optimal() -> None:
    for seed in range(20):
        rng = seeded(seed, "scores")
        members, nonmembers = torch.randint(6, (2, 7, 1), generator=rng).double()
        line = CatalogueAttack(ATTACKS["blackbox-loss"]).fit(members, nonmembers)
        assert isinstance(line, ScoreThreshold)

        def right(rule: ScoreThreshold, members: torch.Tensor, nonmembers: torch.Tensor) -> int:
            return int(rule(members).sum()) + int((~rule(nonmembers)).sum())

        best = max(right(ScoreThreshold(float(level)), members, nonmembers) for level in range(8))
        assert right(line, members, nonmembers) == best


def test_constant_scores_classify_no_members() -> None:
    same = torch.ones(5, 1, dtype=torch.float64)
    line = CatalogueAttack(ATTACKS["blackbox-loss"]).fit(same, same)
    assert not bool(line(same).any())


@pytest.mark.parametrize("name", sorted(MEASURES))
def test_every_measure_gives_evidence_and_can_be_fitted(name: str) -> None:
    measure = MEASURES[name]
    assert isinstance(measure, RiskAttack)
    features = measure.features(moved(), DATA, start=START)
    assert features.dtype == torch.float64
    assert bool(features.isfinite().all())
    rule = measure.fit(features[:4], features[4:8])
    assert rule(features).shape == (9,)


def test_the_catalogue_lists_all_single_model_attacks() -> None:
    expected = {"train-mia", "blackbox-loss", "grad-cosine", "grad-norm", "grad-diff", "projres"}
    assert set(MEASURES) == expected
    assert resolve_measure("train-mia") is MEASURES["train-mia"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fedmia-1", "several rounds"),
        ("fta-l", "several rounds"),
        ("seqmia", "several rounds"),
        ("loss-series-aware", "several rounds"),
        ("sia", "source of a sample"),
    ],
)
def test_an_unsuitable_attack_name_raises_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(Unsupported, match=f"'{name}' cannot measure .*{why}"):
        resolve_measure(name)


@pytest.mark.parametrize(
    "attack", [a for a in (ATTACKS | SOURCE_ATTACKS).values() if reason_unsuitable(a)]
)
def test_wrapping_an_unsuitable_attack_raises(attack: Attack) -> None:
    with pytest.raises(Unsupported, match="cannot measure the risk"):
        CatalogueAttack(attack)


def test_a_misspelt_measure_raises_and_suggests_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'train-mia'"):
        resolve_measure("train-mai")
