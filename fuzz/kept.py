"""Files that runs, recordings and pools keep: somebody may hand over the folder of any of them."""

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
"""The run that all files here say they are of."""
STANDING = RunState(
    round=2,
    server=NET.initial(1).tensors(),
    client_states={0: {"left": torch.zeros(2)}},
    defenses={0: {"drawn": torch.zeros(3, dtype=torch.int64)}},
)


def without_hash(path: Path) -> bytes:
    """As older versions wrote it: with a hash every change would be refused for that alone.

    And without the order of its tensors, with which every change of a name would be.
    """
    left_out = ("fedaudit.sha256", "fedaudit.order")
    with safe_open(path, framework="pt") as stored:
        notes = {k: v for k, v in stored.metadata().items() if k not in left_out}
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
    """Usage of a run, as far as the rows of a record."""
    found = read_usage(file(f"used/{USAGE_FILE}", content).parent, RUN)
    assert found is not None
    audit = SimpleNamespace(targets=found.clients)
    study = SimpleNamespace(defense=SimpleNamespace(label="none"), audit=audit)
    list(usage_rows(cast("Setup", SimpleNamespace(study=study, seed=1, defenses={})), found))
    if 0 in found.clients:
        add_round(found, Round(**{**vars(_round()), "index": found.rounds + 1}))


def usage_seeds() -> list[bytes]:
    place = FOLDER / "seed-used"
    place.mkdir(exist_ok=True)
    facts: Params = {"used": DATA.ids, "extra_bytes": torch.tensor([7])}
    round = Round(**{**vars(_round()), "client_notes": {0: facts}, "seconds": {0: 0.5}})
    list(record_usage([round], {0: DATA, 2: DATA}, place, RUN))
    assert empty_usage({0: DATA}).rounds == 0
    return [without_hash(place / USAGE_FILE)]


def standing(content: bytes) -> None:
    """The checkpoint of a run."""
    clients = (0, 1)
    resume_checkpoint(file("stood/checkpoint.safetensors", content), RUN, 3, STANDING, clients)


def standing_seeds() -> list[bytes]:
    path = FOLDER / "seed-checkpoint.safetensors"
    save_checkpoint(STANDING, path, RUN)
    return [without_hash(path)]


def scores(content: bytes) -> None:
    """Scores beside a record."""
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
def _kept_round() -> dict[str, bytes]:
    """The files of a kept round, by name."""
    write_round(FOLDER / "seed-kept", _round(), "full")
    return {path.name: without_hash(path) for path in (FOLDER / "seed-kept").rglob("*.safetensors")}


def _read_kept(name: str, content: bytes) -> None:
    place = FOLDER / f"kept-{name.removesuffix('.safetensors')}"
    if not place.exists():
        for other, usual in _kept_round().items():
            file(f"{place.name}/rounds/round-000001/{other}", usual)
    file(f"{place.name}/rounds/round-000001/{name}", content)
    list(read_rounds(place, NET))


def kept_models(content: bytes) -> None:
    """Models of a kept round."""
    _read_kept("server.safetensors", content)


def kept_models_seeds() -> list[bytes]:
    return [_kept_round()["server.safetensors"]]


def kept_update(content: bytes) -> None:
    """A client's update of a kept round."""
    _read_kept("client-000000.safetensors", content)


def kept_update_seeds() -> list[bytes]:
    return [_kept_round()["client-000000.safetensors"]]


def waiting_round(content: bytes) -> None:
    """A round that waits to be measured, and what the log says of it until then."""
    path = file("waits/waiting/round-000001.safetensors", content)
    waiting_round_entries(FOLDER / "waits")
    read_waiting(path, NET)


def waiting_round_seeds() -> list[bytes]:
    place = FOLDER / "seed-waits"
    store_waiting(place, _round(), round_entry(1, (0, 1, 2), (0, 2), 0))
    return [without_hash(place / "waiting" / "round-000001.safetensors")]


def left(content: bytes) -> None:
    """Statistics of canary clients, which a run leaves for its record."""
    place = file("left/canaries.safetensors", content).parent
    run = cast("Setup", SimpleNamespace(folder=place, key=lambda kind: RUN))
    measured = MeasuredRun(run, [StoredRound(cast("MeasuredRound", None), {})])
    measured.load_tensors("canaries.safetensors", {"z": (3,)})


def left_seeds() -> list[bytes]:
    return [save({"z": torch.zeros(3, dtype=torch.float64)}, {"run": RUN})]


def weights(content: bytes) -> None:
    """Values that a network was trained to beforehand."""
    load_pretrained(str(file("pretrained.safetensors", content)))


def weights_seeds() -> list[bytes]:
    return [save(NET.initial(0).tensors())]


def part(content: bytes) -> None:
    """A client's part of an audit."""
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
    """A point of games that was played before."""
    try:
        PointPlayed.model_validate(read_object(file("point.json", content)))
    except ValidationError as error:
        raise Damaged(str(error)) from error


def point_seeds() -> list[bytes]:
    path = min(unpacked().glob("ami-*/*.json"), key=lambda path: path.stat().st_size)
    record = read_record(path)
    return [record.games[0].model_dump_json(exclude_defaults=True).encode()]


def places(content: bytes) -> None:
    """Where the runs of a study are."""
    out = file(f"out/{RUNS_FILE}", content).parent
    (FOLDER / "pool" / "x").mkdir(parents=True, exist_ok=True)
    run_folder(out, 1)


def places_seeds() -> list[bytes]:
    return [b'{"1": "../pool/x"}']


def identity(content: bytes) -> None:
    """Which run a folder of a pool holds."""
    if _identity_in(file(f"identity/{RUN_FILE}", content).parent) is None:
        raise Damaged("it states none")


def identity_seeds() -> list[bytes]:
    return [json.dumps(asdict(Identity("a", "b", {"loss": "Loss()"}))).encode()]


def settings(content: bytes) -> None:
    """The settings of a study that was carried out."""
    recorded_study(file(f"carried/{STUDY_FILE}", content).parent)


def settings_seeds() -> list[bytes]:
    path = min((unpacked() / "fedmia-mnist").glob("*.json"))
    return [json.dumps(read_record(path).config).encode()]


def growth(content: bytes) -> None:
    """What was added to a study after it had a record."""
    additions_note(read_study_file(file(f"grown/{STUDY_FILE}", content).parent).additions)


def growth_seeds() -> list[bytes]:
    grown = {"seeds": ["2"], "attacks": ["fedmia-2"], "figures": ["planted_leak"]}
    return [json.dumps({**json.loads(one), "growth": grown}).encode() for one in settings_seeds()]
