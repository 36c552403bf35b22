"""Packs of recordings and the files of the models that they are about."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedaudit.core.errors import BadInput
from fedaudit.core.tasks import CLASSIFICATION
from fedaudit.live import record as recording_module
from fedaudit.live.attack import attack_recording
from fedaudit.live.digests import digests_of_globals
from fedaudit.live.network import network_of
from fedaudit.pack.choices import CheckResults
from fedaudit.pack.manifest import Manifest
from fedaudit.pack.models import compare_model, compare_with
from fedaudit.pack.packing import write_pack
from fedaudit.results.read import read_record
from fedaudit.results.runs import Coverage, ModelDigests
from tests.live.federation import FEW, POLICY, ROUNDS, data, recorder, rounds
from tests.programs import exit_code
from tests.study.studies import SMALL

Weights = Mapping[str, Tensor]


def models_after() -> dict[int, Weights]:
    return {round.number: round.after for round in rounds()}


def saved(folder: Path, weights: Weights, name: str = "model.safetensors") -> Path:
    path = folder / name
    if path.suffix == ".npz":
        np.savez(path, **{key: value.numpy() for key, value in weights.items()})  # type: ignore[arg-type]
    elif path.suffix == ".pt":
        torch.save(dict(weights), path)
    else:
        save_file({key: value.contiguous() for key, value in weights.items()}, path)
    return path


def recorded_pack(folder: Path, *, is_closed: bool = True, passes_after: bool = True) -> Path:
    """Record a run, attack it, and pack its record."""
    recording = recorder(folder / "recording")
    for round in rounds():
        after = round.after if passes_after else None
        recording.round(round.number, sent=round.sent, uploads=round.uploads, after=after)
    if is_closed:
        recording.close()
    out = folder / "record"
    attack_recording(folder / "recording", (), out, figures=SMALL["figures"])
    (folder / "policy.toml").write_text(POLICY)
    write_pack(out / "record.json", folder / "policy.toml", folder / "pack")
    return folder / "pack"


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_pack(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt", "model.npz"])
def test_the_final_model_is_verified_in_every_format(
    name: str, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(tmp_path, models_after()[ROUNDS], name)
    assert exit_code("verify", pack, "--model", model) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"verified: {name} is the model after the last round of the record" in printed
    assert "it is about your model" in printed


def one_weight_changed(weights: Weights) -> Weights:
    name = next(iter(weights))
    changed = weights[name].clone()
    changed.view(-1)[0] = torch.nextafter(changed.view(-1)[0], torch.tensor(1e9))
    return {**weights, name: changed}


def test_contents_that_no_digest_covers_are_listed(pack: Path, tmp_path: Path) -> None:
    record, weights = read_record(pack / "record.json"), models_after()[ROUNDS]
    plain, text = {key: value.contiguous() for key, value in weights.items()}, "Patient 17"
    save_file(plain, tmp_path / "a.safetensors", {"format": "pt", "note": text})
    saved(tmp_path, weights, "b.npz")
    with ZipFile(tmp_path / "b.npz", "a") as archive:
        archive.comment = text.encode()
    for name, what, size in (("a.safetensors", "metadata", 14), ("b.npz", "comments", 10)):
        unchecked = compare_model(record, tmp_path / name).results.unchecked
        expected = f"the {what} in {name} ({size} bytes): digests cover only its tensors"
        assert unchecked == [expected]


@pytest.mark.parametrize(
    "change",
    [
        one_weight_changed,
        lambda weights: {name: value.double() for name, value in weights.items()},
        lambda weights: {f"net.{name}": value for name, value in weights.items()},
        lambda weights: dict([*weights.items()][1:]),
        lambda weights: {**weights, "extra": torch.zeros(3)},
    ],
    ids=["one weight", "type", "names", "missing tensor", "further tensor"],
)
def test_another_model_is_refused(
    change: Callable[[Weights], Weights], pack: Path, tmp_path: Path
) -> None:
    model = saved(tmp_path, change(models_after()[ROUNDS]))
    assert exit_code("verify", pack, "--model", model) == 1


def test_an_earlier_model_is_named_with_its_round(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = read_record(pack / "record.json")
    model = saved(tmp_path, models_after()[2])
    results = compare_model(record, model).results
    assert not results.checked
    assert results.unchecked == [
        "the final model: model.safetensors is the model after round 2, which is not the final "
        "model"
    ]
    assert exit_code("verify", pack, "--model", model) == 0
    assert "that it is about your model" in " ".join(capsys.readouterr().out.split())
    first = saved(tmp_path, next(rounds()).sent)
    assert "that was sent in round 1" in compare_model(record, first).results.unchecked[0]


def test_manifest_verdict_and_summary_name_the_final_model(pack: Path) -> None:
    manifest = Manifest.model_validate_json((pack / "manifest.json").read_text())
    coverage = read_record(pack / "record.json").coverage
    assert coverage is not None
    assert [models.round for models in coverage.models] == [*range(1, ROUNDS + 1)]
    assert manifest.model == coverage.final_model == coverage.models[-1].after != ""
    # Each round starts with the model with which the previous round ended.
    assert [m.sent for m in coverage.models[1:]] == [m.after for m in coverage.models[:-1]]
    assert manifest.model in (pack / "summary.html").read_text()
    assert json.loads((pack / "verdict.json").read_text())["model"] == manifest.model


def test_a_run_that_may_continue_has_no_final_model(tmp_path: Path) -> None:
    pack = recorded_pack(tmp_path, is_closed=False)
    record = read_record(pack / "record.json")
    assert record.coverage is not None
    assert record.coverage.final_model == ""
    model = saved(tmp_path, models_after()[ROUNDS])
    assert "may not be the final model" in compare_model(record, model).results.unchecked[0]


def test_without_models_after_rounds_the_final_model_is_unknown(tmp_path: Path) -> None:
    record = read_record(recorded_pack(tmp_path, passes_after=False) / "record.json")
    assert record.coverage is not None
    assert record.coverage.final_model == ""
    model = saved(tmp_path, models_after()[ROUNDS])
    assert "none of the models" in compare_model(record, model).results.problems[0]


class BatchNormNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


def test_a_state_dict_with_batch_normalisation_is_recognised(tmp_path: Path) -> None:
    model = BatchNormNet()
    model(torch.randn(32, 64))  # trains the running statistics
    with recording_module.record(
        tmp_path / "recording", BatchNormNet, data().split.audit, attacks=FEW, strict=True
    ) as recording:
        state = dict(model.state_dict())
        for number in (1, 2):
            uploads = dict.fromkeys(range(3), state)
            recording.round(number, sent=state, uploads=uploads, after=state)
    result = attack_recording(
        tmp_path / "recording", (), tmp_path / "record", figures=SMALL["figures"]
    )
    file = saved(tmp_path, state)
    assert "after the last round" in compare_model(result, file).results.checked[0]
    other = saved(tmp_path, one_weight_changed(state), "other.safetensors")
    assert compare_model(result, other).results.problems


class SharedNet(nn.Sequential):
    """Network whose second layer has the weight of the first."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 10))
        self[2].weight = self[0].weight


