"""Recording PEFT adapters."""

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import fedaudit as fa
from fedaudit.core.errors import BadInput
from fedaudit.core.tasks import CLASSIFICATION
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.attack import attack_recording
from fedaudit.live.digests import digests_of_globals
from fedaudit.live.network import network_of
from fedaudit.live.recording import read_round_log
from fedaudit.live.weights import ModelLayout
from fedaudit.pack.models import compare_model, compare_with
from fedaudit.results.runs import Coverage, ModelDigests
from tests.study.studies import SMALL

peft = pytest.importorskip("peft", reason="PEFT is not installed: pip install 'fedaudit[text]'")

FEATURES, CLASSES = 6, 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(FEATURES), nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.inner(self.norm(x))))
        return out


class Wrapped(nn.Module):
    """A network with the adapted one somewhere inside."""

    def __init__(self) -> None:
        super().__init__()
        self.model = adapted()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out


def adapted(saved: str = "head") -> nn.Module:
    how = peft.LoraConfig(r=2, target_modules=["inner"], modules_to_save=[saved])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net: nn.Module = peft.get_peft_model(Net(), how)
    return net


def audit() -> AuditSet:
    rng = torch.Generator().manual_seed(1)
    data = {c: (torch.randn(40, FEATURES, generator=rng), torch.arange(40) % 3) for c in range(3)}
    return fa.fair_split(data, audited=20).audit


def shape_of(net: nn.Module) -> ModelLayout:
    return network_of(net, audit(), CLASSIFICATION).layout


def moved(net: nn.Module, shift: float) -> nn.Module:
    with torch.no_grad():
        for param in net.parameters():
            if param.requires_grad:
                param.add_(shift)
    return net


@pytest.mark.parametrize("network", [adapted, Wrapped])
def test_peft_parameters_are_matched_to_the_network(network: type[nn.Module]) -> None:
    shape, trained = shape_of(network()), moved(network(), 0.5)
    part = trained.model if isinstance(trained, Wrapped) else trained
    sent = peft.get_peft_model_state_dict(part)
    trained_params = {name: p for name, p in trained.named_parameters() if p.requires_grad}
    assert not sent.keys() & trained_params.keys()
    for weights in (
        sent,
        {f"model.{name}": value for name, value in sent.items()}
        if part is not trained
        else {f"module.{name}": value for name, value in sent.items()},
        list(sent.values()),
        trained_params,
        trained,
    ):
        params = shape.model_of(weights, subject="it").params
        assert {n: v.tolist() for n, v in params.items()} == {
            n: v.tolist() for n, v in trained_params.items()
        }
        assert shape.trainable_names(weights, subject="it") == tuple(trained_params)


def test_peft_lists_raise_and_named_parameters_are_read() -> None:
    net = adapted("norm")  # it precedes the adapted layers, and PEFT sends it after them
    shape, sent = shape_of(net), peft.get_peft_model_state_dict(net)
    with pytest.raises(BadInput, match="in another order than that of its parameters; send them"):
        shape.model_of(list(sent.values()), subject="it")
    params = shape.model_of(sent, subject="it").params
    assert all(torch.equal(params[n], p) for n, p in net.named_parameters() if p.requires_grad)


def test_one_parameter_under_two_names_is_refused() -> None:
    net = adapted()
    state = peft.get_peft_model_state_dict(net) | net.state_dict()
    with pytest.raises(BadInput, match="under two names; send only the adapters"):
        shape_of(net).model_of(state, subject="it")


def test_names_that_two_trained_adapters_share_are_refused() -> None:
    net = adapted()
    net.add_adapter("other", peft.LoraConfig(r=2, target_modules=["inner"]))  # type: ignore[operator]
    for name, param in net.named_parameters():
        if "lora_" in name:
            param.requires_grad_(True)
    with pytest.raises(BadInput, match=r"has 'base_model\S+lora_A.weight', which the model"):
        shape_of(net).model_of(peft.get_peft_model_state_dict(net), subject="it")


