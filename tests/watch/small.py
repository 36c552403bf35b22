"""A small study that has finished, and copies of it at an earlier moment."""

import json
import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import fedaudit as fa
from fedaudit.core.files import RECORD_FILE
from fedaudit.plan.sections import Study
from fedaudit.results.read import read_record
from fedaudit.results.record import Record

ROUNDS, SEEDS = 4, (1, 2)
OLD = 1_700_000_000.0
"""Time of the start of the study; a round takes 10 seconds."""
SECONDS = 10.0


_temporary = TemporaryDirectory(prefix="fedaudit-test-")


def study(**settings: object) -> Study:
    values = {
        "name": "small",
        "seeds": list(SEEDS),
        "data": {"name": "digits"},
        "partition": {"clients": 3},
        "model": {"name": "mlp", "options": {"hidden": "8"}},
        "training": {"rounds": ROUNDS, "epochs": 2},
        "audit": {"samples": 60, "targets": [0, 1], "every": 1},
        "figures": {"permutations": 20, "blind_classifier": False},
        "attacks": {"loss-series": {}, "fedmia-1": {}, "fta-l": {}},
    }
    return fa.study_from({**values, **settings})


@cache
def finished() -> Path:
    """The folder of the study; it must not be changed."""
    out = Path(_temporary.name) / "small"
    fa.run_study(study(), out)
    return out


def record() -> Record:
    return read_record(finished() / RECORD_FILE)


def at_round(folder: Path, done: dict[int, int]) -> Path:
    """Copy the study as it was when each of these seeds had done a number of rounds."""
    shutil.copytree(finished(), folder, ignore=shutil.ignore_patterns("record*", "report*", "sco*"))
    for seed in SEEDS:
        run = folder / f"seed-{seed}"
        if seed not in done:
            shutil.rmtree(run)
            continue
        (run / "checkpoint.safetensors").unlink()
        for index in range(1, ROUNDS + 1):
            path = round_file(folder, index, seed)
            if index > done[seed]:
                path.unlink()
    set_times(folder)
    return folder


def round_file(folder: Path, index: int, seed: int = 1) -> Path:
    return folder / f"seed-{seed}" / "measured" / f"round-{index:06d}.safetensors"


def set_times(folder: Path) -> None:
    """Set the times of all files as if a round took ten seconds, one seed after the other."""
    for path in folder.rglob("*"):
        os.utime(path, (OLD, OLD))
    for position, seed in enumerate(SEEDS):
        start, audit = OLD + SECONDS * position * ROUNDS, folder / f"seed-{seed}/audit.safetensors"
        if audit.exists():
            os.utime(audit, (start, start))
        for index in range(1, ROUNDS + 1):
            if (path := round_file(folder, index, seed)).exists():
                time = OLD + SECONDS * (position * ROUNDS + index)
                os.utime(path, (time, time))


def change_study(folder: Path, **settings: object) -> None:
    path = folder / "study.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**values, **settings}), encoding="utf-8")
