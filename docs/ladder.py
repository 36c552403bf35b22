"""The page of the leak ladder, from its records: from where on there is something to find.

python docs/ladder.py            writes docs/ladder.md, docs/ladder.svg and what reports use of it
python docs/ladder.py --check    says whether they are what the records give
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

from fedaudit.core.files import write_whole
from fedaudit.models import architecture
from fedaudit.report.sources import on_sources
from fedaudit.results.estimate import TEST_ACCURACY, TRAIN_ACCURACY, UPLOAD_GAP
from fedaudit.results.ladder import (
    FINAL_ATTACK,
    UPLOAD_ATTACKS,
    Auc,
    Change,
    ProbitLine,
    aucs,
    generalisation_gap,
    loss_gap,
    mean_client_samples,
    over_seeds,
    strongest,
)
from fedaudit.results.read import read_record
from fedaudit.results.record import Record

sys.path.insert(0, str(Path(__file__).parents[1]))

from results.archives import unpacked

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
"""Of one sample, and classes: what a model's number of parameters follows from."""
WORRY = (0.6, 0.7, 0.8)
"""AUCs from which on somebody who runs a federation should worry, more and more."""
KINDS = {
    "epochs": "fewer local epochs",
    "rounds": "fewer rounds",
    "samples": "more samples a client",
    "lr": "a smaller learning rate",
    "decay": "weight decay",
    "width": "a narrower network",
    "clipping": "clipping each sample's gradient",
    "dp-sgd": "DP-SGD",
}


class Rung(NamedTuple):
    """One federation: what it can know of itself, and what was found.

    Attributes:
        study: Folder of its record.
        variant: Of the study; empty for the study itself.
        record: Where the rest is read from.
        loss_gap: In standard deviations: the axis.
        gap: Of the last global model, in accuracy.
        upload_gap: Of what clients sent in the last round, in accuracy.
        nats: The gap in loss of what clients sent, as it is.
        samples: Of a client under audit.
        best: The strongest attack on uploads against mixed non-members.
        final: Who has the final model only, against samples of nobody.
    """

    study: str
    variant: str
    record: Record
    loss_gap: float
    gap: float
    upload_gap: float
    nats: float
    samples: float
    best: Auc
    final: Auc

    @property
    def train(self) -> float:
        """Training accuracy of the last global model."""
        return fmean(one.number for one in self.record.where(metric=TRAIN_ACCURACY))

    @property
    def test(self) -> float:
        """Test accuracy of the last global model."""
        return fmean(one.number for one in self.record.where(metric=TEST_ACCURACY))

    def of(self, *path: str) -> float:
        """A number among the settings."""
        part: object = self.record.config
        for key in path:
            assert isinstance(part, dict)
            part = part[key]
        assert isinstance(part, int | float)
        return float(part)

    @property
    def visits(self) -> float:
        """How often a sample was trained on."""
        return self.of("training", "rounds") * self.of("training", "epochs")

    @property
    def steps(self) -> float:
        """Local steps a round."""
        return math.ceil(self.samples / self.of("training", "batch_size")) * self.of(
            "training", "epochs"
        )

    @property
    def parameters(self) -> float:
        """Of the model."""
        shape, classes = SHAPES[self.study]
        model = self.record.config["model"]
        assert isinstance(model, dict)
        built = architecture(model["name"], shape=shape, classes=classes, **model["options"])
        return sum(value.numel() for value in built.build().parameters())


def rungs(studies: Sequence[str]) -> list[Rung]:
    """Every record of these studies, from the smallest gap to the largest."""
    found = [
        _rung(study, path, read_record(path))
        for study in studies
        for path in sorted((unpacked() / study).glob("*.json"))
    ]
    return sorted(found, key=lambda rung: (rung.loss_gap, rung.study, rung.variant))


def _rung(study: str, path: Path, record: Record) -> Rung:
    of_uploads, gap, samples = strongest(record), loss_gap(record), mean_client_samples(record)
    overall = generalisation_gap(record)
    (final,) = aucs(record, [FINAL_ATTACK], "unseen")
    uploads = [one.number for one in record.where(metric=UPLOAD_GAP)]
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
            for one in record.trajectories
            if (one.signal, one.origin) == ("loss", origin)
            for value in one.mean
            if value is not None
        )
        for origin in ("member", "unseen")
    }
    return means["member"] - means["unseen"]


