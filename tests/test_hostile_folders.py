"""Impossible values in files of runs and recordings raise errors."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.observe.tensors import read_notes, write_tensors
from fedaudit.observe.usage import MAX_USES, add_round, empty_usage
from fedaudit.plan.values import study_from
from fedaudit.study.running.pretraining import _raise_if_other_pretraining
from fuzz import run_files
from fuzz.target import file

DEEP = "[" * 3000
LARGE = torch.tensor([0] * 11 + [2**40])


def changed(seed: bytes, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> bytes:
    """Return the file with some tensors and notes replaced or added."""
    original_notes = read_notes(file("changed.safetensors", seed))
    original_notes.pop("fedaudit.order", "")
    return save({**load(seed), **tensors}, {**original_notes, **notes})


CASES: list[
    tuple[
        Callable[[bytes], None],
        Callable[[], list[bytes]],
        Mapping[str, Tensor],
        Mapping[str, str],
        str,
    ]
] = [
    # A histogram of these values would have a bin for each number up to the largest.
    (run_files.usage, run_files.usage_seeds, {"used": LARGE}, {}, "is damaged"),
    (run_files.usage, run_files.usage_seeds, {"recycled": LARGE}, {}, "is damaged"),
    (
        run_files.usage,
        run_files.usage_seeds,
        {"distinct": torch.tensor([[7, 0]])},
        {},
        "is damaged",
    ),
    (
        run_files.usage,
        run_files.usage_seeds,
        {"extra_bytes": torch.full((1, 2), 2**62)},
        {},
        "is damaged",
    ),
    (
        run_files.usage,
        run_files.usage_seeds,
        {"filter_cosine": torch.full((1, 2), 3.0, dtype=torch.float64)},
        {},
        "is damaged",
    ),
    (run_files.usage, run_files.usage_seeds, {"clients": torch.tensor([0, 0])}, {}, "is damaged"),
    (
        run_files.usage,
        run_files.usage_seeds,
        {"samples": torch.tensor([-6, 18])},
        {},
        "is not a valid usage file",
    ),
    (
        run_files.usage,
        run_files.usage_seeds,
        {"samples": torch.tensor([6, 5])},
        {},
        "is not a valid usage file",
    ),
    (
        run_files.scores,
        run_files.scores_seeds,
        {"9" * 5000 + "/0/ids": torch.arange(4)},
        {},
        "not scores of a study",
    ),
    (run_files.scores, run_files.scores_seeds, {"1/0/ids": torch.rand(4)}, {}, "has no origins of"),
    (
        run_files.scores,
        run_files.scores_seeds,
        {"1/0/scores/fedmia-2": torch.full((4,), torch.nan)},
        {},
        "scores of",
    ),
    (
        run_files.kept_models,
        run_files.kept_models_seeds,
        {"base/0/params/1.bias": torch.zeros(2, dtype=torch.int64)},
        {},
        "than in the model",
    ),
    (
        run_files.kept_update,
        run_files.kept_update_seeds,
        {"update/1.bias": torch.full((2,), torch.inf).half()},
        {},
        "its update is not finite",
    ),
    (
        run_files.kept_update,
        run_files.kept_update_seeds,
        {"buffers/params/1.bias": torch.zeros(100)},
        {},
        "that the model does not have",
    ),
    (
        run_files.waiting_round,
        run_files.waiting_round_seeds,
        {},
        {"clients": DEEP},
        "not a waiting round",
    ),
    (
        run_files.waiting_round,
        run_files.waiting_round_seeds,
        {},
        {"entry": DEEP},
        "not a waiting round",
    ),
    (
        run_files.waiting_round,
        run_files.waiting_round_seeds,
        {},
        {"weights": "[[0, NaN]]"},
        "not a waiting round",
    ),
    (
        run_files.waiting_round,
        run_files.waiting_round_seeds,
        {},
        {"clients": '[[0, 0, "x", true, true]]'},
        "not a waiting round",
    ),
    (
        run_files.waiting_round,
        run_files.waiting_round_seeds,
        {"after/global/params/1.bias": torch.zeros(1000)},
        {},
        "than in the model",
    ),
    (
        run_files.canary_statistics,
        run_files.canary_statistics_seeds,
        {"z": torch.full((3,), torch.nan)},
        {},
        "is missing, damaged or from another run",
    ),
    (
        run_files.part,
        run_files.part_seeds,
        {"owner": torch.zeros(4, 1, dtype=torch.int64)},
        {},
        "does not state the client",
    ),
    (
        run_files.part,
        run_files.part_seeds,
        {"panel": torch.zeros(4, 2)},
        {},
        "does not state the client",
    ),
    (
        run_files.checkpoint,
        run_files.checkpoint_seeds,
        {},
        {"round": "9" * 5000},
        "was not written by this run",
    ),
    (
        run_files.checkpoint,
        run_files.checkpoint_seeds,
        {"memory/" + "9" * 5000 + "/x": torch.zeros(1)},
        {},
        "was not written by this run",
    ),
]


@pytest.mark.parametrize(("read", "seeds", "tensors", "notes", "message"), CASES)
def test_impossible_run_files_raise_with_the_file(
    read: Callable[[bytes], None],
    seeds: Callable[[], list[bytes]],
    tensors: Mapping[str, Tensor],
    notes: Mapping[str, str],
    message: str,
) -> None:
    (seed,) = seeds()
    read(seed)
    with pytest.raises((Damaged, BadInput), match=message) as refused:
        read(changed(seed, tensors, notes))
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("where", ["x" * 20_000, "a\0b", "../" * 3000])
def test_an_impossible_path_of_a_run_is_refused(where: str) -> None:
    with pytest.raises(FedauditError, match=r"has an invalid path|which does not exist"):
        run_files.run_folders(json.dumps({"1": where}).encode())


def test_sample_uses_are_capped_at_the_readable_maximum() -> None:
    round = run_files._round()
    many = {0: {"used": run_files.DATA.ids.repeat(3), "recycled": run_files.DATA.ids}}
    usage = empty_usage({0: run_files.DATA})
    usage.used[0].fill_(MAX_USES - 1)
    summed = add_round(usage, type(round)(**{**vars(round), "client_notes": many}))
    assert summed.used[0].tolist() == [MAX_USES] * 6


def test_deeply_nested_pretraining_settings_are_another_study(
    tmp_path: Path,
) -> None:
    study = study_from(
        {"name": "a", "data": {"name": "digits"}, "pretraining": {"data": {"name": "mnist"}}}
    )
    path = tmp_path / "x.safetensors"
    write_tensors({"a": torch.zeros(1)}, path, {"settings": DEEP})
    with pytest.raises(FedauditError, match="was not written by the"):
        _raise_if_other_pretraining(path, study)
