"""Counts of the samples and bytes that clients used."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedaudit.core.errors import Damaged
from fedaudit.core.values import Samples
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.observe.usage import USAGE_FILE, add_round, empty_usage, read_usage, record_usage


def samples(*ids: int) -> Samples:
    return Samples(torch.zeros(len(ids), 2), torch.zeros(len(ids)).long(), torch.tensor(ids))


CLIENTS = {0: samples(7, 3, 9), 4: samples(2, 5)}


def round_with_facts(index: int) -> Round:
    return Round(
        index=index,
        observed={},
        sent={},
        uploads={},
        weights={},
        selected=(0, 4),
        answered=(0, 4),
        client_notes={
            0: {"used": torch.tensor([9, 7, 9]), "recycled": torch.tensor([9])},
            4: {"used": torch.tensor([1, 8, 5]), "extra_bytes": torch.tensor([10, 2])},
        },
        seconds={0: 0.5, 4: 1.0},
    )


def test_sample_uses_are_counted_for_known_samples_only() -> None:
    usage = add_round(empty_usage(CLIENTS), round_with_facts(1))
    assert usage.ids[0].tolist() == [3, 7, 9]
    assert usage.used[0].tolist() == [0, 1, 2]
    assert usage.recycled[0].tolist() == [0, 0, 1]
    assert usage.used[4].tolist() == [0, 1]
    assert usage.distinct.tolist() == [[2, 1]]
    assert usage.extra_bytes.tolist() == [[0, 12]]
    assert usage.seconds.tolist() == [[0.5, 1.0]]


def test_usage_sums_rounds_and_ignores_repeated_ones() -> None:
    usage = add_round(add_round(empty_usage(CLIENTS), round_with_facts(1)), round_with_facts(2))
    assert usage.used[0].tolist() == [0, 2, 4]
    assert usage.rounds == 2
    assert add_round(usage, round_with_facts(2)) is usage


def test_clients_that_do_not_participate_use_no_samples() -> None:
    usage = add_round(
        empty_usage(CLIENTS), replace(round_with_facts(1), client_notes={}, seconds={})
    )
    assert usage.used[0].tolist() == [0, 0, 0]
    assert usage.seconds.tolist() == [[0.0, 0.0]]


def filtered(index: int, *cosines: float) -> Round:
    facts = {4: {"filter_cosine": torch.tensor(cosines)}} if cosines else {}
    return replace(round_with_facts(index), client_notes=facts)


def test_filter_cosines_are_averaged_and_kept_by_round() -> None:
    usage = empty_usage(CLIENTS)
    for round in (filtered(1, 0.5), filtered(2, 0.25, 0.75), filtered(3)):
        usage = add_round(usage, round)
    assert usage.filter_cosine[:2, 1].tolist() == [0.5, 0.5]
    assert usage.filter_cosine[:, 0].isnan().all()
    assert usage.filter_cosine[2].isnan().all()


def test_usage_files_without_cosines_are_read_and_continued(tmp_path: Path) -> None:
    for _ in record_usage([round_with_facts(1)], CLIENTS, tmp_path, "ours"):
        pass
    tensors, notes = read_tensors(tmp_path / USAGE_FILE)
    del tensors["filter_cosine"]
    write_tensors(tensors, tmp_path / USAGE_FILE, notes)
    for _ in record_usage([filtered(2, 0.5)], CLIENTS, tmp_path, "ours"):
        pass
    usage = read_usage(tmp_path, "ours")
    assert usage is not None
    assert usage.filter_cosine[0].isnan().all()
    assert usage.filter_cosine[1, 1] == 0.5


def test_usage_files_with_tensors_per_client_are_read(
    tmp_path: Path,
) -> None:
    for _ in record_usage([round_with_facts(1)], CLIENTS, tmp_path, "ours"):
        pass
    now = read_usage(tmp_path, "ours")
    assert now is not None
    tensors, notes = read_tensors(tmp_path / USAGE_FILE)
    of_all = ("samples", "ids", "used", "recycled")
    older = {name: value for name, value in tensors.items() if name not in of_all}
    for client in CLIENTS:
        older[f"ids/{client}"] = now.ids[client]
        older[f"used/{client}"] = now.used[client]
        older[f"recycled/{client}"] = now.recycled[client]
    write_tensors(older, tmp_path / USAGE_FILE, notes)
    then = read_usage(tmp_path, "ours")
    assert then is not None
    for part in ("ids", "used", "recycled"):
        for client in CLIENTS:
            assert torch.equal(getattr(then, part)[client], getattr(now, part)[client])


def test_the_number_of_usage_tensors_does_not_depend_on_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedaudit.core.pretrained.MAX_TENSORS", 20)
    many = {client: samples(client, client + 1) for client in range(400)}
    for _ in record_usage(
        [replace(round_with_facts(1), client_notes={}, seconds={})], many, tmp_path, "ours"
    ):
        pass
    usage = read_usage(tmp_path, "ours")
    assert usage is not None
    assert len(usage.clients) == 400
    assert usage.ids[399].tolist() == [399, 400]


@pytest.mark.parametrize("name", ["acted", "risk_decided"])
def test_effects_of_defenses_and_risks_are_kept_by_round(name: str, tmp_path: Path) -> None:
    rounds = [
        replace(
            round_with_facts(index), client_notes={4: {name: torch.tensor(steps)}} if steps else {}
        )
        for index, steps in ((1, [0, 1, 0]), (2, [0, 0]), (3, []))
    ]
    for _ in record_usage(rounds, CLIENTS, tmp_path, "ours"):
        pass
    usage = read_usage(tmp_path, "ours")
    assert usage is not None
    by_round = getattr(usage, name)
    assert by_round[:2, 1].tolist() == [1.0, 0.0]
    assert by_round[2].isnan().all()
    assert by_round[:, 0].isnan().all()


def test_usage_files_without_counts_are_read_and_wrong_counts_raise(
    tmp_path: Path,
) -> None:
    for _ in record_usage([round_with_facts(1)], CLIENTS, tmp_path, "ours"):
        pass
    tensors, notes = read_tensors(tmp_path / USAGE_FILE)
    older = {name: value for name, value in tensors.items() if name != "acted"}
    write_tensors(older, tmp_path / USAGE_FILE, notes)
    usage = read_usage(tmp_path, "ours")
    assert usage is not None
    assert usage.acted.isnan().all()
    seven = torch.full_like(tensors["acted"], 7.0)
    write_tensors({**tensors, "acted": seven}, tmp_path / USAGE_FILE, notes)
    with pytest.raises(Damaged):
        read_usage(tmp_path, "ours")


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "loop", "dangling"])
def test_a_usage_path_that_is_no_regular_file_raises(kind: str, tmp_path: Path) -> None:
    path = tmp_path / USAGE_FILE
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        (tmp_path / "other").write_bytes(b"x")
        path.symlink_to({"link": "other", "loop": USAGE_FILE, "dangling": "nothing"}[kind])
    with pytest.raises(Damaged, match=r"usage\.safetensors is a link, a folder or another special"):
        read_usage(tmp_path, "ours")


def test_a_missing_round_is_refused() -> None:
    with pytest.raises(Damaged, match="the next round is 2"):
        add_round(empty_usage(CLIENTS), round_with_facts(2))


def test_usage_resumes_after_interruption_and_is_hidden_from_attacks(tmp_path: Path) -> None:
    for rounds in (
        [round_with_facts(1), round_with_facts(2)],
        [round_with_facts(2), round_with_facts(3)],
    ):
        for round in record_usage(rounds, CLIENTS, tmp_path, "ours"):
            assert round.client_notes == {}
            assert round.seconds == {}
    usage = read_usage(tmp_path, "ours")
    assert usage is not None
    assert usage.used[0].tolist() == [0, 3, 6]
    assert usage.extra_bytes[:, 1].tolist() == [12, 12, 12]
    with pytest.raises(Damaged, match="another run"):
        read_usage(tmp_path, "theirs")


@pytest.mark.parametrize("part", ["distinct", "extra_bytes", "seconds", "used", "recycled"])
def test_impossible_usage_counts_raise(tmp_path: Path, part: str) -> None:
    for _ in record_usage([round_with_facts(1)], CLIENTS, tmp_path, "ours"):
        pass
    tensors, notes = read_tensors(tmp_path / "usage.safetensors")
    write_tensors({**tensors, part: tensors[part] - 100}, tmp_path / "usage.safetensors", notes)
    with pytest.raises(Damaged, match="is damaged; restore it from a copy"):
        read_usage(tmp_path, "ours")


def test_missing_usage_files_give_none(tmp_path: Path) -> None:
    assert read_usage(tmp_path, "ours") is None