class Axis(NamedTuple):
    """Something that a federation can know of itself, to tell from how much attacks find.

    Attributes:
        name: In words.
        of: Its numbers; none for an axis that knows nothing.
    """

    name: str
    of: Callable[[Rung], tuple[float, ...]]


def _log(value: float) -> float:
    return math.log2(max(value, 1e-9))


AXES = (
    Axis("nothing: the mean of the other data sets", lambda one: ()),
    Axis("generalisation gap of the global model, in accuracy", lambda one: (one.gap,)),
    Axis("training accuracy of the global model", lambda one: (one.train,)),
    Axis("samples a client", lambda one: (_log(one.samples),)),
    Axis("samples a parameter", lambda one: (_log(one.samples / one.parameters),)),
    Axis("how often a sample is trained on", lambda one: (_log(one.visits),)),
    Axis("local steps a round", lambda one: (_log(one.steps),)),
    Axis("gap of uploads, in accuracy", lambda one: (one.upload_gap,)),
    Axis("gap of uploads, in loss", lambda one: (one.nats,)),
    Axis("**gap of uploads, in standard deviations of the loss**", lambda one: (one.loss_gap,)),
    Axis(
        "generalisation gap and samples a client",
        lambda one: (one.gap, _log(one.samples)),
    ),
    Axis(
        "gap of uploads in accuracy, and samples a client",
        lambda one: (one.upload_gap, _log(one.samples)),
    ),
    Axis(
        "gap of uploads in standard deviations, and samples a client",
        lambda one: (one.loss_gap, _log(one.samples)),
    ),
)
RULE = AXES[9]
FINAL_AXES = (
    AXES[0],
    Axis("**generalisation gap of the global model**", lambda one: (one.gap,)),
    Axis("training accuracy of the global model", lambda one: (one.train,)),
    AXES[9],
)
FINAL_RULE = FINAL_AXES[1]

Found = Callable[[Rung], float]


def of_uploads(one: Rung) -> float:
    """What the strongest attack on uploads finds."""
    return one.best.value


def of_final(one: Rung) -> float:
    """What somebody finds who has the final model."""
    return one.final.value


def fitted(axis: Axis, made_from: Sequence[Rung], found: Found) -> Callable[[Rung], float]:
    """The nearest line through the AUCs' quantiles, by least squares."""
    weights = _weights(axis, made_from, found)
    return lambda one: NormalDist().cdf(float(np.dot(weights, (1.0, *axis.of(one)))))


def _weights(axis: Axis, made_from: Sequence[Rung], found: Found) -> np.ndarray:
    rows = np.array([(1.0, *axis.of(one)) for one in made_from])
    values = np.array([NormalDist().inv_cdf(min(found(one), 0.999)) for one in made_from])
    weights: np.ndarray = np.linalg.lstsq(rows, values, rcond=None)[0]
    return weights


def left_out(axis: Axis, made_from: Sequence[Rung], found: Found) -> list[float]:
    """Errors of AUCs on each data set, by what the others say."""
    errors = []
    for study in dict.fromkeys(one.study for one in made_from):
        said = fitted(axis, [one for one in made_from if one.study != study], found)
        errors += [found(one) - said(one) for one in made_from if one.study == study]
    return errors


def errors_on(
    axis: Axis, made_from: Sequence[Rung], checked_on: Sequence[Rung], found: Found
) -> list[float]:
    """Errors of AUCs on data that nothing was made from."""
    said = fitted(axis, made_from, found)
    return [found(one) - said(one) for one in checked_on]


def rule(axis: Axis, made_from: Sequence[Rung], found: Found) -> ProbitLine:
    """The rule: its numbers, and how far a data set's rungs are from what the others say."""
    intercept, slope = _weights(axis, made_from, found)
    spread = np.quantile(np.abs(left_out(axis, made_from, found)), 0.9)
    gaps = [axis.of(one)[0] for one in made_from]
    numbers = (intercept, slope, spread, min(gaps), max(gaps))
    # Adding 0 turns a rounded -0.0 into 0.0.
    return ProbitLine(*(round(float(number), 3) + 0.0 for number in numbers))


