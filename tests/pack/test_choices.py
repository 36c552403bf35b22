"""Packs with correct estimates that omit or change choices."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedaudit.gate.policy import policy_from
from fedaudit.live.attack import attack_recording
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.pack.choices import suspicious_names
from fedaudit.pack.packing import write_pack
from fedaudit.pack.recomputing import compare_choices, compare_with_run
from fedaudit.pack.verifying import Verified, verify
from fedaudit.results.read import read_record
from fedaudit.results.record import Record, write_record
from fedaudit.results.runs import ClientCoverage, Coverage, MissingRounds
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.digests import write_with_digest
from tests.live.federation import recorder, rounds
from tests.programs import exit_code
from tests.study.studies import quick_study

Json = dict[str, Any]
POLICY = 'name = "x"\n[membership]\nauc = 0.6\n[controls]\nrequired = []\n'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that keeps its updates."""
    folder = tmp_path_factory.mktemp("choices") / "run"
    run_study(quick_study(audit={"keep": "full"}), folder)
    return folder


def packed(record: Path, folder: Path, policy: str = POLICY) -> Path:
    (folder / "policy.toml").write_text(policy)
    write_pack(record, folder / "policy.toml", folder / "pack")
    return folder / "pack"


def attacked(run: Path, folder: Path, *names: str, **figures: object) -> Path:
    """A pack of the run with other attacks or evaluation settings, as its own command makes it."""
    changes = {f"figures.{name}": value for name, value in figures.items()}
    reattack(run, names, folder / "again", figures=changes)
    return packed(folder / "again" / "record.json", folder)


def wrong(verified: Verified) -> str:
    return "\n".join(verified.problems)


def test_an_honest_pack_of_kept_updates_is_sound(run: Path, tmp_path: Path) -> None:
    pack = packed(run / "record.json", tmp_path)
    verified = compare_with_run(verify(pack, policy=tmp_path / "policy.toml"), run)
    assert verified.problems == []
    assert "attacks and evaluation settings are those of the run" in verified.checked
    assert "signals agree with the updates that the run stored" in verified.checked
    assert "policy.toml has the settings of your policy policy.toml" in verified.checked


def test_an_omitted_attack_is_reported(run: Path, tmp_path: Path) -> None:
    pack = attacked(run, tmp_path, "blackbox-loss")
    assert any("attacks, clients, samples, seeds" in line for line in verify(pack).unchecked)
    verified = compare_with_run(verify(pack), run)
    assert wrong(verified) == "the record omits attacks of the run: loss-series"


def test_the_attacks_of_the_receivers_policy_are_sufficient(run: Path, tmp_path: Path) -> None:
    policy_text = POLICY.replace("auc = 0.6", 'auc = 0.6\nattacks = ["blackbox-loss"]')
    reattack(run, ["blackbox-loss"], tmp_path / "again")
    pack = packed(tmp_path / "again" / "record.json", tmp_path, policy_text)
    verified = compare_with_run(verify(pack, policy=tmp_path / "policy.toml"), run)
    assert verified.problems == []
    assert any("does not require: loss-series" in line for line in verified.unchecked)
    (tmp_path / "mine.toml").write_text(policy_text.replace("blackbox-loss", "loss-series"))
    verified = compare_with_run(verify(pack, policy=tmp_path / "mine.toml"), run)
    assert "lacks attacks that your policy requires: loss-series" in wrong(verified)
    assert "omits attacks of the run: loss-series" in wrong(verified)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", 1e-9),
        ("permutations", 21),
        ("fprs", (0.5,)),
        ("null_members", True),
        ("evaluation", "redraw"),
        ("most_exposed", 1),
    ],
)
def test_settings_of_figures_that_differ_from_the_run_are_reported(
    name: str, value: object, run: Path, tmp_path: Path
) -> None:
    verified = compare_with_run(verify(attacked(run, tmp_path, **{name: value})), run)
    assert f"evaluation settings are not those of the run: figures.{name} is " in wrong(verified)


def test_an_added_control_is_accepted(run: Path) -> None:
    record = read_record(run / "record.json")
    config: Json = json.loads(json.dumps(record.config))
    config["figures"]["planted_leak"] = True
    added = record.model_copy(update={"config": config})
    assert compare_choices(added, run, None).problems == []


