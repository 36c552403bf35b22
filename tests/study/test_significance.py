import pytest

from fedaudit.study.record import Figure
from fedaudit.study.significance import corrected
from fedaudit.study.truth import Findings


def figure(seed: int, value: float | None, note: str = "") -> Figure:
    return Figure(
        attack="fedmia-2",
        contrast="unseen",
        target=0,
        seed=seed,
        metric="tpr@0.001",
        value=value,
        n_members=100,
        n_nonmembers=3000,
        note=note,
    )


def mean_of(*figures: Figure) -> Figure:
    findings = Findings()
    findings.figures.extend(figures)
    (mean,) = (row for row in corrected(findings, 0.05) if row.seed is None)
    return mean


def test_a_mean_says_of_how_many_seeds_it_is() -> None:
    mean = mean_of(figure(1, 0.1), figure(2, 0.3), figure(3, None, "too few members"))
    assert mean.value == pytest.approx(0.2)
    assert mean.note == "mean over 2 of 3 seeds"


def test_without_two_values_there_is_no_mean_and_the_reason_stands_there() -> None:
    mean = mean_of(figure(1, 0.1), figure(2, None, "too few members"))
    assert mean.value is None
    assert mean.note == "1 of 2 seeds gave this figure, and a mean needs two: too few members"