def inside(said: ProbitLine, axis: Axis, checked_on: Sequence[Rung], found: Found) -> list[bool]:
    """Which rungs are where a rule says, to within its spread."""
    return [abs(found(one) - _said(said, axis, one)) <= said.spread for one in checked_on]


def _said(said: ProbitLine, axis: Axis, one: Rung) -> float:
    (gap,) = axis.of(one)
    return said.at(gap)


def picture(
    made_from: Sequence[Rung], checked_on: Sequence[Rung], uploads: ProbitLine, final: ProbitLine
) -> str:
    """The ladder as an SVG picture: a mark a federation, the rule, what it was not made from."""
    # Narrow, so that the lettering is legible on a telephone.
    with mpl.rc_context({"svg.hashsalt": "ladder", "font.size": 11}):
        return _drawn(made_from, checked_on, uploads, final)


def _drawn(
    made_from: Sequence[Rung], checked_on: Sequence[Rung], uploads: ProbitLine, final: ProbitLine
) -> str:
    figure = Figure(figsize=(5.4, 9.2), layout="constrained")
    above, below = figure.subplots(2, 1)
    marks = dict(zip(NAMES, "osD^v", strict=True))
    for study, mark in marks.items():
        own = [one for one in (*made_from, *checked_on) if one.study == study]
        label = NAMES[study] + (" (check)" if study in CHECKED_ON else "")
        for axes, across, found in (
            (above, [one.loss_gap for one in own], [one.best for one in own]),
            (below, [100 * one.gap for one in own], [one.final for one in own]),
        ):
            _marks(axes, across, found, mark, label, hollow=study in CHECKED_ON)
    everything = [*made_from, *checked_on]
    line = np.linspace(0, 1.05 * max(one.loss_gap for one in everything), 60)
    above.plot(line, [uploads.at(gap) for gap in line], "-", color="0.35")
    points = np.linspace(0, 1.05 * max(one.gap for one in everything), 60)
    below.plot(100 * points, [final.at(gap) for gap in points], "-", color="0.35")
    above.set_xlabel("gap in loss of clients' uploads, in standard deviations")
    above.set_ylabel("AUC of the strongest attack")
    above.set_title("The server sees every upload", fontsize=12)
    below.set_xlabel("generalisation gap of the global model, in points")
    below.set_ylabel("AUC of the loss")
    below.set_title("Somebody has the final model only", fontsize=12)
    for axes in (above, below):
        axes.axhline(0.5, color="0.7", linewidth=0.8)
        axes.set_ylim(0.45, 1.0)
    below.legend(loc="upper left", fontsize=10)
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _marks(
    axes: Axes, across: Sequence[float], found: Sequence[Auc], mark: str, label: str, hollow: bool
) -> None:
    if found:
        axes.errorbar(
            across,
            [one.value for one in found],
            yerr=[
                [max(one.value - one.low, 0.0) for one in found],
                [max(one.high - one.value, 0.0) for one in found],
            ],
            fmt=mark,
            markersize=5,
            elinewidth=0.7,
            markerfacecolor="none" if hollow else None,
            label=label,
        )


def settings(one: Rung) -> dict[str, float | str]:
    """What rungs of a study differ in."""
    model, defense = one.record.config["model"], one.record.config.get("defense")
    assert isinstance(model, dict)
    named = defense.get("name", "none") if isinstance(defense, dict) else "none"
    options = defense.get("options", {}) if isinstance(defense, dict) else {}
    noise = options.get("noise_multiplier", 0.0)
    return {
        "epochs": one.of("training", "epochs"),
        "rounds": one.of("training", "rounds"),
        "samples": one.of("partition", "samples_per_client"),
        "lr": one.of("training", "lr"),
        "decay": one.of("training", "weight_decay"),
        "width": float(model["options"].get("hidden", 0)),
        "defense": "none" if named == "none" else "dp-sgd" if noise else "clipping",
    }


def changes(made_from: Sequence[Rung]) -> list[Change]:
    """For each data set and setting the two rungs that are furthest apart in it alone."""
    found = []
    for study in MADE_FROM:
        own = [one for one in made_from if one.study == study]
        best: dict[str, tuple[tuple[float, float], Change]] = {}
        for before in own:
            for after in own:
                if (change := _change(before, after)) is not None:
                    far, one = change
                    if one.kind not in best or far > best[one.kind][0]:
                        best[one.kind] = (far, one)
        found += [change for _, change in best.values()]
    return sorted(found, key=lambda one: list(KINDS).index(one.kind))


