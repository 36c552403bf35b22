from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedaudit.core.errors import BadInput, Damaged, NotVisible
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, ClientId, Model, add_scaled, flat
from fedaudit.observe.kept_files import read_rounds, write_round
from fedaudit.observe.measurements import (
    MeasuredRound,
    measured_rounds_in,
    read_measured,
    write_measured,
)
from fedaudit.observe.round import ALL_CLIENTS, ObservedModels, Round, Update
from fedaudit.observe.tensors import Keep, estimated_bytes, read_tensors, write_tensors
from fedaudit.observe.views import merge_clients, participant_rounds


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20), nn.Linear(20, 5))


NET = Architecture("net", partial(net))


def observed(base: Model, client: ClientId, size: float) -> ObservedModels:
    rng = seeded(3, client)
    step = {n: size * torch.randn(v.shape, generator=rng) for n, v in base.params.items()}
    buffers = {name: value + client for name, value in base.buffers.items()}
    return ObservedModels(base, Model(NET, add_scaled(base.params, step), buffers), step, 1.5)


def made_round(index: int = 10, size: float = 1e-4) -> Round:
    """Return a round with two uploads; clients 2 and 4 received different models."""
    first, second = NET.initial(0), NET.initial(1)
    exposures = {2: observed(first, 2, size), 4: observed(second, 4, size)}
    return Round(
        index=index,
        observed=exposures,
        sent={},
        uploads={c: Update(e.update or {}) for c, e in exposures.items()},
        weights={2: 0.25, 4: 0.75},
        selected=(2, 3, 4),
        answered=(2, 4),
        after={"global": NET.initial(2)},
    )


def same(left: Model | None, right: Model | None) -> bool:
    if left is None or right is None:
        return left is right
    ours, theirs = left.tensors(), right.tensors()
    return list(ours) == list(theirs) and all(torch.equal(ours[n], theirs[n]) for n in ours)


def measured_round(index: int) -> MeasuredRound:
    rng = seeded(0, index)
    return MeasuredRound(
        index,
        (0, 4),
        torch.tensor([0, 1]),
        {
            "loss": torch.randn(2, 5, generator=rng, dtype=torch.float64),
            "cosine": torch.randn(2, 5, generator=rng),
        },
        {0: 0, 3: 0},
    )


def test_measured_rounds_are_restored_exactly_in_order(tmp_path: Path) -> None:
    for index in (200, 1_000_000 - 1, 30):
        write_measured(tmp_path, measured_round(index), {"test_correct/global": str(index)})
    stored = read_measured(tmp_path)
    assert [stored_round.measured.index for stored_round in stored] == [30, 200, 999_999]
    for measured, notes in stored:
        expected = measured_round(measured.index)
        assert measured.clients == expected.clients
        assert torch.equal(measured.bases, expected.bases)
        assert measured.group_of == expected.group_of
        assert list(measured.signals) == ["loss", "cosine"]
        for name, values in expected.signals.items():
            assert torch.equal(measured.signals[name], values)
        assert notes == {"test_correct/global": str(measured.index)}


def test_a_folder_without_measured_rounds_has_none(tmp_path: Path) -> None:
    assert measured_rounds_in(tmp_path) == []


def test_a_wrong_folder_raises_and_suggests_a_subfolder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="contains no measured round; give the folder of a run"):
        read_measured(tmp_path)
    with pytest.raises(BadInput, match="is not a folder"):
        read_measured(tmp_path / "nothing")
    write_measured(tmp_path / "seed-1", measured_round(1), {})
    with pytest.raises(BadInput, match=r"such as .*seed-1$"):
        read_measured(tmp_path)


def test_files_with_other_names_are_ignored(tmp_path: Path) -> None:
    write_measured(tmp_path, measured_round(3), {})
    for name in ("round-000004.safetensors.partial", "notes.txt", "round-4.safetensors"):
        (tmp_path / "measured" / name).write_bytes(b"?")
    assert [stored_round.measured.index for stored_round in read_measured(tmp_path)] == [3]


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"PK\x03\x04", b"cut"])
def test_a_damaged_measured_round_raises_and_others_are_kept(
    tmp_path: Path, content: bytes
) -> None:
    write_measured(tmp_path, measured_round(1), {})
    write_measured(tmp_path, measured_round(2), {})
    first, second = sorted((tmp_path / "measured").iterdir())
    intact = first.read_bytes()
    second.write_bytes(intact[:-10] if content == b"cut" else content)
    with pytest.raises(Damaged, match="round-000002"):
        read_measured(tmp_path)
    assert first.read_bytes() == intact