def test_an_added_attack_is_reported(run: Path) -> None:
    record = read_record(run / "record.json")
    config: Json = json.loads(json.dumps(record.config))
    config["attacks"]["fedmia-1"] = {}
    added = compare_choices(record.model_copy(update={"config": config}), run, None)
    assert "the run does not name fedmia-1" in added.unchecked[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("auc = 0.6", "auc = 0.99", "membership.auc is 0.6 instead of 0.99"),
        ("required = []", 'otherwise = "fail"', "controls.otherwise is 'inconclusive' instead of"),
        ("auc = 0.6", "auc = 0.6\ntargets = [0]", "membership.targets"),
        ("auc = 0.6", 'auc = 0.6\ncontrasts = ["mixed"]', "membership.contrasts"),
    ],
)
def test_a_changed_policy_with_the_same_name_is_reported(
    old: str, new: str, message: str, run: Path, tmp_path: Path
) -> None:
    pack = packed(run / "record.json", tmp_path)
    assert any(
        "policy 'x' in the pack is yours (--policy)" in line for line in verify(pack).unchecked
    )
    mine = tmp_path / "mine.toml"
    mine.write_text(POLICY.replace(old, new))
    assert message in wrong(verify(pack, policy=mine))
    assert "by your policy the verdict on the packed record is " in wrong(verify(pack, policy=mine))
    mine.write_text("# a comment\n" + POLICY.replace('"x"', '"another name"'))
    assert verify(pack, policy=mine).problems == []


def test_the_command_compares_with_the_receivers_policy(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = packed(run / "record.json", tmp_path)
    assert exit_code("verify", pack, "--policy", tmp_path / "policy.toml") == 0
    assert "its policy is yours" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "mine.toml").write_text(POLICY.replace("0.6", "0.7"))
    assert exit_code("verify", pack, "--policy", tmp_path / "mine.toml") == 1
    assert exit_code("verify", pack, "--policy", tmp_path / "gone.toml") == 2


def exchanged(values: torch.Tensor) -> torch.Tensor:
    return values.flip(1)


def constant(values: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(values)


def one_sample(values: torch.Tensor) -> torch.Tensor:
    changed = values.clone()
    changed[:, 0] += values.std() / 2
    return changed


def scaled(values: torch.Tensor) -> torch.Tensor:
    return values * 1.1


@pytest.mark.slow
@pytest.mark.parametrize("change", [exchanged, constant, one_sample, scaled])
def test_signals_that_contradict_kept_updates_are_reported(
    change: Callable[[torch.Tensor], torch.Tensor], run: Path, tmp_path: Path
) -> None:
    false = tmp_path / "false"
    shutil.copytree(run, false)
    (path,) = (
        (false / "runs").glob("**/round-000004.safetensors")
        if (false / "runs").is_dir()
        else false.glob("**/measured/round-000004.safetensors")
    )
    tensors, notes = read_tensors(path)
    write_tensors({**tensors, "signal/loss": change(tensors["signal/loss"])}, path, notes)
    reattack(false, [], tmp_path / "again")
    pack = packed(tmp_path / "again" / "record.json", tmp_path)
    line = "round 4 of seed 1 has signals that differ from those of its stored updates: loss"
    assert line in wrong(compare_with_run(verify(pack), false))


def test_signals_without_kept_updates_are_listed_as_unchecked(tmp_path: Path) -> None:
    run_study(quick_study(), tmp_path / "run")
    verified = compare_with_run(
        verify(packed(tmp_path / "run" / "record.json", tmp_path)), tmp_path / "run"
    )
    assert verified.problems == []
    assert any("did not store its updates" in line for line in verified.unchecked)


def renamed(record: Record, name: str) -> Record:
    return Record.model_validate_json(record.model_dump_json().replace("loss-series", name))


@pytest.mark.parametrize("name", ["lοss-series", "loss‐series", "lo\u0455\u0455-series"])
def test_a_name_with_look_alike_letters_is_refused(name: str, run: Path, tmp_path: Path) -> None:
    write_record(renamed(read_record(run / "record.json"), name), tmp_path / "record.json")
    verified = verify(packed(tmp_path / "record.json", tmp_path))
    assert f"names with letters outside ASCII: {name!a}" in wrong(verified)


def test_a_policy_with_look_alike_letters_is_refused(run: Path) -> None:
    policy = policy_from(POLICY.replace("auc = 0.6", 'auc = 0.6\nattacks = ["lοss-series"]'))
    assert suspicious_names(read_record(run / "record.json"), policy).problems


@pytest.mark.parametrize("name", ["loss-serles", "mine:attack"])
def test_custom_attacks_are_listed_as_unchecked(name: str, run: Path) -> None:
    other = renamed(read_record(run / "record.json"), name)
    (line,) = suspicious_names(other, policy_from(POLICY)).unchecked
    assert name in line


def without_a_seed(record: Json) -> None:
    record["seeds"] = record["config"]["seeds"] = [2]


def another_target(record: Json) -> None:
    record["config"]["audit"]["targets"] = [1]


def fewer_controls(record: Json) -> None:
    record["controls"] = record["controls"][:1]


def another_size(record: Json) -> None:
    record["clients"][0]["samples"] += 1


def less_untested(record: Json) -> None:
    record["untested"] = []


def weaker_adversary(record: Json) -> None:
    record["view"]["sees"] = record["view"]["sees"][:1]


def no_figures_of_an_attack(record: Json) -> None:
    record["estimates"] = [e for e in record["estimates"] if e.get("attack") != "loss-series"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        without_a_seed,
        another_target,
        fewer_controls,
        another_size,
        less_untested,
        weaker_adversary,
        no_figures_of_an_attack,
    ],
)
def test_parts_missing_in_a_record_are_detected_from_its_run(
    change: Callable[[Json], None], run: Path, tmp_path: Path
) -> None:
    record = json.loads((run / "record.json").read_text())
    change(record)
    write_with_digest(record, tmp_path / "record.json")
    assert compare_with_run(verify(packed(tmp_path / "record.json", tmp_path)), run).problems


