"""Generated records with realistic scores."""

from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, rankdata

from fedaudit.core.seeds import seeded_numpy
from fedaudit.evaluation.source import Baseline, SourceEvaluation, source_estimates
from fedaudit.metrics import EstimateWithLimits, tpr_limits
from fedaudit.metrics.source import ExcessOverLabels
from fedaudit.results.aggregate import average_each, correct_tests
from fedaudit.results.estimate import (
    GENERALISATION_GAP,
    GUESSING,
    TEST_ACCURACY,
    TRAIN_ACCURACY,
    Estimate,
    Test,
)
from fedaudit.results.guessing import alpha_of
from fedaudit.results.record import (
    AccuracyByRound,
    AttackRow,
    ClientRow,
    ControlResult,
    Curve,
    Environment,
    ExposedSample,
    Histogram,
    Record,
    Trajectory,
    UsageRow,
    ViewRow,
)
from fedaudit.results.runs import ChainedInference, ClassSuccess, SelectivePrediction, SourceResult
from tests.estimates import changed, estimate

HOSTILE = "</script><script>document.documentElement.dataset.hacked='1'</script>"
HOSTILE_TAG = "<img src=x onerror=\"document.documentElement.dataset.hacked='1'\">"
HOSTILE_LINK = '<a href="https://evil.example/?">click\u2028me\u202e'

ATTACKS = {
    "fedmia-2": ("grad_cosine", "one-sided likelihood", "mean", "FedMIA, Eqs. (5), (8)-(11)"),
    "fedmia-1": ("loss", "one-sided likelihood", "mean", "FedMIA, Eqs. (5), (8)-(11)"),
    "avg-cosine": ("grad_cosine", "target only", "mean", "FedMIA, section 5.1"),
    "loss-series": ("loss", "target only", "mean", "FedMIA, section 5.1"),
    "fta-c": ("confidence", "target only", "slope", "CoFedMID, section 5.1"),
    "grad-norm": ("grad_norm", "target only", "last", "FedMIA, section 5.1"),
    "blackbox-loss": ("loss", "target only", "last", "Yeom et al. 2018"),
    "seqmia": ("loss, confidence", "target only", "learned", "SeqMIA, section 4"),
}
STRENGTH = (2.6, 1.9, 1.7, 1.3, 1.0, 0.7, 0.9, 0.0)
CONTRASTS: tuple[Literal["unseen", "other_client", "mixed"], ...] = (
    "unseen",
    "other_client",
    "mixed",
)

Scores = NDArray[np.float64]


class Split(NamedTuple):
    """Scores by origin."""

    member: Scores
    other_client: Scores
    unseen: Scores

    def against(self, contrast: str) -> Scores:
        mixed = np.concatenate([self.other_client, self.unseen])
        return {"other_client": self.other_client, "unseen": self.unseen, "mixed": mixed}[contrast]


def scores(strength: float, *path: str | int, size: int = 1000) -> Split:
    rng = seeded_numpy(7, "scores", *path)
    return Split(
        rng.normal(strength, 1 + 0.12 * strength, size),
        rng.normal(0.25 * strength, 1, size),
        rng.normal(0, 1, size),
    )


def auc_of(member: Scores, other: Scores) -> float:
    ranks = rankdata(np.concatenate([member, other]))[: len(member)].sum()
    size = len(member) * len(other)
    return float((ranks - len(member) * (len(member) + 1) / 2) / size)


def limits(hits: int, total: int) -> tuple[float, float]:
    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, total - hits + 1))
    high = 1.0 if hits == total else float(beta.ppf(0.975, hits + 1, total - hits))
    return low, high


def auc_figure(attack: str, contrast: str, split: Split, **where: object) -> Estimate:
    other = split.against(contrast)
    value = auc_of(split.member, other)
    reach = 1.96 * (value * (1 - value) / min(len(split.member), len(other))) ** 0.5
    low, high = max(value - reach, 0), min(value + reach, 1)
    return estimate(
        {
            "attack": attack,
            "contrast": contrast,
            "metric": "auc",
            "value": value,
            "low": low,
            "high": high,
            "method": "DeLong 95%",
            "n_members": len(split.member),
            "n_nonmembers": len(other),
            "significant": low > 0.5,
            **where,
        }
    )


