"""All readers of untrusted files, with valid inputs.

Each reader takes the content of a file. It may raise an error of fedaudit, and no other error.
"""

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
from fuzz import client_arrays, run_files, saved_files, tables
from fuzz.target import FOLDER, Target, file, header, whole_document
from results.archives import unpacked

ROOT = Path(__file__).parents[1]

_CEILING = b"above_label_distributions = 0.5\n"


def _record(content: bytes) -> None:
    read_record(file("record.json", content))


def _report(content: bytes) -> None:
    report_html(read_record(file("record.json", content)))


def every_policy() -> Policy:
    """Return a policy with every rule."""
    lines = (line.removeprefix("# ") for line in DEFAULT_POLICY.splitlines()[1:])
    text = "\n".join(line for line in lines if not line.startswith(("attacks", "targets", "mech")))
    return policy_from(f"{text}\n")


def _gate(content: bytes) -> None:
    verdict = evaluate_policy(read_record(file("gated.json", content)), every_policy())
    # The file must be well-formed for any name of the record.
    ElementTree.fromstring(junit_xml(verdict))


def _policy(content: bytes) -> None:
    read_policy(file("policy.toml", content))


def _statement(content: bytes) -> None:
    read_statement(file("statement.toml", content))


def _manifest(content: bytes) -> None:
    _pack_manifest()
    file("pack/manifest.json", content)
    verify(FOLDER / "pack")


def _pack_manifest() -> Path:
    """Write a pack once, and return the path of its manifest."""
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
    # Data sets in which all samples are equal are refused.
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


def _smallest_files(pattern: str) -> Callable[[], list[bytes]]:
    return lambda: _smallest(ROOT, pattern)


def _short_records(pattern: str) -> Callable[[], list[bytes]]:
    """Return a function for seeds: records with lists of one entry, which are read faster."""

    def seeds() -> list[bytes]:
        records = [_without_digest(content) for content in _smallest(unpacked(), pattern)]
        return [json.dumps(_shortened(record)).encode() for record in records]

    return seeds


def _without_digest(content: bytes) -> dict[str, Any]:
    """Return a document without its digest, with which every change would be refused."""
    return without_digest(json.loads(content))


def _shortened(document: dict[str, Any]) -> dict[str, Any]:
    """Return a record whose outermost lists have one entry.

    Inner lists keep their length, because some must have equal lengths. The first source attack
    keeps all of its estimates.
    """
    short = {
        key: value[:1] if isinstance(value, list) else value for key, value in document.items()
    }
    if document.get("sources"):
        first = document["sources"][0]
        short["estimates"] = [
            estimate
            for estimate in document["estimates"]
            if estimate.get("topic") == "source"
            and estimate["attack"] == first["attack"]
            and estimate.get("seed", first["seed"]) == first["seed"]
        ]
    return short


def _tensor_seeds() -> list[bytes]:
    tensors = {"a": torch.zeros(2, 3), "b": torch.arange(4)}
    return [save(tensors), save(tensors, {"fedaudit.order": '["b", "a"]'}), *_audit_seeds()]


def _audit_seeds() -> list[bytes]:
    return [save({name: torch.arange(4) for name in ("ids", "labels", "owner", "panel")})]


def _samples_seeds() -> list[bytes]:
    return [save({"features": torch.zeros(4, 2)}), save({"features": torch.zeros(4, 1, 2, 2)})]


def _measured_seeds() -> list[bytes]:
    signals = {"loss": torch.randn(2, 3), "cosine": torch.randn(2, 3)}
    measured = MeasuredRound(1, (0, 1), torch.tensor([0, 0]), signals, {})
    write_measured(FOLDER / "seed", measured, {"run": "a", "test_correct/global": "3"})
    return [run_files.without_hash(path) for path in (FOLDER / "seed" / "measured").iterdir()]


def _recording_seeds() -> list[bytes]:
    return [
        b'{"format": "fedaudit-recording", "version": 1, "name": "ward", "key": "'
        + b"0123456789abcdef" * 2
        + b'", "view": "uploads", "every": 1, "keep": "signals", "attacks": ["sia"], '
        b'"refused": {"seqmia": "why"}, "targets": [0, 1], "classes": 10, "sizes": {"0": 3}, '
        b'"model": "Net", "started": "2026-01-01"}'
    ]


def _manifest_seeds() -> list[bytes]:
    return [_pack_manifest().read_bytes()]


def _policy_seeds() -> list[bytes]:
    return [DEFAULT_POLICY.encode(), DEFAULT_POLICY.replace("# ", "").encode()]


def _statement_seeds() -> list[bytes]:
    text = 'role = "deployer"\npurpose = "tests"\n'
    reasons = 'valid_until = 2030-01-31\n[not_applicable]\ndeletion = "none"\npeople = "alone"\n'
    return [text.encode(), f"{text}{reasons}".encode()]