def covered(record: Record) -> Record:
    coverage = Coverage(
        rounds=30,
        measured=6,
        last_measured=6,
        clients=[ClientCoverage(client=0, answered=30, measured=6, first=1, last=6)],
        missing_rounds=[MissingRounds(first=7, last=30, reason="one client sent NaN")],
        n_missing_rounds=24,
    )
    return record.model_copy(update={"coverage": coverage})


def test_verify_reports_missing_coverage(run: Path, tmp_path: Path) -> None:
    record = covered(read_record(run / "record.json"))
    write_record(record, tmp_path / "record.json")
    pack = packed(tmp_path / "record.json", tmp_path)
    verified = verify(pack)
    assert verified.record is not None
    assert verified.record.coverage == record.coverage
    assert any("not measured: 24 rounds (7–30)" in line for line in verified.unchecked)
    assert verified.manifest is not None
    assert verified.manifest.coverage["missing_rounds"] == 24
    (gone := tmp_path / "gone").mkdir()
    write_record(record.model_copy(update={"coverage": None}), gone / "record.json")
    (complete_folder := tmp_path / "whole").mkdir()
    older = read_record(run / "record.json").model_copy(update={"coverage": None})
    write_record(older, complete_folder / "record.json")
    assert "coverage" in wrong(compare_with_run(verified, run))
    assert (
        "coverage"
        not in (
            packed(complete_folder / "record.json", complete_folder) / "manifest.json"
        ).read_text()
    )


@pytest.mark.slow
def test_choices_of_a_live_recording_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    with recorder(folder) as live:
        for live_round in rounds():
            live.round(live_round.number, sent=live_round.sent, uploads=live_round.uploads)
    figures = {"permutations": 20, "blind_classifier": False, "alpha": 1e-9}
    record = attack_recording(folder, (), tmp_path / "whole", figures=figures)
    few = attack_recording(folder, ("blackbox-loss",), tmp_path / "few")
    verified = compare_choices(record, folder, None)
    assert verified.problems == []
    (line,) = verified.unchecked
    assert "figures.alpha is 1e-09 instead of 0.05" in line
    assert "figures.blind_classifier is False" in line
    assert "omits attacks of the run: avg-cosine, fedmia-1" in wrong(
        Verified(compare_choices(few, folder, None).problems, [])
    )
    nobody = record.model_copy(update={"null_members": True})
    assert "labels unseen samples as members" in compare_choices(nobody, folder, None).problems[0]
