"""The pages of results, from the records: a page a study, and a list of them.

`python docs/results.py` writes docs/results.md and docs/results/, as does `make docs`. They are not
committed.
"""

import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fedaudit.report.grid import Grid
from fedaudit.report.sources import Named, on_sources
from fedaudit.report.tables.games import points_table
from fedaudit.results import estimate as clusters
from fedaudit.results.estimate import TEST_ACCURACY, TRAIN_ACCURACY, Estimate
from fedaudit.results.guessing import above_chance, near_guessing
from fedaudit.results.read import read_record
from fedaudit.results.record import Record

sys.path.insert(0, str(Path(__file__).parents[1]))

from results.archives import unpacked

ROOT = Path(__file__).parents[1]
PAGE, FOLDER = ROOT / "docs" / "results.md", ROOT / "docs" / "results"
NONMEMBERS = {"unseen": "samples that nobody trained on", "other_client": "other clients' samples"}
METRICS = {"auc": "AUC", "tpr@0.001": "TPR at 0.1% FPR"}

INTRODUCTION = """# Results

What the records in `results/` say, a page a study; `python docs/results.py` makes these pages from
them. What follows for the papers stands on the page of
[claims](claims.md). In brackets 95% intervals: of one seed by DeLong's method (AUC;
exact on disjoint pairs where few pairs are misordered) and by order statistics with Clopper and
Pearson's (rates), of several seeds those of these runs
together, not of further ones. Square brackets are Clopper and Pearson's alone: limits of the share
of members above the threshold that was used, whose true false-positive rate may be another. Nothing
follows from them for the rate at 0.1% FPR, and no size or verdict rests on them. **Bold** figures
are above guessing by a test corrected over the study and, but for rates, by their own interval; the
test of a rate is exact and rests on no limits. A dash stands for what
was refused or not run; the record says why. Accuracy is that of the last global model, the mean of
the seeds.
"""


CONTENTS = """```{toctree}
:hidden:
:glob:

results/*
```"""


class Study(NamedTuple):
    """A folder of records.

    Attributes:
        name: Of the folder.
        command: What makes the records; D stands for the folder with data sets.
        note: A remark; may be empty.
        records: By variant, the study itself ("as it is") first.
    """

    name: str
    command: str
    note: str
    records: Mapping[str, Record]


class Games(NamedTuple):
    """A folder with the record of a study of security games; see :class:`Study`."""

    name: str
    command: str
    note: str
    record: Record

    @property
    def about(self) -> str:
        """What it is about, in a sentence."""
        return str(self.record.config.get("about", ""))


class Panel(NamedTuple):
    """What one table shows."""

    target: int
    contrast: str
    metric: str


def studies() -> list[Study | Games]:
    """All folders that `results/made.toml` names, in its order."""
    made = tomllib.loads((ROOT / "results" / "made.toml").read_text(encoding="utf-8"))
    return [_study(name, one["command"], one.get("note", "")) for name, one in made.items()]


def _study(name: str, command: str, note: str) -> Study | Games:
    folder = unpacked() / name
    if " studies/games/" in command:
        return Games(name, command, note, read_record(folder / f"{name}.json"))
    return Study(name, command, note, _records(folder, name))


def _records(folder: Path, name: str) -> dict[str, Record]:
    found = {
        path.stem.removeprefix(name).removeprefix("-") or "as it is": read_record(path)
        for path in sorted(folder.glob("*.json"), key=lambda path: (len(path.stem), path.stem))
    }
    order = list(_variants(name))
    return dict(sorted(found.items(), key=lambda item: _place(item[0], order)))


def _variants(name: str) -> Iterable[str]:
    path = ROOT / "studies" / f"{name}.toml"
    if not path.is_file():
        return ()
    variants = tomllib.loads(path.read_text(encoding="utf-8")).get("variants", {})
    return ("as it is", *variants)


def _place(variant: str, order: Sequence[str]) -> int:
    return order.index(variant) if variant in order else len(order)


def pages(all_studies: Sequence[Study | Games]) -> dict[Path, str]:
    """Every page by its path: the list of studies, and a page for each."""
    found = {PAGE: _list(all_studies)}
    for study in all_studies:
        text = _games(study) if isinstance(study, Games) else _section(study)
        found[FOLDER / f"{study.name}.md"] = text + "\n"
    return found