class BufferNet(nn.Sequential):
    """Network with a buffer that is not in its state dict."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 10))
        self.register_buffer("scale", torch.ones(1), persistent=False)


class TiedBaseNet(SharedNet):
    """Network whose shared weight is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self[0].requires_grad_(False)
        self[2].requires_grad_(False)


class QuantizedNet(nn.Sequential):
    """Network with a frozen parameter of whole numbers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 10))
        codes = torch.arange(8, dtype=torch.uint8)
        self.codes = nn.Parameter(codes, requires_grad=False)


class HalfNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 10))
        self.bfloat16()


class ExtraNet(nn.Sequential):
    """Network whose state dict has a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 10))
        self._register_state_dict_hook(  # type: ignore[no-untyped-call]
            lambda module, state, prefix, metadata: state.update(extra=torch.ones(1))
        )


def compared(network: type[nn.Module], file: Path, state: Weights) -> CheckResults:
    """Compare a file with the model of one round that ended with a state."""
    layout = network_of(network, data().split.audit, CLASSIFICATION).layout
    after = layout.model_of(dict(state), subject="it")
    digests = digests_of_globals(layout, [], after)
    coverage = Coverage(
        rounds=1,
        measured=1,
        last_measured=1,
        models=[ModelDigests.model_validate({"round": 1, **digests})] if digests else [],
        adapter=layout.network.adapter_names,
        tied=layout.network.tied_names,
    )
    return compare_with(coverage, file).results


