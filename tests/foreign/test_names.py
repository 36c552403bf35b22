"""Clients with names in custom loops."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fedaudit
from fedaudit.core.errors import BadInput
from fedaudit.live.clients import number_of, numbers_of, plain_name
from fedaudit.live.recording import read_recording
from fedaudit.observe.measurements import read_measured
from tests.study.studies import SMALL

NAMES = ("hospital-a", "hospital-b", "Universitätsklinik", "d")
FEW = ("blackbox-loss", "avg-cosine")


def data() -> dict[str, tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(0)
    return {
        name: (torch.randn(20, 6, generator=rng), torch.randint(3, (20,), generator=rng))
        for name in NAMES
    }


def net() -> nn.Module:
    return nn.Linear(6, 3)


def moved(size: float) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(int(100 * size))
    return {
        name: value.detach() + size * torch.randn(value.shape, generator=rng)
        for name, value in BASE.state_dict().items()
    }


with torch.random.fork_rng(devices=[]):
    torch.manual_seed(1)
    BASE = net()


def test_named_and_numbered_clients_give_equal_recordings(tmp_path: Path) -> None:
    split = fedaudit.fair_split(data(), audited=10)
    assert [*split.train] == [*NAMES]
    uploads = {name: moved(0.1 + position) for position, name in enumerate(NAMES)}
    sent = {name: BASE.state_dict() for name in NAMES}
    numbers = numbers_of(NAMES)
    by_number = {numbers[name]: upload for name, upload in uploads.items()}
    sizes = {name: len(split.train[name]) for name in NAMES}
    with fedaudit.record(
        tmp_path / "names", net, split.audit, attacks=FEW, sizes=sizes, strict=True
    ) as recorder:
        shares = {name: float(size) for name, size in sizes.items()}
        recorder.round(1, sent=sent, uploads=uploads, weights=shares, selected=NAMES)
        recorder.round(2, sent=BASE, uploads=uploads)
    with fedaudit.record(tmp_path / "numbers", net, split.audit, attacks=FEW, strict=True) as other:
        shares_by_number = {numbers[name]: share for name, share in shares.items()}
        other.round(1, sent=BASE, uploads=by_number, weights=shares_by_number)
    by_name, numbered = (read_measured(tmp_path / folder)[0] for folder in ("names", "numbers"))
    assert by_name.measured.clients == tuple(sorted(numbers.values())) == numbered.measured.clients
    for signal, values in numbered.measured.signals.items():
        assert torch.equal(values, by_name.measured.signals[signal])
    assert read_recording(tmp_path / "names").names == {numbers[name]: name for name in NAMES}
    out = tmp_path / "out"
    record = fedaudit.attack_recording(tmp_path / "names", (), out, figures=SMALL["figures"])
    assert any("hospital-a" in topic for topic in record.untested)
    assert "hospital-b" in json.dumps(record.config)


def test_a_single_client_split_equals_its_part_of_the_joint_split() -> None:
    together = fedaudit.fair_split(data(), audited=10)
    alone = {
        name: fedaudit.fair_split({name: samples}, audited=10) for name, samples in data().items()
    }
    for name in NAMES:
        np.testing.assert_array_equal(alone[name].train[name], together.train[name])
    joined = fedaudit.join_audits([split.part for split in alone.values()])
    assert sorted(joined.owner.tolist()) == sorted(together.audit.owner.tolist())


def test_a_resumed_recording_keeps_client_names(tmp_path: Path) -> None:
    split = fedaudit.fair_split(data(), audited=10)
    uploads = dict.fromkeys(NAMES, moved(0.1))
    for index in (1, 2):
        with fedaudit.record(tmp_path, net, split.audit, attacks=FEW, strict=True) as recorder:
            recorder.round(index, sent=BASE, uploads=uploads | {"a guest": moved(0.2)})
    assert set(read_recording(tmp_path).names.values()) == {*NAMES, "a guest"}
    assert len(read_measured(tmp_path)) == 2


def test_names_and_numbers_of_clients_are_not_confused(tmp_path: Path) -> None:
    named, numbered = data(), dict(enumerate(data().values()))
    audit = fedaudit.fair_split(named, audited=10).audit
    with (
        fedaudit.record(tmp_path / "named", net, audit, attacks=FEW, strict=True) as recorder,
        pytest.raises(BadInput, match=r"client '0' is identified by its number, .* by their name"),
    ):
        recorder.round(1, sent=BASE, uploads={0: BASE, 1: BASE})
    audit = fedaudit.fair_split(numbered, audited=10).audit
    with (
        fedaudit.record(tmp_path / "numbered", net, audit, attacks=FEW, strict=True) as recorder,
        pytest.raises(BadInput, match=r"client 'd' is identified by its name, .* by their number"),
    ):
        recorder.round(1, sent=BASE, uploads={"d": BASE})


def test_names_that_consist_of_digits_are_numbers() -> None:
    assert number_of("12") == 12
    assert number_of(np.int64(3)) == 3


@pytest.mark.parametrize("number", [-1, 10**9 + 1])
def test_out_of_range_client_numbers_raise(number: int) -> None:
    with pytest.raises(
        BadInput, match=rf"has the number {number}; give whole numbers from 0 to 10+"
    ):
        fedaudit.fair_split({number: data()["d"]}, audited=10)


@pytest.mark.parametrize("client", ["", 1.5, None, ("a",)])
def test_invalid_client_identifiers_raise(client: object) -> None:
    with pytest.raises(BadInput, match=r"from 0, or names"):
        number_of(client)


@given(st.sets(st.text(min_size=1, max_size=30), max_size=8))
def test_the_number_of_a_name_depends_only_on_the_name(names: set[str]) -> None:
    for name in names:
        seen = plain_name(name)
        if seen and not seen.isdecimal():
            assert 10**8 <= number_of(name) < 10**9
            assert number_of(name) == number_of(seen)


def test_two_clients_of_one_number_are_refused() -> None:
    with pytest.raises(BadInput, match="have the number 7; rename one"):
        numbers_of([7, "7"])
