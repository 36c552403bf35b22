"""Generate the page of the leak ladder from its records.

python docs/ladder.py            write docs/ladder.md, docs/ladder.svg and the data that reports use
python docs/ladder.py --check    compare them with the records
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from statistics import NormalDist, fmean
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedaudit.core.files import write_atomically
from fedaudit.models import architecture
from fedaudit.report.sources import source_attacks
from fedaudit.results.estimate import TEST_ACCURACY, TRAIN_ACCURACY, UPLOAD_GAP
from fedaudit.results.ladder import (
    FINAL_ATTACK,
    UPLOAD_ATTACKS,
    Auc,
    Change,
    ProbitLine,
    generalisation_gap,
    loss_gap,
    mean_aucs,
    mean_client_samples,
    over_seeds,
    strongest_upload_attack,
)
from fedaudit.results.record import Record

sys.path.insert(0, str(Path(__file__).parents[1]))

from results.archives import committed_record, unpacked

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "ladder.md", ROOT / "docs" / "ladder.svg"
DATA = ROOT / "src" / "fedaudit" / "results" / "ladder.json"
MADE_FROM = ("ladder-location30", "ladder-letters", "ladder-cifar10")
CHECKED_ON = ("ladder-check-fashion", "ladder-check-tiny")
NAMES = {
    "ladder-location30": "Location-30",
    "ladder-letters": "EMNIST letters",
    "ladder-cifar10": "CIFAR-10",
    "ladder-check-fashion": "Fashion-MNIST",
    "ladder-check-tiny": "Tiny-ImageNet-32",
}
SHAPES = {
    "ladder-location30": ((446,), 30),
    "ladder-letters": ((1, 28, 28), 26),
    "ladder-cifar10": ((3, 32, 32), 10),
    "ladder-check-fashion": ((1, 28, 28), 10),
    "ladder-check-tiny": ((3, 32, 32), 100),
}
"""Shape of a sample and number of classes, which determine the number of parameters."""
WORRY = (0.6, 0.7, 0.8)
"""AUCs of increasing concern."""
KINDS = {
    "epochs": "fewer local epochs",
    "rounds": "fewer rounds",
    "samples": "more samples per client",
    "lr": "a smaller learning rate",
    "decay": "weight decay",
    "width": "a narrower network",
    "clipping": "clipping each sample's gradient",
    "dp-sgd": "DP-SGD",
}


class Rung(NamedTuple):
    """Federation with what it can measure itself and what attacks found."""

    # Folder of its record.
    study: str
    # Variant of the study; empty for the study itself.
    variant: str
    # Record.
    record: Record
    # Loss gap of the uploads in standard deviations: the axis.
    loss_gap: float
    # Accuracy gap of the last global model.
    gap: float
    # Accuracy gap of the uploads in the last round.
    upload_gap: float
    # Loss gap of the uploads.
    nats: float
    # Samples of an audited client.
    samples: float
    # Strongest attack on uploads, against mixed non-members.
    best: Auc
    # Attack on the final model, against held-out samples.
    final: Auc

    @property
    def train(self) -> float:
        return fmean(e.number for e in self.record.where(metric=TRAIN_ACCURACY))

    @property
    def test(self) -> float:
        return fmean(e.number for e in self.record.where(metric=TEST_ACCURACY))

    def of(self, *path: str) -> float:
        """Return a numerical setting."""
        part: object = self.record.config
        for key in path:
            assert isinstance(part, dict)
            part = part[key]
        assert isinstance(part, int | float)
        return float(part)

    @property
    def visits(self) -> float:
        """Return how often training used each sample."""
        return self.of("training", "rounds") * self.of("training", "epochs")

    @property
    def steps(self) -> float:
        return math.ceil(self.samples / self.of("training", "batch_size")) * self.of(
            "training", "epochs"
        )

    @property
    def parameters(self) -> float:
        shape, classes = SHAPES[self.study]
        model = self.record.config["model"]
        assert isinstance(model, dict)
        built = architecture(model["name"], shape=shape, classes=classes, **model["options"])
        return sum(value.numel() for value in built.build().parameters())


def rungs(studies: Sequence[str]) -> list[Rung]:
    ladder = [
        _rung(study, path, committed_record(path))
        for study in studies
        for path in sorted((unpacked() / study).glob("*.json"))
    ]
    return sorted(ladder, key=lambda rung: (rung.loss_gap, rung.study, rung.variant))


def _rung(study: str, path: Path, record: Record) -> Rung:
    of_uploads, gap, samples = (
        strongest_upload_attack(record),
        loss_gap(record),
        mean_client_samples(record),
    )
    overall = generalisation_gap(record)
    (final,) = mean_aucs(record, [FINAL_ATTACK], "unseen")
    uploads = [estimate.number for estimate in record.where(metric=UPLOAD_GAP)]
    assert of_uploads is not None
    assert None not in (gap, samples, overall)
    return Rung(
        study=study,
        variant=path.stem.removeprefix(study).removeprefix("-"),
        record=record,
        loss_gap=gap or 0.0,
        gap=overall or 0.0,
        upload_gap=fmean(uploads),
        nats=_nats(record),
        samples=samples or 1.0,
        best=of_uploads,
        final=final,
    )


def _nats(record: Record) -> float:
    means = {
        origin: fmean(
            value
            for line in record.trajectories
            if (line.signal, line.origin) == ("loss", origin)
            for value in line.mean
            if value is not None
        )
        for origin in ("member", "unseen")
    }
    return means["member"] - means["unseen"]


class Axis(NamedTuple):
    """Quantity that a federation can measure itself, to predict the success of attacks."""

    # Description.
    name: str
    # Function that returns its values; an empty tuple for the constant axis.
    of: Callable[[Rung], tuple[float, ...]]


def _log(value: float) -> float:
    return math.log2(max(value, 1e-9))


AXES = (
    Axis("none (mean of the other data sets)", lambda rung: ()),
    Axis("generalisation gap of the global model, in accuracy", lambda rung: (rung.gap,)),
    Axis("training accuracy of the global model", lambda rung: (rung.train,)),
    Axis("samples per client", lambda rung: (_log(rung.samples),)),
    Axis("samples per parameter", lambda rung: (_log(rung.samples / rung.parameters),)),
    Axis("uses of each sample", lambda rung: (_log(rung.visits),)),
    Axis("local steps per round", lambda rung: (_log(rung.steps),)),
    Axis("gap of uploads, in accuracy", lambda rung: (rung.upload_gap,)),
    Axis("gap of uploads, in loss", lambda rung: (rung.nats,)),
    Axis("**gap of uploads, in standard deviations of the loss**", lambda rung: (rung.loss_gap,)),
    Axis(
        "generalisation gap and samples per client",
        lambda rung: (rung.gap, _log(rung.samples)),
    ),
    Axis(
        "gap of uploads in accuracy, and samples per client",
        lambda rung: (rung.upload_gap, _log(rung.samples)),
    ),
    Axis(
        "gap of uploads in standard deviations, and samples per client",
        lambda rung: (rung.loss_gap, _log(rung.samples)),
    ),
)
RULE = AXES[9]
FINAL_AXES = (
    AXES[0],
    Axis("**generalisation gap of the global model**", lambda rung: (rung.gap,)),
    Axis("training accuracy of the global model", lambda rung: (rung.train,)),
    AXES[9],
)
FINAL_RULE = FINAL_AXES[1]

Measure = Callable[[Rung], float]


def of_uploads(rung: Rung) -> float:
    return rung.best.value


def of_final(rung: Rung) -> float:
    return rung.final.value


def fitted(axis: Axis, made_from: Sequence[Rung], measure: Measure) -> Callable[[Rung], float]:
    """Fit a line through the normal quantiles of AUCs, by least squares."""
    weights = _weights(axis, made_from, measure)
    return lambda rung: NormalDist().cdf(float(np.dot(weights, (1.0, *axis.of(rung)))))


def _weights(axis: Axis, made_from: Sequence[Rung], measure: Measure) -> np.ndarray:
    rows = np.array([(1.0, *axis.of(rung)) for rung in made_from])
    values = np.array([NormalDist().inv_cdf(min(measure(rung), 0.999)) for rung in made_from])
    weights: np.ndarray = np.linalg.lstsq(rows, values, rcond=None)[0]
    return weights


def left_out(axis: Axis, made_from: Sequence[Rung], measure: Measure) -> list[float]:
    """Return the errors of predicted AUCs on each data set from the others."""
    errors = []
    for study in dict.fromkeys(rung.study for rung in made_from):
        predict = fitted(axis, [rung for rung in made_from if rung.study != study], measure)
        errors += [measure(rung) - predict(rung) for rung in made_from if rung.study == study]
    return errors


def errors_on(
    axis: Axis, made_from: Sequence[Rung], checked_on: Sequence[Rung], measure: Measure
) -> list[float]:
    predict = fitted(axis, made_from, measure)
    return [measure(rung) - predict(rung) for rung in checked_on]


def rule(axis: Axis, made_from: Sequence[Rung], measure: Measure) -> ProbitLine:
    """Return the rule with its error on data sets that were left out."""
    intercept, slope = _weights(axis, made_from, measure)
    spread = np.quantile(np.abs(left_out(axis, made_from, measure)), 0.9)
    gaps = [axis.of(rung)[0] for rung in made_from]
    numbers = (intercept, slope, spread, min(gaps), max(gaps))
    # Adding 0 turns a rounded -0.0 into 0.0.
    return ProbitLine(*(round(float(number), 3) + 0.0 for number in numbers))


def inside(line: ProbitLine, axis: Axis, ladder: Sequence[Rung], measure: Measure) -> list[bool]:
    return [abs(measure(rung) - _predicted(line, axis, rung)) <= line.spread for rung in ladder]


def _predicted(line: ProbitLine, axis: Axis, rung: Rung) -> float:
    (gap,) = axis.of(rung)
    return line.at(gap)


def picture(
    made_from: Sequence[Rung], checked_on: Sequence[Rung], uploads: ProbitLine, final: ProbitLine
) -> str:
    # Narrow, to be legible on a phone.
    with mpl.rc_context({"svg.hashsalt": "ladder", "font.size": 11}):
        return _drawn(made_from, checked_on, uploads, final)


def _drawn(
    made_from: Sequence[Rung], checked_on: Sequence[Rung], uploads: ProbitLine, final: ProbitLine
) -> str:
    figure = Figure(figsize=(5.4, 9.2), layout="constrained")
    above, below = figure.subplots(2, 1)
    marks = dict(zip(NAMES, "osD^v", strict=True))
    for study, mark in marks.items():
        of_study = [rung for rung in (*made_from, *checked_on) if rung.study == study]
        label = NAMES[study] + (" (check)" if study in CHECKED_ON else "")
        for axes, across, values in (
            (above, [rung.loss_gap for rung in of_study], [rung.best for rung in of_study]),
            (below, [100 * rung.gap for rung in of_study], [rung.final for rung in of_study]),
        ):
            _marks(axes, across, values, mark, label, hollow=study in CHECKED_ON)
    everything = [*made_from, *checked_on]
    line = np.linspace(0, 1.05 * max(rung.loss_gap for rung in everything), 60)
    above.plot(line, [uploads.at(gap) for gap in line], "-", color="0.35")
    points = np.linspace(0, 1.05 * max(rung.gap for rung in everything), 60)
    below.plot(100 * points, [final.at(gap) for gap in points], "-", color="0.35")
    above.set_xlabel("gap in loss of clients' uploads, in standard deviations")
    above.set_ylabel("AUC of the strongest attack")
    above.set_title("The server sees every upload", fontsize=12)
    below.set_xlabel("generalisation gap of the global model, in points")
    below.set_ylabel("AUC of the loss")
    below.set_title("Adversary with the final model only", fontsize=12)
    for axes in (above, below):
        axes.axhline(0.5, color="0.7", linewidth=0.8)
        axes.set_ylim(0.45, 1.0)
    below.legend(loc="upper left", fontsize=10)
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _marks(
    axes: Axes, across: Sequence[float], values: Sequence[Auc], mark: str, label: str, hollow: bool
) -> None:
    if values:
        axes.errorbar(
            across,
            [auc.value for auc in values],
            yerr=[
                [max(auc.value - auc.low, 0.0) for auc in values],
                [max(auc.high - auc.value, 0.0) for auc in values],
            ],
            fmt=mark,
            markersize=5,
            elinewidth=0.7,
            markerfacecolor="none" if hollow else None,
            label=label,
        )


def settings(rung: Rung) -> dict[str, float | str]:
    model, defense = rung.record.config["model"], rung.record.config.get("defense")
    assert isinstance(model, dict)
    named = defense.get("name", "none") if isinstance(defense, dict) else "none"
    options = defense.get("options", {}) if isinstance(defense, dict) else {}
    noise = options.get("noise_multiplier", 0.0)
    return {
        "epochs": rung.of("training", "epochs"),
        "rounds": rung.of("training", "rounds"),
        "samples": rung.of("partition", "samples_per_client"),
        "lr": rung.of("training", "lr"),
        "decay": rung.of("training", "weight_decay"),
        "width": float(model["options"].get("hidden", 0)),
        "defense": "none" if named == "none" else "dp-sgd" if noise else "clipping",
    }


def changes(made_from: Sequence[Rung]) -> list[Change]:
    """Return for each data set and setting the two rungs that differ most in it alone."""
    largest: list[Change] = []
    for study in MADE_FROM:
        of_study = [rung for rung in made_from if rung.study == study]
        best: dict[str, tuple[tuple[float, float], Change]] = {}
        for before in of_study:
            for after in of_study:
                if (step := _change(before, after)) is not None:
                    distance, change = step
                    if change.kind not in best or distance > best[change.kind][0]:
                        best[change.kind] = step
        largest += [change for _, change in best.values()]
    return sorted(largest, key=lambda change: list(KINDS).index(change.kind))


def _change(before: Rung, after: Rung) -> tuple[tuple[float, float], Change] | None:
    """Return the change of a single setting that should help, and its size; None otherwise."""
    was, became = settings(before), settings(after)
    differ = [key for key in was if was[key] != became[key]]
    if len(differ) != 1:
        return None
    (key,) = differ
    first, second = was[key], became[key]
    if isinstance(first, str) or isinstance(second, str):
        if first != "none":
            return None
        kind, distance, values = str(second), 1.0, ("none", "all clients")
    else:
        # More samples and more decay help; of everything else, less.
        helps = second > first if key in ("samples", "decay") else second < first
        if not helps:
            return None
        kind, distance = key, abs(math.log((second or 1e-6) / (first or 1e-6)))
        values = (f"{first:g}", f"{second:g}")
    change = Change(
        kind,
        NAMES[before.study],
        *values,
        auc=(round(before.best.value, 3), round(after.best.value, 3)),
        accuracy=(round(before.test, 3), round(after.test, 3)),
    )
    return (distance, before.best.value), change


def page(made_from: Sequence[Rung], checked_on: Sequence[Rung]) -> str:
    uploads, final = rule(RULE, made_from, of_uploads), rule(FINAL_RULE, made_from, of_final)
    parts = [
        INTRODUCTION,
        "![AUC of the strongest attack by the loss gap of clients' uploads; AUC on the final model "
        "by its generalisation gap](ladder.svg)",
        "## When does a federation leak?",
        _answer(uploads, made_from, checked_on),
        "## Which attack detects the smallest leaks?",
        _first_to_see(made_from),
        "## Adversary with the final model only",
        _final(final, made_from, checked_on),
        "## Candidate predictors",
        "We compared the loss gap with other predictors. Each rule fits the normal quantile of the "
        "AUC linearly to its predictors, by least squares; counts are log-transformed. The table "
        "shows the mean absolute error of the predicted AUC of the strongest attack on uploads.",
        _axes(AXES, made_from, checked_on, of_uploads),
        AXES_SAY,
        "## Effect of a single setting",
        "Each row compares two federations that differ only in one setting. For each data set, the "
        "row shows the pair with the largest change of that setting. Fewer rounds do not help "
        "against a server that sees uploads, because uploads leak from the first round on. If the "
        "test accuracy falls with the AUC, the protection costs utility.",
        _changes(changes(made_from)),
        "## Source inference",
        _sources(made_from),
        "## Limits",
        CAVEATS,
        "## All federations",
        _table(made_from, uploads),
        "## Further data sets",
        _table(checked_on, uploads),
    ]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """# The leak ladder

