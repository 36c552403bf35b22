"""Small complete studies: outputs, reproducibility and errors."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fedaudit.attacks import DEFAULT_SET, SOURCE_ATTACKS, attack_set
from fedaudit.core.errors import BadInput, Damaged, NotVisible, Unsupported, called_by
from fedaudit.fl.accounting import gaussian_mechanism_epsilon
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.study.studies import Carried, quick_study, small_study

ATTACKED = sum(
    not (
        attack.learns
        or attack.needs_references
        or attack.needs_side_information
        or attack.infers_source
    )
    for attack in attack_set(DEFAULT_SET).values()
)
"""Attacks that a study makes without a table of attacks, a shadow, references or a defense."""


def test_the_content_hash_depends_only_on_the_seed(quick: Carried, tmp_path: Path) -> None:
    record = run_study(quick_study(), tmp_path / "b")
    other = run_study(quick_study(seeds=[2]), tmp_path / "c")
    assert quick.record.content_hash == record.content_hash != other.content_hash


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_workers(small: Carried, tmp_path: Path) -> None:
    together = run_study(small_study(), tmp_path, workers=2)
    assert small.record.content_hash == together.content_hash


def test_a_record_reads_back_as_it_was_written(small: Carried) -> None:
    assert read_record(small.folder / "record.json") == small.record


def test_every_attack_has_three_contrasts_with_intervals(small: Carried) -> None:
    aucs = [f for f in small.record.findings if f.metric == "auc"]
    assert len(aucs) == ATTACKED * 3
    for figure in aucs:
        assert figure.value is not None
        assert figure.low is not None
        assert figure.high is not None
        assert figure.low <= figure.value <= figure.high


def test_a_tpr_on_too_few_samples_is_inconclusive(small: Carried) -> None:
    rates = [f for f in small.record.findings if f.metric == "tpr@0.001"]
    assert rates
    assert all(f.value is None and f.note.startswith("inconclusive: needs") for f in rates)


def test_several_seeds_also_give_their_mean(tmp_path: Path) -> None:
    record = run_study(quick_study(seeds=[1, 2, 3]), tmp_path)
    means = [f for f in record.findings if f.seed is None and f.metric == "auc"]
    assert len(means) == 2 * 3
    for mean in means:
        runs = [
            f.value
            for f in record.findings
            if (f.attack, f.contrast, f.metric) == (mean.attack, mean.contrast, "auc")
            and f.seed is not None
            and f.value is not None
        ]
        assert mean.value == pytest.approx(np.mean(runs))


def test_the_sum_view_refuses_rules_over_clients(
    tmp_path: Path,
) -> None:
    record = run_study(quick_study(audit={"view": "sum"}, attacks={}), tmp_path)
    refused = {row.name: row.note for row in record.attacks if row.status == "refused"}
    learned = {name for name, attack in attack_set(DEFAULT_SET).items() if attack.learns}
    # Source inference is impossible without uploads of single clients.
    assert set(refused) == {"fedmia-1", "fedmia-2", *learned, *SOURCE_ATTACKS}
    assert "each client's upload" in refused["fedmia-1"]


def test_an_attack_named_for_too_weak_a_view_is_refused(tmp_path: Path) -> None:
    study = small_study(audit={"view": "final"}, attacks={"fedmia-2": {}})
    with pytest.raises(NotVisible, match=r"needs the global model.* hidden in the view 'final'"):
        run_study(study, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("view", ["sum", "globals", "final"])
def test_studies_with_weaker_views_complete(view: str, tmp_path: Path) -> None:
    record = run_study(quick_study(audit={"view": view}, attacks={}), tmp_path)
    assert any(f.value is not None for f in record.findings)


@pytest.mark.slow
def test_redrawn_non_members_differ_without_any_membership(tmp_path: Path) -> None:
    study = small_study(
        audit={"fair": 30, "extra_unseen": 400},
        training={"rounds": 20, "epochs": 2},
        attacks={"loss-series": {}},
        figures={"null_members": True},
    )
    aligned = run_study(study, tmp_path / "a")
    redraw = {"figures.evaluation": "redraw"}
    redrawn = reattack(tmp_path / "a", [], tmp_path / "b", figures=redraw)

    def rate(record: Record, attack: str) -> float:
        (estimate,) = [
            f.value
            for f in record.findings
            if (f.attack, f.contrast, f.metric) == (attack, "unseen", "tpr@0.01")
            and f.value is not None
        ]
        return estimate

    assert rate(aligned, "loss-series") < 0.06
    assert rate(redrawn, "loss-series") > 0.1
    assert redrawn.evaluation == "redraw"


def test_reattacking_gives_the_estimates_of_the_run(small: Carried, tmp_path: Path) -> None:
    record = reattack(small.folder, ["fedmia-2"], tmp_path)
    ours = [f for f in small.record.findings if f.attack == "fedmia-2" and f.metric == "auc"]
    theirs = [f for f in record.findings if f.attack == "fedmia-2" and f.metric == "auc"]
    assert [f.value for f in ours] == [f.value for f in theirs]


def test_kept_updates_allow_attacks_that_were_not_run(tmp_path: Path) -> None:
    run_study(quick_study(audit={"keep": "full"}), tmp_path / "run")
    result = reattack(tmp_path / "run", ["avg-cosine"], tmp_path / "again")
    complete_record = run_study(quick_study(attacks={"avg-cosine": {}}), tmp_path / "whole")
    pairs = [
        [f.value for f in record.findings if f.metric == "auc"]
        for record in (result, complete_record)
    ]
    # Updates are kept in scaled 16 bits, which moves a cosine by about 1e-6.
    assert pairs[0] == pytest.approx(pairs[1], abs=0.01)


def test_without_kept_updates_another_attack_raises(quick: Carried, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'avg-cosine' cannot be run on this recording"):
        reattack(quick.folder, ["avg-cosine"], tmp_path)


@pytest.fixture
def folder(quick: Carried, tmp_path: Path) -> Path:
    """A study's folder to do with as one likes."""
    return shutil.copytree(quick.folder, tmp_path / "study")


