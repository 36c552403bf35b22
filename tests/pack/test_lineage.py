"""Packs of models whose base is frozen, and the files of base, adapter and whole model."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput
from fedaudit.exports.evidence import read_evidence
from fedaudit.exports.formats import Options, write_export
from fedaudit.live.attack import attack_recording
from fedaudit.live.record import record
from fedaudit.pack.consistency import check_lineage
from fedaudit.pack.manifest import Manifest
from fedaudit.pack.models import compare_model
from fedaudit.pack.packing import write_pack
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from tests.live.federation import FEW, POLICY, data
from tests.pack.test_models import one_weight_changed, saved
from tests.programs import exit_code
from tests.study.studies import SMALL

Weights = Mapping[str, Tensor]
ROUNDS = 3


class FrozenBase(nn.Sequential):
    """Network whose first layer is not trained; the running statistics of the second are."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
        for parameter in self[0].parameters():
            parameter.requires_grad = False


def state_after(number: int) -> dict[str, Tensor]:
    """Return the state after a round; round 0 is the model at the start."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = FrozenBase()
        network(torch.randn(32, 64))
        state = dict(network.state_dict())
    trained = {n for n in base_of(state, is_base=False) if state[n].is_floating_point()}
    return {n: v + 0.01 * number if n in trained else v for n, v in state.items()}


def base_of(state: Weights, *, is_base: bool = True) -> dict[str, Tensor]:
    return {n: v for n, v in state.items() if n.startswith("0.") == is_base}


def recorded(folder: Path, *, others: int = 0) -> Record:
    """Record rounds; ``others`` is a round that is sent another model than the last one."""
    with record(
        folder / "recording", FrozenBase, data().split.audit, attacks=FEW, strict=True
    ) as recorder:
        for number in range(1, ROUNDS + 1):
            sent = state_after(7 if number == others else number - 1)
            after = state_after(number)
            recorder.round(number, sent=sent, uploads=dict.fromkeys(range(3), after), after=after)
    return attack_recording(folder / "recording", (), folder / "record", figures=SMALL["figures"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lineage")
    recorded(folder)
    (folder / "policy.toml").write_text(POLICY)
    write_pack(folder / "record" / "record.json", folder / "policy.toml", folder / "pack")
    return folder


@pytest.fixture(scope="module")
def packed_record(folder: Path) -> Record:
    return read_record(folder / "pack" / "record.json")


def test_the_whole_model_and_its_adapter_are_verified(
    packed_record: Record, folder: Path, tmp_path: Path
) -> None:
    final = state_after(ROUNDS)
    whole = compare_model(packed_record, saved(tmp_path, final)).results
    assert whole.checked == ["model.safetensors is the model after the last round of the record"]
    assert whole.unchecked == []
    adapter = saved(tmp_path, base_of(final, is_base=False), "adapter.pt")
    results = compare_model(packed_record, adapter).results
    assert results.checked == ["adapter.pt is the adapter after the last round of the record"]
    assert packed_record.coverage is not None
    base = packed_record.coverage.base_model
    assert results.unchecked == [f"whether adapter.pt is used with its base model (SHA-256 {base})"]
    assert exit_code("verify", folder / "pack", "--model", adapter) == 0


def test_base_and_earlier_models_are_named(packed_record: Record, tmp_path: Path) -> None:
    for state, text in (
        (base_of(state_after(0)), "is the base model, which no client trained"),
        (state_after(2), "is the model after round 2, which is not the final model"),
        (state_after(0), "is the model that was sent in round 1, which is not the final model"),
        (base_of(state_after(2), is_base=False), "is the adapter after round 2, which is not"),
    ):
        results = compare_model(packed_record, saved(tmp_path, state)).results
        assert not results.problems
        assert not results.checked
        assert text in results.unchecked[0]


def test_a_changed_weight_and_another_base_are_found(packed_record: Record, tmp_path: Path) -> None:
    final = state_after(ROUNDS)
    adapter, base = base_of(final, is_base=False), base_of(final)
    for state, text in (
        ({**one_weight_changed(adapter), **base}, "none of the models"),
        (one_weight_changed(adapter), "none of the models"),
        (one_weight_changed(base), "none of the models"),
        ({**adapter, **one_weight_changed(base)}, "other tensors than those of its base model"),
        (final | {"4.weight": torch.ones(1)}, "other tensors than those of its base model"),
    ):
        (problem,) = compare_model(packed_record, saved(tmp_path, state)).results.problems
        assert text in problem


def test_manifest_verdict_and_summary_have_the_base(packed_record: Record, folder: Path) -> None:
    pack, coverage = folder / "pack", packed_record.coverage
    assert coverage is not None
    assert coverage.base_model
    trained = base_of(state_after(0), is_base=False)
    assert {*coverage.adapter} == {n for n, value in trained.items() if value.is_floating_point()}
    manifest = Manifest.model_validate_json((pack / "manifest.json").read_text())
    assert manifest.base_model == coverage.base_model
    assert manifest.initial_model == coverage.models[0].sent
    assert json.loads((pack / "verdict.json").read_text())["base_model"] == coverage.base_model
    assert coverage.base_model in (pack / "summary.html").read_text()
    assert coverage.base_model in (pack / "clauses.json").read_text()


def test_a_bill_of_materials_has_the_ancestors(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    evidence = read_evidence(folder / "pack", saved(tmp_path, state_after(ROUNDS)))
    write_export(evidence, "cyclonedx", tmp_path / "bom.json", Options())
    text = (tmp_path / "bom.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    ancestors = json.loads(text)["components"][0]["pedigree"]["ancestors"]
    assert {part["name"]: part["properties"][0]["value"] for part in ancestors} == {
        "base model": evidence.manifest.base_model,
        "initial model": evidence.manifest.initial_model,
    }


def test_evidence_is_exported_only_for_the_final_model(folder: Path, tmp_path: Path) -> None:
    for state in (state_after(2), base_of(state_after(0))):
        with pytest.raises(BadInput, match="is not exported as evidence of"):
            read_evidence(folder / "pack", saved(tmp_path, state))


def test_a_model_that_replaces_another_between_rounds_is_listed(
    packed_record: Record, tmp_path: Path
) -> None:
    (statement,) = check_lineage(packed_record).checked
    assert statement.startswith(f"each of the rounds 2 to {ROUNDS} was sent the model")
    results = check_lineage(recorded(tmp_path, others=2))
    assert results.checked == []
    assert results.unchecked == ["why round 2 was sent another model than the one after round 1"]
