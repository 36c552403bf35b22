"""Canary samples in complete studies."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedaudit.core.errors import Unsupported
from fedaudit.core.metric_names import Origin
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.evaluation import analysis
from fedaudit.evaluation import truth as truth_module
from fedaudit.extensions import canary_samples
from fedaudit.extensions.canary_samples import CanarySamples
from fedaudit.fl.hooks import DataUse, Guarantee
from fedaudit.formatting.wording import format_number
from fedaudit.plan.parts import MeasuredRun, Setup
from fedaudit.plan.sections import Study
from fedaudit.report.clauses import measured_epsilon
from fedaudit.report.first import tiles_of
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.record import ControlResult, Record
from fedaudit.study.build import build_setup
from fedaudit.study.running.run import run_study
from tests.estimates import changed
from tests.study.studies import quick_study


@dataclass(frozen=True)
class ForgottenNoise(DPSGD):
    """Claims the noise that it does not add."""

    def guarantee(self, data_use: DataUse, *, delta: float) -> Guarantee:
        """Of as much noise as one clip."""
        honest = DPSGD(clip=self.clip, noise_multiplier=6.0)
        return honest.guarantee(data_use, delta=delta)


def canary_study(noise: float, defense: str = "dp-sgd", **changes: object) -> Study:
    """A small client learns a hundred canaries."""
    values: dict[str, object] = {
        "partition": {"samples_per_client": 60},
        "audit": {"draw": "canaries", "options": {"count": 300, "kind": "noise"}, "every": 1},
        "training": {"rounds": 6, "epochs": 2},
        "attacks": {"avg-cosine": {}},
        "defense": {"name": defense, "options": {"clip": 0.5, "noise_multiplier": noise}},
    }
    return quick_study(**{**values, **changes})


def claim(record: Record) -> ControlResult | None:
    return next(
        (control for control in record.controls if control.control == "claimed epsilon"), None
    )


@pytest.mark.slow
def test_canaries_refute_only_claims_without_noise(
    tmp_path: Path,
) -> None:
    honest = claim(run_study(canary_study(6.0), tmp_path / "honest"))
    assert honest is not None
    assert honest.passed
    part_name = f"{__name__}:ForgottenNoise"
    refuted = claim(run_study(canary_study(0.0, part_name), tmp_path / "forgotten"))
    assert refuted is not None
    assert refuted.passed is False
    assert "claimed" in refuted.note


@pytest.fixture(scope="module")
def undefended(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A record of canary samples that nothing protects."""
    return run_study(canary_study(0.0), tmp_path_factory.mktemp("undefended"))


def test_without_a_claim_there_is_no_control(undefended: Record) -> None:
    record = undefended
    assert claim(record) is None
    bound = next(estimate for estimate in record.findings if estimate.metric == "epsilon")
    assert bound.number > 1
    assert any("audited canary samples" in sentence for sentence in record.untested)


def test_canary_samples_have_three_bounds_each_with_its_hypothesis(undefended: Record) -> None:
    record = undefended
    coins, gaussian, normal = (
        next(estimate for estimate in record.findings if estimate.metric == metric)
        for metric in ("epsilon", "epsilon_if_gaussian", "epsilon_if_normal")
    )
    assert gaussian.number > coins.number
    assert gaussian.note.startswith("lower bound if training is at least as private as a Gaussian")
    assert normal.value is None or normal.note.startswith("lower bound if scores are normal")
    assert normal.value is not None or normal.note.startswith("refused: scores")
    assert (gaussian.n_members, gaussian.n_nonmembers) == (coins.n_members, coins.n_nonmembers)
    page = measured_epsilon(record)
    assert f"{format_number(gaussian.number)} if the mechanism is Gaussian" in page.more
    assert "if the mechanism is Gaussian" in tiles_of(record)["epsilon"][0].detail
    assert any(row["metric"] == "epsilon_if_gaussian" for row in record.rows())


def test_an_older_record_has_a_single_bound(undefended: Record) -> None:
    before = [estimate for estimate in undefended.estimates if "_if_" not in estimate.metric]
    older = changed(undefended, estimates=before)
    assert "if the mechanism" not in tiles_of(older)["epsilon"][0].detail
    assert "if scores" not in measured_epsilon(older).more
    assert "if Gaussian" not in summarise_verdict(older).headline


@pytest.fixture
def one_sided(monkeypatch: pytest.MonkeyPatch) -> Setup:
    """A run whose twelve canary samples all came to its client by their coins."""
    small = {"draw": "canaries", "options": {"count": 12, "kind": "noise"}}
    run = build_setup(canary_study(1.0, audit=small), 1, None)
    truth = truth_module.target_truth(run, 0)
    origin = np.where(truth.origin == Origin.UNSEEN, Origin.MEMBER, truth.origin)
    same_coins = replace(truth, origin=origin)
    for module in (canary_samples, truth_module, analysis):
        monkeypatch.setattr(module, "target_truth", lambda run, target: same_coins)
    return run


def test_identical_coins_refuse_every_bound_after_training(one_sided: Setup) -> None:
    truth = truth_module.target_truth(one_sided, 0)
    scores = np.arange(float(len(truth.origin)))
    (figure,) = analysis._epsilon_bound(one_sided, "avg-cosine", scores, truth)
    assert figure is not None
    measured = MeasuredRun(one_sided, [])
    findings = CanarySamples.evaluate([measured], {(1, 0, "avg-cosine"): scores})
    for bound in (figure, *findings.figures):
        assert (bound.value, bound.low) == (None, None)
        assert bound.note.startswith("refused: every coin had the same outcome: ")
        assert bound.n_nonmembers == 0
    assert [estimate.metric for estimate in findings.figures] == [
        "epsilon_if_gaussian",
        "epsilon_if_normal",
    ]
    (check,) = findings.checks
    assert check.passed is None
    assert check.note == figure.note


def test_canaries_keep_their_labels() -> None:
    run = build_setup(canary_study(1.0), 1, None)
    ids, labels = run.assignment.audit.samples.ids, run.assignment.audit.samples.labels
    assert (labels != run.dataset.train.labels[ids]).all()
    assert run.assignment.audit.fair_for(0).all()


def test_a_task_without_classes_has_no_wrong_labels() -> None:
    study = canary_study(1.0, task={"name": "regression"}, attacks={"blackbox-loss": {}})
    with pytest.raises(Unsupported, match="no classes"):
        build_setup(study, 1, None)
    plain = study.model_copy(update={"audit": replace_draw(study)})
    assert build_setup(plain, 1, None).assignment.audit.fair.any()


def replace_draw(study: Study) -> object:
    return study.audit.model_copy(update={"draw": "fair", "options": {}, "samples": 60})
