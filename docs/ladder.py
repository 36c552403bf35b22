"""The page of the leak ladder, from its records: from which gap on there is something to find.

python docs/ladder.py            writes docs/ladder.md, docs/ladder.svg and what reports use of it
python docs/ladder.py --check    says whether they are what the records give
"""

import json
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from sklearn.isotonic import IsotonicRegression

from fedaudit.files import write_whole
from fedaudit.results.older import completed
from fedaudit.results.read import read_record
from fedaudit.results.record import Record

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "ladder.md", ROOT / "docs" / "ladder.svg"
RUNGS = ROOT / "src" / "fedaudit" / "report" / "ladder.json"
MADE_FROM = ("ladder-location30", "ladder-cifar10", "ladder-letters")
CHECKED_ON = ("ladder-check-fashion", "ladder-check-tiny")
ATTACKS = ("loss-series", "avg-cosine", "fedmia-1", "fedmia-2")
WORRY = 0.6
"""An AUC from which on somebody who runs a federation should worry."""


class Rung(NamedTuple):
    """One run: how far its models are better on what they were trained on, and what was found.

    Attributes:
        study: Folder of its record.
        variant: Of the study; empty for the study itself.
        train: Training accuracy of the last global model.
        gap: Training less test accuracy.
        samples: A client.
        found: By attack, the AUC against mixed non-members, with its limits.
    """

    study: str
    variant: str
    train: float
    gap: float
    samples: int
    found: dict[str, tuple[float, float, float]]

    @property
    def strongest(self) -> tuple[str, tuple[float, float, float]]:
        """The attack that finds most."""
        return max(self.found.items(), key=lambda item: item[1][0])


def rungs(studies: Sequence[str]) -> list[Rung]:
    """Every record of these studies, from the smallest gap to the largest."""
    found = [
        _rung(study, path, completed(read_record(path)))
        for study in studies
        for path in sorted((ROOT / "records" / study).glob("*.json"))
    ]
    return sorted(found, key=lambda rung: rung.gap)


def _rung(study: str, path: Path, record: Record) -> Rung:
    alone = len(record.seeds) == 1
    target = min(f.target for f in record.findings if f.target is not None)
    auc = {
        f.attack: (f.value, f.low, f.high)
        for f in record.findings
        if (f.metric, f.contrast, f.target) == ("auc", "mixed", target)
        and (alone or f.seed is None)
        and f.value is not None
        and f.low is not None
        and f.high is not None
    }
    return Rung(
        study=study,
        variant=path.stem.removeprefix(study).removeprefix("-"),
        train=fmean(one.train_accuracy for one in record.utility),
        gap=fmean(one.generalisation_gap for one in record.utility),
        samples=round(fmean(client.samples for client in record.clients)),
        found={attack: auc[attack] for attack in ATTACKS if attack in auc},
    )


class Rule(NamedTuple):
    """What a gap lets expect.

    Attributes:
        gaps: Where the curve bends, ascending.
        expected: The strongest attack's AUC there: never falling with the gap.
        spread: How far nine of ten rungs are from it at most.
        worry: The gap from which on it is `WORRY` or more.
    """

    gaps: tuple[float, ...]
    expected: tuple[float, ...]
    spread: float
    worry: float

    def at(self, gap: float) -> float:
        """What is to be expected at a gap."""
        return float(np.interp(gap, self.gaps, self.expected))


def rule(made_from: Sequence[Rung]) -> Rule:
    """The rule of thumb: the rising curve that is nearest to the rungs, by least squares."""
    gaps = np.array([rung.gap for rung in made_from])
    found = np.array([rung.strongest[1][0] for rung in made_from])
    fitted = IsotonicRegression(y_min=0.5, y_max=1.0).fit(gaps, found)
    curve = fitted.predict(gaps)
    spread = float(np.quantile(np.abs(found - curve), 0.9))
    above = gaps[curve >= WORRY]
    worry = float(above.min()) if len(above) else float("inf")
    bends = [0, *(i for i in range(1, len(gaps)) if curve[i] != curve[i - 1]), len(gaps) - 1]
    kept = sorted({*bends, *(i - 1 for i in bends if i)})
    return Rule(
        tuple(round(float(gaps[i]), 4) for i in kept),
        tuple(round(float(curve[i]), 4) for i in kept),
        round(spread, 3),
        round(worry, 3),
    )


def held(found: Rule, rung: Rung) -> bool:
    """Whether a rung that the rule was not made from is where it says, allowing for its limits."""
    _, (_, low, high) = rung.strongest
    expected = found.at(rung.gap)
    return low - found.spread <= expected <= high + found.spread