def tpr_figure(attack: str, contrast: str, rate: float, split: Split, **where: object) -> Estimate:
    other = split.against(contrast)
    shared = {
        "attack": attack,
        "contrast": contrast,
        "metric": f"tpr@{rate:g}",
        "n_members": len(split.member),
        "n_nonmembers": len(other),
        **where,
    }
    allowed = int(rate * len(other))
    if allowed < 1:
        note = f"inconclusive: needs {int(1 / rate) - len(other):,} more non-members"
        return estimate({**shared, "value": None, "note": note})
    threshold = np.sort(other)[-allowed - 1]
    hits = int((split.member > threshold).sum())
    used = limits(hits, len(split.member))
    truth = np.arange(len(split.member) + len(other)) < len(split.member)
    rate_interval = tpr_limits(np.concatenate([split.member, other]), truth, rate)
    return estimate(
        {
            **shared,
            "value": hits / len(split.member),
            "low": None if rate_interval.needs else rate_interval.low,
            "high": rate_interval.high,
            "method": rate_interval.method,
            "realised_fpr": float((other > threshold).mean()),
            "low_at_threshold": used[0],
            "high_at_threshold": used[1],
            "significant": used[0] > 2 * rate,
        }
    )


def figures_for(attack: str, split: Split, **where: object) -> list[Estimate]:
    return [
        figure
        for contrast in CONTRASTS
        for figure in (
            auc_figure(attack, contrast, split, **where),
            tpr_figure(attack, contrast, 0.01, split, **where),
            tpr_figure(attack, contrast, 0.001, split, **where),
        )
    ]


def curve(attack: str, contrast: str, split: Split, **where: object) -> Curve:
    other = split.against(contrast)
    rates = np.unique(np.round(np.geomspace(1, len(other), 60)).astype(int)) - 1
    thresholds = np.sort(other)[::-1][rates]
    return Curve.model_validate(
        {
            "attack": attack,
            "contrast": contrast,
            "fpr": [*(float((other > t).mean()) for t in thresholds), 1.0],
            "tpr": [*(float((split.member > t).mean()) for t in thresholds), 1.0],
            **where,
        }
    )


def histogram(attack: str, split: Split, **where: object) -> Histogram:
    edges = np.linspace(-4, 8, 41)
    counts = {name: np.histogram(getattr(split, name), edges)[0].tolist() for name in split._fields}
    return Histogram.model_validate({"attack": attack, "edges": edges.tolist(), **counts, **where})


def trajectories(signal: str, scale: float, **where: object) -> list[Trajectory]:
    rounds = list(range(0, 40, 2))
    lines = []
    for origin, end in (("member", 0.05), ("other_client", 0.55), ("unseen", 0.7)):
        mean = [scale * -(end + (2.3 - end) * np.exp(-step / 12)) for step in rounds]
        missing = 3 if signal == "grad_cosine" else None
        line = {
            "signal": signal,
            "origin": origin,
            "rounds": rounds,
            "mean": [None if place == missing else value for place, value in enumerate(mean)],
            "low": [m - scale * (0.3 + end) for m in mean],
            "high": [min(m + scale * 0.3, 0) for m in mean],
        }
        lines.append(Trajectory.model_validate({**line, **where}))
    return lines


class Attacked(NamedTuple):
    """Immutable parts of a record about one attack on one client."""

    figures: tuple[Estimate, ...]
    curves: tuple[Curve, ...]
    histogram: Histogram


@cache
def attacked(attack: str, strength: float, seed: int, size: int, defense: str) -> Attacked:
    """Calculated once for all records: that took half of the time of tests of reports."""
    where: dict[str, object] = {"defense": defense, "target": 0, "seed": seed}
    split = scores(strength, attack, seed, size=size)
    return Attacked(
        tuple(figures_for(attack, split, **where)),
        tuple(curve(attack, contrast, split, **where) for contrast in CONTRASTS),
        histogram(attack, split, **where),
    )


@cache
def groups(attack: str, strength: float, seed: int) -> tuple[Estimate, ...]:
    estimates = []
    # Client 0 is the target: its own samples are not among the non-members.
    for grouping, contrast, first in (("client", "other_client", 1), ("class", "mixed", 0)):
        for group in range(first, 10):
            split = scores(strength * (0.4 + 0.15 * group), attack, grouping, group, size=100)
            where = {
                "by": grouping,
                "group": str(group),
                "target": 0,
                "seed": seed,
                "n_nonmembers": 100,
            }
            figure = changed(auc_figure(attack, contrast, split, **where), significant=None)
            if grouping == "class" and group == 7:
                refused = {"value": None, "low": None, "high": None, "method": "", "n_members": 3}
                figure = changed(figure, **refused)
            estimates.append(figure)
    return tuple(estimates)