def _change(before: Rung, after: Rung) -> tuple[tuple[float, float], Change] | None:
    """One setting changed in the direction that should help, and how far; else None."""
    was, became = settings(before), settings(after)
    differ = [key for key in was if was[key] != became[key]]
    if len(differ) != 1:
        return None
    (key,) = differ
    one, other = was[key], became[key]
    if isinstance(one, str) or isinstance(other, str):
        if one != "none":
            return None
        kind, far, shown = str(other), 1.0, ("none", "for everybody")
    else:
        # More samples and more decay help; less of all else.
        helps = other > one if key in ("samples", "decay") else other < one
        if not helps:
            return None
        kind, far = key, abs(math.log((other or 1e-6) / (one or 1e-6)))
        shown = (f"{one:g}", f"{other:g}")
    change = Change(
        kind,
        NAMES[before.study],
        *shown,
        auc=(round(before.best.value, 3), round(after.best.value, 3)),
        accuracy=(round(before.test, 3), round(after.test, 3)),
    )
    return (far, before.best.value), change


def page(made_from: Sequence[Rung], checked_on: Sequence[Rung]) -> str:
    """The whole page."""
    uploads, final = rule(RULE, made_from, of_uploads), rule(FINAL_RULE, made_from, of_final)
    parts = [
        INTRODUCTION,
        "![What the strongest attack finds, by the gap of clients' uploads; what the final model "
        "gives away, by its generalisation gap](ladder.svg)",
        "## From where on should I worry?",
        _answer(uploads, made_from, checked_on),
        "## Which attack sees it first?",
        _first_to_see(made_from),
        "## Who has the final model only",
        _final(final, made_from, checked_on),
        "## What was tried as an axis",
        "Errors of the expected AUC (the mean of their sizes): on each data set of the rule by "
        "what "
        "the others say, and on the data sets for checking. All are lines through the AUCs' normal "
        "quantiles, by least squares; counts are taken as logarithms.",
        _axes(AXES, made_from, checked_on, of_uploads),
        AXES_SAY,
        "## What one setting changes",
        "For each data set the two federations that differ most in one setting alone. Fewer rounds "
        "do not help against whoever sees uploads: these leak from the first round on. An AUC that "
        "falls with the test accuracy is bought with the model's use.",
        _changes(changes(made_from)),
        "## Source inference",
        _sources(made_from),
        "## What it does not say",
        CAVEATS,
        "## Rungs",
        _table(made_from, uploads),
        "## Held against other data",
        _table(checked_on, uploads),
    ]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """# The leak ladder

From hardly trained to learned by heart: every mark is a federation of ten clients, audited by
four attacks on what they send and one on the final model. `python docs/ladder.py` makes this
page from the records (`results/ladder-*`), and a test holds it to them. To make a data set's
rows again (ten minutes on one core for the first, D the folder of the data sets):

```
fedaudit run studies/ladder-location30.toml --variant all --data-dir D --out runs/ladder-location30
python results/keep.py runs/ladder-location30 --rung
python docs/ladder.py
```"""

AXES_SAY = """Once that gap is known, the number of samples adds nothing: more samples a client
narrow the gap, and help by that. A client can tell its gap by itself, without any attack, after any
round; a record has it from the signals of its loss."""

CAVEATS = """The gap of uploads is measured on the samples that are attacked: it says what is there
to be found, and is no forecast from settings alone. All clients have about as many samples and the
same label distribution, and everybody takes part in every round: of others the ladder says
nothing. AUCs are means over samples; who stands out is in a report."""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([_row(head), _row(["---"] * len(head)), *map(_row, rows)])