def picture(made_from: Sequence[Rung], checked_on: Sequence[Rung], found: Rule) -> str:
    """The ladder as an SVG picture: a mark a run, the rule, and where to worry."""
    mpl.rcParams["svg.hashsalt"] = "ladder"
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    marks = dict(zip([*MADE_FROM, *CHECKED_ON], "osD^v", strict=True))
    for study, mark in marks.items():
        own = [one for one in (*made_from, *checked_on) if one.study == study]
        if not own:
            continue
        values = [one.strongest[1] for one in own]
        checks = study in CHECKED_ON
        axes.errorbar(
            [100 * one.gap for one in own],
            [value for value, _, _ in values],
            yerr=[[v - low for v, low, _ in values], [high - v for v, _, high in values]],
            fmt=mark,
            markersize=5,
            elinewidth=0.8,
            markerfacecolor="none" if checks else None,
            label=_data(study) + (" (not used for the rule)" if checks else ""),
        )
    axes.step(
        [100 * gap for gap in found.gaps], found.expected, where="post", color="0.3", label="rule"
    )
    axes.axhline(0.5, color="0.7", linewidth=0.8)
    if np.isfinite(found.worry):
        axes.axvline(100 * found.worry, color="tab:red", linewidth=0.8, linestyle="--")
        axes.annotate(
            f" worry from {100 * found.worry:.0f} points on",
            (100 * found.worry, 0.97),
            color="tab:red",
        )
    axes.set_xlabel("generalisation gap: training less test accuracy, in points")
    axes.set_ylabel("AUC of the strongest of four attacks")
    axes.set_ylim(0.45, 1.0)
    axes.legend(loc="lower right", fontsize=8)
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _data(study: str) -> str:
    return study.removeprefix("ladder-").removeprefix("check-")


def page(made_from: Sequence[Rung], checked_on: Sequence[Rung], found: Rule) -> str:
    """The whole page."""
    inside = [held(found, one) for one in checked_on]
    first = _first_to_see(made_from)
    worry = (
        f"From a generalisation gap of some {100 * found.worry:.0f} points on"
        if np.isfinite(found.worry)
        else "Nowhere on this ladder"
    )
    parts = [
        "# The leak ladder",
        "From hardly trained to learned by heart: every mark is a federation of ten clients, "
        "audited by four attacks. `python docs/ladder.py` makes this page from the records.",
        "![Generalisation gap and what the strongest of four attacks finds](ladder.svg)",
        f"**{worry} the strongest attack's AUC is to be expected at {WORRY} or more.** The rule is "
        f"the rising curve nearest to {len(made_from)} runs on {len(MADE_FROM)} data sets; nine of "
        f"ten lie within {found.spread:.2f} of it. "
        + (
            f"Of {len(inside)} runs on data that it was not made from, {sum(inside)} lie where it "
            "says, allowing for that and for their own limits."
            if inside
            else "It has not been held against other data yet."
        ),
        "What sees a leak first (the strongest attack of each run, by gap): " + first,
        "A gap says nothing of what a single sample suffers, and a small one proves nothing: "
        "clients whose classes differ, outliers and noise in labels leak at any gap. It tells "
        "where to audit first.",
        "## Rungs",
        _table(made_from, found),
        "## Held against other data",
        _table(checked_on, found) if checked_on else "No records yet.",
        "## What lowers it",
        "Runs that differ from their study's own in one setting alone:",
        _lower(made_from),
    ]
    return "\n\n".join(parts) + "\n"


def _first_to_see(made_from: Sequence[Rung]) -> str:
    thirds = [part for part in np.array_split(np.arange(len(made_from)), 3) if len(part)]
    said = []
    for part in thirds:
        own = [made_from[i] for i in part]
        names = [one.strongest[0] for one in own]
        counts = {name: names.count(name) for name in sorted(set(names), key=names.count)[::-1]}
        words = ", ".join(f"`{name}` in {times}" for name, times in counts.items())
        gaps = f"{100 * own[0].gap:.0f} to {100 * own[-1].gap:.0f} points"
        said.append(f"at {gaps} {words} of {len(own)}")
    return "; ".join(said) + "."


def _table(rows: Sequence[Rung], found: Rule) -> str:
    head = ["data", "run", "samples a client", "training accuracy", "gap", *ATTACKS, "rule"]
    lines = [_row(head), _row(["---"] * len(head))]
    for one in rows:
        cells = [
            f"{one.found[name][0]:.3f} ({one.found[name][1]:.3f} to {one.found[name][2]:.3f})"
            if name in one.found
            else "–"
            for name in ATTACKS
        ]
        first = [_data(one.study), one.variant or "as it is", str(one.samples)]
        accuracy = [f"{100 * one.train:.1f}%", f"{100 * one.gap:.1f}"]
        lines.append(_row([*first, *accuracy, *cells, f"{found.at(one.gap):.2f}"]))
    return "\n".join(lines)


def _lower(made_from: Sequence[Rung]) -> str:
    head = ["data", "changed", "gap", "strongest attack's AUC"]
    lines = [_row(head), _row(["---"] * len(head))]
    for study in MADE_FROM:
        own = {one.variant: one for one in made_from if one.study == study}
        base = own.get("")
        for variant, one in own.items():
            if base is None or not variant:
                continue
            gap = f"{100 * base.gap:.1f} → {100 * one.gap:.1f}"
            auc = f"{base.strongest[1][0]:.3f} → {one.strongest[1][0]:.3f}"
            lines.append(_row([_data(study), variant, gap, auc]))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def made() -> dict[Path, str]:
    """Every file that the records give, by its path."""
    made_from, checked_on = rungs(MADE_FROM), rungs(CHECKED_ON)
    if not made_from:
        return {}
    found = rule(made_from)
    table = {
        "gaps": found.gaps,
        "expected": found.expected,
        "spread": found.spread,
        "worry": found.worry if np.isfinite(found.worry) else None,
        "runs": len(made_from),
    }
    return {
        PAGE: page(made_from, checked_on, found),
        PICTURE: picture(made_from, checked_on, found),
        RUNGS: json.dumps(table, indent=1) + "\n",
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
