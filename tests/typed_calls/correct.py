"""Calls of the public API that are right; read by mypy, never run."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedaudit as fa


def build(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes)


ARRAYS = np.zeros((10, 3)), np.zeros(10)

fa.Federation("mnist")
fa.Federation(ARRAYS, clients=7, model=nn.Linear(3, 2))
fa.Federation((torch.zeros(10, 3), torch.zeros(10)), model=build)
fa.Federation(fa.Samples(*ARRAYS), clients=fa.partitions.IID(4, samples_per_client=30))
fa.Federation(fa.datasets.digits(test_share=0.3), clients=fa.partitions.Dirichlet(4, beta=0.5))
fa.Federation(fa.datasets.npz("a.npz", labels="book"), algorithm=fa.algorithms.FedAvg(rounds=3))
fa.Federation(
    fa.datasets.csv("a.csv", client="b", categories={"c": ["d", 1]}, scaling={"e": (40, 12.5)}),
    clients=fa.partitions.Natural(4),
)
fa.Federation(fa.datasets.hf("ylecun/mnist"), algorithm="fedprox", model="cnn")
fa.Federation(fa.datasets.images("a", size=32), model=fa.models.CNN(channels="16,32"))
fa.Federation(
    fa.datasets.samples(*ARRAYS, name="mine"),
    algorithm=fa.algorithms.FedMD(public="digits", rounds=5, lr=0.1),
    model=fa.models.MLP(hidden="64"),
)

fa.attacks.FedMIA2()
fa.attacks.FedMIA1(outlier_sigmas=2.0, leave_one_out=True).with_settings({"snapshot": "global"})
fa.attacks.RMIASeries(offline=0.3, snapshot="global")
fa.attacks.SIACosine()
fa.attacks.FedMIA2CentredTail(tail=0.1, outlier_sigmas=2.0)
fa.attacks.StackedSignals(scale="sum", bags=3)
fa.attacks.BlackboxLoss(snapshot="global")
fa.attacks.SIA(temperature=2.0, prior="size")
fa.attacks.Attack(
    signals=fa.attacks.LossSeries().signals,
    rule=fa.attacks.FedMIA2().rule,
    source="A custom attack",
)

fa.Federation(
    "mnist",
    defenses=[
        fa.defenses.CoFedMID(clients=[0, 1], sigma=0.1),
        fa.defenses.DPSGD(clip=1.0, noise_multiplier=0.1, clients=(2,)),
        fa.defenses.GradientNoise(sigma=0.01),
    ],
)
fa.Federation("mnist", defenses=fa.defenses.Hamp(0.5, 0.01))
fa.Federation("mnist", defenses="quantization")
fa.defenses.BitRandPublished(nominal_epsilon=5.0)


class Jitter(fa.defenses.ConfiguredDefense):
    """A custom defense."""


fa.Federation("mnist", defenses=[Jitter(clients=[0])])


def mean_gap(scores: np.ndarray, is_member: np.ndarray) -> float:
    return float(scores[is_member].mean() - scores[~is_member].mean())


class Printer:
    """A custom sink."""

    def metric(self, name: str, value: float, step: int | None) -> None: ...
    def text(self, name: str, value: str) -> None: ...
    def artifact(self, path: Path) -> None: ...
    def close(self) -> None: ...


run = fa.audit(
    fa.Federation(ARRAYS, task=fa.tasks.regression()),
    attacks=[fa.attacks.FedMIA2(), "loss-series"],
    targets=[0, 1],
    seeds=(1, 2),
    out="runs/mine",
    audit=fa.Audit(samples=100, view="uploads"),
    figures=fa.Figures(permutations=100),
    options=fa.AuditOptions(
        shadow=fa.Shadow(mode="known-split"), metrics=[mean_gap, "average_precision"]
    ),
    workers=2,
    progress=True,
)
run.attack("fedmia-1", fa.attacks.AvgCosine()).scores("fedmia-1", target=0, seed=1)
run.scores().scores.mean()
print(run.ask(row=3, prior=0.1).runs[0].attacks[0].p_value)
run.save_report("mine.html").exists()
fa.Run("runs/mine", fa.Federation("mnist"), attacks=[fa.attacks.FedMIA2()]).record.rows()
study = fa.read_study("mine.toml", {"training.rounds": 3})
fa.run_study(study, Path("runs/mine")).rows()
settings: tuple[fa.Training | None, fa.Attacker | None] = (fa.Training(rounds=3), None)
fa.audit(fa.Federation("mnist"), attacks={"a": fa.attacks.FedMIA2(), "rmia": {"offline": 0.3}})
fa.audit(fa.Games("cifar10", mechanism=fa.defenses.BitRandPublished(nominal_epsilon=5.0)))
fa.Games("digits", grid={"game.batch": [10, 100]}, classes=[0, 1])
fa.views.view_named("uploads").can_offer(fa.views.Capability.UPLOADS)

grid = fa.Grid(fa.Federation("mnist"), {"defenses": {"none": []}, "clients": [2, 5]})
grid_runs = grid.audit("runs/grid", attacks=[fa.attacks.FedMIA2()], seeds=3)
compared = fa.compare(grid_runs["none,2"], "runs/other", Path("runs/third"))
compared.save_page("comparison.html")
fa.plots.front(compared, metric="tpr@0.01")
fa.plots.bars(grid_runs, metric="auc")
latex: str = fa.table(grid_runs, "latex")

run.log_to("mlflow")
run.log_to(["tensorboard", Printer()], artifacts=False)
fa.audit(fa.Federation("mnist"), progress=None)
