"""Readers of the files that runs, recordings and pools store in their folders."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import save

from fedaudit.core.errors import Damaged
from fedaudit.core.files import read_object
from fedaudit.core.pretrained import load_pretrained
from fedaudit.core.values import Params, Samples, add_scaled
from fedaudit.evaluation.sample_scores import read_scores
from fedaudit.fl.simulate import RunState, resume_checkpoint, save_checkpoint
from fedaudit.live.audited import join_audits
from fedaudit.live.files import read_waiting, store_waiting, waiting_round_entries
from fedaudit.live.recording import round_entry
from fedaudit.models import architecture
from fedaudit.observe.kept_files import read_rounds, write_round
from fedaudit.observe.measurements import MeasuredRound, StoredRound
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.observe.tensors import write_tensors
from fedaudit.observe.usage import USAGE_FILE, add_round, empty_usage, read_usage, record_usage
from fedaudit.plan.parts import MeasuredRun, Setup
from fedaudit.results.games import PointPlayed
from fedaudit.results.read import read_record
from fedaudit.study.running.folder import (
    STUDY_FILE,
    additions_note,
    read_study_file,
    recorded_study,
)
from fedaudit.study.running.pool import RUN_FILE, RUNS_FILE, Identity, _identity_in, run_folder
from fedaudit.study.running.record import usage_rows
from fuzz.target import FOLDER, file
from results.archives import unpacked

ROOT = Path(__file__).parents[1]
NET = architecture("mlp", shape=(3,), classes=2, hidden="2")
DATA = Samples(torch.randn(6, 3), torch.tensor([0, 1] * 3), torch.arange(6))
RUN = "a"
"""Key of the run in all files of this module."""
STATE = RunState(
    round=2,
    server=NET.initial(1).tensors(),
    client_states={0: {"control": torch.zeros(2)}},
    defenses={0: {"drawn": torch.zeros(3, dtype=torch.int64)}},
)


def without_hash(path: Path) -> bytes:
    """Return a file as older versions wrote it: without a hash and without the order of tensors.

    With a hash, every change would be refused. With the order, every change of a name would be.
    """
    omitted = ("fedaudit.sha256", "fedaudit.order")
    with safe_open(path, framework="pt") as stored:
        notes = {key: value for key, value in stored.metadata().items() if key not in omitted}
        names = list(stored.keys())
        return save({name: stored.get_tensor(name) for name in names}, notes)


@cache
def _round() -> Round:
    base, local = NET.initial(0), NET.initial(1)
    update = add_scaled(local.params, base.params, -1.0)
    return Round(
        index=1,
        observed={
            0: ObservedModels(base, local, update, 0.5),
            2: ObservedModels(
                base, NET.initial(2), add_scaled(NET.initial(2).params, base.params, -1.0)
            ),
        },
        sent={},
        uploads={},
        weights={0: 0.25, 2: 0.75},
        selected=(0, 1, 2),
        answered=(0, 2),
        after={"global": local},
    )


def usage(content: bytes) -> None:
    """Read the usage of a run, and compute the rows of a record from it."""
    usage = read_usage(file(f"used/{USAGE_FILE}", content).parent, RUN)
    assert usage is not None
    audit = SimpleNamespace(targets=usage.clients)
    study = SimpleNamespace(defense=SimpleNamespace(label="none"), audit=audit)
    list(usage_rows(cast("Setup", SimpleNamespace(study=study, seed=1, defenses={})), usage))
    if 0 in usage.clients:
        add_round(usage, Round(**{**vars(_round()), "index": usage.rounds + 1}))


def usage_seeds() -> list[bytes]:
    folder = FOLDER / "seed-used"
    folder.mkdir(exist_ok=True)
    notes: Params = {"used": DATA.ids, "extra_bytes": torch.tensor([7])}
    round = Round(**{**vars(_round()), "client_notes": {0: notes}, "seconds": {0: 0.5}})
    list(record_usage([round], {0: DATA, 2: DATA}, folder, RUN))
    assert empty_usage({0: DATA}).rounds == 0
    return [without_hash(folder / USAGE_FILE)]


def checkpoint(content: bytes) -> None:
    """Resume a run from its checkpoint."""
    clients = (0, 1)
    resume_checkpoint(file("run/checkpoint.safetensors", content), RUN, 3, STATE, clients)


def checkpoint_seeds() -> list[bytes]:
    path = FOLDER / "seed-checkpoint.safetensors"
    save_checkpoint(STATE, path, RUN)
    return [without_hash(path)]


def scores(content: bytes) -> None:
    """Read the scores that a study stores next to its record."""
    read_scores(file("scores.safetensors", content))


def scores_seeds() -> list[bytes]:
    path = FOLDER / "seed-scores.safetensors"
    write_tensors(
        {
            "1/0/ids": torch.arange(4),
            "1/0/origin": torch.tensor([0, 0, 1, 2]),
            "1/0/scores/fedmia-2": torch.rand(4, dtype=torch.float64),
        },
        path,
    )
    return [without_hash(path)]


@cache
def _kept_round_files() -> dict[str, bytes]:
    """Return the files of a kept round, by name."""
    write_round(FOLDER / "seed-kept", _round(), "full")
    return {path.name: without_hash(path) for path in (FOLDER / "seed-kept").rglob("*.safetensors")}


def _read_kept(name: str, content: bytes) -> None:
    folder = FOLDER / f"kept-{name.removesuffix('.safetensors')}"
    if not folder.exists():
        for other, valid in _kept_round_files().items():
            file(f"{folder.name}/rounds/round-000001/{other}", valid)
    file(f"{folder.name}/rounds/round-000001/{name}", content)
    list(read_rounds(folder, NET))


def kept_models(content: bytes) -> None:
    """Read the models of a kept round."""
    _read_kept("server.safetensors", content)


def kept_models_seeds() -> list[bytes]:
    return [_kept_round_files()["server.safetensors"]]


def kept_update(content: bytes) -> None:
    """Read a client's update of a kept round."""
    _read_kept("client-000000.safetensors", content)