def _list(all_studies: Sequence[Study | Games]) -> str:
    head = ["study", "about", "records", "training / test accuracy, or the measure that is named"]
    lines = [_row(head), _row(["---"] * len(head))]
    for study in all_studies:
        link = f"[{study.name}](results/{study.name}.md)"
        if isinstance(study, Games):
            points = _counted(len(study.record.points), "point")
            lines.append(_row([link, study.about, points, "–"]))
            continue
        first = next(iter(study.records.values()))
        about = str(first.config.get("about", ""))
        lines.append(_row([link, about, str(len(study.records)), _learned(first)]))
    return "\n\n".join([INTRODUCTION.rstrip(), "\n".join(lines), CONTENTS]) + "\n"


def _learned(record: Record) -> str:
    """Utility of the study as it is, so that a reader sees where there is nothing to leak."""
    found = [record.where(topic="utility", metric=one) for one in (TRAIN_ACCURACY, TEST_ACCURACY)]
    if all(found):
        return " / ".join(f"{100 * fmean(one.number for one in runs):.0f}%" for runs in found)
    other = [_of_task(record, part) for part in ("train", "test")]
    return " / ".join(other) if all(other) else "–"


def _of_task(record: Record, part: str) -> str:
    """Mean of the measure of a task that counts no right answers, with its name."""
    runs = [o for o in record.where(topic="utility") if o.metric.startswith(f"{part} ")]
    name = runs[0].metric.removeprefix(f"{part} ") if runs else ""
    return f"{fmean(one.number for one in runs):.2f} {name}" if runs else ""


def _section(study: Study) -> str:
    first = next(iter(study.records.values()))
    seeds = sorted({len(record.seeds) for record in study.records.values()})
    parts = [
        f"# {study.name}",
        f"{first.config.get('about', '')} {study.note}".strip(),
        f"```\n{study.command}\n```",
        f"{_counted(len(study.records), 'record')} of {' or '.join(map(str, seeds))} "
        f"{'seed' if seeds == [1] else 'seeds'}. {_controls(study)}{_unknown_commits(study)}",
    ]
    parts += [warning] if (warning := _near_guessing(study)) else []
    parts += [_table(study, panel) for panel in _panels(study)]
    parts += [_sources(study)] if any(record.sources for record in study.records.values()) else []
    parts += [_clusters(study)] if any(r.clusters for r in study.records.values()) else []
    return "\n\n".join(parts)


def _games(study: Games) -> str:
    """Security games: the tables of points, as the report has them."""
    tables = [points_table(study.record, in_rounds=in_rounds) for in_rounds in (False, True)]
    parts = (
        f"# {study.name}",
        f"{study.about} {study.note}".strip(),
        f"```\n{study.command}\n```",
        f"Played with {study.record.points[0].records}."
        + ("" if study.record.environment.commit else " The record does not say by which commit."),
        *(_grid(table) for table in tables if table is not None),
    )
    return "\n\n".join(parts)


def _grid(table: Grid) -> str:
    lines = [_row([column.text for column in table.columns])]
    lines.append(_row(["---"] * len(table.columns)))
    for row in table.rows:
        details = [" ".join(cell.detail.split("\n")) for cell in row]
        lines.append(
            _row([f"{c.text} ({d})" if d else c.text for c, d in zip(row, details, strict=True)])
        )
    return f"{table.caption}. {table.remark}\n\n" + "\n".join(lines)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _controls(study: Study) -> str:
    """How many controls passed, and which did not."""
    done = [
        (name, control)
        for name, record in study.records.items()
        for control in record.controls
        if control.passed is not None
    ]
    failed = [
        f"{name}, seed {control.seed}: {control.control}, {control.attack}"
        for name, control in done
        if not control.passed
    ]
    if not failed:
        return f"All {len(done)} controls passed."
    return f"Of {len(done)} controls {len(failed)} failed ({'; '.join(failed)})."


def _unknown_commits(study: Study) -> str:
    """Says how many records do not know which commit made them, or were made with changes to it."""
    commits = [record.environment.commit for record in study.records.values()]
    unknown = sum(not commit for commit in commits)
    changed = sum(commit.endswith("+") for commit in commits)
    said = f" {unknown} of them do not say by which commit." if unknown else ""
    return said + (f" {changed} were made with uncommitted changes." if changed else "")


def _near_guessing(study: Study) -> str:
    """Names the rows of whose models nothing follows about attacks or defenses."""
    rows = [
        f"{name} ({100 * one.train_accuracy:.1f}%, guessing {100 * one.guess:.1f}%)"
        for name, record in study.records.items()
        for one in near_guessing(record)
    ]
    return f"**Training accuracy near guessing**: {', '.join(rows)}." if rows else ""