def test_mismatched_names_warn_once(
    tmp_path: Path,
) -> None:
    net = adapted()
    sent = peft.get_peft_model_state_dict(net)
    odd = {**sent, "unknown": torch.zeros(2)}
    with (
        fa.record(tmp_path, net, audit(), attacks=["loss-series"]) as recorder,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        for index in (1, 2, 3):
            recorder.round(index, sent=sent, uploads=dict.fromkeys(range(3), odd))
    (warning,) = told
    assert "client 0: its upload has 'unknown', which the model" in str(warning.message)
    notes = [entry.note for entry in read_round_log(tmp_path)]
    assert [note.split(":")[0] for note in notes] == [
        f"round {n} is not recorded" for n in (1, 2, 3)
    ]


def test_digests_are_those_of_the_files_of_adapter_and_base(tmp_path: Path) -> None:
    net, base = adapted(), dict(adapted().unload().state_dict())  # type: ignore[operator]
    with fa.record(
        tmp_path / "recording", net, audit(), attacks=["loss-series"], log=lambda line: None
    ) as recorder:
        for number in (1, 2):
            sent = peft.get_peft_model_state_dict(net)
            sent = {name: value.clone() for name, value in sent.items()}
            moved(net, 0.5)
            after = peft.get_peft_model_state_dict(net)
            recorder.round(number, sent=sent, uploads=dict.fromkeys(range(3), after), after=after)
    result = attack_recording(
        tmp_path / "recording", (), tmp_path / "record", figures=SMALL["figures"]
    )
    net.save_pretrained(tmp_path / "saved", save_embedding_layers=False)  # type: ignore[operator]
    save_file(base, tmp_path / "base.safetensors")
    torch.save(net.state_dict(), tmp_path / "whole.pt")
    for file, text in (
        ("saved/adapter_model.safetensors", "is the adapter after the last round"),
        ("whole.pt", "is the model after the last round"),
        ("base.safetensors", "is the base model, which no client trained"),
    ):
        findings = compare_model(result, tmp_path / file).results
        assert not findings.problems
        assert any(text in line for line in (*findings.checked, *findings.unchecked))


class TiedNet(nn.Module):
    """A network whose frozen output layer has the weight of an earlier frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, FEATURES)
        self.head.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.inner(self.first(x))))
        return out


@pytest.mark.parametrize("saved", [[], ["head"]], ids=["frozen", "trained copy"])
def test_tensors_with_several_names_are_those_of_the_files(
    saved: list[str], tmp_path: Path
) -> None:
    """With a trained copy, PEFT gives the copy the name of the original layer."""
    config = peft.LoraConfig(r=2, target_modules=["inner"], modules_to_save=saved)
    original = TiedNet()
    base = {name: value.clone() for name, value in original.state_dict().items()}
    net = peft.get_peft_model(original, config)
    layout = shape_of(net)
    moved(net, 0.5)
    after = layout.model_of(peft.get_peft_model_state_dict(net), subject="it")
    coverage = Coverage(
        rounds=1,
        measured=1,
        last_measured=1,
        models=[ModelDigests.model_validate({"round": 1, **digests_of_globals(layout, [], after)})],
        adapter=layout.network.adapter_names,
        tied=layout.network.tied_names,
    )
    net.save_pretrained(tmp_path / "saved", save_embedding_layers=False)
    torch.save(net.state_dict(), tmp_path / "whole.pt")
    del base["head.weight"]  # a file may have only one of the names
    save_file(base, tmp_path / "base.safetensors")
    for file, text in (
        ("saved/adapter_model.safetensors", "is the adapter after the last round"),
        ("whole.pt", "is the model after the last round"),
        ("base.safetensors", "is the base model, which no client trained"),
    ):
        findings = compare_with(coverage, tmp_path / file).results
        assert not findings.problems
        assert any(text in line for line in (*findings.checked, *findings.unchecked))