def kept_update_seeds() -> list[bytes]:
    return [_kept_round_files()["client-000000.safetensors"]]


def waiting_round(content: bytes) -> None:
    """Read a round that is not measured yet, and its entries for the log."""
    path = file("waits/waiting/round-000001.safetensors", content)
    waiting_round_entries(FOLDER / "waits")
    read_waiting(path, NET)


def waiting_round_seeds() -> list[bytes]:
    folder = FOLDER / "seed-waits"
    store_waiting(folder, _round(), round_entry(1, (0, 1, 2), (0, 2), 0))
    return [without_hash(folder / "waiting" / "round-000001.safetensors")]


def canary_statistics(content: bytes) -> None:
    """Read the statistics of canary clients, which a run stores for its record."""
    folder = file("canaries/canaries.safetensors", content).parent
    run = cast("Setup", SimpleNamespace(folder=folder, key=lambda kind: RUN))
    measured = MeasuredRun(run, [StoredRound(cast("MeasuredRound", None), {})])
    measured.load_tensors("canaries.safetensors", {"z": (3,)})


def canary_statistics_seeds() -> list[bytes]:
    return [save({"z": torch.zeros(3, dtype=torch.float64)}, {"run": RUN})]


def pretrained(content: bytes) -> None:
    """Read pretrained parameters."""
    load_pretrained(str(file("pretrained.safetensors", content)))


def pretrained_seeds() -> list[bytes]:
    return [save(NET.initial(0).tensors())]


def part(content: bytes) -> None:
    """Read a client's part of an audit set."""
    join_audits([file("part.safetensors", content)])


def part_seeds() -> list[bytes]:
    return [
        save(
            {
                "features": torch.arange(8.0).reshape(4, 2),
                "labels": torch.tensor([0, 1, 0, 1]),
                "owner": torch.tensor([3, 3, -1, -1]),
                "panel": torch.tensor([3, 3, 3, 3]),
            }
        )
    ]


def point(content: bytes) -> None:
    """Read the stored result of games."""
    try:
        PointPlayed.model_validate(read_object(file("point.json", content)))
    except ValidationError as error:
        raise Damaged(str(error)) from error


def point_seeds() -> list[bytes]:
    path = min(unpacked().glob("ami-*/*.json"), key=lambda path: path.stat().st_size)
    record = read_record(path)
    return [record.games[0].model_dump_json(exclude_defaults=True).encode()]


def run_folders(content: bytes) -> None:
    """Read the file with the folders of a study's runs."""
    out = file(f"out/{RUNS_FILE}", content).parent
    (FOLDER / "pool" / "x").mkdir(parents=True, exist_ok=True)
    run_folder(out, 1)


def run_folders_seeds() -> list[bytes]:
    return [b'{"1": "../pool/x"}']


def identity(content: bytes) -> None:
    """Read the identity of the run in a folder of a pool."""
    if _identity_in(file(f"identity/{RUN_FILE}", content).parent) is None:
        raise Damaged("the file has no identity")


def identity_seeds() -> list[bytes]:
    return [json.dumps(asdict(Identity("a", "b", {"loss": "Loss()"}))).encode()]


def settings(content: bytes) -> None:
    """Read the settings of a completed study."""
    recorded_study(file(f"settings/{STUDY_FILE}", content).parent)


def settings_seeds() -> list[bytes]:
    path = min((unpacked() / "fedmia-mnist").glob("*.json"))
    return [json.dumps(read_record(path).config).encode()]


def additions(content: bytes) -> None:
    """Read what was added to a study after its first record."""
    additions_note(read_study_file(file(f"additions/{STUDY_FILE}", content).parent).additions)


def additions_seeds() -> list[bytes]:
    added = {"seeds": ["2"], "attacks": ["fedmia-2"], "figures": ["planted_leak"]}
    return [json.dumps({**json.loads(seed), "growth": added}).encode() for seed in settings_seeds()]