def _answer(uploads: ProbitLine, made_from: Sequence[Rung], checked_on: Sequence[Rung]) -> str:
    held = inside(uploads, RULE, checked_on, of_uploads)
    by_data = ", ".join(
        f"{sum(inside(uploads, RULE, own, of_uploads))} of {len(own)} on {NAMES[study]}"
        for study in CHECKED_ON
        if (own := [one for one in checked_on if one.study == study])
    )
    either = [
        near
        or one.best.low - uploads.spread
        <= _said(uploads, RULE, one)
        <= one.best.high + uploads.spread
        for near, one in zip(held, checked_on, strict=True)
    ]
    error = fmean(map(abs, errors_on(RULE, made_from, checked_on, of_uploads)))
    gaps = [uploads.from_gap(auc) for auc in WORRY]
    said = ", ".join(f"{auc} from {gap:.2f} on" for auc, gap in zip(WORRY, gaps, strict=True))
    young = [one for one in made_from if one.gap < 0.01]
    return (
        f"**From {gaps[0]:.1f} standard deviations on.** Take a client's model as it is sent: its "
        "mean loss on fresh samples less that on the client's own, divided by the standard "
        "deviation of the loss on the fresh ones. The AUC to be expected of the strongest attack "
        "is then\n\n"
        f"    Φ({uploads.intercept:.2f} + {uploads.slope:.2f} · gap)\n\n"
        f"with Φ the normal distribution function: {said}. The rule is made from {len(made_from)} "
        f"federations on {len({one.study for one in made_from})} data sets; nine of ten lie within "
        f"{uploads.spread:.2f} of what the other data sets say. Of {len(held)} on data that it was "
        f"not made from {sum(held)} do ({by_data}), {sum(either)} allowing for their own limits; "
        f"its mean error there is {error:.3f}.\n\n"
        "**The generalisation gap of the global model is no such axis** where a server sees "
        f"uploads: {len(young)} of these federations have one below 1 point, and AUCs of "
        f"{min(map(of_uploads, young)):.2f} to {max(map(of_uploads, young)):.2f}. Uploads of "
        "few samples give them away from the first round on, before that model has learned "
        "anything."
    )


def _first_to_see(made_from: Sequence[Rung]) -> str:
    thirds = [[made_from[i] for i in part] for part in np.array_split(range(len(made_from)), 3)]
    means = [
        {
            name: fmean(auc.value for one in own for auc in aucs(one.record, [name], "mixed"))
            for name in UPLOAD_ATTACKS
        }
        for own in thirds
    ]
    rows = [
        [
            f"{own[0].loss_gap:.2f} to {own[-1].loss_gap:.2f}",
            str(len(own)),
            *(
                f"{mean[name]:.3f}, strongest in {sum(one.best.attack == name for one in own)}"
                for name in UPLOAD_ATTACKS
            ),
        ]
        for own, mean in zip(thirds, means, strict=True)
    ]
    first, last = (max(mean, key=lambda name: mean[name]) for mean in (means[0], means[-1]))
    unseen = min(means[0], key=lambda name: means[0][name])
    head = ["gap of uploads", "federations", *(f"`{name}`" for name in UPLOAD_ATTACKS)]
    return (
        f"`{first}`: in the lowest third of the ladder it has a mean AUC of {means[0][first]:.2f}, "
        f"and `{unseen}` {means[0][unseen]:.2f}. In the highest `{last}` leads with "
        f"{means[-1][last]:.2f}. Mean AUC of each attack:\n\n" + _grid(head, rows)
    )


def _final(final: ProbitLine, made_from: Sequence[Rung], checked_on: Sequence[Rung]) -> str:
    held = inside(final, FINAL_RULE, checked_on, of_final)
    points = [f"{100 * final.from_gap(auc):.0f} points for an AUC of {auc}" for auc in WORRY]
    far = max(checked_on, key=lambda one: abs(one.final.value - _said(final, FINAL_RULE, one)))
    return (
        "Here the generalisation gap of the global model does tell, roughly: the AUC of its loss "
        f"(`{FINAL_ATTACK}`, against samples of nobody) is to be expected at "
        f"Φ({final.intercept:.2f} + {final.slope:.2f} · gap), that is from a gap of "
        f"{', '.join(points)} on. Nine of ten federations lie within {final.spread:.2f} of what "
        f"the other data sets say, and {sum(held)} of {len(held)} on the data for checking. The "
        f"furthest off there is {NAMES[far.study]} ({far.variant or 'as it is'}), with a gap of "
        f"{100 * far.gap:.0f} points, a training accuracy of {100 * far.train:.0f}% and an AUC of "
        f"{far.final.value:.2f}.\n\n" + _axes(FINAL_AXES, made_from, checked_on, of_final)
    )


