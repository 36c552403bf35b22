"""Studies of Ditto, whose clients keep personal models."""

from pathlib import Path

import pytest

from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study


@pytest.mark.slow
@pytest.mark.parametrize("view", ["uploads", "globals"])
def test_utility_is_that_of_personal_models_and_attacks_see_the_global_model(
    view: str, tmp_path: Path
) -> None:
    ditto = {"name": "ditto", "options": {"lam": 0.0}}
    audit = {"view": view}
    personal = run_study(quick_study(audit=audit, algorithm=ditto), tmp_path / "ditto")
    shared = run_study(quick_study(audit=audit), tmp_path / "fedavg")

    def aucs(name: str) -> list[float | None]:
        record = {"ditto": personal, "fedavg": shared}[name]
        return [f.value for f in record.findings if f.metric == "auc" and f.attack]

    assert aucs("ditto") == aucs("fedavg")
    # Models that are trained on one client's samples alone have another accuracy.
    (own,), (average,) = (r.where(metric="test_accuracy") for r in (personal, shared))
    assert own.number != average.number
    assert own.number > 0.3
