"""Readers of files that anybody may have written: each takes bytes and may refuse, and no more."""

import gzip
import io
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from fedaudit.datasets.formats import cifar, idx, images, npz
from fedaudit.games.run import read_points
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outputs import junit_xml
from fedaudit.gate.policy import DEFAULT_POLICY, Policy, policy_from, read_policy
from fedaudit.live.files import read_audit
from fedaudit.live.recording import read_recording, read_round_log
from fedaudit.observe.measurements import MeasuredRound, read_measured, write_measured
from fedaudit.observe.tensors import read_tensors
from fedaudit.pack.packing import write_pack
from fedaudit.pack.statement import read_statement
from fedaudit.pack.verifying import verify
from fedaudit.plan.file import read_studies
from fedaudit.report.page import report_html
from fedaudit.results.comparison import write_comparison_file
from fedaudit.results.read import read_comparison, read_record
from fedaudit.results.text import without_digest
from fedaudit.study.comparing import compare_records
from fuzz import afterwards, kept, nodes, tables
from fuzz.target import FOLDER, Target, alone, file, header
from results.archives import unpacked

ROOT = Path(__file__).parents[1]

_CEILING = b"above_label_distributions = 0.5\n"


def _record(content: bytes) -> None:
    read_record(file("record.json", content))


def _report(content: bytes) -> None:
    report_html(read_record(file("record.json", content)))


def every_policy() -> Policy:
    """A policy that asks for all there is."""
    lines = (line.removeprefix("# ") for line in DEFAULT_POLICY.splitlines()[1:])
    text = "\n".join(line for line in lines if not line.startswith(("attacks", "targets", "mech")))
    return policy_from(f"{text}\n")


def _gate(content: bytes) -> None:
    verdict = evaluate_policy(read_record(file("gated.json", content)), every_policy())
    # Whatever a record is called, the file is well formed.
    ElementTree.fromstring(junit_xml(verdict))


def _policy(content: bytes) -> None:
    read_policy(file("policy.toml", content))


def _statement(content: bytes) -> None:
    read_statement(file("statement.toml", content))


def _manifest(content: bytes) -> None:
    _packed()
    file("pack/manifest.json", content)
    verify(FOLDER / "pack")


def _packed() -> Path:
    pack = FOLDER / "pack"
    if not pack.exists():
        record = min((unpacked() / "sia-mnist").glob("*.json"))
        write_pack(record, file("policy.toml", b'name = "x"\n[sources]\n' + _CEILING), pack)
    return pack / "manifest.json"


def _comparison(content: bytes) -> None:
    read_comparison(file("comparison.json", content))


def _study(content: bytes) -> None:
    read_studies(file("study.toml", content))


def _game_study(content: bytes) -> None:
    read_points(file("games.toml", content))


def _tensors(content: bytes) -> None:
    read_tensors(file("x.safetensors", content))


def _measured(content: bytes) -> None:
    file("run/measured/round-000001.safetensors", content)
    read_measured(FOLDER / "run")


def _recording(content: bytes) -> None:
    file("live/recording.json", content)
    read_recording(FOLDER / "live")


def _log(content: bytes) -> None:
    file("log/rounds.jsonl", content)
    read_round_log(FOLDER / "log")


def _audit(content: bytes) -> None:
    file("audit/audit.safetensors", content)
    read_audit(FOLDER / "audit")


def _samples(content: bytes) -> None:
    file("live/audit.safetensors", _audit_seeds()[0])
    file("live/samples.safetensors", content)
    read_audit(FOLDER / "live")


def _npz(content: bytes) -> None:
    npz.npz(file("data.npz", content)).read(seed=1)


def _idx(content: bytes) -> None:
    for name in ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"):
        file(f"idx/{name}", content)
    for name in ("train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"):
        file(f"idx/{name}", bytes([0, 0, 8, 1, 0, 0, 0, 2, 0, 1]))
    idx.idx(FOLDER / "idx").read(seed=1)


def _packed_idx(content: bytes) -> None:
    for name in ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"):
        file(f"packed/{name}.gz", content)
    for name in ("train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"):
        file(f"packed/{name}", bytes([0, 0, 8, 1, 0, 0, 0, 2, 0, 1]))
    idx.idx(FOLDER / "packed").read(seed=1)


_GREEN = b"P6 1 1 255 " + bytes([0, 255, 0])


def _picture(content: bytes) -> None:
    for name in ("a/0.png", "a/1.png"):
        file(f"pictures/{name}", content)
    # Data sets whose samples are all the same are refused.
    for name in ("b/0.png", "b/1.png", "b/2.png"):
        file(f"pictures/{name}", _GREEN)
    images.images(FOLDER / "pictures", test_share=0.5, size=4).read(seed=1)