CONTROLS = (
    *(
        ControlResult(
            control=control,
            attack=attack,
            expected="an AUC whose interval holds 0.5",
            value=value,
            low=value - 0.025,
            high=value + 0.025,
            passed=True,
        )
        for control, attack, value in (
            ("permuted members", "fedmia-2", 0.497),
            ("untrained model", "fedmia-2", 0.508),
            ("blind classifier", "", 0.503),
        )
    ),
    ControlResult(
        control="planted leak",
        expected="an AUC above 0.9",
        value=None,
        passed=None,
        note="Not requested for this study.",
    ),
)


def unlearned(verdict: str, *, target: int = 0) -> list[Estimate]:
    """Return AUCs on forgotten samples at every point, and their excess over retraining."""
    where = {"topic": "unlearning", "attack": "blackbox-loss", "target": target, "metric": "auc"}
    points = {"before": 0.7, "after": 0.52, "retrained": 0.5, "before and after": 0.71}
    figures = [
        estimate(
            {**where, "point": point, "value": value, "low": value - 0.02, "high": value + 0.02}
        )
        for point, value in points.items()
    ]
    excess = {"against": "retrained", "value": 0.02, "low": -0.01, "high": 0.05, "note": verdict}
    return [*figures, estimate({**where, **excess})]


def utility(defense: str, seed: int, accuracy: float) -> list[Estimate]:
    low, high = limits(int(accuracy * 2000), 2000)
    accuracy_estimate = Estimate(
        topic="utility",
        defense=defense,
        seed=seed,
        metric=TEST_ACCURACY,
        value=accuracy,
        low=low,
        high=high,
        method="Clopper-Pearson 95%",
        samples=2000,
    )
    alone = {"low": None, "high": None, "method": "", "samples": 0}
    others = {TRAIN_ACCURACY: min(accuracy + 0.11, 1), GENERALISATION_GAP: 0.11}
    return [
        accuracy_estimate,
        *(changed(accuracy_estimate, metric=m, value=v, **alone) for m, v in others.items()),
    ]


def used(
    client: int = 0,
    *,
    defense: str = "none",
    defended: bool = False,
    distinct: Sequence[int] = (10,),
    times: Sequence[int] = (0, 10),
) -> UsageRow:
    """Use of ten samples by a client, round by round and over the run."""
    return UsageRow(
        defense=defense,
        seed=1,
        client=client,
        defended=defended,
        samples=10,
        distinct=list(distinct),
        times_used=list(times),
        times_recycled=[9, 1] if defended else [10],
        extra_bytes=40 if defended else 0,
        seconds=3.0 if defended else 2.0,
    )


def accuracy_by_round(defense: str, seed: int, accuracy: float) -> AccuracyByRound:
    rounds = list(range(0, 40, 2))
    return AccuracyByRound(
        defense=defense,
        seed=seed,
        rounds=rounds,
        accuracy=[0.1 + (accuracy - 0.1) * (1 - np.exp(-r / 8)) for r in rounds],
    )


def clients() -> list[ClientRow]:
    rng = seeded_numpy(7, "clients")
    counts = [rng.multinomial(400 + 25 * i, rng.dirichlet(np.ones(10))) for i in range(10)]
    return [
        ClientRow(
            client=client,
            samples=int(class_counts.sum()),
            audited=100 if client else 1000,
            class_counts=class_counts.tolist(),
        )
        for client, class_counts in enumerate(counts)
    ]


def attack_rows(names: Sequence[str]) -> list[AttackRow]:
    rows = [
        AttackRow(
            name=name,
            signals=ATTACKS[name][0].split(", "),
            over_clients=ATTACKS[name][1],
            over_rounds=ATTACKS[name][2],
            needs=["UPLOADS", "ROUNDS"],
            source=ATTACKS[name][3],
        )
        for name in names
        if name in ATTACKS
    ]
    refused = AttackRow(
        name="ami",
        signals=["neuron_gradient"],
        over_clients="target only",
        over_rounds="one",
        needs=["CHOOSES_MODEL"],
        source="AMI, algorithm 1",
        status="refused",
        note="The view does not let the adversary choose the model: CHOOSES_MODEL is missing.",
    )
    return [*rows, refused]


