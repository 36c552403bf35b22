"""Checks before training, for studies and grids."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.evaluation.controls import _TWIN_TRAINING, _twin_training
from fedaudit.plan.parts import Extension, Setup
from fedaudit.plan.sections import Study
from fedaudit.study.build import build_setup
from fedaudit.study.running.observing import observe
from fedaudit.study.running.preflight import (
    _checked_rounds,
    _suggest_batch_size,
    check_grid,
    check_run,
    detectable_leaks,
    raise_if_too_few_clients,
)
from fedaudit.study.running.run import run_study
from tests.programs import exit_code
from tests.study.studies import quick_study, small_study

NORMALISED = {"name": "tests.study.test_preflight:normalised"}
GRID = """
name = "grid"
[data]
name = "digits"
[partition]
clients = 4
samples_per_client = 100
[training]
rounds = 2
epochs = 1
batch_size = 20
[audit]
fair = 90
[figures]
permutations = 20
blind_classifier = false
[attacks.blackbox-loss]
"""


def normalised(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network with batch normalisation and dropout."""
    width = int(np.prod(shape))
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(width, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(0.5),
        nn.Linear(8, classes),
    )


def with_last_batch_of_one(**changes: object) -> tuple[Study, Setup]:
    """A study in which client 0 has one sample more than its batches take."""
    sizes = build_setup(quick_study(**changes), 1, None).assignment.sizes
    study = quick_study(model=NORMALISED, training={"batch_size": sizes[0] - 1}, **changes)
    return study, build_setup(study, 1, None)


