"""Checkpoints of strangers: what is read of them, and what is refused without running."""

import builtins
import io
import operator
import os
import pickle
import shutil
import subprocess
import zipfile
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.live.checkpoints.files import read_checkpoint

RAN = "the-file-ran"


class Calling:
    """An object whose pickle calls a function."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


HOSTILE = {
    "os.system": Calling(os.system, f"touch {RAN}"),
    "subprocess": Calling(subprocess.Popen, ["touch", RAN]),
    "eval": Calling(builtins.eval, f"open('{RAN}', 'w')"),
    "exec": Calling(builtins.exec, f"open('{RAN}', 'w')"),
    "open": Calling(builtins.open, RAN, "w"),
    "rmtree": Calling(shutil.rmtree, "."),
    "attrgetter": Calling(operator.attrgetter, "system"),
    "memory": Calling(bytearray, 10**12),
    "tensor": Calling(torch.FloatTensor, 10**12),
    "hook": Calling(defaultdict, list),
}


@pytest.mark.parametrize("nested", ["alone", "beside", "inside", "in a module"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_pickle_that_calls_functions_is_refused_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, nested: str
) -> None:
    monkeypatch.chdir(tmp_path)
    weights: OrderedDict[str, object] = OrderedDict(weight=torch.ones(2, 2))
    module = nn.Linear(2, 2)
    module.extra = HOSTILE[kind]  # type: ignore[assignment]
    stored = {
        "alone": HOSTILE[kind],
        "beside": {"model": weights, "epoch": HOSTILE[kind]},
        "inside": weights | {"other": [(HOSTILE[kind],)]},
        "in a module": module,
    }
    torch.save(stored[nested], "model.pt")
    before = (tmp_path / "model.pt").read_bytes()
    with pytest.raises(
        BadInput, match=r"model\.pt (calls|uses) .*; .* (save|state_dict)"
    ) as refusal:
        read_checkpoint(tmp_path / "model.pt")
    assert "\n" not in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    assert (tmp_path / "model.pt").read_bytes() == before


def test_the_hostile_files_run_in_an_ordinary_unpickler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(HOSTILE["os.system"]))
    assert (tmp_path / RAN).exists()


class Block(nn.Module):
    """A module with all that a state dict has, and what it leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.inner = nn.Sequential(nn.BatchNorm2d(2), nn.ReLU(inplace=True))
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("hidden", torch.ones(4), persistent=False)
        self.register_buffer("shown", torch.ones(5))
        self.activation = nn.functional.relu
        self.empty = None


@pytest.mark.parametrize(
    "module", [Block(), nn.LSTM(2, 3), nn.MultiheadAttention(4, 2), nn.Linear(2, 2).half()]
)
def test_a_pickled_module_has_the_tensors_of_its_state_dict(
    tmp_path: Path, module: nn.Module
) -> None:
    torch.save(module, tmp_path / "net.pt")
    weights = read_checkpoint(tmp_path / "net.pt")
    state = module.state_dict()
    assert isinstance(weights, dict)
    assert weights.keys() == state.keys()
    assert all(torch.equal(weights[name], state[name]) for name in state)


@pytest.mark.parametrize("key", ["model", "state_dict", "model_state_dict"])
def test_a_model_next_to_its_optimizer_is_found(tmp_path: Path, key: str) -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    stored = {key: net.state_dict(), "optimizer": optimizer.state_dict(), "loss": torch.ones(1)}
    torch.save(stored | {"best": np.float64(0.5)}, tmp_path / "net.pt")
    weights = read_checkpoint(tmp_path / "net.pt")
    assert isinstance(weights, dict)
    assert {*weights} == {"weight", "bias"}


def huge() -> object:
    return {"weight": torch.ones(1).expand(10**11)}


def on_no_device() -> object:
    return {"weight": torch.ones(10**9, device="meta")}


def sparse() -> object:
    return {"weight": torch.eye(3).to_sparse()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [huge, on_no_device, sparse])
def test_declared_sizes_and_odd_tensors_are_refused(tmp_path: Path, make: object) -> None:
    torch.save(make(), tmp_path / "net.pt")  # type: ignore[operator]
    with pytest.raises(BadInput, match=r"net\.pt"):
        read_checkpoint(tmp_path / "net.pt")


