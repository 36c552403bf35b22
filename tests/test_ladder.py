"""The leak ladder page matches its records."""

import runpy
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from fedaudit.results.estimate import Estimate
from fedaudit.results.ladder import Auc, ProbitLine, loss_gap, strongest_upload_attack
from fedaudit.results.record import Record, Trajectory
from tests.report.records import record

ROOT = Path(__file__).parents[1]


@cache
def ladder() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "ladder.py"))


def rung(gap: float, auc: float, study: str = "ladder-letters", half: float = 0.01) -> Any:
    area = Auc(auc, auc - half, auc + half, "fedmia-2")
    return ladder()["Rung"](study, "", None, gap, gap, gap, gap, 200.0, area, area)


def on_the_line(gap: float, study: str = "ladder-letters") -> Any:
    return rung(gap, NormalDist().cdf(0.1 + gap), study)


def test_the_rule_is_the_line_that_its_rungs_lie_on() -> None:
    rungs = [on_the_line(gap, study) for study in ("a", "b") for gap in (0.1, 0.5, 0.9)]
    line = ladder()["rule"](ladder()["RULE"], rungs, ladder()["of_uploads"])
    assert line == ProbitLine(0.1, 1.0, 0.0, 0.1, 0.9)
    assert line.gap_for(line.at(0.4)) == pytest.approx(0.4)


def test_a_left_out_data_set_is_judged_by_the_others_only() -> None:
    rungs = [*(on_the_line(gap, "a") for gap in (0.1, 0.5, 0.9)), rung(0.5, 0.9, "b")]
    rungs.append(rung(0.2, 0.7, "b"))
    errors = ladder()["left_out"](ladder()["RULE"], rungs, ladder()["of_uploads"])
    line = NormalDist().cdf
    assert errors[3:] == pytest.approx([0.9 - line(0.6), 0.7 - line(0.3)])


def test_rungs_are_inside_or_outside_the_fitted_rule() -> None:
    line, axis, score = (
        ProbitLine(0.1, 1.0, 0.02, 0.0, 1.0),
        ladder()["RULE"],
        ladder()["of_uploads"],
    )
    near, far = on_the_line(0.4), rung(0.4, 0.8)
    assert ladder()["inside"](line, axis, [near, far], score) == [True, False]


def test_the_picture_shows_every_data_set_and_is_deterministic() -> None:
    script = ladder()
    rungs = [on_the_line(gap) for gap in (0.1, 0.5, 0.9)]
    check = [rung(0.3, 0.6, "ladder-check-fashion")]
    line = ProbitLine(0.1, 1.0, 0.05, 0.1, 0.9)
    drawn = [script["picture"](rungs, check, line, line) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].lstrip().startswith("<?xml")
    assert "EMNIST letters" in drawn[0]
    assert "Fashion-MNIST (check)" in drawn[0]


def having(**parts: object) -> Record:
    return record(size=100).model_copy(update=parts)


def trajectory(origin: Any, mean: list[float | None], half: float = 1.2815516) -> Trajectory:
    return Trajectory(
        signal="loss",
        target=0,
        seed=1,
        origin=origin,
        rounds=list(range(len(mean))),
        mean=mean,
        low=[None if value is None else value - half for value in mean],
        high=[None if value is None else value + half for value in mean],
    )


def test_gap_of_uploads_is_in_standard_deviations_of_the_loss() -> None:
    # The middle 80 % of normal values reach 1.28 standard deviations to either side.
    signals = [trajectory("member", [-1.0, -0.5, None]), trajectory("unseen", [-1.5, -1.5, -2.0])]
    assert loss_gap(having(trajectories=signals)) == pytest.approx(0.75)
    wider = [signals[0], trajectory("unseen", [-1.5, -1.5, -2.0], half=2 * 1.2815516)]
    assert loss_gap(having(trajectories=wider)) == pytest.approx(0.375)
    assert loss_gap(having(trajectories=signals[:1])) is None


def test_the_strongest_attack_considers_one_attack_per_signal() -> None:
    def auc(attack: str, value: float, target: int = 0, seed: int | None = 1) -> Estimate:
        return Estimate(
            attack=attack,
            metric="auc",
            target=target,
            seed=seed,
            value=value,
            low=value - 0.02,
            high=value + 0.02,
        )

    both = [auc("loss-series", 0.7), auc("avg-cosine", 0.6)]
    best = strongest_upload_attack(having(seeds=[1], estimates=both))
    assert best is not None
    assert best.attack == "loss-series"
    assert (best.value, best.low, best.high) == pytest.approx((0.7, 0.68, 0.72))
    assert strongest_upload_attack(having(seeds=[1], estimates=both[:1])) is None
    # Two audited clients give the mean, and several seeds the figure over them.
    two = [*both, auc("avg-cosine", 0.9, target=1), auc("loss-series", 0.5, target=1)]
    best = strongest_upload_attack(having(seeds=[1], estimates=two))
    assert best is not None
    assert best.attack == "avg-cosine"
    assert best.value == pytest.approx(0.75)
    over = [auc(estimate.attack, 0.8, seed=None) for estimate in both]
    best = strongest_upload_attack(having(seeds=[1, 2], estimates=[*both, *over]))
    assert best is not None
    assert best.value == 0.8