def _panels(study: Study) -> list[Panel]:
    shown = [figure for record in study.records.values() for figure in _shown(record)]
    targets = sorted({figure.target for figure in shown if figure.target is not None})
    contrasts = [name for name in NONMEMBERS if any(f.contrast == name for f in shown)]
    return [
        Panel(target, contrast, metric)
        for target in targets
        for contrast in contrasts
        for metric in METRICS
        if (metric, contrast) != ("tpr@0.001", "other_client")
    ]


def _shown(record: Record) -> list[Estimate]:
    """Figures over all seeds, which for a single seed are its own."""
    alone = len(record.seeds) == 1
    return [f for f in record.findings if f.seed is None or alone]


def _table(study: Study, panel: Panel) -> str:
    attacks = list(
        dict.fromkeys(
            figure.attack
            for record in study.records.values()
            for figure in _shown(record)
            if figure.attack and figure.metric == panel.metric
        )
    )
    title = (
        f"{METRICS[panel.metric]}, members of client {panel.target} against "
        f"{NONMEMBERS[panel.contrast]}:"
    )
    head = ["", "accuracy", *attacks]
    lines = [_row(head), _row(["---"] * len(head))]
    for name, record in study.records.items():
        shown = _shown(record)
        cells = [_cell(shown, panel, attack) for attack in attacks]
        lines.append(_row([name, _accuracy(record), *cells]))
    return f"{title}\n\n" + "\n".join(lines)


def _sources(study: Study) -> str:
    """Source inference: what is said of owners, beside what classes alone say."""
    attacks = list(dict.fromkeys(run.attack for r in study.records.values() for run in r.sources))
    levels_made = [one for r in study.records.values() for one in on_sources(r)]
    older = (
        " (of records of an earlier version what is right when owners are shuffled within "
        "classes, which may be too high, and what is beyond it too low)"
    ) * any(one.older_level for one in levels_made)
    title = (
        "Share of samples whose owner is named. Label distributions alone: of the answers of "
        "the first attack, what would be right if a sample's owner depended on its class alone"
        f"{older}; label "
        "baseline: naming the client of whose data the sample's class is the largest share (– "
        "where the record is of a version that took the largest count); oracle round: the best "
        "of the first attack's rounds, chosen afterwards, as the paper's tables have it; "
        "overfitting: of the clients' models in the last round, training less test accuracy "
        "without its sign, the mean, in points. **Bold** is more than label distributions "
        "explain, by test and interval."
    )
    levels_named = (
        "label distributions alone",
        "label baseline",
        "oracle round",
        "guess",
        "overfitting",
    )
    head = ["", "accuracy", *attacks, *levels_named]
    lines = [_row(head), _row(["---"] * len(head))]
    for name, record in study.records.items():
        found = {one.success.attack: one for one in on_sources(record)}
        if not found:
            continue
        first = found[attacks[0]]
        runs = [run for run in record.sources if run.attack == first.success.attack]
        alone = [
            one
            for one in record.on_sources
            if one.attack == first.success.attack and not one.against
        ]
        success = {(one.defense, one.view, one.seed): one.number for one in alone}
        best = fmean(
            max(run.by_round or [success[run.defense, run.view, run.seed]]) for run in runs
        )
        baseline = None if first.over_baseline is None else first.over_baseline.level
        levels = (first.mixes, baseline, best, first.chance)
        cells = [_named_share(found[attack]) if attack in found else "–" for attack in attacks]
        shares = ["–" if level is None else f"{100 * level:.1f}%" for level in levels]
        gaps = [abs(gap) for run in runs for gap in run.overfitting]
        overfitting = f"{100 * fmean(gaps):.1f}" if gaps else "–"
        lines.append(_row([name, _accuracy(record), *cells, *shares, overfitting]))
    return f"{title}\n\n" + "\n".join(lines)


def _named_share(one: Named) -> str:
    value = f"{100 * one.success.number:.1f}%"
    strong = f"**{value}**" if one.above_mixes else value
    if one.success.low is None or one.success.high is None:
        return strong
    return f"{strong} ({100 * one.success.low:.1f}–{100 * one.success.high:.1f})"


class ClusterColumn(NamedTuple):
    """A figure of clustered learning, and how it is printed."""

    head: str
    figure: str
    group: str
    share: bool = True