def test_a_folder_with_another_study_raises_and_is_not_changed(folder: Path) -> None:
    before = (folder / "record.json").read_bytes()
    with pytest.raises(BadInput, match="has a study with other settings"):
        run_study(quick_study(training={"rounds": 6}), folder)
    assert (folder / "record.json").read_bytes() == before


def test_a_damaged_measurement_is_refused_and_nothing_is_lost(folder: Path) -> None:
    victim = folder / "seed-1" / "measured" / "round-000002.safetensors"
    victim.write_bytes(victim.read_bytes()[:100])
    with pytest.raises(Damaged, match="damaged or not a safetensors file"):
        reattack(folder, [], folder / "again")
    assert (folder / "record.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"name": "x", "unknown": 1}'])
def test_a_recording_with_bad_settings_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises((BadInput, Damaged)):
        reattack(tmp_path, [], tmp_path / "again")


def test_a_full_disk_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 1000))
    with pytest.raises(BadInput, match=r"needs about .* free; choose"):
        run_study(small_study(), tmp_path)
    assert not (tmp_path / "seed-1" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"partition": {"clients": 2000}}, "clients cannot share|given out|short"),
        ({"attacks": {"fedmia2": {}}}, "did you mean 'fedmia-2'"),
        ({"defense": {"name": "gradient-nois"}}, "did you mean 'gradient-noise'"),
        ({"defense": {"name": "client-dp"}}, "needs clip, noise_multiplier"),
        ({"attacks": {"fedmia-1": {"sigma": 3}}}, "setting of this attack"),
        ({"audit": {"every": 9}}, "only 4 rounds"),
        ({"model": {"name": "mpl"}}, "did you mean 'mlp'"),
        ({"audit": {"fair": 5000}}, "short"),
    ],
)
def test_impossible_studies_raise_before_training(
    changes: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        run_study(small_study(**changes), tmp_path)
    assert not (tmp_path / "seed-1").exists()


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"did you mean 'training\.rounds'"):
        small_study(training={"round": 3})


def test_the_hash_covers_the_findings(quick: Carried, tmp_path: Path) -> None:
    figures = json.loads((quick.folder / "record.json").read_text())["estimates"]
    assert figures
    other = run_study(quick_study(figures={"fprs": [0.05]}), tmp_path)
    assert other.content_hash != quick.record.content_hash


def test_only_figures_of_a_recording_can_be_changed(quick: Carried, tmp_path: Path) -> None:
    message = r"'training\.rounds' cannot be changed on a recording.*as "
    for_python = message + r'figures=\{"figures.evaluation": "redraw"\}'
    with pytest.raises(BadInput, match=for_python):
        reattack(quick.folder, [], tmp_path / "b", figures={"training.rounds": 2})
    for_shell = message + "--figures.evaluation=redraw"
    with called_by("command"), pytest.raises(BadInput, match=for_shell):
        reattack(quick.folder, [], tmp_path / "b", figures={"training.rounds": 2})


