"""Client names in different spellings."""

import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import fedaudit
from fedaudit.core.errors import BadInput
from fedaudit.live.clients import ClientRef, number_of
from fedaudit.live.record import record
from fedaudit.live.recording import read_recording, read_round_log
from tests.live.federation import data, network, rounds

X, Y = torch.rand(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
FIRST, SECOND = (X[:30], Y[:30]), (X[30:], Y[30:])
CAFE = "caf\u00e9"
DECOMPOSED = unicodedata.normalize("NFD", CAFE)


@pytest.mark.parametrize(
    ("name", "look_alike"),
    [
        (CAFE, DECOMPOSED),
        ("A", "A "),
        ("A", "\tA\n"),
        ("A B", "A\u00a0B"),
        ("A B", "A  B"),
        ("A", "A\u200b"),
        (1, "1 "),
        ("01", "1"),
        (1, "\u0661"),
    ],
    ids=repr,
)
def test_look_alike_client_names_raise_with_both_spellings(
    name: ClientRef, look_alike: ClientRef
) -> None:
    with pytest.raises(BadInput) as refusal:
        fedaudit.fair_split({name: FIRST, look_alike: SECOND}, audited=5)
    assert ascii(name) in str(refusal.value)
    assert ascii(look_alike) in str(refusal.value)


def test_visibly_different_names_are_different_clients() -> None:
    names = ["A", "a", "A-", "\u00c0", "\uff21", "A B", "AB"]
    assert len({number_of(name) for name in names}) == len(names)


@pytest.mark.parametrize("client", [True, False, np.True_, 1.0, None, "", " ", "\u200b", b"a"])
def test_invalid_client_ids_raise(client: object) -> None:
    with pytest.raises(BadInput, match="give whole numbers from 0, or names"):
        number_of(client)


def test_unicode_spellings_of_a_name_are_equivalent(tmp_path: Path) -> None:
    samples = data().clients
    parts = {CAFE: samples[0], "north": samples[1]}
    split = fedaudit.fair_split(
        {name: (part.features, part.labels) for name, part in parts.items()},
        audited={DECOMPOSED: 10, "north ": 10},
    )
    with record(tmp_path, network, split.audit, attacks=["blackbox-loss"], strict=True) as recorder:
        for live_round in rounds():
            uploads: dict[str, dict[str, Tensor]] = {
                DECOMPOSED: live_round.uploads[0],
                " north": live_round.uploads[1],
            }
            recorder.round(live_round.number, sent=live_round.sent, uploads=uploads)
    assert {*read_recording(tmp_path).names.values()} == {CAFE, "north"}
    assert all(entry.measured and not entry.excluded for entry in read_round_log(tmp_path))


def test_names_are_kept_in_a_view_without_uploads(tmp_path: Path) -> None:
    first, second, other = (data().clients[client] for client in (0, 1, 2))
    members: dict[ClientRef, tuple[Tensor, Tensor]] = {
        CAFE: (first.features, first.labels),
        " north": (second.features, second.labels),
        7: (other.features[:20], other.labels[:20]),
    }
    audit = fedaudit.audit_samples(members, (other.features[20:], other.labels[20:]))
    fedaudit.save_audit(audit, tmp_path / "part")
    joined = fedaudit.join_audits([tmp_path / "part"])
    assert audit.names == joined.names == (CAFE, "north")
    settings = {"view": "globals", "attacks": ["blackbox-loss"], "strict": True}
    with record(tmp_path / "live", network, joined, **settings) as recorder:  # type: ignore[arg-type]
        for live_round in rounds():
            recorder.round(live_round.number, sent=live_round.sent, after=live_round.after)
    assert {*read_recording(tmp_path / "live").names.values()} == {CAFE, "north"}
    part = fedaudit.fair_split({"south": members[CAFE]}, audited=20)
    part.save(tmp_path / "south")
    assert fedaudit.join_audits([tmp_path / "south"]).names == ("south",)
    # A name whose number is not in the file is not shown for another client.
    forged = replace(audit, names=("elsewhere",))
    fedaudit.save_audit(forged, tmp_path / "forged")
    assert fedaudit.join_audits([tmp_path / "forged"]).names == ()


def test_two_spellings_of_a_client_in_uploads_exclude_it(tmp_path: Path) -> None:
    split = data().split
    with record(tmp_path, network, split.audit, attacks=["blackbox-loss"]) as recorder:
        first = next(rounds())
        uploads: dict[ClientRef, dict[str, Tensor]] = dict(first.uploads.items())
        uploads["1 "] = first.uploads[1]
        with pytest.warns(RuntimeWarning, match=r"it has two uploads, named 1 and '1 '"):
            recorder.round(1, sent=first.sent, uploads=uploads)
    assert [*read_round_log(tmp_path)[0].excluded] == [1]


def test_two_spellings_of_a_client_in_sent_models_exclude_it(tmp_path: Path) -> None:
    first = next(rounds())
    sent: dict[ClientRef, dict[str, Tensor]] = dict.fromkeys((0, 1, "1 ", 2), first.sent)
    warning = "client 1: the argument sent has several models for it"
    with (
        record(tmp_path, network, data().split.audit, attacks=["blackbox-loss"]) as recorder,
        pytest.warns(RuntimeWarning, match=warning),
    ):
        recorder.round(1, sent=sent, uploads=first.uploads)
    assert [*read_round_log(tmp_path)[0].excluded] == [1]


@pytest.mark.parametrize(("name", "look_alike"), [(0, "0"), ("0", 0), (CAFE, DECOMPOSED)])
def test_audited_counts_and_training_data_accept_any_spelling(
    name: ClientRef, look_alike: ClientRef
) -> None:
    split = fedaudit.fair_split({name: FIRST}, audited={look_alike: 5})
    assert len(split.audit) == 5
    audit = fedaudit.audit_samples({name: FIRST}, SECOND, training={look_alike: FIRST})
    assert len(audit) == 60


@pytest.mark.parametrize("audited", [5.5, True, "5", None, np.float64(5), [5], {0: 5.5}, {0: True}])
def test_audited_must_be_a_whole_number(audited: int) -> None:
    with pytest.raises(BadInput, match="give a whole number of samples"):
        fedaudit.fair_split({0: FIRST}, audited=audited)
    with pytest.raises(BadInput, match="give a whole number of samples"):
        fedaudit.split_dataset(torch.utils.data.TensorDataset(*FIRST), audited)


@pytest.mark.parametrize("names", [(3, 1), ("north", "south", "a"), (1, 3), ("9", 2)])
def test_joined_parts_do_not_depend_on_name_order(
    names: tuple[ClientRef, ...],
) -> None:
    parts = {name: (X[i::3], Y[i::3]) for i, name in enumerate(names)}
    split = fedaudit.fair_split(parts, audited=8)
    alone = [fedaudit.fair_split({name: part}, audited=8).part for name, part in parts.items()]
    joined = fedaudit.join_audits(alone)
    assert torch.equal(joined.samples.features, split.audit.samples.features)
    assert joined.owner.tolist() == split.audit.owner.tolist()
    assert [*split.train] == [*parts]
