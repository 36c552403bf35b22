"""Killed studies can be resumed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedaudit.core.errors import Damaged
from fedaudit.observe.tensors import read_tensors
from fedaudit.plan.file import read_studies
from fedaudit.study.running.run import run_study

STUDY = """
name = "killed"
seeds = [1, 2]

[partition]
clients = 4
samples_per_client = 60

[training]
rounds = 20
epochs = 2
batch_size = 8

[audit]
fair = 50
every = 4

[attacks.loss-series]
[attacks.fedmia-2]
[attacks.sia]

[figures]
permutations = 20
blind_classifier = false
"""
KILLS = 2


def started(study: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedaudit", "run", str(study), "--out", str(out)]
    return subprocess.Popen([*command, "--workers", "1"], stdout=subprocess.DEVNULL)


def rounds_done(out: Path) -> int:
    """Whole rounds of all seeds, as their checkpoints say; 0 while one is being replaced."""
    paths = [out / f"seed-{seed}" / "checkpoint.safetensors" for seed in (1, 2)]
    try:
        return sum(int(read_tensors(path)[1]["round"]) for path in paths if path.exists())
    except Damaged:
        return 0


@pytest.mark.slow
def test_a_study_killed_twice_ends_with_the_same_content_hash(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    undisturbed_folder, broken = tmp_path / "whole", tmp_path / "broken"
    undisturbed = run_study(read_studies(study)[0], undisturbed_folder)

    rng = np.random.default_rng(int(time.time()))
    moments = sorted(rng.choice(np.arange(1, 38), KILLS, replace=False).tolist())
    for moment in moments:
        run = started(study, broken)
        while run.poll() is None and rounds_done(broken) < moment:
            time.sleep(0.05)
        time.sleep(float(rng.uniform(0, 0.05)))
        run.send_signal(signal.SIGKILL)
        run.communicate(timeout=60)
    ended = run_study(read_studies(study)[0], broken)
    assert ended.content_hash == undisturbed.content_hash, f"killed after rounds {moments}"