@pytest.mark.parametrize(
    "stored",
    [5, [], {}, {"a": 1}, torch.ones(3), {"model": {}}, {"model": {"x": {}}}, {1: torch.ones(1)}],
)
def test_files_without_a_model_are_refused(tmp_path: Path, stored: object) -> None:
    torch.save(stored, tmp_path / "net.pt")
    with pytest.raises(BadInput, match="not the weights of one model; save the model's state_dict"):
        read_checkpoint(tmp_path / "net.pt")


def test_a_pickle_that_contains_itself_is_refused(tmp_path: Path) -> None:
    endless: dict[str, object] = {}
    endless["model"] = endless
    torch.save(endless, tmp_path / "net.pt")
    with pytest.raises(BadInput, match="not the weights of one model"):
        read_checkpoint(tmp_path / "net.pt")


def altered(path: Path, change: object) -> None:
    """Write the archive again, with the entries that a function returns."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        change(archive, entries)  # type: ignore[operator]


def compressed(archive: zipfile.ZipFile, entries: dict[str, bytes]) -> None:
    for name, text in entries.items():
        archive.writestr(name, text + b"\0" * 10**6, zipfile.ZIP_DEFLATED)


def two_pickles(archive: zipfile.ZipFile, entries: dict[str, bytes]) -> None:
    for name, text in entries.items():
        archive.writestr(name, text)
    archive.writestr("other/data.pkl", pickle.dumps(HOSTILE["eval"], 2))


def no_pickle(archive: zipfile.ZipFile, entries: dict[str, bytes]) -> None:
    for name, text in entries.items():
        if not name.endswith("data.pkl"):
            archive.writestr(name, text)


def deep(archive: zipfile.ZipFile, entries: dict[str, bytes]) -> None:
    nested = b"\x80\x02}" + b")" + b"\x85" * 10**6 + b"K\x01s."
    for name, text in entries.items():
        archive.writestr(name, nested if name.endswith("data.pkl") else text)


@pytest.mark.parametrize("change", [compressed, two_pickles, no_pickle, deep])
def test_archives_that_torch_does_not_write_are_refused(tmp_path: Path, change: object) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "net.pt")
    altered(tmp_path / "net.pt", change)
    with pytest.raises(FedauditError, match=r"net\.pt"):
        read_checkpoint(tmp_path / "net.pt")


def test_every_truncation_and_many_bit_flips_give_weights_or_a_refusal(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "net.pt")
    file_bytes = (tmp_path / "net.pt").read_bytes()
    rng = np.random.default_rng(1)
    damaged = [file_bytes[:size] for size in range(0, len(file_bytes), 97)]
    for position in rng.integers(0, len(file_bytes), 150).tolist():
        flipped = bytearray(file_bytes)
        flipped[position] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    refused = 0
    for content in damaged:
        (tmp_path / "net.pt").write_bytes(content)
        try:
            assert isinstance(read_checkpoint(tmp_path / "net.pt"), dict)
        except FedauditError:
            refused += 1
    assert refused > len(file_bytes) // 97


def test_an_old_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "net.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(Damaged, match=r"not a checkpoint of torch 1\.6"):
        read_checkpoint(tmp_path / "net.pt")


def test_a_torchscript_program_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("net/constants.pkl", b"")
        archive.writestr("net/data.pkl", b"")
    (tmp_path / "net.pt").write_bytes(buffer.getvalue())
    with pytest.raises(BadInput, match="TorchScript"):
        read_checkpoint(tmp_path / "net.pt")


def test_numpy_files_with_objects_or_of_huge_arrays_are_refused(tmp_path: Path) -> None:
    objects = np.array([HOSTILE["eval"]], dtype=object)
    np.savez(tmp_path / "net.npz", objects)
    with pytest.raises(BadInput, match="never objects"):
        read_checkpoint(tmp_path / "net.npz")


def test_links_out_of_the_folder_and_pipes_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    torch.save({"weight": torch.ones(2)}, tmp_path / "net.pt")
    (folder / "net.pt").symlink_to(tmp_path / "net.pt")
    os.mkfifo(folder / "pipe.pt")
    for name in ("net.pt", "pipe.pt", "absent.pt"):
        with pytest.raises(BadInput, match="cannot be read"):
            read_checkpoint(folder / name, within=folder)
    assert isinstance(read_checkpoint(folder / "net.pt"), dict)
