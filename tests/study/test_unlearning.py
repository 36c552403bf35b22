"""Unlearning in complete studies."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedaudit as fa
from fedaudit.api.federation import plan_of
from fedaudit.core.errors import BadInput, Damaged, Unsupported
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import NO_CLIENT, Model, difference, norm
from fedaudit.extensions.unlearning import (
    Unlearning,
    _with_initial_model,
    _with_verdicts,
    unlearning_controls,
)
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.observe.measurements import stacked
from fedaudit.observe.tensors import read_tensors
from fedaudit.pack.suppressing import suppress_small_groups
from fedaudit.plan.identity import run_key
from fedaudit.plan.parts import Setup
from fedaudit.plan.sections import Study
from fedaudit.report.page import report_html
from fedaudit.report.unlearning import (
    deletion_result,
    unlearning_section,
    unlearning_tile,
    verdict_text,
)
from fedaudit.results import estimate
from fedaudit.results.record import Record
from fedaudit.results.unlearning import unlearning_rows, unlearning_verdict_of
from fedaudit.study.build import build_setup
from fedaudit.study.running.observing import stored_rounds
from fedaudit.study.running.preflight import check_run
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.report.seen import must
from tests.study.studies import Carried, quick_study

FINAL: dict[str, object] = {"view": "final", "every": 0}


def unlearning_study(**changes: object) -> Study:
    """A small federation of which the final model is seen, and samples are forgotten."""
    values: dict[str, object] = {
        "audit": FINAL,
        "attacks": {"blackbox-loss": {}},
        "unlearning": {"method": "continue", "rounds": 2},
    }
    return quick_study(**{**values, **changes})


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    folder = tmp_path_factory.mktemp("continued")
    return Carried(run_study(unlearning_study(), folder), folder)


def trained_on(run: Setup) -> set[int]:
    return set(torch.cat([part.ids for part in run.assignment.clients.values()]).tolist())


def released(folder: Path, run: Setup) -> Model:
    tensors, _ = read_tensors(folder / "seed-1" / "checkpoint.safetensors")
    state = {n.removeprefix("server/"): v for n, v in tensors.items() if n.startswith("server/")}
    return Model.from_tensors(run.algorithm.architecture, state)


def further_federations(run: Setup) -> tuple[Setup, Setup]:
    extension = run.extension(Unlearning)
    assert extension is not None
    assert extension.unlearned_run is not None
    return extension.unlearned_run, extension.retrained_run


def begun(run: Setup, folder: Path) -> Setup:
    """What is trained after a run, with the model that it begins with."""
    section = run.study.unlearning
    assert section is not None
    return _with_initial_model(replace(run, folder=folder), further_federations(run)[0], section)


def test_only_audited_members_of_the_target_are_unlearned() -> None:
    run = build_setup(unlearning_study(), 1, None)
    members = run.assignment.audit.owner == 0
    for federation in further_federations(run):
        forgotten = set(run.assignment.audit.samples.ids[torch.from_numpy(members)].tolist())
        assert trained_on(run) - trained_on(federation) == forgotten
        assert trained_on(federation) < trained_on(run)
        assert (federation.assignment.audit.owner[members] == NO_CLIENT).all()
        assert np.array_equal(
            federation.assignment.audit.owner[~members], run.assignment.audit.owner[~members]
        )


def test_a_client_that_unlearns_all_samples_leaves_the_federation() -> None:
    noise = {"name": "gradient-noise", "options": {"sigma": 0.1}}
    alone = unlearning_study(audit=FINAL | {"background": 0}, defense=noise)
    run = build_setup(alone, 1, None)
    for federation in further_federations(run):
        assert set(run.assignment.clients) - set(federation.assignment.clients) == {0}
        assert set(federation.defenses) == set(federation.assignment.clients)


def test_continued_training_starts_from_the_released_model(continued: Carried) -> None:
    run = build_setup(unlearning_study(), 1, None)
    after = begun(run, continued.folder / "seed-1")
    clients, seed = after.all_clients.data, seed_for(after.seed, "federation")
    first = next(iter(simulate(after.algorithm, clients, rounds=2, seed=seed)))
    sent, released_model = first.sent[0].model, released(continued.folder, run)
    assert all(torch.equal(value, released_model.params[n]) for n, value in sent.params.items())
    copied = pickle.loads(pickle.dumps(sent.architecture)).initial(7)
    assert all(torch.equal(value, released_model.params[n]) for n, value in copied.params.items())


def last_of_one(sizes: list[int], among: list[int]) -> int:
    """A batch size with which one of some sizes has a last batch of one sample, and no other."""
    return next(
        batch
        for batch in range(10, 100)
        if any(size % batch == 1 for size in among) and all(size % batch != 1 for size in sizes)
    )


def normalised_study(batch: int, method: str) -> Study:
    return unlearning_study(
        model={"name": "tests.study.test_preflight:normalised"},
        training={"batch_size": batch},
        unlearning={"method": method},
    )


def test_unlearning_that_leaves_a_batch_of_one_raises_before_training(
    tmp_path: Path,
) -> None:
    run = build_setup(unlearning_study(unlearning={"method": "ascent"}), 1, None)
    after = run.extension(Unlearning)
    assert after is not None
    trained = [*run.assignment.sizes.values(), *after.retrained_run.assignment.sizes.values()]
    forgotten = int((run.assignment.audit.owner == 0).sum())
    batch = last_of_one(trained, [forgotten])
    with pytest.raises(
        BadInput,
        match=rf"seed 1, client 0: .* step of gradient ascent on a batch of 1 of {forgotten} "
        "forgotten samples",
    ):
        run_study(normalised_study(batch, "ascent"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # Methods that do not climb have no such batches.
    check_run(build_setup(normalised_study(batch, "continue"), 1, None))


def test_errors_of_retrained_federations_name_the_seed() -> None:
    run = build_setup(unlearning_study(), 1, None)
    after = run.extension(Unlearning)
    assert after is not None
    batch = last_of_one(
        [*run.assignment.sizes.values()], [*after.retrained_run.assignment.sizes.values()]
    )
    with pytest.raises(
        BadInput, match=r"the (retrained|unlearning) federation of seed 1, client 0"
    ):
        check_run(build_setup(normalised_study(batch, "continue"), 1, None))


def test_display_names_of_runs_and_additional_federations() -> None:
    run = build_setup(quick_study(attacks={"seqmia": {"epochs": 1}}), 1, None)
    assert run.display_name == "seed 1"
    (shadow,) = run.additional_federations
    assert shadow.display_name == "the shadow federation of seed 1"


def test_ascent_raises_the_loss_of_forgotten_samples_within_its_radius(continued: Carried) -> None:
    study = unlearning_study(unlearning={"method": "ascent", "radius": 0.25})
    run, folder = build_setup(study, 1, None), continued.folder
    released_model, after = released(folder, run), begun(run, folder / "seed-1")
    assert isinstance(after.algorithm, FedAvg)
    climbed = after.algorithm.architecture.initial(0)
    fresh = released_model.architecture.initial(seed_for(run.seed, "ascent"))
    moved = norm(difference(climbed.params, released_model.params))
    full_distance = norm(difference(released_model.params, fresh.params))
    assert moved == pytest.approx(0.25 * full_distance, rel=1e-4)
    own_samples = run.assignment.audit.samples.take(
        torch.from_numpy(run.assignment.audit.owner == 0)
    )
    losses = [
        float(
            released_model.architecture.loss(
                model.module()(own_samples.features), own_samples.targets
            )
            .mean()
            .detach()
        )
        for model in (released_model, climbed)
    ]
    assert losses[1] > 2 * losses[0]


def test_estimates_cover_the_models_before_after_and_retrained(continued: Carried) -> None:
    (row,) = unlearning_rows(continued.record)
    aucs = [f for f in continued.record.findings if f.metric == "auc" and f.contrast == "unseen"]
    assert row.before.value == next(auc.value for auc in aucs if auc.seed == 1)
    assert row.excess.value == pytest.approx(row.after.number - row.retrained.number)
    assert row.excess.method.endswith("90%")
    run = build_setup(unlearning_study(), 1, None)
    after, _ = further_federations(run)
    folder = continued.folder / "shadow" / f"seed-{after.seed}"
    rounds = stored_rounds(replace(after, folder=folder))
    (cube,) = stacked(round_.measured for round_ in rounds).values()
    values, owner = cube.values[0, 0].numpy(), run.assignment.audit.owner
    members, unseen = values[owner == 0], values[owner == NO_CLIENT]
    pairs = np.sign(members[:, None] - unseen[None]).mean()
    assert row.after.value == pytest.approx((pairs + 1) / 2)


def test_the_method_nothing_changes_no_estimate(tmp_path: Path) -> None:
    record = run_study(unlearning_study(unlearning={"method": "nothing"}), tmp_path)
    (row,) = unlearning_rows(record)
    assert row.after.value == row.before.value
    assert row.both.value == 0.5


def test_reattacking_gives_the_same_unlearning_estimates(
    continued: Carried, tmp_path: Path
) -> None:
    other_study = reattack(continued.folder, [], out=tmp_path / "again", data_dir=None)
    assert unlearning_rows(other_study) == unlearning_rows(continued.record)


def test_running_a_study_again_trains_nothing(continued: Carried) -> None:
    other_study = run_study(unlearning_study(), continued.folder)
    assert other_study.content_hash == continued.record.content_hash


def test_methods_share_the_audited_run_and_the_retrained_federation() -> None:
    first, other = (
        build_setup(unlearning_study(unlearning={"method": name}), 1, None)
        for name in ("continue", "ascent")
    )
    assert run_key(first.study, 1) == run_key(other.study, 1)
    assert further_federations(first)[1].seed == further_federations(other)[1].seed
    assert further_federations(first)[0].seed != further_federations(other)[0].seed


def test_continued_training_depends_on_the_released_model() -> None:
    short = build_setup(unlearning_study(), 1, None)
    longer = build_setup(unlearning_study(training={"rounds": 6}), 1, None)
    assert further_federations(short)[0].seed != further_federations(longer)[0].seed


def test_a_leak_of_the_retrained_model_fails_its_control() -> None:
    run = build_setup(unlearning_study(), 1, None)

    def checked(p_value: float) -> bool | None:
        alone = estimate.Estimate(
            topic="unlearning",
            metric="auc",
            value=0.7,
            attack="blackbox-loss",
            seed=1,
            point="retrained",
            tests=[estimate.Test(level=0.5, p_value=p_value)],
        )
        checks = unlearning_controls(run, [alone])
        (control,) = [control for control in checks if control.control == "retrained federation"]
        return control.passed

    assert checked(0.4) is True
    assert checked(1e-5) is False


@pytest.mark.slow
def test_memorised_samples_are_not_forgotten_without_unlearning(tmp_path: Path) -> None:
    study = unlearning_study(
        data={"name": "synthetic", "options": {"samples": 2000, "dimensions": 400}},
        unlearning={"method": "nothing"},
        training={"rounds": 10, "epochs": 20, "batch_size": 16, "lr": 0.3},
        partition={"clients": 2, "samples_per_client": 60},
        audit={**FINAL, "fair": 240, "background": 0},
    )
    record = run_study(study, tmp_path)
    (row,) = unlearning_rows(record)
    assert row.before.value is not None
    assert row.before.value > 0.75
    assert row.verdict == "not forgotten"
    (control,) = [control for control in record.controls if control.control == "nothing deleted"]
    assert control.passed


@pytest.mark.parametrize(("low", "expected"), [(0.2, "not forgotten"), (-0.1, "inconclusive")])
def test_an_extreme_auc_is_judged_by_separate_intervals(low: float, expected: str) -> None:
    # Without a p-value that says anything: of two AUCs apart it is 1.
    excess = estimate.Estimate(
        topic="unlearning",
        metric="auc",
        value=0.48,
        low=low,
        high=0.6,
        against="retrained",
        method="separate intervals 90%",
        tests=[estimate.Test(null="retrained", p_value=1.0, significant=False)],
        point="after",
    )
    before = excess.model_copy(
        update={"against": "", "point": "before", "value": 0.98, "low": 0.9, "high": 1.0}
    )
    judged = _with_verdicts([before, excess], margin=0.05)[1]
    assert judged.note.startswith(expected)


def test_person_level_unlearning_counts_people(tmp_path: Path) -> None:
    study = unlearning_study(
        data={
            "name": "synthetic",
            "options": {"samples": 3000, "people": 200, "dimensions": 20, "classes": 5},
        },
        audit={**FINAL, "fair": 40, "unit": "person"},
        partition={"clients": 4, "samples_per_client": 300},
        unlearning={"method": "retrain"},
    )
    record = run_study(study, tmp_path)
    (row,) = unlearning_rows(record)
    assert row.after.unit == "person"
    assert 5 < row.after.n_members < 25
    section = unlearning_section(record)
    assert section is not None
    assert f"of {row.after.n_members} people" in section.texts[0]
    assert "unseen people" in section.tables[0].caption


def test_packs_suppress_estimates_on_few_unlearned_samples(continued: Carried) -> None:
    record = continued.record
    gone = suppress_small_groups(record, 1000).record
    assert all(
        estimate.value is None and estimate.low is None
        for estimate in gone.where(topic="unlearning")
        if estimate.attack
    )
    assert suppress_small_groups(record, 1).record.where(topic="unlearning") == record.where(
        topic="unlearning"
    )
    assert suppress_small_groups(gone, 1000).record == gone


def test_the_report_shows_residual_leak_and_accuracy(continued: Carried) -> None:
    section = unlearning_section(continued.record)
    assert section is not None
    assert "Test accuracy" in [row[0].text for row in section.tables[0].rows]
    (tile,) = unlearning_tile(continued.record)
    assert tile.label == "Unlearning by continue"
    assert tile.value == verdict_text(unlearning_verdict_of(unlearning_rows(continued.record)))
    assert "test accuracy before" in tile.detail
    page = report_html(continued.record)
    assert "AUC of deleted against unseen samples" in page
    assert "After minus retrained" in page


def test_a_model_destroyed_by_unlearning_has_no_forgotten_verdict(continued: Carried) -> None:
    def at(accuracy: float, note: str) -> Record:
        return continued.record.model_copy(
            update={
                "controls": [],
                "estimates": [
                    estimate.model_copy(update={"value": accuracy, "low": None, "high": None})
                    if (estimate.topic, estimate.point, estimate.metric)
                    == ("unlearning", "after", "test_accuracy")
                    else estimate.model_copy(update={"note": note})
                    if estimate.against == "retrained"
                    else estimate
                    for estimate in continued.record.estimates
                ],
            }
        )

    forgotten, not_forgotten = "forgotten as far as", "not forgotten: more distinguishable"
    assert must(deletion_result(at(0.6, forgotten))).verdict == "forgotten"
    assert must(deletion_result(at(0.04, forgotten))).verdict == "model destroyed"
    assert must(deletion_result(at(0.04, not_forgotten))).verdict == "not forgotten", (
        "a leak that is left stands"
    )
    section = unlearning_section(at(0.04, forgotten))
    assert section is not None
    assert "left a test accuracy near guessing" in section.texts[0]
    (tile,) = unlearning_tile(at(0.04, forgotten))
    assert (tile.value, tile.tone) == ("model destroyed", "alarm")


def test_several_targets_unlearn_with_separate_estimates(tmp_path: Path) -> None:
    study = unlearning_study(audit=FINAL | {"targets": [0, 1], "fair": 40})
    record = run_study(study, tmp_path)
    assert [row.after.target for row in unlearning_rows(record)] == [0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audit": {"view": "uploads", "every": 2}}, "audit.view"),
        ({"audit": FINAL | {"draw": "fedmia_code", "options": {"n_unseen": 50}}}, "audit.draw"),
        ({"canaries": {"count": 20, "length": 1.0}}, "canaries"),
        ({"figures": {"null_members": True}}, "null_members"),
    ],
)
def test_invalid_unlearning_settings_raise(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build_setup(unlearning_study(**changes), 1, None)


def test_continued_training_requires_a_stateless_server() -> None:
    with pytest.raises(Unsupported, match="FedAdam"):
        build_setup(unlearning_study(algorithm={"name": "fedadam"}), 1, None)
    other_study = unlearning_study(algorithm={"name": "fedadam"}, unlearning={"method": "retrain"})
    assert further_federations(build_setup(other_study, 1, None))


def test_a_missing_or_changed_released_model_raises(continued: Carried, tmp_path: Path) -> None:
    run = build_setup(unlearning_study(), 1, None)
    with pytest.raises(BadInput, match="checkpoint"):
        begun(run, tmp_path)
    longer = build_setup(unlearning_study(training={"rounds": 6}), 1, None)
    with pytest.raises(Damaged, match="final model"):
        begun(longer, continued.folder / "seed-1")


def test_unlearning_is_the_same_in_python_and_in_a_study_file() -> None:
    options = fa.AuditOptions(unlearning=fa.Unlearning(method="ascent", radius=0.5))
    plan = plan_of(fa.Federation("digits", clients=4), options=options, name="ours")
    assert (
        plan.study.unlearning
        == unlearning_study(unlearning={"method": "ascent", "radius": 0.5}).unlearning
    )