def test_errors_name_settings_as_the_user_gave_them(quick: Carried, tmp_path: Path) -> None:
    wrong = {"figures.evaluation": "redrw"}
    with pytest.raises(BadInput, match=r"^figures\.evaluation: it should be 'aligned'"):
        reattack(quick.folder, [], tmp_path / "b", figures=wrong)
    with (
        called_by("command"),
        pytest.raises(BadInput, match=r"^--figures\.evaluation: it should be"),
    ):
        reattack(quick.folder, [], tmp_path / "b", figures=wrong)


def test_a_misspelt_attack_is_refused_before_the_folder_for_its_record(quick: Carried) -> None:
    with pytest.raises(BadInput, match=r"no attack named 'fedmia2'; did you mean 'fedmia-2'\?"):
        reattack(quick.folder, ["fedmia2"], quick.folder)


def altered(path: Path, name: str, value: float) -> None:
    tensors, notes = read_tensors(path)
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[0] = value
    write_tensors(tensors, path, notes)


@pytest.mark.parametrize(
    ("name", "value"), [("signal/loss", float("nan")), ("clients", -7), ("clients", 1)]
)
def test_altered_measurements_are_refused(name: str, value: float, folder: Path) -> None:
    altered(folder / "seed-1" / "measured" / "round-000002.safetensors", name, value)
    with pytest.raises(Damaged, match=r"invalid shape|not unique|is damaged: it has clients"):
        reattack(folder, [], folder / "again")


def test_a_changed_value_in_a_round_file_is_refused(folder: Path) -> None:
    path = folder / "seed-1" / "measured" / "round-000002.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1  # still a number, and a signal that could be
    path.write_bytes(content)
    with pytest.raises(Damaged, match=r"round-000002\.safetensors was altered after"):
        reattack(folder, [], folder / "again")


def test_rounds_of_older_versions_without_hash_are_attacked_with_a_note(
    folder: Path,
) -> None:
    message: list[str] = []
    reattack(folder, [], folder / "again", log=message.append)
    assert not any("have no hash" in line for line in message)
    path = folder / "seed-1" / "measured" / "round-000002.safetensors"
    with safe_open(path, framework="pt") as stored:
        notes = {k: v for k, v in stored.metadata().items() if k != "fedaudit.sha256"}
    save_file(read_tensors(path)[0], path, notes)
    reattack(folder, [], folder / "again", log=message.append)
    assert any("1 of 2 measured rounds in" in line and "have no hash" in line for line in message)