Estimate how much your clients' uploads leak without running an attack. The estimate needs one
number that clients can measure: the *loss gap*. The leak ladder is a series of federations of ten
clients, from barely trained to memorising. Each federation is audited with four attacks on uploads
and one attack on the final model, and is one point in the plots. The [glossary](glossary.md)
defines the terms.

`python docs/ladder.py` generates this page from the records (`results/ladder-*`). To repeat the
federations on Location-30 (ten minutes on one core; D is the folder with data sets):

```
fedaudit run studies/ladder-location30.toml --variant all --data-dir D --out runs/ladder-location30
python results/keep.py runs/ladder-location30 --ladder
python docs/ladder.py
```"""

AXES_SAY = """If the gap is known, the number of samples does not improve the prediction, because
more samples also reduce the gap. A client can measure its gap after any round. Result files
contain the gap."""

CAVEATS = """- The gap must be measured on training and held-out samples of the clients. Settings do
  not predict the gap.
- In the ladder, all clients have similar numbers of samples and the same label distribution, and
  take part in every round.
- An AUC is a mean over samples; single samples may be more exposed. Reports list the most exposed
  samples."""


def _variant(rung: Rung) -> str:
    return rung.variant or "base configuration"


def _listed(values: Sequence[object]) -> str:
    """Return a list such as "0.6, 0.7 and 0.8"."""
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([_row(head), _row(["---"] * len(head)), *map(_row, rows)])


def _answer(uploads: ProbitLine, made_from: Sequence[Rung], checked_on: Sequence[Rung]) -> str:
    within = inside(uploads, RULE, checked_on, of_uploads)
    by_data = ", ".join(
        f"{sum(inside(uploads, RULE, of_study, of_uploads))} of {len(of_study)} on {NAMES[study]}"
        for study in CHECKED_ON
        if (of_study := [rung for rung in checked_on if rung.study == study])
    )
    either = [
        near
        or rung.best.low - uploads.spread
        <= _predicted(uploads, RULE, rung)
        <= rung.best.high + uploads.spread
        for near, rung in zip(within, checked_on, strict=True)
    ]
    error = fmean(map(abs, errors_on(RULE, made_from, checked_on, of_uploads)))
    gaps = [uploads.gap_for(auc) for auc in WORRY]
    thresholds = f"AUC of {_listed(WORRY)} at gaps of {_listed([f'{gap:.2f}' for gap in gaps])}"
    young = [rung for rung in made_from if rung.gap < 0.01]
    studies = {rung.study for rung in made_from}
    return (
        f"**Federations leak from a loss gap of {gaps[0]:.1f} standard deviations on.** The loss "
        "gap of an upload is its mean loss on held-out samples minus its mean loss on training "
        "samples, divided by the "
        "standard deviation of the loss on held-out samples. The expected AUC of the strongest "
        f"attack is\n\n    Φ({uploads.intercept:.2f} + {uploads.slope:.2f} · gap)\n\n"
        f"where Φ is the cumulative normal distribution. This gives an {thresholds}.\n\n"
        f"The rule is fitted to {len(made_from)} federations on {len(studies)} data sets. To "
        "estimate its error, we predicted each data set from the others (leave-one-dataset-out): "
        f"for nine in ten federations, the error is at most {uploads.spread:.2f}. On two further "
        f"data sets, the error is within this bound for {sum(within)} of {len(within)} federations "
        f"({by_data}), and for {sum(either)} if the uncertainty of the AUC itself (its confidence "
        f"interval) is added to the bound. The mean error on these data sets is {error:.3f}.\n\n"
        "**The generalisation gap of the global model does not predict the leak of uploads.** In "
        f"{len(young)} of these federations, this gap is below 1 point, but the AUCs are "
        f"{min(map(of_uploads, young)):.2f} to {max(map(of_uploads, young)):.2f}. Uploads of "
        "clients with few samples leak from the first round on, before the global model has "
        "learned anything."
    )


def _first_to_see(made_from: Sequence[Rung]) -> str:
    thirds = [[made_from[i] for i in part] for part in np.array_split(range(len(made_from)), 3)]
    means = [
        {
            name: fmean(
                auc.value for rung in third for auc in mean_aucs(rung.record, [name], "mixed")
            )
            for name in UPLOAD_ATTACKS
        }
        for third in thirds
    ]
    rows = [
        [
            f"{third[0].loss_gap:.2f} to {third[-1].loss_gap:.2f}",
            str(len(third)),
            *(f"{mean[name]:.3f}, strongest in {_wins(third, name)}" for name in UPLOAD_ATTACKS),
        ]
        for third, mean in zip(thirds, means, strict=True)
    ]
    first, last = (max(mean, key=lambda name: mean[name]) for mean in (means[0], means[-1]))
    weakest = min(means[0], key=lambda name: means[0][name])
    head = ["gap of uploads", "federations", *(f"`{name}`" for name in UPLOAD_ATTACKS)]
    return (
        f"**`{first}` detects the smallest leaks.** Among the {len(thirds[0])} federations with "
        f"the smallest gaps, it has the highest mean AUC, {means[0][first]:.2f}, and `{weakest}` "
        f"the lowest, {means[0][weakest]:.2f}. Among the {len(thirds[-1])} with the largest gaps, "
        f"`{last}` has the highest mean AUC, {means[-1][last]:.2f}. The table has the mean AUC of "
        "each attack, and in how many federations the attack is the strongest:\n\n"
        + _grid(head, rows)
    )


def _wins(ladder: Sequence[Rung], attack: str) -> int:
    return sum(rung.best.attack == attack for rung in ladder)


def _final(final: ProbitLine, made_from: Sequence[Rung], checked_on: Sequence[Rung]) -> str:
    within = inside(final, FINAL_RULE, checked_on, of_final)
    points = [f"{100 * final.gap_for(auc):.0f}" for auc in WORRY]
    far = max(
        checked_on, key=lambda rung: abs(rung.final.value - _predicted(final, FINAL_RULE, rung))
    )
    return (
        "If the adversary sees only the final model, the generalisation gap of the global model "
        "(training minus test accuracy) predicts the AUC roughly. The attack uses the loss of the "
        f"final model (`{FINAL_ATTACK}`, against held-out samples). Its expected AUC is "
        f"Φ({final.intercept:.2f} + {final.slope:.2f} · gap). This gives an AUC of "
        f"{_listed(WORRY)} at gaps of {_listed(points)} points.\n\n"
        "For nine in ten federations, the leave-one-dataset-out error is at most "
        f"{final.spread:.2f}. On the two further data sets, the error is within this bound for "
        f"{sum(within)} of {len(within)} federations. The largest error is on {NAMES[far.study]} "
        f"({_variant(far)}), with a gap of {100 * far.gap:.0f} points, a training "
        f"accuracy of {100 * far.train:.0f}% and an AUC of {far.final.value:.2f}.\n\n"
        + _axes(FINAL_AXES, made_from, checked_on, of_final)
    )


def _axes(
    axes: Sequence[Axis], made_from: Sequence[Rung], checked_on: Sequence[Rung], measure: Measure
) -> str:
    rows = [
        [
            axis.name,
            f"{fmean(map(abs, left_out(axis, made_from, measure))):.3f}",
            f"{fmean(map(abs, errors_on(axis, made_from, checked_on, measure))):.3f}",
        ]
        for axis in axes
    ]
    head = ["predictor", "leave-one-dataset-out error", "error on the further data sets"]
    return _grid(head, rows)


def _changes(largest: Sequence[Change]) -> str:
    rows = [
        [
            KINDS[change.kind],
            change.data,
            f"{change.before} → {change.after}",
            f"{change.auc[0]:.3f} → {change.auc[1]:.3f}",
            f"{100 * change.accuracy[0]:.1f} → {100 * change.accuracy[1]:.1f}%",
        ]
        for change in largest
    ]
    return _grid(["change", "data", "values", "strongest attack's AUC", "test accuracy"], rows)


def _sources(made_from: Sequence[Rung]) -> str:
    rows = []
    for rung in made_from:
        for figure in source_attacks(rung.record):
            over = figure.over_baseline
            if over is None:
                continue
            limits = f" ({over.low:.2f} to {over.high:.2f})" if over.low is not None else ""
            rows.append(
                [
                    NAMES[rung.study],
                    _variant(rung),
                    f"{rung.loss_gap:.2f}",
                    f"{figure.success.number:.2f}",
                    f"{over.number:.2f}{limits}",
                ]
            )
    head = [
        "data",
        "run",
        "gap of uploads",
        "success rate (`sia-mean`)",
        "beyond label distributions",
    ]
    return (
        "Source inference guesses which client trained on a sample. With ten clients, random "
        "guessing has a success rate of 0.1. The last column is the success rate minus that of a "
        "baseline without a model, which names the client with the largest fraction of the "
        "sample's class. A run is named by the settings that differ from the base configuration of "
        "its study (`studies/ladder-*.toml`).\n\n" + _grid(head, rows)
    )


def _table(rows: Sequence[Rung], line: ProbitLine) -> str:
    head = [
        *("data", "run", "samples", "training accuracy", "test accuracy", "gap of uploads"),
        *("strongest attack", "AUC", "predicted AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR"),
        "AUC on the final model",
    ]
    return _grid(
        head,
        [
            [
                NAMES[rung.study],
                _variant(rung),
                f"{rung.samples:.0f}",
                f"{100 * rung.train:.0f}%",
                f"{100 * rung.test:.0f}%",
                f"{rung.loss_gap:.2f}",
                f"`{rung.best.attack}`",
                f"{rung.best.value:.3f} ({rung.best.low:.3f} to {rung.best.high:.3f})",
                f"{_predicted(line, RULE, rung):.2f}",
                _rate(rung, "tpr@0.01"),
                _rate(rung, "tpr@0.001"),
                f"{rung.final.value:.3f}",
            ]
            for rung in rows
        ],
    )


def _rate(rung: Rung, metric: str) -> str:
    values = [figure.value for figure in over_seeds(rung.record, rung.best.attack, metric, "mixed")]
    rates = [value for value in values if value is not None]
    return f"{100 * fmean(rates):.1f}%" if rates and len(rates) == len(values) else "–"


def generated() -> dict[Path, str]:
    made_from, checked_on = rungs(MADE_FROM), rungs(CHECKED_ON)
    uploads, final = rule(RULE, made_from, of_uploads), rule(FINAL_RULE, made_from, of_final)
    table = {
        "uploads": uploads._asdict(),
        "final": final._asdict(),
        "rungs": [
            [
                NAMES[rung.study],
                rung.variant or "as it is",
                *(
                    round(x, 3)
                    for x in (rung.loss_gap, rung.best.value, rung.best.low, rung.best.high)
                ),
            ]
            for rung in made_from
        ],
        "changes": changes(made_from),
    }
    return {
        PAGE: page(made_from, checked_on),
        PICTURE: picture(made_from, checked_on, uploads, final),
        DATA: json.dumps(table, indent=None, separators=(",", ":")) + "\n",
    }


def main(words: Sequence[str]) -> int:
    files = generated()
    if list(words) == ["--check"]:
        stale = [
            path
            for path, text in files.items()
            if path != PICTURE and (not path.is_file() or path.read_text(encoding="utf-8") != text)
        ]
        print(
            f"run python docs/ladder.py: {stale}"
            if stale
            else "the files equal what the records give"
        )
        return 1 if stale else 0
    for path, text in files.items():
        write_atomically(path, text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
