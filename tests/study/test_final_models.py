"""Digests and files of the models after the last round of a study."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedaudit.core.errors import BadInput, Damaged, Unsupported
from fedaudit.engines.base import Engine
from fedaudit.engines.local import LOCAL, local_engine
from fedaudit.evaluation import final_models
from fedaudit.evaluation.final_models import DIGESTS_FILE, write_digests
from fedaudit.exports.evidence import read_evidence
from fedaudit.pack.manifest import Manifest
from fedaudit.pack.models import compare_model
from fedaudit.pack.packing import write_pack
from fedaudit.pack.verifying import verify
from fedaudit.plan.parts import Setup
from fedaudit.plan.sections import Study
from fedaudit.results.record import Record, record_json
from fedaudit.results.runs import Coverage, ModelDigests
from fedaudit.study.build import build_setup
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.live.federation import POLICY
from tests.programs import exit_code
from tests.study.studies import Carried, quick_study
from tests.study.test_sources import fedmd_study

SEEDS = (1, 2)


def tiny(**changes: object) -> Study:
    # The last of three rounds is not measured.
    sections = {
        "partition": {"clients": 3, "samples_per_client": 40},
        "training": {"rounds": 3, "epochs": 1},
        "audit": {"fair": 60},
    }
    return quick_study(**{**sections, **changes})


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    """A study of two seeds with the files of its models, and its pack."""
    folder = tmp_path_factory.mktemp("kept")
    record = run_study(tiny(seeds=SEEDS), folder / "run", keep_model=True)
    (folder / "policy.toml").write_text(POLICY)
    write_pack(folder / "run" / "record.json", folder / "policy.toml", folder / "pack")
    return Carried(record, folder)


def coverage_of(record: Record) -> Coverage:
    assert record.coverage is not None
    return record.coverage


def test_each_model_of_a_study_is_verified(
    kept: Carried, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in SEEDS:
        model = kept.folder / "run" / f"model-seed-{seed}.safetensors"
        assert exit_code("verify", kept.folder / "pack", "--model", model) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert f"is the model after the last round of seed {seed}" in printed
        assert "it is about your model" in printed


def test_a_changed_weight_and_the_untrained_model_are_refused(
    kept: Carried, tmp_path: Path
) -> None:
    tensors = load_file(kept.folder / "run" / "model-seed-1.safetensors")
    name = next(iter(tensors))
    tensors[name].view(-1)[0] = torch.nextafter(tensors[name].view(-1)[0], torch.tensor(9.0))
    save_file(tensors, tmp_path / "changed.safetensors")
    run = build_setup(tiny(), 1, None)
    save_file(
        dict(run.algorithm.architecture.initial(0).module().state_dict()),
        tmp_path / "untrained.safetensors",
    )
    for file in ("changed", "untrained"):
        arguments = ("--model", tmp_path / f"{file}.safetensors")
        assert exit_code("verify", kept.folder / "pack", *arguments) == 1


def test_a_kept_file_is_a_state_dict_of_the_trained_network(kept: Carried) -> None:
    run = build_setup(tiny(), 1, None)
    module = run.algorithm.architecture.build_module()
    module.load_state_dict(load_file(kept.folder / "run" / "model-seed-1.safetensors"))
    *_, last = run.simulate()
    (trained,) = last.after.values()
    for name, value in module.named_parameters():
        assert torch.equal(value, trained.params[name])


def test_files_of_a_pack_name_all_models(kept: Carried) -> None:
    pack, models = kept.folder / "pack", coverage_of(kept.record).final_models
    assert [(each.seed, each.round, each.name) for each in models] == [(1, 3, ""), (2, 3, "")]
    expected = {f"seed {each.seed}": each.after for each in models}
    assert len({*expected.values()}) == 2
    manifest = Manifest.model_validate_json((pack / "manifest.json").read_text())
    assert (manifest.model, manifest.models) == ("", expected)
    assert json.loads((pack / "verdict.json").read_text())["models"] == expected
    for file in ("summary.html", "clauses.json"):
        text = (pack / file).read_text()
        assert all(digest in text for digest in expected.values())
    model = kept.folder / "run" / "model-seed-2.safetensors"
    evidence = read_evidence(pack, model)
    assert evidence.model is not None
    assert evidence.model.tensors_digest == expected["seed 2"]


def test_attacking_again_and_keeping_again_change_no_digest(kept: Carried, tmp_path: Path) -> None:
    run = kept.folder / "run"
    again = reattack(run, ["blackbox-loss"], tmp_path / "again")
    assert coverage_of(again).models == coverage_of(kept.record).models
    before = (run / "model-seed-1.safetensors").read_bytes()
    assert exit_code("verify", kept.folder / "pack", "--recording", run) == 0
    run_study(tiny(seeds=SEEDS), run, keep_model=True)
    assert (run / "model-seed-1.safetensors").read_bytes() == before


def last_digests(run: Setup, folder: Path, engine: Engine = LOCAL) -> Sequence[ModelDigests]:
    """Return the digests of a run that is trained without measurements."""
    folder.mkdir()
    run = replace(run, folder=folder)
    for _ in write_digests(run.simulate(engine), run, run.key()):
        pass
    values = json.loads((folder / DIGESTS_FILE).read_text())
    return [ModelDigests.model_validate(each) for each in values["models"]]


@pytest.mark.slow
def test_digests_do_not_depend_on_the_number_of_workers(kept: Carried, tmp_path: Path) -> None:
    run = build_setup(tiny(), 1, None)
    digests = last_digests(run, tmp_path / "two", local_engine(2))
    assert digests == coverage_of(kept.record).models[:1]


def test_models_of_clusters_and_clients_are_named(tmp_path: Path) -> None:
    clusters = build_setup(tiny(algorithm={"name": "ifca", "options": {"models": 2}}), 1, None)
    names = [models.name for models in last_digests(clusters, tmp_path / "ifca")]
    assert names == ["model-0", "model-1"]
    personal = build_setup(tiny(algorithm={"name": "ditto"}), 1, None)
    models = last_digests(personal, tmp_path / "ditto")
    assert [each.name for each in models] == [
        "",
        *(f"personal model of client {client}" for client in range(3)),
    ]
    assert len({each.after for each in models}) == 4


def test_many_personal_models_are_listed_without_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_models, "_MOST_PERSONAL", 2)
    personal = build_setup(tiny(algorithm={"name": "ditto"}), 1, None)
    assert len(last_digests(personal, tmp_path / "ditto")) == 1
    values = json.loads((tmp_path / "ditto" / DIGESTS_FILE).read_text())
    assert values["unidentified"] == ["3 personal models of clients"]


def test_a_server_without_a_model_keeps_none(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="has no model that could be kept; leave out keep_model="):
        run_study(fedmd_study(), tmp_path / "run", keep_model=True)
    assert not (tmp_path / "run").exists()


def test_a_file_of_another_model_is_not_replaced(kept: Carried, tmp_path: Path) -> None:
    other = tmp_path / "model-seed-1.safetensors"
    save_file({"weight": torch.ones(2)}, other)
    runs = [
        replace(build_setup(tiny(), s, None), folder=kept.folder / "run" / f"seed-{s}")
        for s in SEEDS
    ]
    with pytest.raises(BadInput, match="has other tensors than the model of this study"):
        final_models.write_models(runs, tmp_path)
    assert load_file(other)["weight"].tolist() == [1, 1]


def test_records_without_digests_stay_readable(kept: Carried, tmp_path: Path) -> None:
    coverage = coverage_of(kept.record).model_copy(update={"models": []})
    older = kept.record.model_copy(update={"coverage": coverage})
    (tmp_path / "record.json").write_text(record_json(older))
    write_pack(tmp_path / "record.json", kept.folder / "policy.toml", tmp_path / "pack")
    (line,) = [line for line in verify(tmp_path / "pack").unchecked if "which model" in line]
    assert line == "which model the record is about: it has no digest of a model"
    with pytest.raises(BadInput, match=r"identifies no model.*run the study again"):
        compare_model(older, kept.folder / "run" / "model-seed-1.safetensors")


@pytest.mark.parametrize("change", [{"run": "0" * 64}, {"models": [{"round": 2}]}, {"more": 1}])
def test_digests_of_another_run_are_refused(
    change: dict[str, object], kept: Carried, tmp_path: Path
) -> None:
    path = kept.folder / "run" / "seed-1" / DIGESTS_FILE
    text = path.read_text()
    path.write_text(json.dumps(json.loads(text) | change))
    try:
        with pytest.raises(Damaged, match=r"models\.json .* restore it from a copy, or delete it"):
            reattack(kept.folder / "run", ["blackbox-loss"], tmp_path / "again")
    finally:
        path.write_text(text)