def _cifar(content: bytes) -> None:
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        file(f"cifar/{name}", content)
    cifar.cifar(FOLDER / "cifar").read(seed=1)


def _smallest(root: Path, pattern: str) -> list[bytes]:
    paths = sorted(root.glob(pattern), key=lambda path: path.stat().st_size)
    return [path.read_bytes() for path in paths[:12]]


def _kept(pattern: str) -> Callable[[], list[bytes]]:
    return lambda: _smallest(ROOT, pattern)


def _short(pattern: str) -> Callable[[], list[bytes]]:
    """Kept records with lists cut to one entry, so that more can be tried."""

    def found() -> list[bytes]:
        whole = [_unsealed(content) for content in _smallest(unpacked(), pattern)]
        return [json.dumps(_cut(one)).encode() for one in whole]

    return found


def _unsealed(content: bytes) -> dict[str, Any]:
    """A document without its digest, which would end every change of it at once."""
    return without_digest(json.loads(content))


def _cut(document: dict[str, Any]) -> dict[str, Any]:
    """Only the outermost lists: columns of one length stay so, and a source attack its figures."""
    cut = {k: v[:1] if isinstance(v, list) else v for k, v in document.items()}
    if document.get("sources"):
        first = document["sources"][0]
        cut["estimates"] = [
            one
            for one in document["estimates"]
            if one.get("topic") == "source"
            and one["attack"] == first["attack"]
            and one.get("seed", first["seed"]) == first["seed"]
        ]
    return cut


def _tensor_seeds() -> list[bytes]:
    some = {"a": torch.zeros(2, 3), "b": torch.arange(4)}
    return [save(some), save(some, {"fedaudit.order": '["b", "a"]'}), *_audit_seeds()]


def _audit_seeds() -> list[bytes]:
    return [save({name: torch.arange(4) for name in ("ids", "labels", "owner", "panel")})]


def _samples_seeds() -> list[bytes]:
    return [save({"features": torch.zeros(4, 2)}), save({"features": torch.zeros(4, 1, 2, 2)})]


def _measured_seeds() -> list[bytes]:
    signals = {"loss": torch.randn(2, 3), "cosine": torch.randn(2, 3)}
    one = MeasuredRound(1, (0, 1), torch.tensor([0, 0]), signals, {})
    write_measured(FOLDER / "seed", one, {"run": "a", "test_correct/global": "3"})
    return [kept.without_hash(path) for path in (FOLDER / "seed" / "measured").iterdir()]


def _recording_seeds() -> list[bytes]:
    return [
        b'{"format": "fedaudit-recording", "version": 1, "name": "ward", "key": "'
        + b"0123456789abcdef" * 2
        + b'", "view": "uploads", "every": 1, "keep": "signals", "attacks": ["sia"], '
        b'"refused": {"seqmia": "why"}, "targets": [0, 1], "classes": 10, "sizes": {"0": 3}, '
        b'"model": "Net", "started": "2026-01-01"}'
    ]


def _manifest_seeds() -> list[bytes]:
    return [_packed().read_bytes()]


def _policy_seeds() -> list[bytes]:
    return [DEFAULT_POLICY.encode(), DEFAULT_POLICY.replace("# ", "").encode()]


def _statement_seeds() -> list[bytes]:
    text = 'role = "deployer"\npurpose = "tests"\n'
    reasons = 'valid_until = 2030-01-31\n[not_applicable]\ndeletion = "none"\npeople = "alone"\n'
    return [text.encode(), f"{text}{reasons}".encode()]


def _comparison_seeds() -> list[bytes]:
    paths = sorted((unpacked() / "sia-mnist").glob("*.json"))
    records = [read_record(path) for path in paths]
    made = compare_records(records, [str(path) for path in paths])
    write_comparison_file(made, FOLDER / "seed.json")
    return [json.dumps(_unsealed((FOLDER / "seed.json").read_bytes())).encode()]


def _npz_seeds() -> list[bytes]:
    path = FOLDER / "seed.npz"
    x, y = np.eye(10, 3, dtype=np.float32), np.array([0, 1] * 5)
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    first = path.read_bytes()
    np.savez_compressed(path, x=x, y=y)
    return [first, path.read_bytes()]


def _table_seeds() -> list[bytes]:
    path = FOLDER / "seed-table.npz"
    words = np.frombuffer(b'{"job": ["cook", "smith"]}', dtype=np.uint8)
    x, y = np.array([[0, 3], [1, 5]] * 5), np.array([0, 1] * 5)
    np.savez_compressed(path, x=x, y=y, columns=np.array(["job", "age"]), vocab_json=words)
    return [path.read_bytes()]


