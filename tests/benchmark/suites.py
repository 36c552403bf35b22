"""Small suites with generated signals, which need no training."""

from pathlib import Path

import numpy as np
import torch

from fedaudit.benchmark.croissant import write_croissant
from fedaudit.benchmark.suite import (
    ANSWERS,
    SIGNALS,
    Answers,
    RecordingEntry,
    Regime,
    Signals,
    Suite,
    stored_file,
    write_answers,
    write_signals,
    write_suite,
)
from fedaudit.observe.measurements import Measurements

ROUNDS, CLIENTS, SAMPLES, TARGET = (2, 4, 6), (0, 1, 2), 200, 1


def signals(seed: int, *, references: int = 0) -> tuple[Signals, np.ndarray]:
    """Return signals whose mean is larger for members, and the membership."""
    rng = np.random.default_rng(seed)
    is_member = rng.permutation(np.arange(SAMPLES) < SAMPLES // 3)
    federations = []
    for number in range(1 + references):
        values = rng.normal(size=(2, len(ROUNDS), len(CLIENTS), SAMPLES))
        if not number:
            values[:, :, CLIENTS.index(TARGET)] += is_member
        bases = torch.zeros(len(ROUNDS), len(CLIENTS), dtype=torch.int64)
        federations.append(
            {
                name: Measurements(torch.from_numpy(each), ROUNDS, CLIENTS, bases)
                for name, each in zip(("loss", "scaled_logit"), values, strict=True)
            }
        )
    return Signals(TARGET, federations[0], federations[1:]), is_member


def known_attacks(seen: Signals, seed: int) -> dict[str, np.ndarray]:
    """Return the scores of a good, a weak and a useless attack."""
    good = seen.measured["loss"].of(TARGET).mean(0).numpy()
    noise = np.random.default_rng(1000 + seed).normal(size=(2, SAMPLES))
    return {"good": good, "weak": good + 2 * noise[0], "useless": noise[1]}


def write_small_suite(
    folder: Path, regimes: tuple[str, ...] = ("one", "two"), *, references: int = 0
) -> Suite:
    """Write a suite with two recordings for each regime."""
    for name in (SIGNALS, ANSWERS):
        (folder / name).mkdir(parents=True)
    recordings = []
    for number, regime in enumerate(regimes):
        for seed in (1, 2):
            name = f"{regime}-{seed}"
            seen, is_member = signals(10 * number + seed, references=references)
            write_signals(seen, folder / SIGNALS / f"{name}.safetensors")
            answers = Answers(is_member, known_attacks(seen, seed))
            write_answers(answers, folder / ANSWERS / f"{name}.safetensors")
            recordings.append(
                RecordingEntry(
                    name=name,
                    regime=regime,
                    seed=seed,
                    target=TARGET,
                    clients=len(CLIENTS),
                    rounds=len(ROUNDS),
                    samples=SAMPLES,
                    signals=stored_file(folder, f"{SIGNALS}/{name}.safetensors"),
                    answers=stored_file(folder, f"{ANSWERS}/{name}.safetensors"),
                )
            )
    suite = Suite(
        seed=1,
        fedaudit="0",
        regimes=[Regime(name=name, about="Generated.", settings={}) for name in regimes],
        recordings=recordings,
    )
    write_croissant(suite, folder)
    write_suite(suite, folder)
    return suite
