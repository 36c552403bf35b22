"""CPU time of a client's round with CoFedMID, compared with undefended training.

    python -m benchmarks.cofedmid

Prints a table in Markdown, in about three minutes. Each variant is a client's whole local round
(selection, training, feedback, noise), measured in several rounds of a run. All variants run
alternately in one process. The first turn is dropped, and the table has medians. Data are random.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from time import process_time

import torch

from benchmarks.training import SMALL, Case, medians
from fedaudit.core.values import Samples
from fedaudit.defenses.cofedmid import CoFedMID
from fedaudit.defenses.cofedmid.compensation import Compensation
from fedaudit.defenses.cofedmid.partition import ClassGuided
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.hooks import UNDEFENDED, ClientContext, Defense
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Sent

ROUNDS = 50
MOMENTS = (1, 15, 30, 45)
"""Rounds whose mean represents the run. In its first fifth, no sample is used again."""
HALF = (0, 1, 2, 3, 4)
"""Coalition: half of the clients."""


@dataclass(frozen=True)
class Setting:
    """A client's data and network, and the paper's sizes for this number of classes."""

    case: Case
    m_max: int
    m_min: int

    @property
    def defenses(self) -> dict[str, Defense]:
        most, least = self.m_max, self.m_min
        return {
            "undefended": UNDEFENDED,
            "partition": ClassGuided(clients=HALF, m_max=most, m_min=least),
            "with compensation": Compensation(clients=HALF, m_max=most, m_min=least),
            "CoFedMID": CoFedMID(clients=HALF, m_max=most, m_min=least),
        }


SETTINGS = (
    Setting(Case("MLP 784-200, 10 classes", "mlp", (784,), 10, 10, 500, 25), 10, 2),
    Setting(Case("CNN 16,32 + 128, 28x28", "cnn", (1, 28, 28), 10, 10, 500, 9, SMALL), 10, 2),
    Setting(Case("CNN 32,64 + 512,128", "cnn", (3, 32, 32), 10, 10, 500, 7, {"padding": 2}), 10, 2),
    Setting(Case("MLP 600-200, 100 classes", "mlp", (600,), 100, 10, 2000, 15), 50, 20),
)


def local_round(
    setting: Setting, defense: Defense, index: int, data: Samples
) -> Callable[[], None]:
    algorithm = FedAvg(setting.case.architecture, LocalTraining(batch_size=32, lr=0.01))
    sent = Sent((setting.case.architecture.initial(0),))

    def client_context(round: int) -> ClientContext:
        weights = dict.fromkeys(range(10), 0.1)
        return ClientContext(
            round=round, rounds=ROUNDS, client=0, cohort=tuple(weights), weights=weights, seed=0
        )

    prepared = defense.prepare(data, client_context(0))

    def run() -> None:
        algorithm.run_client(sent, prepared, {}, defense, client_context(index))

    return run


def row(setting: Setting) -> str:
    data = setting.case.data(setting.case.samples)
    seconds: dict[str, list[float]] = {name: [] for name in setting.defenses}
    for index in MOMENTS:
        variants = {
            name: local_round(setting, defense, index, data)
            for name, defense in setting.defenses.items()
        }
        for name, spent in medians(variants, process_time, setting.case.turns).items():
            seconds[name].append(spent)
    plain = mean(seconds["undefended"])
    last = seconds["CoFedMID"][-1] / seconds["undefended"][-1]
    worst = max(a / b for a, b in zip(seconds["CoFedMID"], seconds["undefended"], strict=True))
    ratios = [f"{mean(seconds[name]) / plain:.2f}x" for name in list(seconds)[1:]]
    cells = [
        setting.case.name,
        f"{1000 * plain:.0f} ms",
        *ratios,
        f"{worst:.2f}x",
        f"{last:.2f}x",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    torch.set_num_threads(1)
    names = ["undefended", "partition", "with compensation", "CoFedMID", "worst", "round 45"]
    print("| client's round, CPU time | " + " | ".join(names) + " |")
    print("|" + "---|" * (len(names) + 1))
    for setting in SETTINGS:
        print(row(setting), flush=True)


if __name__ == "__main__":
    main()
