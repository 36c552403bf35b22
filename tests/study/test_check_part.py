"""Contracts of parts from outside, as `fedaudit check-part` runs them."""

import sys
from pathlib import Path

import pytest

from fedaudit.api.contracts import check_part
from fedaudit.api.contracts.algorithms import PARTITION_CONTRACTS
from fedaudit.api.contracts.base import name_of, run_contracts
from fedaudit.core.errors import BadInput
from fedaudit.datasets.partitions.schemes import PARTITIONS
from tests.programs import exit_code

BROKEN = """
from dataclasses import dataclass

import numpy as np
import torch

from fedaudit.attacks.base import Attack
from fedaudit.core.values import Capability
from fedaudit.defenses import Defense
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.signals.outputs import Loss


@dataclass(frozen=True)
class Ranked:
    client_aggregation = "target only"
    round_aggregation = "rank"
    needs = Capability.ROUNDS

    def __call__(self, *measurements, target):
        (loss,) = measurements
        return loss.of(target).mean(0).double().argsort().argsort().double()


ranked = Attack((Loss(),), Ranked(), "custom", "Ranks of samples.")


class Noisy(Defense):
    def upload(self, upload, context):
        for value in upload.values.values():
            value += torch.randn(value.shape)
        return upload


@dataclass(frozen=True)
class Unseeded(FedAvg):
    def aggregate(self, state, uploads, weights):
        after = super().aggregate(state, uploads, weights)
        return {name: value + 0.01 * torch.randn(value.shape) for name, value in after.items()}


def unseeded(task):
    return Unseeded(task.architecture, task.training)


class Exiting:
    def quotas(self, counts, clients, *, rng):
        raise SystemExit(0)


class Greedy:
    def quotas(self, counts, clients, *, rng):
        return np.tile(counts, (clients, 1))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module with broken parts in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"broken_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(BROKEN)
    return name


@pytest.mark.parametrize(
    ("part", "broken", "kept"),
    [
        ("ranked", "does not depend on the other audited samples", "finite score"),
        ("Noisy", "are not modified in place", "keeps its names, shapes and types"),
        ("unseeded", "depends only on its seed", "Equal settings give equal"),
        ("Greedy", "no more than there are", "same random generator"),
    ],
)
def test_broken_contracts_are_found_and_the_others_kept(
    part: str, broken: str, kept: str, module: str
) -> None:
    results = {result.name: result.fault for result in check_part(f"{module}:{part}")}
    (fault,) = [fault for name, fault in results.items() if broken in name]
    assert fault
    assert [fault for name, fault in results.items() if kept in name] == [""]


def test_the_command_prints_a_line_for_each_contract(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("check-part", f"{module}:Greedy") == 1
    printed = capsys.readouterr().out
    assert "broken  Clients get whole numbers" in printed
    assert "1 of 2 contracts are kept" in printed
    assert exit_code("check-part", "dirichlet", "--beta=0.5", "--kind", "partition") == 0
    for part in (f"{module}:absent", "no-such-part", "no_module:part"):
        assert exit_code("check-part", part) == 2


def test_a_part_that_ends_the_program_keeps_no_contract(module: str) -> None:
    results = check_part(f"{module}:Exiting")
    assert all("it raises SystemExit: 0" in result.fault for result in results)
    assert exit_code("check-part", f"{module}:Exiting") == 1


@pytest.mark.parametrize(("name", "kind"), [("fedavg", "algorithm"), ("mixup", "defense")])
def test_the_kind_is_inferred(name: str, kind: str) -> None:
    settings = {"mixup": {"alpha": 1.0}}.get(name, {})
    assert check_part(name, settings) == check_part(name, settings, kind=kind)
    (other,) = {"attack", "defense"} - {kind} if kind != "algorithm" else {"attack"}
    with pytest.raises(BadInput):
        check_part(name, settings, kind=other)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "shards"])
def test_partitions_of_the_catalogue_fulfil_the_contracts(name: str) -> None:
    settings = {"dirichlet": {"beta": 0.5}}.get(name, {})
    results = run_contracts(PARTITION_CONTRACTS, PARTITIONS[name](**settings))
    assert [result.fault for result in results] == ["", ""]
    assert [result.name for result in results] == [name_of(c) for c in PARTITION_CONTRACTS]


def test_the_parts_of_the_example_fulfil_their_contracts(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[2] / "examples" / "own-parts"
    monkeypatch.syspath_prepend(folder)
    try:
        settings_of = {"lowest_loss": {}, "Jitter": {"sigma": 0.3}, "partial_step": {}}
        for part, settings in settings_of.items():
            results = check_part(f"parts:{part}", settings)
            assert [result for result in results if result.fault] == [], part
    finally:
        # Another test imports a copy of this module from another folder.
        sys.modules.pop("parts", None)