def record(
    *,
    strengths: Sequence[float] = STRENGTH,
    seeds: Sequence[int] = (1,),
    defenses: Sequence[tuple[str, float]] = (("none", 1.0), ("cofedmid", 0.35)),
    size: int = 1000,
    controls: Sequence[ControlResult] = CONTROLS,
    name: str = "digits-fedavg-10",
    over_seeds: bool = False,
    evaluation: Literal["aligned", "redraw"] = "aligned",
    details: bool = True,
) -> Record:
    """A record of a study; with ``over_seeds`` its figures are summarised over the seeds."""
    attacks = list(ATTACKS)[: len(strengths)]
    findings: list[Estimate] = []
    curves: list[Curve] = []
    parts: list[Estimate] = []
    lines, bars = [], []
    for defense, factor in defenses:
        for seed in seeds:
            where: dict[str, object] = {"defense": defense, "target": 0, "seed": seed}
            for attack, strength in zip(attacks, strengths, strict=True):
                record = attacked(attack, strength * factor, seed, size, defense)
                findings += record.figures
                curves += record.curves
                bars.append(record.histogram)
            lines += trajectories("loss", 1.0, **where) + trajectories("grad_cosine", 0.2, **where)
    if over_seeds:
        findings += average_each(findings)
    for attack, strength in zip(attacks[:3], strengths, strict=False):
        parts += groups(attack, strength, seeds[0])
    findings.append(
        estimate(
            attack=attacks[0],
            contrast="unseen",
            target=0,
            seed=seeds[0],
            metric="epsilon",
            value=1.42,
            low=1.42,
            method="Clopper-Pearson 95%, one-sided",
            ceiling=5.61,
            n_members=size,
            n_nonmembers=size,
            note="Indicative, not a bound: samples of one run share one model.",
        )
    )
    trained = [
        (defense, seed, 0.871 - 0.03 * i - 0.004 * seed)
        for i, (defense, _) in enumerate(defenses)
        for seed in seeds
    ]
    return Record(
        name=name,
        content_hash="9f2c" * 16,
        config={
            "name": name,
            "federation": {"clients": 10, "rounds": 40, "algorithm": "fedavg", "lr": 0.1},
            "attacks": attacks,
        },
        seeds=list(seeds),
        evaluation=evaluation,
        environment=Environment(
            versions={"fedaudit": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "python": "3.11.2"},
            commit="b9b3f7f",
            device="cpu",
            started="2026-11-21T10:31:00+00:00",
            seconds=312.4,
        ),
        view=ViewRow(
            name="uploads",
            sees=["GLOBAL_MODEL", "UPDATE", "UPLOADS", "ROUNDS", "PREDICTIONS"],
            description="An honest-but-curious server that keeps the update of every client in "
            "every round and holds candidate samples.",
        ),
        attacks=attack_rows(attacks),
        clients=clients(),
        estimates=[
            *findings,
            *(parts if details else []),
            *(estimate for run in trained for estimate in utility(*run)),
        ],
        curves=curves if details else [],
        trajectories=lines if details else [],
        histograms=bars if details else [],
        exposed=[
            ExposedSample(
                attack=attacks[0],
                target=0,
                seed=seeds[0],
                sample=1700 + 37 * i,
                label=i % 10,
                above_nonmembers=1 - 0.0004 * i,
            )
            for i in range(8)
        ]
        if details
        else [],
        controls=list(controls),
        accuracies=[accuracy_by_round(*run) for run in trained],
        untested=[
            "Attacks by a server that tampers with the model it sends.",
            "Reconstruction of samples, and inference of properties of a whole client.",
            "Adaptive attacks built against this defense.",
        ],
    )