@pytest.mark.parametrize("network", [SharedNet, TiedBaseNet])
def test_a_shared_tensor_is_compared_under_each_of_its_names(
    network: type[nn.Module], tmp_path: Path
) -> None:
    state = {name: value.detach() for name, value in network().state_dict().items()}
    for omitted in ("", "0.weight", "2.weight"):
        part = {name: value for name, value in state.items() if name != omitted}
        file = saved(tmp_path, part, "part.pt")
        results = compared(network, file, state)
        assert results.checked == ["part.pt is the model after the last round of the record"]
        assert not results.problems
        assert not results.unchecked
    other = {**state, "2.weight": state["2.weight"] + 1}
    (problem,) = compared(network, saved(tmp_path, other), state).problems
    assert "other values for '2.weight' than for '0.weight', which are one tensor" in problem
    both = {**other, "0.weight": other["2.weight"]}
    assert compared(network, saved(tmp_path, both, "both.pt"), state).problems


def test_a_recorder_stores_the_names_of_shared_tensors(tmp_path: Path) -> None:
    with recording_module.record(
        tmp_path / "recording", SharedNet, data().split.audit, attacks=["blackbox-loss"]
    ) as recording:
        state = dict(SharedNet().state_dict())
        recording.round(1, sent=state, uploads=dict.fromkeys(range(3), state), after=state)
    coverage = attack_recording(
        tmp_path / "recording", (), tmp_path / "record", figures=SMALL["figures"]
    ).coverage
    assert coverage is not None
    assert coverage.tied == {"2.weight": "0.weight"}
    assert coverage.final_model


def test_a_buffer_that_is_not_saved_is_not_compared(tmp_path: Path) -> None:
    state = dict(BufferNet().state_dict())
    assert compared(BufferNet, saved(tmp_path, state), state).checked
    changed = saved(tmp_path, one_weight_changed(state))
    assert compared(BufferNet, changed, state).problems


def test_numbers_of_16_bits_are_those_of_the_recorder_with_32(tmp_path: Path) -> None:
    state = dict(HalfNet().state_dict())
    for weights in (state, {name: value.float() for name, value in state.items()}):
        assert compared(HalfNet, saved(tmp_path, weights), state).checked
    changed = {name: value.clone() for name, value in state.items()}
    changed["0.bias"][0] += 0.5
    assert compared(HalfNet, saved(tmp_path, changed), state).problems


def test_whole_numbers_and_a_quantized_base_are_listed(tmp_path: Path) -> None:
    state = dict(QuantizedNet().state_dict())
    adapter = {name: value for name, value in state.items() if name != "codes"}
    unknown_base = "whether model.safetensors is used with its base model, which the record does"
    whole = "the whole numbers in model.safetensors, such as 'codes': digests cover only"
    for weights, others in ((adapter, []), (state, [whole])):
        results = compared(QuantizedNet, saved(tmp_path, weights), state)
        assert results.checked == [
            "model.safetensors is the adapter after the last round of the record"
        ]
        texts = [unknown_base, *others]
        assert len(results.unchecked) == len(texts)
        assert all(map(str.startswith, results.unchecked, texts))


def test_networks_with_other_tensors_are_not_identified() -> None:
    assert not network_of(
        ExtraNet, data().split.audit, CLASSIFICATION
    ).layout.network.is_identifiable


def test_files_that_cannot_be_compared_raise(pack: Path, tmp_path: Path) -> None:
    numbered = tmp_path / "numbered.npz"
    np.savez(numbered, *[value.numpy() for value in models_after()[ROUNDS].values()])
    assert exit_code("verify", pack, "--model", numbered) == 2
    assert exit_code("verify", pack, "--model", tmp_path / "gone.pt") == 2
    record = read_record(pack / "record.json")
    assert record.coverage is not None
    coverage = record.coverage.model_copy(update={"models": []})
    model = saved(tmp_path, models_after()[ROUNDS])
    with pytest.raises(BadInput, match="the record identifies no model"):
        compare_model(record.model_copy(update={"coverage": coverage}), model)
