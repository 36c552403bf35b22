"""Label inference in complete studies."""

from pathlib import Path

import pytest

import fedaudit as fa
from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.plan.sections import Study
from fedaudit.report.page import report_html
from fedaudit.results.estimate import LABEL_INFERENCE, OTHER_CLIENT
from fedaudit.study.build import build_setup
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study

UNEQUAL = {"scheme": "shards", "options": {"per_client": 2}, "clients": 10}


def label_study(**changes: object) -> Study:
    values: dict[str, object] = {
        "label_inference": {},
        "attacks": {"blackbox-loss": {}},
        "partition": UNEQUAL,
    }
    return quick_study(**{**values, **changes})


@pytest.mark.slow
def test_updates_reveal_the_classes_of_clients(tmp_path: Path) -> None:
    record = run_study(label_study(), tmp_path)
    (estimate,) = record.where(topic=LABEL_INFERENCE, seed=None)
    assert estimate.number > 0.75
    assert estimate.n_members + estimate.n_nonmembers == 10 * 10
    other = estimate.test(OTHER_CLIENT)
    assert other is not None
    assert other.significant
    assert other.level is not None
    assert other.level < 0.65
    assert not estimate.attack
    assert "which classes occur" in "".join(record.untested)
    # The estimate is neither a membership figure nor part of the verdict on membership.
    assert estimate not in record.findings
    page = report_html(record)
    assert "Label inference" in page
    assert "no membership of samples" in page
    again = reattack(tmp_path, ["blackbox-loss"], tmp_path / "again")
    assert again.where(topic=LABEL_INFERENCE, seed=None) == [estimate]


@pytest.mark.slow
def test_noise_on_updates_hides_the_classes(tmp_path: Path) -> None:
    noise = {"name": "client-dp", "options": {"clip": 1.0, "noise_multiplier": 20.0}}
    record = run_study(label_study(defense=noise), tmp_path)
    (estimate,) = record.where(topic=LABEL_INFERENCE, seed=None)
    other = estimate.test(OTHER_CLIENT)
    assert other is not None
    assert not other.significant
    assert estimate.low is not None
    assert estimate.low < 0.5


@pytest.mark.slow
def test_scores_of_another_run_are_refused(tmp_path: Path) -> None:
    run_study(label_study(), tmp_path)
    stored = sorted((tmp_path / "seed-1" / "label_inference" / "measured").iterdir())
    stored[0].unlink()
    with pytest.raises(Damaged, match=r"label_inference is missing, damaged or from another run"):
        run_study(label_study(), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audit": {"view": "sum"}}, "needs each client's upload, but this is hidden"),
        ({"audit": {"view": "final"}}, "hidden in the view 'final'"),
        ({"partition": {"scheme": "iid"}}, "all 4 clients train on the same 10 classes"),
        ({"audit": {"merge": [0, 1]}}, "audit.merge attacks clients"),
    ],
)
def test_studies_in_which_labels_cannot_be_inferred_are_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(FedauditError, match=f"label_inference.*{message}"):
        build_setup(label_study(**changes), 1, None)


def test_label_inference_is_available_in_python() -> None:
    assert fa.LabelInference(permutations=200).permutations == 200
    with pytest.raises((BadInput, ValueError)):
        fa.LabelInference(permutations=10)