@pytest.mark.parametrize(
    "change",
    [
        {"clients": None},
        {"clients": torch.tensor(3)},
        {"bases": torch.zeros(3, dtype=torch.int64)},
        {"stands_for": torch.zeros(2, dtype=torch.int64)},
        {"stands_for": None},
        {"bases": torch.tensor([0, 2])},
        {"bases": torch.tensor([-1, 0])},
        {"bases": torch.zeros(2)},
        {"stands_for": torch.tensor([[3, 0]])},
        {"stands_for": torch.tensor([[0, 0], [3, 0], [3, 3]])},
        {"stands_for": torch.tensor([[0, 0], [4, 0]])},
        {"stands_for": torch.tensor([[3, 3]])},
        {"stands_for": torch.tensor([[0.0, 0.0]])},
        {"signal/loss": None, "signal/cosine": None},
        {"signal/loss": torch.zeros(2)},
        {"signal/loss": torch.zeros(3, 5)},
        {"signal/loss": torch.zeros(2, 5, dtype=torch.int64)},
        {"signal/loss": torch.full((2, 5), 1e200, dtype=torch.float64)},
        {"signal/loss": torch.full((2, 5), torch.inf)},
    ],
    ids=str,
)
def test_a_valid_file_that_is_no_measured_round_raises(
    tmp_path: Path, change: dict[str, torch.Tensor | None]
) -> None:
    write_measured(tmp_path, measured_round(1), {})
    (path,) = (tmp_path / "measured").iterdir()
    tensors = {**read_tensors(path)[0], **change}
    save_file({name: value for name, value in tensors.items() if value is not None}, path)
    with pytest.raises(Damaged, match="restore it from a copy"):
        read_measured(tmp_path)


def test_mixed_measured_rounds_of_two_runs_raise(tmp_path: Path) -> None:
    write_measured(tmp_path, measured_round(1), {})
    other = MeasuredRound(2, (0,), torch.tensor([0]), {"loss": torch.zeros(1, 4)})
    write_measured(tmp_path, other, {})
    with pytest.raises(Damaged, match="different runs"):
        read_measured(tmp_path)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_a_kept_round_stores_updates_in_sixteen_bits(tmp_path: Path, size: float) -> None:
    round = made_round(size=size)
    write_round(tmp_path, round, "full")
    (restored,) = read_rounds(tmp_path, NET)
    assert (restored.index, restored.selected, restored.answered) == (10, (2, 3, 4), (2, 4))
    assert restored.weights == round.weights
    assert not restored.complete
    assert same(restored.after["global"], round.after["global"])
    for client, expected in round.observed.items():
        got = restored.observed[client]
        assert same(got.base, expected.base)
        assert got.gradient_scale == expected.gradient_scale
        assert got.update is not None
        assert expected.update is not None
        ours, theirs = flat(got.update), flat(expected.update)
        assert float((ours - theirs).norm() / theirs.norm()) < 5e-4
        assert float(torch.cosine_similarity(ours, theirs, 0)) > 1 - 1e-6
        assert got.local is not None
        assert expected.local is not None
        assert torch.equal(
            flat(got.local.buffers),
            flat(expected.local.buffers),
        )
        assert float((flat(got.local.params) - flat(expected.local.params)).abs().max()) < (
            1e-3 * size + 1e-6
        )


def test_an_update_of_zeros_is_kept(tmp_path: Path) -> None:
    write_round(tmp_path, made_round(size=0.0), "full")
    (restored,) = read_rounds(tmp_path, NET)
    assert all(float(flat(e.update or {}).abs().sum()) == 0 for e in restored.observed.values())


def test_a_model_sent_to_several_clients_is_stored_once(tmp_path: Path) -> None:
    base = NET.initial(0)
    exposures = {client: observed(base, client, 1.0) for client in range(3)}
    clients = tuple(exposures)
    weights = dict.fromkeys(clients, 1 / 3)
    write_round(
        tmp_path,
        Round(
            index=1,
            observed=exposures,
            sent={},
            uploads={},
            weights=weights,
            selected=clients,
            answered=clients,
        ),
        "full",
    )
    (server,) = tmp_path.rglob("server.safetensors")
    assert {name.split("/")[1] for name in read_tensors(server)[0] if "/" in name} == {"0"}


def test_merged_clients_are_restored(tmp_path: Path) -> None:
    base = NET.initial(0)
    exposures = {client: observed(base, client, 1.0) for client in range(4)}
    clients, weights = tuple(exposures), dict.fromkeys(range(4), 0.25)
    (round,) = merge_clients(
        [
            Round(
                index=1,
                observed=exposures,
                sent={},
                uploads={},
                weights=weights,
                selected=clients,
                answered=clients,
            )
        ],
        (1, 2),
    )
    write_round(tmp_path, round, "full")
    (restored,) = read_rounds(tmp_path, NET)
    assert restored.group_of == {1: 1, 2: 1}
    assert restored.weights == {0: 0.25, 1: 0.5, 3: 0.25}


def test_the_sum_of_all_clients_can_be_kept(tmp_path: Path) -> None:
    (round,) = participant_rounds([made_round()])
    write_round(tmp_path, round, "full")
    (restored,) = read_rounds(tmp_path, NET)
    assert set(restored.observed) == {ALL_CLIENTS}


def test_keeping_signals_only_writes_no_models(tmp_path: Path) -> None:
    write_round(tmp_path, made_round(), "signals")
    assert list(tmp_path.iterdir()) == []