def _axes(
    axes: Sequence[Axis], made_from: Sequence[Rung], checked_on: Sequence[Rung], found: Found
) -> str:
    rows = [
        [
            axis.name,
            f"{fmean(map(abs, left_out(axis, made_from, found))):.3f}",
            f"{fmean(map(abs, errors_on(axis, made_from, checked_on, found))):.3f}",
        ]
        for axis in axes
    ]
    return _grid(["known of the federation", "a data set left out", "data for checking"], rows)


def _changes(found: Sequence[Change]) -> str:
    rows = [
        [
            KINDS[one.kind],
            one.data,
            f"{one.before} → {one.after}",
            f"{one.auc[0]:.3f} → {one.auc[1]:.3f}",
            f"{100 * one.accuracy[0]:.1f} → {100 * one.accuracy[1]:.1f}%",
        ]
        for one in found
    ]
    return _grid(["", "data", "setting", "strongest attack's AUC", "test accuracy"], rows)


def _sources(made_from: Sequence[Rung]) -> str:
    rows = []
    for one in made_from:
        for figure in on_sources(one.record):
            over = figure.over_baseline
            if over is None:
                continue
            limits = f" ({over.low:.2f} to {over.high:.2f})" if over.low is not None else ""
            rows.append(
                [
                    NAMES[one.study],
                    one.variant or "as it is",
                    f"{one.loss_gap:.2f}",
                    f"{figure.success.number:.2f}",
                    f"{over.number:.2f}{limits}",
                ]
            )
    head = ["data", "run", "gap of uploads", "success (`sia-mean`)", "beyond label distributions"]
    return (
        "Ten clients; a guess is right one time in ten. Beyond the labels: success less that of "
        "naming the client of whose data the sample's class is the largest share.\n\n"
        + _grid(head, rows)
    )


def _table(rows: Sequence[Rung], said: ProbitLine) -> str:
    head = [
        *("data", "run", "samples", "train", "test", "gap of uploads"),
        *("strongest attack", "AUC", "rule", "TPR at 1%", "at 0.1%", "final model"),
    ]
    return _grid(
        head,
        [
            [
                NAMES[one.study],
                one.variant or "as it is",
                f"{one.samples:.0f}",
                f"{100 * one.train:.0f}%",
                f"{100 * one.test:.0f}%",
                f"{one.loss_gap:.2f}",
                f"`{one.best.attack}`",
                f"{one.best.value:.3f} ({one.best.low:.3f} to {one.best.high:.3f})",
                f"{_said(said, RULE, one):.2f}",
                _rate(one, "tpr@0.01"),
                _rate(one, "tpr@0.001"),
                f"{one.final.value:.3f}",
            ]
            for one in rows
        ],
    )


def _rate(one: Rung, metric: str) -> str:
    values = [figure.value for figure in over_seeds(one.record, one.best.attack, metric, "mixed")]
    known = [value for value in values if value is not None]
    return f"{100 * fmean(known):.1f}%" if known and len(known) == len(values) else "–"


def made() -> dict[Path, str]:
    """Every file that the records give, by its path."""
    made_from, checked_on = rungs(MADE_FROM), rungs(CHECKED_ON)
    uploads, final = rule(RULE, made_from, of_uploads), rule(FINAL_RULE, made_from, of_final)
    table = {
        "uploads": uploads._asdict(),
        "final": final._asdict(),
        "rungs": [
            [
                NAMES[one.study],
                one.variant or "as it is",
                *(round(x, 3) for x in (one.loss_gap, one.best.value, one.best.low, one.best.high)),
            ]
            for one in made_from
        ],
        "changes": changes(made_from),
    }
    return {
        PAGE: page(made_from, checked_on),
        PICTURE: picture(made_from, checked_on, uploads, final),
        DATA: json.dumps(table, indent=None, separators=(",", ":")) + "\n",
    }


def main(words: Sequence[str]) -> int:
    """What the command line asks for; the exit code."""
    files = made()
    if list(words) == ["--check"]:
        stale = [
            path
            for path, text in files.items()
            if path != PICTURE and (not path.is_file() or path.read_text(encoding="utf-8") != text)
        ]
        print(f"run python docs/ladder.py: {stale}" if stale else "they are what the records give")
        return 1 if stale else 0
    for path, text in files.items():
        write_whole(path, text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