def _comparison_seeds() -> list[bytes]:
    paths = sorted((unpacked() / "sia-mnist").glob("*.json"))
    records = [read_record(path) for path in paths]
    comparison = compare_records(records, [str(path) for path in paths])
    write_comparison_file(comparison, FOLDER / "seed.json")
    return [json.dumps(_without_digest((FOLDER / "seed.json").read_bytes())).encode()]


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
    seeds = []
    for kind in ("PNG", "GIF", "BMP", "TIFF", "JPEG", "WEBP", "PPM"):
        stream = io.BytesIO()
        Image.new("RGB", (4, 3), (10, 200, 30)).save(stream, kind)
        seeds.append(stream.getvalue())
    return seeds


def _packed_idx_seeds() -> list[bytes]:
    return [gzip.compress(seed) for seed in _idx_seeds()]


def _idx_seeds() -> list[bytes]:
    return [bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, *range(8)])]


def _cifar_seeds() -> list[bytes]:
    import pickle

    batch = {b"data": np.eye(2, 3072, dtype=np.uint8), b"labels": [0, 1]}
    return [pickle.dumps(batch, protocol) for protocol in (0, 2, 4)]


def _log_seeds() -> list[bytes]:
    return [b'{"round": 1, "asked": [0], "answered": [], "measured": true, "note": ""}\n' * 2]


TARGETS: dict[str, Target] = {
    "record": Target(_record, _short_records("sia-mnist/*.json"), whole_document),
    "report of a record": Target(_report, _short_records("sia-mnist/*.json"), whole_document),
    "record of games": Target(_record, _short_records("ami-*/*.json"), whole_document),
    "report of games": Target(_report, _short_records("ami-*/*.json"), whole_document),
    "gate of a record": Target(_gate, _short_records("fedmia-mnist/*.json"), whole_document),
    "gate of owners": Target(_gate, _short_records("sia-mnist/*.json"), whole_document),
    "gate of games": Target(_gate, _short_records("ami-*/*.json"), whole_document),
    "policy": Target(_policy, _policy_seeds),
    "statement of a packer": Target(_statement, _statement_seeds),
    "manifest of a pack": Target(_manifest, _manifest_seeds, whole_document),
    "comparison": Target(_comparison, _comparison_seeds, whole_document),
    "recording": Target(_recording, _recording_seeds, whole_document),
    "log of a recording": Target(_log, _log_seeds),
    "audit of a recording": Target(_audit, _audit_seeds, header),
    "samples of a recording": Target(_samples, _samples_seeds, header),
    "study file": Target(_study, _smallest_files("studies/*.toml")),
    "study of games": Target(_game_study, _smallest_files("studies/games/*.toml")),
    "safetensors": Target(_tensors, _tensor_seeds, header),
    "measured round": Target(_measured, _measured_seeds, header),
    "usage of a run": Target(run_files.usage, run_files.usage_seeds, header),
    "checkpoint": Target(run_files.checkpoint, run_files.checkpoint_seeds, header),
    "checkpoint of PyTorch": Target(saved_files.checkpoint, saved_files.checkpoint_seeds),
    "pickle of a checkpoint": Target(saved_files.pickle_of_checkpoint, saved_files.pickle_seeds),
    "table of signals": Target(saved_files.table, saved_files.table_seeds),
    "table of reference models": Target(saved_files.references, saved_files.references_seeds),
    "scores": Target(run_files.scores, run_files.scores_seeds, header),
    "models of a kept round": Target(run_files.kept_models, run_files.kept_models_seeds, header),
    "update of a kept round": Target(run_files.kept_update, run_files.kept_update_seeds, header),
    "waiting round": Target(run_files.waiting_round, run_files.waiting_round_seeds, header),
    "statistics of canaries": Target(
        run_files.canary_statistics, run_files.canary_statistics_seeds, header
    ),
    "pretrained values": Target(run_files.pretrained, run_files.pretrained_seeds, header),
    "part of an audit": Target(run_files.part, run_files.part_seeds, header),
    "played point": Target(run_files.point, run_files.point_seeds, whole_document),
    "places of runs": Target(run_files.run_folders, run_files.run_folders_seeds, whole_document),
    "identity of a run": Target(run_files.identity, run_files.identity_seeds, whole_document),
    "settings of a run": Target(run_files.settings, run_files.settings_seeds, whole_document),
    "growth of a study": Target(run_files.additions, run_files.additions_seeds, whole_document),
    "arrays for a recorder": Target(client_arrays.arrays, client_arrays.arrays_seeds),
    "state for a recorder": Target(client_arrays.state, client_arrays.state_seeds, header),
    "npz": Target(_npz, _npz_seeds),
    "table of codes": Target(_npz, _table_seeds),
    "text table": Target(tables.text, tables.text_seeds),
    "idx": Target(_idx, _idx_seeds),
    "packed idx": Target(_packed_idx, _packed_idx_seeds),
    "picture": Target(_picture, _picture_seeds),
    "CIFAR pickle": Target(_cifar, _cifar_seeds),
}
"""Targets by name. A target of an output reads a record and writes the output."""

if find_spec("pyarrow"):
    TARGETS |= {"Parquet table": Target(tables.columns, tables.columns_seeds)}

if find_spec("flwr"):
    from fuzz import flower

    TARGETS |= {
        "replies of Flower's nodes": Target(flower.reply, flower.reply_seeds),
    }
