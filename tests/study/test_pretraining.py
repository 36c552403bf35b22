"""Pretraining in studies."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor

import fedaudit as fa
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.pretrained import load_pretrained, pretrained_file
from fedaudit.plan.sections import Study
from fedaudit.study.build import resolve, with_derived_settings
from fedaudit.study.running import pretraining
from fedaudit.study.running.pretraining import pretrain
from fedaudit.study.running.run import run_study
from tests.networks import Denoiser
from tests.study.studies import quick_study

CONCEPTS = 5


def points(*, seed: int) -> fa.datasets.Dataset:
    x = torch.randn(240, 6, generator=torch.Generator().manual_seed(seed))
    return fa.datasets.samples(x, torch.arange(240) % CONCEPTS, name="points")(seed=seed)


def public(*, seed: int) -> fa.datasets.Dataset:
    return points(seed=seed + 100)


def study(**changes: object) -> Study:
    values: dict[str, object] = {
        "task": {"name": "denoising"},
        "data": {"name": "tests.study.test_pretraining:points"},
        "partition": {"clients": 3, "samples_per_client": 0},
        "model": {"name": "tests.networks:Denoiser"},
        "pretraining": {
            "data": {"name": "tests.study.test_pretraining:public"},
            "epochs": 3,
            "batch_size": 16,
        },
        "algorithm": {"name": "fed-embedding"},
        "audit": {"fair": 60, "background": 0, "every": 1},
        "attacks": {"loss-series": {}},
    }
    return quick_study(**(values | changes))


class Endless(Denoiser):
    def forward(self, noisy: Tensor, steps: Tensor, concept: Tensor) -> Tensor:
        noise = super().forward(noisy, steps, concept)
        return noise / 0 if self.training else noise


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDAUDIT_PRETRAINED", str(tmp_path / "pretrained"))
    monkeypatch.setattr(pretraining, "_WARM_UP", 1)
    return tmp_path / "pretrained"


@pytest.mark.slow
def test_studies_share_one_pretraining_of_a_network(folder: Path, tmp_path: Path) -> None:
    phases: list[str] = []
    first = run_study(
        study(), tmp_path / "one", progress=lambda phase, done, total: phases.append(phase)
    )
    assert "pretraining" in phases
    values = load_pretrained(with_derived_settings(study()).pretrained_name)
    assert values["scale"] != 1, "what clients do not train was trained"
    phases.clear()
    other = study(training={"rounds": 2, "lr": 0.3}, task={"name": "denoising"})
    run_study(other, tmp_path / "two", progress=lambda phase, done, total: phases.append(phase))
    assert "pretraining" not in phases
    assert len(list(folder.glob("*.safetensors"))) == 1
    record = run_study(study(), tmp_path / "again")
    assert record.content_hash == first.content_hash


class _Stopped(Exception):
    pass


def test_a_stopped_pretraining_resumes_with_the_same_result(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "_CHECKPOINT_EVERY", 4)
    seen: list[int] = []

    def stopping(phase: str, done: int, total: int) -> None:
        seen.append(done)
        if done == 10:
            raise _Stopped

    with pytest.raises(_Stopped):
        pretrain(resolve(study()), progress=stopping)
    assert not list(folder.glob("*.safetensors"))
    seen.clear()
    pretrain(resolve(study()), progress=lambda phase, done, total: seen.append(done))
    assert seen[0] == 8
    halfway = load_pretrained(with_derived_settings(study()).pretrained_name)
    pretrained_file(with_derived_settings(study()).pretrained_name).unlink()
    pretrain(resolve(study()))
    for name, value in load_pretrained(with_derived_settings(study()).pretrained_name).items():
        assert torch.equal(value, halfway[name])


def test_pretraining_changes_the_name_of_network_and_study() -> None:
    settings = study().model_dump()["pretraining"]
    longer = study(pretraining={**settings, "epochs": 4})
    drawn = study(task={"name": "denoising", "options": {"fixed": False}})
    assert longer.pretrained_name != study().pretrained_name == drawn.pretrained_name
    assert quick_study().pretrained_name == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "mlp", "options": {"weights": "a"}}}, "remove models and"),
        (
            {"data": {"name": "digits"}, "pretraining": {"data": {"name": "digits"}}},
            "set different classes in the two tables",
        ),
        (
            {
                "data": {"name": "digits", "classes": [0, 1]},
                "pretraining": {"data": {"name": "digits", "classes": [1, 2]}},
            },
            "public samples must not be audited",
        ),
    ],
)
def test_mismatched_pretraining_settings_raise(changes: dict[str, object], message: str) -> None:
    with pytest.raises((ValidationError, BadInput), match=message):
        study(**changes)


def test_a_model_that_takes_no_weights_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="weights"):
        run_study(study(model={"name": "mlp"}), tmp_path)


def test_missing_and_damaged_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="do not exist; 'fedaudit run' trains those"):
        load_pretrained("nothing")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\x08" + bytes(30))
    with pytest.raises(Damaged, match="cannot be read"):
        load_pretrained(str(broken))


def test_a_pretraining_file_of_other_settings_is_refused() -> None:
    pretrain(resolve(study()))
    file = pretrained_file(with_derived_settings(study()).pretrained_name)
    settings = study().model_dump()["pretraining"]
    other = with_derived_settings(study(pretraining={**settings, "epochs": 1}))
    file.rename(pretrained_file(other.pretrained_name))
    with pytest.raises(BadInput, match=r"was not written by the \[pretraining\]"):
        pretrain(resolve(other))


def test_a_damaged_checkpoint_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    file = pretrained_file(with_derived_settings(study()).pretrained_name)
    part = file.with_suffix("") / "training.safetensors"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"\x08" + bytes(30))
    with pytest.raises(Damaged, match="is not a checkpoint of this pretraining"):
        pretrain(resolve(study()))


def test_a_pretraining_without_an_end_is_refused() -> None:
    settings = study().model_dump()["pretraining"]
    endless = study(model={"name": "tests.study.test_pretraining:Endless"}, pretraining=settings)
    with pytest.raises(BadInput, match=r"lower pretraining\.lr"):
        pretrain(resolve(endless))


def test_custom_code_is_part_of_the_name() -> None:
    settings_used = with_derived_settings(study())
    assert settings_used.pretrained_name != study().pretrained_name
    assert "tests.study.test_pretraining:points" in settings_used.code
    code = {**settings_used.code, "tests.networks:Denoiser": "0" * 64}
    changed = settings_used.model_copy(update={"code": code})
    assert changed.pretrained_name != settings_used.pretrained_name


def wide(*, seed: int) -> fa.datasets.Dataset:
    return fa.datasets.samples(torch.randn(60, 7), torch.arange(60) % CONCEPTS)(seed=seed)


def test_public_data_of_another_shape_are_refused_before_training() -> None:
    settings = study().model_dump()["pretraining"]
    settings_used = {**settings, "data": {"name": "tests.study.test_pretraining:wide"}}
    with pytest.raises(BadInput, match="have another shape"):
        pretrain(resolve(study(pretraining=settings_used)))


def test_a_transformer_starts_from_pretrained_weights(tmp_path: Path) -> None:
    model = fa.models.Transformer(layers=1, width=8, heads=2)
    pretrained = model.build((6,), 11)
    file = tmp_path / "pretrained.safetensors"
    save_file(pretrained.state_dict(), file)
    loaded = replace(model, weights=str(file))
    net = loaded.build((6,), 11)
    for name, value in net.state_dict().items():
        assert torch.equal(value, pretrained.state_dict()[name])
        assert value.data_ptr() != pretrained.state_dict()[name].data_ptr()
    with pytest.raises(BadInput, match="do not fit this 'transformer' model"):
        loaded.build((7,), 11)