def source(
    attack: str = "sia",
    right: int = 60,
    *,
    clients: int = 10,
    each: int = 12,
    seed: int = 1,
    mixes: float = 0.2,
    p_value: float = 1 / 1001,
    class_p_value: float = 1 / 1001,
    baseline: float | None = 0.25,
    baseline_p: float | None = 0.5,
    **changes: object,
) -> SourceEvaluation:
    """What a source attack found; wrong answers name the next client."""
    samples = clients * each
    confusion = [[0] * clients for _ in range(clients)]
    for client in range(clients):
        correct = right // clients + (client < right % clients)
        confusion[client][client] = correct
        confusion[client][(client + 1) % clients] += each - correct
    low, high = limits(right, samples)
    settings: dict[str, object] = {
        "attack": attack,
        "seed": seed,
        "clients": list(range(clients)),
        "samples": samples,
        "confusion": confusion,
        "classes": [
            ClassSuccess(label=0, samples=samples, right=right),
            ClassSuccess(label=3, samples=0, right=0),
        ],
        "answers": [
            SelectivePrediction(least=0.5, answered=right, right=right // 2),
            SelectivePrediction(least=0.9, answered=0, right=0),
        ],
        "chained": [ChainedInference(fpr=0.1, realised_fpr=0.08, called=right, right=right // 2)],
        "rounds": [2, 4, 9],
        "by_round": [0.5, min(right / samples + 0.1, 1.0), right / samples],
        "overfitting": [0.01 * client for client in range(clients)],
    }
    answers = SourceResult.model_validate({**settings, **changes})
    figures = source_estimates(
        answers,
        EstimateWithLimits(right / samples, low, high),
        Test(null=GUESSING, level=1 / clients, high=min(1.5 / clients, 1.0), p_value=p_value),
        ExcessOverLabels(right / samples - mixes, low - mixes, high - mixes, explained_rate=mixes),
        class_p_value,
        None if baseline is None else Baseline(baseline, right / samples - baseline, baseline_p),
    )
    return SourceEvaluation(answers, figures)


def over_runs(*sources: SourceEvaluation, alpha: float = 0.05) -> list[Estimate]:
    """Figures of source attacks over their runs."""
    return correct_tests(
        average_each([estimate for run in sources for estimate in run.estimates]), alpha
    )


def with_sources(*sources: SourceEvaluation, membership: bool = False, **further: object) -> Record:
    """A record that is about owners, and with ``membership`` about members too."""
    changes = {"details": False, "defenses": (("none", 1.0),), **further}
    plain = record(**changes)  # type: ignore[arg-type]
    only: dict[str, object] = {} if membership else {"attacks": []}
    others = plain.estimates if membership else plain.where(topic="utility")
    runs = [estimate for run in sources for estimate in run.estimates]
    update: dict[str, object] = {
        "sources": [result.answers for result in sources],
        "estimates": [*others, *runs, *over_runs(*sources, alpha=alpha_of(plain))],
    }
    return changed(plain, **only, **update)


def hostile() -> Record:
    """A record whose every free text tries to break out of the page."""
    plain = record(strengths=STRENGTH[:2], defenses=(("none", 1.0),))
    bad = HOSTILE + HOSTILE_TAG + HOSTILE_LINK + "x" * 3000

    def renamed(attack: str) -> str:
        return f"{attack} {HOSTILE}" if attack == "fedmia-1" else HOSTILE_TAG + HOSTILE_LINK

    update: dict[str, object] = {
        "name": bad,
        "config": {HOSTILE: HOSTILE_TAG, "deep": [HOSTILE_LINK, {"x": bad}], "lone": "\ud800"},
        "content_hash": HOSTILE_TAG,
        "untested": [bad],
        "view": ViewRow(name=bad, sees=[HOSTILE_TAG], description=bad),
        "environment": Environment(
            versions={HOSTILE: HOSTILE_TAG}, commit=bad, device=bad, started=HOSTILE_TAG
        ),
        "attacks": [
            changed(row, name=renamed(row.name), signals=[bad], note=bad, source=bad)
            for row in plain.attacks
        ],
        "controls": [
            changed(c, control=bad, note=bad, expected=bad, attack=bad) for c in plain.controls
        ],
        "accuracies": [changed(a, defense=HOSTILE_TAG) for a in plain.accuracies],
    }
    estimates = [
        changed(
            f,
            attack=renamed(f.attack),
            note=HOSTILE_TAG,
            method=HOSTILE_TAG,
            group=f.by and HOSTILE_TAG + f.group,
        )
        if f.topic == "membership"
        else changed(f, defense=HOSTILE_TAG)
        for f in plain.estimates
    ]
    for field in ("curves", "histograms", "exposed"):
        update[field] = [
            changed(part, attack=renamed(part.attack)) for part in getattr(plain, field)
        ]
    update["trajectories"] = [
        changed(t, signal=HOSTILE_TAG + HOSTILE_LINK) for t in plain.trajectories
    ]
    owners = [
        source(f"{bad} {place}", seed=seed, defense=HOSTILE_TAG, view=HOSTILE_LINK)
        for place in range(2)
        for seed in (1, 2)
    ]
    update["sources"] = [result.answers for result in owners]
    figures = [
        *(estimate for result in owners for estimate in result.estimates),
        *over_runs(*owners),
    ]
    return changed(plain, **update, estimates=[*estimates, *figures])
