"""Reference models in tables of signals."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedaudit.attacks.references import DEFAULT_OFFLINE_COEFFICIENT
from fedaudit.core.errors import BadInput, Damaged, NotVisible
from fedaudit.core.files import SCORES_FILE
from fedaudit.core.metric_names import Origin
from fedaudit.evaluation.sample_scores import SampleScores, read_scores
from fedaudit.live.attack import attack_recording
from fedaudit.live.recording import read_recording
from fedaudit.observe.tensors import read_tensors, write_tensors
from tests.live.conftest import RecordTable
from tests.live.test_signal_tables import Table, csv_of
from tests.study.studies import SMALL

N_SAMPLES, N_MODELS, N_ROUNDS = 120, 6, 2


def tables(*, online: bool = False, by_round: bool = False) -> tuple[Table, Table]:
    """Return tables of clients and reference models; members have a higher confidence."""
    rng = np.random.default_rng(2)
    difficulty = rng.normal(0, 2, N_SAMPLES)
    round, client, sample = np.indices((N_ROUNDS, 2, N_SAMPLES)).reshape(3, -1)
    owner = np.where(sample < 60, sample % 2, -1)
    logit = difficulty[sample] + (owner == client) + rng.normal(0, 0.5, len(sample))
    clients = {"round": round + 1, "client": client, "sample": sample, "owner": owner}
    clients |= {"label": sample % 3, "confidence": 1 / (1 + np.exp(-logit))}
    n_rounds = N_ROUNDS if by_round else 1
    index, model, model_sample = np.indices((n_rounds, N_MODELS, N_SAMPLES)).reshape(3, -1)
    logit = difficulty[model_sample] + rng.normal(0, 0.5, len(model))
    models = {"model": model, "sample": model_sample}
    if by_round:
        models["round"] = index + 1
    if online:
        half = rng.random((N_MODELS, N_SAMPLES)).argsort(0).argsort(0) < N_MODELS // 2
        models["trained"] = half[model, model_sample].astype(int)
        logit += models["trained"]
    return clients, models | {"confidence": 1 / (1 + np.exp(-logit))}


def scores_of(path: Path, attack: str) -> SampleScores:
    """Return the scores of client 0, with the samples as ids."""
    attack_recording(path, [attack], path / "attacked", figures=SMALL["figures"])
    return read_scores(path / "attacked" / SCORES_FILE)[1, 0]


def cell(table: Table, name: str, **keys: int) -> float:
    chosen = np.all([table[key] == value for key, value in keys.items()], axis=0)
    (value,) = table[name][chosen]
    return float(value)


def rmia(clients: Table, models: Table, sample: int, round: int) -> float:
    """Return the RMIA score of one sample by its equations."""
    target = cell(clients, "confidence", round=round, client=0, sample=sample)
    sides: dict[int, list[float]] = {0: [], 1: []}
    for model in range(N_MODELS):
        keys = {"model": model, "sample": sample}
        if "round" in models:
            keys["round"] = round
        trained = int(cell(models, "trained", **keys)) if "trained" in models else 0
        sides[trained].append(cell(models, "confidence", **keys))
    without = np.mean(sides[0])
    if not sides[1]:
        return float(
            np.log(
                target
                / (
                    ((1 + DEFAULT_OFFLINE_COEFFICIENT) * without + 1 - DEFAULT_OFFLINE_COEFFICIENT)
                    / 2
                )
            )
        )
    return float(np.log(target / ((np.mean(sides[1]) + without) / 2)))


def lira(clients: Table, models: Table, sample: int, round: int) -> float:
    """Return the distance of one sample above reference models without it, as LiRA does."""
    logits = [
        np.log(p / (1 - p))
        for p in (
            cell(clients, "confidence", round=round, client=0, sample=sample),
            *(cell(models, "confidence", model=m, sample=sample) for m in range(N_MODELS)),
        )
    ]
    return float(logits[0] - np.mean(logits[1:]))


@pytest.mark.parametrize(
    ("attack", "online", "by_round"),
    [
        *[("rmia", False, False), ("rmia", True, False), ("lira", False, False)],
        *[("rmia-series", False, True), ("rmia-series", True, True)],
    ],
)
def test_scores_equal_those_of_the_equations(
    record_table: RecordTable, attack: str, online: bool, by_round: bool
) -> None:
    clients, models = tables(online=online, by_round=by_round)
    formula = lira if attack == "lira" else rmia
    rounds = range(1, N_ROUNDS + 1) if attack.endswith("series") else [N_ROUNDS]
    path = record_table(clients, references=models, attacks=[attack])
    scores = scores_of(path, attack)
    assert len(scores.ids) == N_SAMPLES
    for sample, score in zip(scores.ids.tolist(), scores.by_attack[attack].tolist(), strict=True):
        expected = np.mean([formula(clients, models, sample, round) for round in rounds])
        assert score == pytest.approx(expected, abs=1e-6)


def test_online_lira_finds_members(record_table: RecordTable) -> None:
    clients, models = tables(online=True)
    scores = scores_of(record_table(clients, references=models, attacks=["lira"]), "lira")
    values, is_member = scores.by_attack["lira"], scores.origin == Origin.MEMBER
    assert values[is_member].mean() > values[~is_member].mean() + 1


def test_scores_do_not_depend_on_order_other_samples_or_file_format(
    record_table: RecordTable, tmp_path: Path
) -> None:
    clients, models = tables(online=True)
    order = np.random.default_rng(3).permutation(len(models["model"]))
    shuffled = {name: values[order] for name, values in models.items()}
    further = {"model": 0, "sample": 999, "trained": 1, "confidence": 0.5}
    longer = {name: np.append(values, further[name]) for name, values in shuffled.items()}
    scores = []
    for number, references in enumerate((models, longer, csv_of(shuffled, tmp_path))):
        path = record_table(clients, str(number), references=references, attacks=["rmia"])
        scores.append(scores_of(path, "rmia").by_attack["rmia"])
    assert np.array_equal(scores[0], scores[1])
    assert np.array_equal(scores[0], scores[2])


def test_default_attacks_include_attacks_with_references(record_table: RecordTable) -> None:
    clients, models = tables()
    path = record_table(clients, references=models)
    recording = read_recording(path)
    assert {"rmia", "lira"} <= {*recording.attacks}
    assert recording.references == N_MODELS
    record = attack_recording(path, [], path / "attacked", figures=SMALL["figures"])
    assert any("6 reference models" in text for text in record.untested)
    assert not any(text.startswith("Attacks that compare with ref") for text in record.untested)


def broken(name: str) -> tuple[object, str]:
    _, models = tables(online=True)
    without = {key: values[1:] for key, values in models.items()}
    changes: dict[str, tuple[object, str]] = {
        "a row is missing": (without, "there is no row of sample 0 for model 0"),
        "no model": ({k: v for k, v in models.items() if k != "model"}, "no column 'model'"),
        "a column of clients": (models | {"cosine": models["confidence"]}, "column of references"),
        "trained is a fraction": (models | {"trained": models["confidence"]}, "whole numbers"),
        "trained is 2": (models | {"trained": models["trained"] + 1}, "other values than 0 and 1"),
        "other samples": (models | {"sample": models["sample"] + 500}, "have no audited sample"),
        "loss alone": (
            {k: v for k, v in models.items() if k != "confidence"} | {"loss": models["confidence"]},
            "lack the signal 'scaled_logit'",
        ),
        "trained on all": (
            models | {"trained": np.ones(len(models["model"]))},
            "at least 1 reference model that was not",
        ),
        "all lack a sample": (
            {key: values[models["sample"] != 7] for key, values in models.items()},
            "not measured on every audited sample, such as 7",
        ),
    }
    return changes[name]


@pytest.mark.parametrize(
    "case",
    [
        *["a row is missing", "no model", "a column of clients", "trained is a fraction"],
        *["trained is 2", "other samples", "loss alone", "trained on all", "all lack a sample"],
    ],
)
def test_unusable_references_are_refused(
    record_table: RecordTable, tmp_path: Path, case: str
) -> None:
    models, message = broken(case)
    with pytest.raises((BadInput, NotVisible), match=message):
        record_table(tables()[0], references=models, attacks=["lira"])
    assert not (tmp_path / "table" / "recording.json").exists()


def test_references_of_another_recording_are_refused(record_table: RecordTable) -> None:
    clients, models = tables()
    folders = [record_table(clients, name, references=models) for name in ("first", "second")]
    name = "references/trained-on.safetensors"
    (folders[0] / name).write_bytes((folders[1] / name).read_bytes())
    with pytest.raises(Damaged, match="reference models"):
        attack_recording(folders[0], [], folders[0] / "attacked")
    tensors, notes = read_tensors(folders[1] / name)
    write_tensors({"trained_on": tensors["trained_on"][:, :-1]}, folders[1] / name, notes)
    with pytest.raises(Damaged, match="reference models"):
        attack_recording(folders[1], [], folders[1] / "attacked")


def test_gate_pack_and_verify_accept_attacks_on_references(
    record_table: RecordTable, pack_recording: Callable[[], str]
) -> None:
    clients, models = tables()
    record_table(clients, references=models, attacks=["rmia"])
    assert "the pack is sound" in pack_recording()