def _picture_seeds() -> list[bytes]:
    found = []
    for kind in ("PNG", "GIF", "BMP", "TIFF", "JPEG", "WEBP", "PPM"):
        made = io.BytesIO()
        Image.new("RGB", (4, 3), (10, 200, 30)).save(made, kind)
        found.append(made.getvalue())
    return found


def _packed_idx_seeds() -> list[bytes]:
    return [gzip.compress(one) for one in _idx_seeds()]


def _idx_seeds() -> list[bytes]:
    return [bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, *range(8)])]


def _cifar_seeds() -> list[bytes]:
    import pickle

    batch = {b"data": np.eye(2, 3072, dtype=np.uint8), b"labels": [0, 1]}
    return [pickle.dumps(batch, protocol) for protocol in (0, 2, 4)]


def _log_seeds() -> list[bytes]:
    return [b'{"round": 1, "asked": [0], "answered": [], "measured": true, "note": ""}\n' * 2]


TARGETS: dict[str, Target] = {
    "record": Target(_record, _short("sia-mnist/*.json"), alone),
    "report of a record": Target(_report, _short("sia-mnist/*.json"), alone),
    "record of games": Target(_record, _short("ami-*/*.json"), alone),
    "report of games": Target(_report, _short("ami-*/*.json"), alone),
    "gate of a record": Target(_gate, _short("fedmia-mnist/*.json"), alone),
    "gate of owners": Target(_gate, _short("sia-mnist/*.json"), alone),
    "gate of games": Target(_gate, _short("ami-*/*.json"), alone),
    "policy": Target(_policy, _policy_seeds),
    "statement of a packer": Target(_statement, _statement_seeds),
    "manifest of a pack": Target(_manifest, _manifest_seeds, alone),
    "comparison": Target(_comparison, _comparison_seeds, alone),
    "recording": Target(_recording, _recording_seeds, alone),
    "log of a recording": Target(_log, _log_seeds),
    "audit of a recording": Target(_audit, _audit_seeds, header),
    "samples of a recording": Target(_samples, _samples_seeds, header),
    "study file": Target(_study, _kept("studies/*.toml")),
    "study of games": Target(_game_study, _kept("studies/games/*.toml")),
    "safetensors": Target(_tensors, _tensor_seeds, header),
    "measured round": Target(_measured, _measured_seeds, header),
    "usage of a run": Target(kept.usage, kept.usage_seeds, header),
    "checkpoint": Target(kept.standing, kept.standing_seeds, header),
    "checkpoint of PyTorch": Target(afterwards.checkpoint, afterwards.checkpoint_seeds),
    "pickle of a checkpoint": Target(afterwards.pickle_of_checkpoint, afterwards.pickle_seeds),
    "table of signals": Target(afterwards.table, afterwards.table_seeds),
    "table of reference models": Target(afterwards.references, afterwards.references_seeds),
    "scores": Target(kept.scores, kept.scores_seeds, header),
    "models of a kept round": Target(kept.kept_models, kept.kept_models_seeds, header),
    "update of a kept round": Target(kept.kept_update, kept.kept_update_seeds, header),
    "waiting round": Target(kept.waiting_round, kept.waiting_round_seeds, header),
    "statistics of canaries": Target(kept.left, kept.left_seeds, header),
    "pretrained values": Target(kept.weights, kept.weights_seeds, header),
    "part of an audit": Target(kept.part, kept.part_seeds, header),
    "played point": Target(kept.point, kept.point_seeds, alone),
    "places of runs": Target(kept.places, kept.places_seeds, alone),
    "identity of a run": Target(kept.identity, kept.identity_seeds, alone),
    "settings of a run": Target(kept.settings, kept.settings_seeds, alone),
    "growth of a study": Target(kept.growth, kept.growth_seeds, alone),
    "arrays for a recorder": Target(nodes.listed, nodes.listed_seeds),
    "state for a recorder": Target(nodes.named, nodes.named_seeds, header),
    "npz": Target(_npz, _npz_seeds),
    "table of codes": Target(_npz, _table_seeds),
    "text table": Target(tables.text, tables.text_seeds),
    "idx": Target(_idx, _idx_seeds),
    "packed idx": Target(_packed_idx, _packed_idx_seeds),
    "picture": Target(_picture, _picture_seeds),
    "CIFAR pickle": Target(_cifar, _cifar_seeds),
}
"""By name. Reports are made of whatever a reader lets through."""

if find_spec("pyarrow"):
    TARGETS |= {"Parquet table": Target(tables.columns, tables.columns_seeds)}

if find_spec("flwr"):
    from fuzz import flower

    TARGETS |= {
        "replies of Flower's nodes": Target(flower.reply, flower.reply_seeds),
    }