CLUSTERS = (
    ClusterColumn("accuracy", clusters.ACCURACY, "everybody"),
    ClusterColumn("of the majority", clusters.ACCURACY, "majority"),
    ClusterColumn("of the minority", clusters.ACCURACY, "minority"),
    ClusterColumn("risk of the majority's model", clusters.MODEL_RISK, "majority"),
    ClusterColumn("of the minority's", clusters.MODEL_RISK, "minority"),
    ClusterColumn("estimated, majority", clusters.MODEL_ESTIMATE, "majority"),
    ClusterColumn("minority", clusters.MODEL_ESTIMATE, "minority"),
    ClusterColumn("violations", clusters.VIOLATIONS, "everybody", share=False),
    ClusterColumn("by chance", clusters.CHANCE_VIOLATIONS, "everybody", share=False),
    ClusterColumn("expected", clusters.EXPECTED_VIOLATIONS, "everybody", share=False),
    ClusterColumn("agreement with the groups", clusters.AGREEMENT, "everybody", share=False),
    ClusterColumn("demographic parity", "demographic parity", "everybody"),
    ClusterColumn("equal opportunity", "equal opportunity", "everybody"),
    ClusterColumn("equalised odds", "equalised odds", "everybody"),
)


def _clusters(study: Study) -> str:
    """Clustered learning: IFCA-MIR's Tables 1 and 2, and what its figures show."""
    clients = {len(run.clients) for r in study.records.values() for run in r.clusters}
    title = (
        "Clustered learning, means over seeds. Risk: balanced accuracy of membership inference on "
        "a model's real members, at the attack's own threshold; estimated: by the server on shadow "
        f"models. Violations: of {' or '.join(map(str, sorted(clients)))} clients those whose "
        "model's risk is above what they accept; by chance: were every true risk 50%; expected: by "
        "the estimates. Agreement: adjusted Rand index of models and groups, 1 for the groups "
        "themselves, 0 for chance; a dash where it is not defined. Fairness: absolute gaps between "
        "groups."
    )
    head = ["", *(column.head for column in CLUSTERS)]
    lines = [_row(head), _row(["---"] * len(head))]
    for name, record in study.records.items():
        lines.append(_row([name, *(_cluster_cell(record, column) for column in CLUSTERS)]))
    return f"{title}\n\n" + "\n".join(lines)


def _cluster_cell(record: Record, column: ClusterColumn) -> str:
    def shown(value: float) -> str:
        return f"{100 * value:.1f}%" if column.share else f"{value:.3g}"

    at = {"topic": "clusters", "metric": column.figure, "group": column.group, "seed": None}
    for mean in record.where(**at)[:1]:
        if mean.low is None or mean.high is None:
            return shown(mean.number)
        return f"{shown(mean.number)} ({shown(mean.low)}–{shown(mean.high)})"
    return "–"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _accuracy(record: Record) -> str:
    known = [one.number for one in record.where(topic="utility", metric=TEST_ACCURACY)]
    return f"{100 * sum(known) / len(known):.1f}%" if known else _of_task(record, "test") or "–"


def _cell(shown: Sequence[Estimate], panel: Panel, attack: str) -> str:
    for figure in shown:
        key = Panel(-1 if figure.target is None else figure.target, figure.contrast, figure.metric)
        if key == panel and figure.attack == attack and figure.value is not None:
            return _figure(figure)
    return "–"


def _figure(figure: Estimate) -> str:
    def shown(value: float) -> str:
        return f"{value:.3f}" if figure.metric == "auc" else f"{100 * value:.1f}%"

    value = shown(figure.value or 0.0)
    strong = f"**{value}**" if above_chance(figure) else value
    at = figure.at_threshold
    used = (at.low, at.high) if at else (None, None)
    if figure.high is not None:
        least = f"{shown(figure.low)}–" if figure.low is not None else "≤ "
        return f"{strong} ({least}{shown(figure.high)})"
    if used[0] is not None and used[1] is not None:
        return f"{strong} [{shown(used[0])}–{shown(used[1])}]"
    return strong


def main() -> int:
    """Writes the pages, and says which archives have no command in `results/made.toml`."""
    told = studies()
    FOLDER.mkdir(exist_ok=True)
    for left in FOLDER.glob("*.md"):
        left.unlink()
    for path, text in pages(told).items():
        path.write_text(text, encoding="utf-8")
    untold = {path.parent.name for path in unpacked().rglob("*.json")} ^ {one.name for one in told}
    for name in sorted(untold):
        print(f"results/made.toml and the archives differ in {name}")
    return 1 if untold else 0


if __name__ == "__main__":
    sys.exit(main())
