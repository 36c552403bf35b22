"""Canary samples with planted gradients."""

from pathlib import Path

import pytest
import torch

from fedaudit.core.errors import Unsupported
from fedaudit.core.values import Batch, flat
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.evaluation.controls import planted_leak
from fedaudit.extensions.canary_samples import GradientCanaries, plant_gradients
from fedaudit.metrics.epsilon import gaussian_budget
from fedaudit.plan.parts import Resources, Setup
from fedaudit.plan.sections import Study
from fedaudit.signals.canary_gradients import canary_gradient
from fedaudit.study.build import build_setup
from fedaudit.study.running.run import run_study
from tests.defenses.test_dpsgd import objective, samples
from tests.defenses.turns import context
from tests.study.test_canary_samples import ForgottenNoise, canary_study, claim


@pytest.mark.parametrize("noise_multiplier", [0.0, 1.0])
def test_gradient_canaries_replace_gradients_of_the_clip_norm(noise_multiplier: float) -> None:
    data = samples(12)
    dp_sgd = DPSGD(clip=0.5, noise_multiplier=noise_multiplier)
    goal = objective(context().received.module().train())
    # At a sampling rate of one, every sample is in the batch.
    planted, plain = GradientCanaries((dp_sgd,), (3, 7)), context()
    (batch,) = planted.batches(data, 12, plain)
    gradient = planted.gradient(goal, batch, plain)
    without = context()
    (batch,) = dp_sgd.batches(data, 12, without)
    is_other = (batch.ids != 3) & (batch.ids != 7)
    others = Batch(batch.x[is_other], batch.y[is_other], batch.ids[is_other])
    expected = flat(dp_sgd.gradient(goal, others, without))
    for sample_id in (3, 7):
        positions, values = canary_gradient(sample_id, len(expected))
        assert float(values.norm()) == pytest.approx(1)
        expected[positions] += (values * 0.5 / 12).float()
    torch.testing.assert_close(flat(gradient), expected)


def test_augmented_copies_of_a_canary_plant_one_gradient() -> None:
    images = samples(2, (1, 8, 8))
    dp_sgd = DPSGD(clip=2.0, noise_multiplier=0.0, multiplicity=3, padding=1)
    planted, training_context = GradientCanaries((dp_sgd,), (0, 1)), context(shape=(1, 8, 8))
    (batch,) = planted.batches(images, 2, training_context)
    copies = planted.batch(batch, training_context)
    goal = objective(training_context.received.module().train())
    gradient = flat(planted.gradient(goal, copies, training_context)).double()
    assert len(copies) == 6
    for sample_id in (0, 1):
        positions, values = canary_gradient(sample_id, len(gradient))
        # The directions of a small model are not exactly orthogonal.
        assert float(gradient[positions] @ values) == pytest.approx(2.0 / 2, rel=0.5)


def planted_study(noise: float, defense: str = "dp-sgd", **changes: object) -> Study:
    """A small client with planted gradients in full batches."""
    values: dict[str, object] = {
        "audit": {"draw": "canaries", "options": {"count": 300, "kind": "gradient"}, "every": 1},
        "training": {"rounds": 6, "epochs": 1, "batch_size": 1000},
        "model": {"name": "mlp", "options": {"hidden": "500"}},
    }
    return canary_study(noise, defense, **{**values, **changes})


@pytest.mark.slow
def test_gradient_canaries_come_close_to_the_claim_and_do_not_refute_it(tmp_path: Path) -> None:
    record = run_study(planted_study(1.5), tmp_path / "honest")
    honest = claim(record)
    assert honest is not None
    assert honest.passed
    normal = next(e for e in record.findings if e.metric == "epsilon_if_normal")
    true_epsilon = gaussian_budget(6**0.5 / 1.5, 1e-5)
    assert normal.low is not None
    assert 0.6 * true_epsilon < normal.low < true_epsilon
    part_name = f"{ForgottenNoise.__module__}:ForgottenNoise"
    refuted = claim(run_study(planted_study(0.0, part_name), tmp_path / "forgotten"))
    assert refuted is not None
    assert refuted.passed is False


def planted_setup(defense: str = "dp-sgd", **changes: object) -> Setup:
    return build_setup(planted_study(1.0, defense, **changes), 1, None)


def test_only_targets_plant_gradients_of_their_members() -> None:
    run = planted_setup()
    clients = run.all_clients
    planting = {c: d for c, d in clients.defenses.items() if isinstance(d, GradientCanaries)}
    audit = run.assignment.audit
    assert set(planting) == {0}
    assert set(planting[0].canaries) == set(audit.samples.ids[audit.owner == 0].tolist())
    assert planting[0].parts == (run.defenses[0],)
    assert [signal.name for signal in run.signals] == ["canary-cosine"]


@pytest.mark.parametrize("attacks", [{"blackbox-loss": {}}, {}])
def test_gradient_canaries_need_an_attack_on_gradients(attacks: dict[str, object]) -> None:
    with pytest.raises(Unsupported, match="cannot find canaries of the kind 'gradient'"):
        planted_setup(attacks=attacks)


def test_gradient_canaries_need_clipped_gradients() -> None:
    message = "client 0 does not use dp-sgd with a finite clip"
    with pytest.raises(Unsupported, match=message):
        planted_setup("client-dp")
    with pytest.raises(Unsupported, match=message):
        plant_gradients(DPSGD(float("inf"), 0.0), [1], "client 0")


def test_planted_gradients_have_no_control_with_wrong_labels() -> None:
    (result,) = planted_leak(planted_setup(), Resources())
    assert result.passed is None
    assert "planted gradients" in result.note