def test_a_last_batch_of_one_raises_with_a_working_size(
    tmp_path: Path,
) -> None:
    study, run = with_last_batch_of_one()
    size = run.assignment.sizes[0]
    with pytest.raises(
        BadInput,
        match=rf"seed 1, client 0.*: with {size} samples in batches of {size - 1}, one batch",
    ) as refused:
        run_study(study, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    better = int(str(refused.value).partition("training.batch_size = ")[2].partition(",")[0])
    assert all(other % better != 1 for other in run.assignment.sizes.values())
    check_run(build_setup(quick_study(model=NORMALISED, training={"batch_size": better}), 1, None))
    # A network without statistics of the batch takes a single sample.
    check_run(build_setup(quick_study(training={"batch_size": size - 1}), 1, None))


@pytest.mark.parametrize(
    ("clients", "merge", "is_possible"), [(2, [], False), (3, [], True), (3, [0, 1], False)]
)
def test_a_study_without_a_possible_attack_is_refused_before_training(
    clients: int, merge: list[int], is_possible: bool
) -> None:
    audit = {"merge": merge, "targets": [0]}
    study = quick_study(partition={"clients": clients}, attacks={"fedmia-1": {}}, audit=audit)
    run = build_setup(study, 1, None)
    if is_possible:
        check_run(run)
        return
    with pytest.raises(Unsupported, match="fedmia-1: scores are comparisons with at least 2 other"):
        check_run(run)
    study = quick_study(partition={"clients": 2}, attacks={"fedmia-1": {}, "loss-series": {}})
    check_run(build_setup(study, 1, None))
    # A study of label inference, for example, has other results.
    raise_if_too_few_clients(replace(run, extensions=(Extension(),)))


def test_preflight_checks_use_the_batches_of_the_defense() -> None:
    half = {"name": "data-sampling", "options": {"share": 0.5}}
    sizes = build_setup(quick_study(), 1, None).assignment.sizes.values()
    drawn = [max(1, int(0.5 * size)) for size in sizes]
    # Of half of its samples some client has one left, and of all of them none has.
    batch = next(
        n
        for n in range(2, 60)
        if any(size % n == 1 for size in drawn) and all(size % n != 1 for size in sizes)
    )
    check_run(build_setup(quick_study(model=NORMALISED, training={"batch_size": batch}), 1, None))
    study = quick_study(model=NORMALISED, defense=half, training={"batch_size": batch})
    with pytest.raises(BadInput, match=r"client .*one batch of round 1 has 1,"):
        check_run(build_setup(study, 1, None))


CLASSES_BY_ROUND = {
    "model": NORMALISED,
    "defense": {"name": "class-guided"},
    "training": {"rounds": 20, "epochs": 1, "batch_size": 14},
    "audit": {"every": 10},
}


def test_preflight_checks_plan_the_batches_of_every_round() -> None:
    run = build_setup(quick_study(**CLASSES_BY_ROUND), 1, None)
    with pytest.raises(BadInput, match=r"client .*one batch of round \d+ has 1, ") as refused:
        check_run(run)
    round = int(str(refused.value).partition("batch of round ")[2].partition(" ")[0])
    assert 1 < round < 20
    assert "training.batch_size = " not in str(refused.value)
    assert "set another training.batch_size" in str(refused.value)


def test_a_failing_batch_size_is_refused_with_client_and_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedaudit.study.running.preflight.CHECKS", ())
    with pytest.raises(
        BadInput, match=r"client \d has a batch of 1 in round \d+, .*cannot take a training step"
    ):
        run_study(quick_study(**CLASSES_BY_ROUND), tmp_path)


def small_batches_only(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network that takes the batches of training, and no larger ones."""

    class Limited(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 30:
                raise RuntimeError("too many rows")
            return super().forward(x.flatten(1))

    return Limited(int(np.prod(shape)), classes)


def test_an_unmeasurable_network_is_refused_before_training(tmp_path: Path) -> None:
    study = quick_study(model={"name": f"{__name__}:small_batches_only"})
    with pytest.raises(
        BadInput,
        match=r"batches of up to 128, .*cannot be run on \d+ samples .*too many rows, in test_pre",
    ):
        run_study(study, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def fails_always(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network that no batch can be trained on."""

    class Fails(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                raise ValueError("never")
            return super().forward(x.flatten(1))

    return Fails(int(np.prod(shape)), classes)


def test_a_network_that_always_fails_raises_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedaudit.study.running.preflight.CHECKS", ())
    with pytest.raises(ValueError, match="never") as raised:
        run_study(quick_study(model={"name": f"{__name__}:fails_always"}), tmp_path)
    assert not isinstance(raised.value, BadInput)


@pytest.mark.parametrize("largest", range(2, 40))
def test_the_advised_batch_size_differs_from_the_refused_one(largest: int) -> None:
    assert _suggest_batch_size([largest * 3, 60], largest, 1) != largest
    assert _suggest_batch_size([largest * 3 + 1, 60], largest, 1) != largest


def test_long_studies_plan_a_subset_of_rounds() -> None:
    run = build_setup(quick_study(training={"rounds": 99_999, "epochs": 1}), 1, None)
    planned = _checked_rounds(run, run.assignment.clients[0])
    assert planned[0] == 1
    assert planned[-1] == 99_999
    assert 1000 < len(planned) < 10**4


def test_every_seed_and_every_federation_of_the_adversary_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[int]()
    check: Callable[..., None] = lambda run, device: seen.append(run.seed)  # noqa: E731
    monkeypatch.setattr("fedaudit.study.running.preflight.CHECKS", (check,))
    study = quick_study(
        seeds=[1, 2], attacks={"seqmia": {"epochs": 1}}, partition={"samples_per_client": 120}
    )
    shadows = [
        federation.seed
        for s in (1, 2)
        for federation in build_setup(study, s, None).additional_federations
    ]
    check_grid([study])
    assert seen == [1, shadows[0], 2, shadows[1]]


def test_preflight_checks_do_not_change_random_streams_or_models() -> None:
    sizes = build_setup(quick_study(), 1, None).assignment.sizes.values()
    batch = _twin_training(list(sizes)).batch_size
    run = build_setup(quick_study(model=NORMALISED, training={"batch_size": batch}), 1, None)
    torch.manual_seed(4)
    np.random.seed(4)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(4)
    np.random.seed(4)  # noqa: NPY002
    before = run.algorithm.architecture.initial(0).tensors()
    check_run(run)
    assert torch.equal(torch.rand(3), expected[0])
    assert (np.random.rand(3) == expected[1]).all()  # noqa: NPY002
    after = run.algorithm.architecture.initial(0).tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_planted_leak_training_has_no_batch_of_one() -> None:
    assert _twin_training([500, 100, 100]) == _TWIN_TRAINING
    assert _twin_training([165, 33, 33]).batch_size == 17
    assert all(size % _twin_training([33, 35, 69]).batch_size != 1 for size in (33, 35, 69))


def grid_of(tmp_path: Path, rows: str) -> tuple[Path, Path]:
    study, out = tmp_path / "grid.toml", tmp_path / "out"
    study.write_text(GRID + rows)
    return study, out


DP_ROW = """
[variants.private]
"defense.name" = "dp-sgd"
"defense.options.clip" = 1.0
"defense.options.noise_multiplier" = 1.0
"""


def test_a_missing_extra_refuses_a_grid_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    study, out = grid_of(tmp_path, DP_ROW)
    assert exit_code("run", study, "--variant", "all", "--out", out, "--workers", "1") == 2
    assert "grid-private: the accountant is not installed" in capsys.readouterr().err
    assert not out.exists()


def test_a_missing_engine_refuses_the_whole_grid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedaudit.engines.ray_cluster.find_spec", lambda name: None)
    study, out = grid_of(tmp_path, '[variants.more]\n"training.rounds" = 3\n')
    words = ("run", study, "--variant", "all", "--out", out, "--engine", "ray")
    assert exit_code(*words) == 2
    assert "fedaudit[ray]" in capsys.readouterr().err
    assert not out.exists()


def test_all_impossible_rows_are_listed_with_shared_reasons_once() -> None:
    needs = {"defense": {"name": "client-dp"}, "partition": {"clients": 4, "scheme": "dirichlet"}}
    studies = [
        quick_study(name="one", **needs),
        quick_study(name="two", **needs),
        quick_study(name="fine"),
        quick_study(name="three", audit={"targets": [9]}),
    ]
    with pytest.raises(BadInput) as refused:
        check_grid(studies)
    first, second = str(refused.value).splitlines()
    assert first.startswith("one, two: ")
    assert second.startswith("three: ")


def test_missing_required_settings_are_listed_with_paper_values() -> None:
    study = quick_study(
        defense={"name": "client-dp", "chain": [{"name": "mixup"}], "also": []},
        partition={"clients": 4, "scheme": "dirichlet"},
    )
    with pytest.raises(BadInput) as refused:
        build_setup(study, 1, None)
    message = str(refused.value)
    assert "give it as partition.options.beta (published: 0.1, 1 and 10 (FedMIA), 0.5" in message
    assert "defense.options.clip and defense.options.noise_multiplier" in message
    assert "defense.options.alpha (published: 1e-5 to 1e5 (FedMIA), 0.01 (CoFedMID))" in message


def test_errors_of_training_are_raised_for_grid_rows_beforehand() -> None:
    study = quick_study(
        name="outputs",
        algorithm={"name": "ifca"},
        defense={"name": "neutral-noise", "options": {"sigma": 0.1}},
    )
    with pytest.raises(Unsupported, match="outputs: the noise of NeutralNoise"):
        check_grid([quick_study(), study])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (BadInput("the disk is full"), 2, "grid-more: the disk is full"),
        (
            ValueError("some fault"),
            70,
            "grid-more: a bug in fedaudit (ValueError: some fault, in test_preflight.py, line ",
        ),
    ],
)
def test_a_failing_row_does_not_stop_other_rows(
    error: Exception,
    code: int,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = '[variants.more]\n"training.rounds" = 3\n[variants.other]\n"training.lr" = 0.05\n'
    study, out = grid_of(tmp_path, rows)

    def failing(run: Setup, *arguments: object) -> object:
        if run.study.name == "grid-more":
            raise error
        return observe(run, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("fedaudit.study.running.run.observe", failing)
    assert exit_code("run", study, "--variant", "all", "--out", out, "--workers", "1") == code
    printed = capsys.readouterr()
    assert "1 of 3 variants failed, and the others are complete" in printed.err
    assert reason in printed.err
    assert "grid-more failed: " in printed.out
    assert (out / "grid" / "record.json").is_file()
    assert (out / "grid-other" / "record.json").is_file()
    assert not (out / "grid-more" / "record.json").exists()
    assert (out / "comparison.json").is_file()
    monkeypatch.undo()
    assert exit_code("run", study, "--variant", "all", "--out", out, "--workers", "1") == 0
    assert (out / "grid-more" / "record.json").is_file()


@pytest.mark.slow
def test_the_smallest_detectable_leak_is_printed_before_training(
    tmp_path: Path,
) -> None:
    study = quick_study(audit={"targets": [0, 1], "extra_unseen": 60}, figures={"fprs": [0.05]})
    run, lines = build_setup(study, 1, None), list[str]()
    (line,) = detectable_leaks(run)
    record = run_study(study, tmp_path / "one", log=lines.append)
    assert lines.index(line) < next(n for n, text in enumerate(lines) if text.startswith("seed 1"))
    tested = [estimate for estimate in record.findings if estimate.tests]
    assert f"2 attacks on 1 seed, {len(tested)} tests with a family-wise error rate of 5%" in line
    sizes = {(line.n_members, line.n_nonmembers) for line in tested if line.target == 0}
    counted = line.partition("(client ")[2].partition(" members")[0].split()[-1]
    assert int(counted) in {members for members, _ in sizes} | {
        line.n_members for line in tested if line.target == 1
    }
    grid = list[str]()
    check_grid([study, quick_study(name="other", attacks={"blackbox-loss": {}})], log=grid.append)
    assert grid[0] == f"small: {line}"
    assert grid[1].startswith("other: smallest leak")


@pytest.mark.slow
def test_pooled_tests_count_for_the_detectable_leak(tmp_path: Path) -> None:
    skewed = {"scheme": "dirichlet", "clients": 4, "options": {"beta": 0.5}}
    study = quick_study(
        audit={"targets": [0, 1]}, partition=skewed, seeds=[1, 2], training={"rounds": 2}
    )
    (line,) = detectable_leaks(build_setup(study, 1, None))
    record = run_study(study, tmp_path)
    means = [estimate for estimate in record.findings if estimate.seed is None and estimate.tests]
    assert f"2 attacks on 2 seeds, {len(means)} tests" in line
    assert "all audited clients together" in line


def test_a_study_too_small_for_any_leak_is_reported() -> None:
    (line,) = detectable_leaks(build_setup(small_study(audit={"fair": 4}), 2, None))
    assert line.startswith("a study of this size cannot detect any leak")


def test_a_defense_is_checked_with_its_prepared_state(tmp_path: Path) -> None:
    pytest.importorskip("kornia")
    study = quick_study(defense={"name": "augmentation"})
    record = run_study(study, tmp_path)
    assert record.estimates
