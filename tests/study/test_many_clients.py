"""Federations of many clients, of which few take part in a round."""

from collections import Counter
from pathlib import Path

import pytest

from fedaudit.core.seeds import seed_for
from fedaudit.evaluation import controls
from fedaudit.fl.algorithms.base import draw_cohort
from fedaudit.observe.round import Round
from fedaudit.results import guessing
from fedaudit.study.running import record as running_record
from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study

CLIENTS, SHARE, ROUNDS = 150, 0.06, 3


def test_the_untrained_control_has_at_most_the_clients_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = seed_for(1, "federation")
    everybody = list(range(CLIENTS))
    cohorts = [draw_cohort(everybody, SHARE, seed, index) for index in range(1, ROUNDS + 1)]
    target = Counter(client for cohort in cohorts for client in cohort).most_common(1)[0][0]
    seen: list[Round] = []
    untrained_round = controls._untrained_round

    def kept(*arguments: object) -> Round:
        seen.append(untrained_round(*arguments))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(controls, "_untrained_round", kept)
    record = run_study(
        quick_study(
            partition={"clients": CLIENTS, "samples_per_client": 0},
            training={"rounds": ROUNDS, "participation": SHARE},
            audit={"targets": [target], "fair": 16, "every": 1},
            attacks={"loss-series": {}, "fedmia-1": {}},
        ),
        tmp_path,
    )
    assert {control.control for control in record.controls} >= {"untrained model"}
    owners = {row.client for row in record.clients if row.audited}
    for round_ in seen:
        assert {target, *owners} <= round_.observed.keys()
        assert len(round_.observed) == max(round(SHARE * CLIENTS), len({target, *owners}))
    assert seen[0].observed.keys() == seen[1].observed.keys()


@pytest.mark.slow
def test_the_size_of_a_record_does_not_grow_with_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows for some of them, the audited first, and the sums of all others."""
    monkeypatch.setattr(running_record, "MOST_CLIENTS", 7)
    study = quick_study(
        partition={"clients": 30, "samples_per_client": 0},
        audit={"targets": [25], "fair": 8},
        attacks={"loss-series": {}},
    )
    record = run_study(study, tmp_path / "few")
    monkeypatch.undo()
    result = run_study(study, tmp_path / "all")
    assert (len(record.clients), record.federation_size) == (7, 30)
    assert 25 in [row.client for row in record.clients]
    assert (len(result.clients), result.other_clients) == (30, None)
    others = record.other_clients
    assert others is not None
    other_rows = [row for row in result.clients if row not in record.clients]
    assert others.samples == sum(row.samples for row in other_rows)
    assert (others.fewest, others.most) == (
        min(row.samples for row in other_rows),
        max(row.samples for row in other_rows),
    )
    assert others.class_counts == [
        sum(row.class_counts[0] for row in other_rows),
        *others.class_counts[1:],
    ]
    assert sum(others.class_counts) == others.samples
    assert record.content_hash == result.content_hash
    assert guessing.near_guessing(record) == guessing.near_guessing(result)