def test_snapshots_store_only_the_server_model(tmp_path: Path) -> None:
    write_round(tmp_path, made_round(), "snapshots")
    assert [path.name for path in tmp_path.rglob("*.safetensors")] == ["server.safetensors"]
    with pytest.raises(BadInput, match="no updates"):
        list(read_rounds(tmp_path, NET))


def test_hidden_updates_cannot_be_kept(tmp_path: Path) -> None:
    local = ObservedModels(local=NET.initial(0))
    round = Round(
        index=1,
        observed={0: local},
        sent={},
        uploads={},
        weights={0: 1.0},
        selected=(0,),
        answered=(0,),
    )
    with pytest.raises(NotVisible, match='set keep = "signals"'):
        write_round(tmp_path, round, "full")


@pytest.mark.parametrize("name", ["server.safetensors", "client-000004.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "alien", "foreign"])
def test_a_damaged_kept_round_is_refused(tmp_path: Path, name: str, damage: str) -> None:
    write_round(tmp_path, made_round(), "full")
    (path,) = tmp_path.rglob(name)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    elif damage == "alien":
        path.write_bytes(b"not a tensor in sight")
    else:
        write_tensors({"base/0/elsewhere/w": torch.ones(1)}, path)
    with pytest.raises(Damaged):
        list(read_rounds(tmp_path, NET))


@pytest.mark.parametrize("name", ["server.safetensors", "client-000004.safetensors"])
def test_tensors_with_wrong_shapes_raise_without_broadcasting(tmp_path: Path, name: str) -> None:
    write_round(tmp_path, made_round(), "full")
    (path,) = tmp_path.rglob(name)
    tensors, notes = read_tensors(path)
    part = next(n for n in tensors if n.startswith(("update/", "base/")))
    write_tensors({**tensors, part: tensors[part].flatten()[:1]}, path, notes)
    with pytest.raises(Damaged, match="shape"):
        list(read_rounds(tmp_path, NET))
    del tensors[part]
    write_tensors(tensors, path, notes)
    with pytest.raises(Damaged, match=r"lacks tensors of the model|have other names or shapes"):
        list(read_rounds(tmp_path, NET))


@pytest.mark.parametrize("note", [{"peak": "nan"}, {"weight": "-1"}, {"gradient_scale": "0"}])
def test_an_invalid_update_size_raises(tmp_path: Path, note: dict[str, str]) -> None:
    write_round(tmp_path, made_round(), "full")
    (path,) = tmp_path.rglob("client-000004.safetensors")
    tensors, notes = read_tensors(path)
    write_tensors(tensors, path, {**notes, **note})
    with pytest.raises(Damaged, match="is out of range"):
        list(read_rounds(tmp_path, NET))


def test_missing_server_files_and_invalid_client_names_raise(
    tmp_path: Path,
) -> None:
    write_round(tmp_path, made_round(), "full")
    (server,) = tmp_path.rglob("server.safetensors")
    stranger = server.with_name("client-four.safetensors")
    stranger.write_bytes(server.read_bytes())
    with pytest.raises(Damaged, match="no client number in its name"):
        list(read_rounds(tmp_path, NET))
    server.unlink()
    with pytest.raises(Damaged, match=r"server.safetensors is missing"):
        list(read_rounds(tmp_path, NET))


@pytest.mark.parametrize(
    "change",
    [
        {"asked": torch.tensor([2, 2, 4])},
        {"asked": torch.tensor([2.0, 4.0])},
        {"asked": torch.zeros(0, dtype=torch.int64)},
        {"answered": torch.tensor([2, 4, 9])},
        {"stands_for": torch.tensor([[2, 7]])},
        {"stands_for": torch.tensor([[2, 2], [4, 2]])},
    ],
    ids=str,
)
def test_invalid_clients_of_a_kept_round_raise(
    tmp_path: Path, change: dict[str, torch.Tensor]
) -> None:
    write_round(tmp_path, made_round(), "full")
    (path,) = tmp_path.rglob("server.safetensors")
    tensors, notes = read_tensors(path)
    write_tensors({**tensors, **change}, path, notes)
    with pytest.raises(Damaged, match=r"is not a valid .*stored round"):
        list(read_rounds(tmp_path, NET))


@pytest.mark.parametrize("keep", ["signals", "snapshots", "full"])
def test_the_estimated_disk_usage_matches_written_files(tmp_path: Path, keep: Keep) -> None:
    round = made_round()
    signals = {name: torch.zeros(2, 500, dtype=torch.float64) for name in ("loss", "cosine")}
    write_measured(tmp_path, MeasuredRound(10, (2, 4), torch.tensor([0, 0]), signals), {})
    write_round(tmp_path, round, keep)
    written = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    parameters = len(flat(NET.initial(0).params))
    checkpoint = 2 * parameters * 4
    estimate = estimated_bytes(
        keep=keep, rounds=1, clients=2, samples=500, signals=2, parameters=parameters
    )
    # The estimate excludes headers, running statistics and the second base model.
    assert 0.9 * (estimate - checkpoint) < written < estimate - checkpoint + 12_000
