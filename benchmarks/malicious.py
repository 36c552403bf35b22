"""How often 95 % limits of an AUC exclude 0.5 if a malicious client poisons all audited samples.

``python -m benchmarks.malicious`` simulates federations of digits with a malicious client. To a
participant, members and other honest clients' samples are identically distributed. The AUC between
them is therefore 0.5, whatever the poisoning does to the scores, and its limits should exclude 0.5
in one of twenty runs. The script also prints the AUC of the attacks against unseen samples.
"""

import sys

import numpy as np
import torch

from fedaudit.core.metric_names import Origin
from fedaudit.core.seeds import seed_for
from fedaudit.evaluation.truth import target_truth
from fedaudit.fl.simulate import simulate
from fedaudit.metrics import auc_interval
from fedaudit.observe.measurements import stacked
from fedaudit.observe.views import seen_from
from fedaudit.plan.values import study_from
from fedaudit.signals.measure import measure_round
from fedaudit.study.build import build_setup

ATTACKS = ("blackbox-loss", "loss-series", "recovery")
RUNS = 100


def study_of(kind: str, seed: int) -> dict[str, object]:
    """Return the settings of a federation with five clients."""
    return {
        "name": "malicious",
        "seeds": [seed],
        "partition": {"clients": 5, "samples_per_client": 100},
        "training": {"rounds": 14, "epochs": 3, "batch_size": 10},
        "audit": {"samples": 150, "view": "globals", "every": 7},
        "attacker": {"kind": kind, "strength": 5.0},
        "attacks": {name: {} for name in ATTACKS},
    }


def aucs(kind: str, seed: int) -> np.ndarray:
    """Return AUC and limits of each attack against other clients' and against unseen samples."""
    run = build_setup(study_from(study_of(kind, seed)), seed, None)
    clients = run.all_clients
    rounds = simulate(
        clients.algorithm,
        clients.data,
        rounds=run.study.training.rounds,
        seed=seed_for(seed, "federation"),
        defenses=clients.defenses,
    )
    audited = run.assignment.audit.samples
    cubes = stacked(
        measure_round(round, run.signals, audited)
        for round in seen_from(rounds, run.view)
        if round.index in run.measured_rounds
    )
    truth = target_truth(run, 0)
    intervals = []
    for attack in run.attacks.values():
        scores = attack.scores(cubes, 0).numpy()[truth.positions]
        for origin in (Origin.OTHER_CLIENT, Origin.UNSEEN):
            chosen = np.isin(truth.origin, [Origin.MEMBER, origin])
            auc = auc_interval(scores[chosen], truth.is_member[chosen])
            intervals.append((auc.value, auc.low, auc.high))
    return np.array(intervals).reshape(len(ATTACKS), 2, 3)


def main(runs: int) -> None:
    """Print a line for each kind of poisoning and attack."""
    torch.set_num_threads(1)
    for kind in ("none", "mislabel", "ascent"):
        by_run = np.stack([aucs(kind, seed) for seed in range(1, runs + 1)])
        for index, name in enumerate(ATTACKS):
            null = by_run[:, index, 0]
            excluded = ((null[:, 1] > 0.5) | (null[:, 2] < 0.5)).mean()
            print(
                f"{kind:9} {name:14} v. other clients: mean AUC {null[:, 0].mean():.3f}, limits "
                f"exclude 0.5 in {100 * excluded:.1f} % of {runs} runs; v. unseen: mean AUC "
                f"{by_run[:, index, 1, 0].mean():.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