def test_rounds_are_not_written_through_symlinks(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("seed-1", "seed-1/measured"):
        out = tmp_path / name.replace("/", "-")
        (out / name).parent.mkdir(parents=True)
        (out / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(BadInput, match="is a link, so files of"):
            run_study(quick_study(training={"rounds": 2}), out)
        assert not any((tmp_path / "elsewhere").iterdir())


def test_damaged_rounds_are_not_mistaken_for_another_run(folder: Path) -> None:
    path = folder / "seed-1" / "measured" / "round-000002.safetensors"
    tensors, notes = read_tensors(path)
    cut = {n: v[:, :-1].clone() if v.ndim == 2 and len(v) else v for n, v in tensors.items()}
    for changed, noted, message in (
        (tensors, {"test_correct/global": "-1"}, "its counts of correct predictions"),
        (tensors, {"train_total/global": "many"}, "its counts of correct predictions"),
        (
            tensors | {"clients": torch.tensor([0, 1, 2, 9])},
            {},
            "clients that the run does not have",
        ),
    ):
        write_tensors(changed, path, notes | noted)
        with pytest.raises(Damaged, match=f"round 2 .* is damaged: .*{message}"):
            reattack(folder, [], folder / "again")
    for other in path.parent.iterdir():
        write_tensors(cut, other, notes)
    with pytest.raises(Damaged, match=r"is damaged: it has \d+ samples instead of \d+"):
        reattack(folder, [], folder / "again")


def test_kept_updates_of_unknown_clients_are_refused(tmp_path: Path) -> None:
    run_study(quick_study(audit={"keep": "full"}), tmp_path / "run")
    path = tmp_path / "run" / "seed-1" / "rounds" / "round-000002" / "server.safetensors"
    tensors, notes = read_tensors(path)
    write_tensors(tensors | {"asked": torch.tensor([0, 1, 2, 3, 77])}, path, notes)
    with pytest.raises(Damaged, match=r"round 2 stored in .* is damaged: it has clients"):
        reattack(tmp_path / "run", ["avg-cosine"], tmp_path / "again")


def test_partial_files_of_a_killed_study_are_removed_on_resume(tmp_path: Path) -> None:
    run_study(quick_study(), tmp_path / "run", pool=tmp_path / "pool")
    (place,) = (tmp_path / "pool").iterdir()
    partial_files = [folder / "x.json.0123abcd.partial" for folder in (tmp_path / "run", place)]
    for path in partial_files:
        path.write_text("{")
        os.utime(path, (1000, 1000))
    run_study(quick_study(), tmp_path / "run", pool=tmp_path / "pool")
    assert not any(path.exists() for path in partial_files)


def test_a_defense_that_would_fail_later_is_refused_before_training(
    tmp_path: Path,
) -> None:
    clipped = {"name": "dp-sgd", "options": {"clip": 1.0, "noise_multiplier": 1.0}}
    net = {"name": "resnet18", "options": {"norm": "batch"}}
    with pytest.raises(Unsupported, match="BatchNorm2d"):
        run_study(small_study(defense=clipped, model=net), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_another_runs_measurements_are_refused(tmp_path: Path) -> None:
    run_study(quick_study(seeds=[1, 2]), tmp_path)
    place = Path("measured") / "round-000002.safetensors"
    shutil.copy(tmp_path / "seed-2" / place, tmp_path / "seed-1" / place)
    with pytest.raises(Damaged, match="belongs to another run"):
        run_study(quick_study(seeds=[1, 2]), tmp_path)


def test_descriptions_can_change_without_a_new_run(quick: Carried, folder: Path) -> None:
    record = run_study(quick_study(hours="a minute", about="Small."), folder)
    assert record.content_hash == quick.record.content_hash


def test_reattacking_keeps_the_attack_settings_of_the_study(tmp_path: Path) -> None:
    study = quick_study(attacks={"fedmia-2": {"outlier_sigmas": 1.0, "leave_one_out": True}})
    record = run_study(study, tmp_path / "run")
    result = reattack(tmp_path / "run", ["fedmia-2"], tmp_path / "again")
    assert result.config["attacks"] == record.config["attacks"]


def test_a_formal_guarantee_is_stated(tmp_path: Path) -> None:
    defense = {"name": "client-dp", "options": {"clip": 1.0, "noise_multiplier": 2.0}}
    record = run_study(quick_study(defense=defense), tmp_path)
    (formal,) = [f for f in record.findings if f.metric == "formal_epsilon"]
    assert formal.value == pytest.approx(gaussian_mechanism_epsilon(2.0, 4, delta=1e-5))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"figures": {"permutations": 5}}, "permutations"),
        ({"figures": {"alpha": 1.0}}, "alpha"),
        ({"audit": {"fair": 0, "extra_unseen": 9}}, "no audited sample would be a member"),
        ({"seeds": [True]}, "seeds"),
        ({"training": {"lr": 1e300}}, "lr"),
        ({"partition": {"clients": 10**24}}, "clients"),
    ],
)
def test_settings_out_of_range_are_refused_when_the_study_is_read(
    changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        small_study(**changes)


@pytest.mark.parametrize("value", ["abc", True])
def test_an_option_of_another_type_is_refused(value: object, tmp_path: Path) -> None:
    noisy = small_study(defense={"name": "gradient-noise", "options": {"sigma": value}})
    uneven = small_study(partition={"scheme": "dirichlet", "options": {"beta": value}})
    for study in (noisy, uneven):
        with pytest.raises(BadInput, match=r"takes a finite number .*, got (True|'abc')"):
            run_study(study, tmp_path)


def test_published_draws_have_their_own_settings(tmp_path: Path) -> None:
    study = quick_study(audit={"draw": "fedmia_paper", "fair": 0, "options": {"share": 0.2}})
    record = run_study(study, tmp_path)
    (row,) = [f for f in record.findings if (f.attack, f.contrast, f.metric) == UNSEEN_AUC]
    # All of the target's 100 samples against a fifth of the 360 tested ones.
    assert row.n_members == 100
    assert row.n_nonmembers == pytest.approx(72, abs=1)


UNSEEN_AUC = ("loss-series", "unseen", "auc")
