"""Generate the pages from the records: a page for each study, and a page for each paper.

`python docs/results.py` writes docs/results.md and docs/results/ (studies), and docs/papers.md and
docs/papers/ (each paper's tables with its values and our figures), as does `make docs`. They are
not committed. One program writes both, since reading the records takes most of the time.
"""

import gc
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fedaudit.benchmark.page import leaderboard_markdown, method_lines
from fedaudit.formatting.grid import Grid
from fedaudit.report.sources import SourceAttack, source_attacks
from fedaudit.report.tables.games import points_table
from fedaudit.results import estimate as clusters
from fedaudit.results.estimate import (
    GUESSING,
    LABEL_INFERENCE,
    OTHER_CLIENT,
    TEST_ACCURACY,
    TRAIN_ACCURACY,
    Estimate,
)
from fedaudit.results.guessing import above_chance, near_guessing
from fedaudit.results.record import Record
from fedaudit.results.runs import has_older_level

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.claims.table_pages import index_page, judged_papers, paper_page
from results.archives import committed_record, unpacked
from results.benchmark import committed

ROOT = Path(__file__).parents[1]
PAGE, FOLDER = ROOT / "docs" / "results.md", ROOT / "docs" / "results"
PAPERS = ROOT / "docs" / "papers"
GPU_RESULTS = ROOT / "results" / "gpu.json"
"""Results of ``benchmarks.gpu``; without this file, there is no page of a GPU."""
NONMEMBERS = {"unseen": "held-out samples", "other_client": "other clients' samples"}
BASE = "base study"
"""Name of the row of the study itself, without a variant."""
METRICS = {"auc": "AUC", "tpr@0.001": "TPR at 0.1% FPR"}

LEGEND = (
    (
        "(0.5–0.7)",
        "95 % interval. For one seed: DeLong's method for AUCs (exact on disjoint pairs if few "
        "pairs are misordered); order statistics with Clopper-Pearson limits for rates. For "
        "several seeds: the interval for these runs.",
    ),
    (
        "[0.5–0.7]",
        "Clopper-Pearson limits at the sample's threshold. The true false-positive rate of this "
        "threshold may differ, so no word for a size and no verdict uses these limits.",
    ),
    (
        "**bold**",
        "Above chance level by a test that is corrected for the whole study. An AUC's interval "
        "must also exclude chance level. The test of a rate is exact and does not use limits.",
    ),
    ("–", "The value was refused or not measured; the record gives the reason."),
    ("accuracy", "Mean test accuracy of the last global model over seeds."),
)
INTRODUCTION = """# Results

Look up the results of all committed records, one page per study. `python docs/results.py`
generates these pages from `results/`. The [claims](claims.md) draw the conclusions.

{legend}
"""


CONTENTS = """```{{toctree}}
:hidden:

{pages}
```"""
ORPHAN = """---
orphan: true
---

"""
"""Heading of a study's page. The sidebar of every page would else list all studies."""


class Study(NamedTuple):
    """Folder of records."""

    # Name of the folder.
    name: str
    # Command that makes the records; D is the folder with data sets.
    command: str
    # Remark, or empty.
    note: str
    # Records by variant; the study itself comes first.
    records: Mapping[str, Record]


class Games(NamedTuple):
    """Folder with the record of a study of security games."""

    name: str
    command: str
    note: str
    record: Record

    @property
    def about(self) -> str:
        return _about(self.name, self.record)


class Panel(NamedTuple):
    """Columns of one table."""

    target: int
    contrast: str
    metric: str


def studies() -> list[Study | Games]:
    entries = tomllib.loads((ROOT / "results" / "made.toml").read_text(encoding="utf-8"))
    return [
        _study(name, entry["command"], entry.get("note", "")) for name, entry in entries.items()
    ]


def _study(name: str, command: str, note: str) -> Study | Games:
    folder = unpacked() / name
    if " studies/games/" in command:
        return Games(name, command, note, committed_record(folder / f"{name}.json"))
    return Study(name, command, note, _records(folder, name))


def _records(folder: Path, name: str) -> dict[str, Record]:
    columns = {
        path.stem.removeprefix(name).removeprefix("-") or BASE: committed_record(path)
        for path in sorted(folder.glob("*.json"), key=lambda path: (len(path.stem), path.stem))
    }
    order = list(_variants(name))
    return dict(sorted(columns.items(), key=lambda item: _place(item[0], order)))


def _about(name: str, record: Record) -> str:
    """Return the description in the study's file, or in the record if there is no file."""
    for path in (ROOT / "studies" / f"{name}.toml", ROOT / "studies" / "games" / f"{name}.toml"):
        if path.is_file():
            return str(tomllib.loads(path.read_text(encoding="utf-8"))["about"])
    return str(record.config.get("about", ""))


def _variants(name: str) -> Iterable[str]:
    path = ROOT / "studies" / f"{name}.toml"
    if not path.is_file():
        return ()
    variants = tomllib.loads(path.read_text(encoding="utf-8")).get("variants", {})
    return (BASE, *variants)


def _place(variant: str, order: Sequence[str]) -> int:
    return order.index(variant) if variant in order else len(order)


def pages(all_studies: Sequence[Study | Games]) -> dict[Path, str]:
    """Return every page by path: the list of studies, and a page for each."""
    pages = {PAGE: _list(all_studies), FOLDER / "leaderboard.md": leaderboard_page()}
    if GPU_RESULTS.is_file():
        # The benchmark imports torch, which is not needed for the other pages.
        from benchmarks.gpu import published_page

        pages[FOLDER / "gpu.md"] = published_page(GPU_RESULTS)
    for study in all_studies:
        text = _games(study) if isinstance(study, Games) else _section(study)
        pages[FOLDER / f"{study.name}.md"] = f"{ORPHAN}{text}\n\n[All studies](../results.md)\n"
    return pages


def leaderboard_page() -> str:
    """Return the page with the leaderboard of the catalogue's attacks."""
    board = committed()
    regimes = ", ".join(regime.regime for regime in board.regimes)
    return "\n".join(
        [
            "# Leaderboard of attacks",
            "",
            "Compare all attacks of the [catalogue](../catalogue.md#attacks) on the federations of",
            f"the benchmark: {regimes}. To add your attack, see",
            "[Score your attack](../settings.md#score-your-attack). `python results/benchmark.py",
            "runs/benchmark` repeats these figures.",
            "",
            leaderboard_markdown(board),
            "## Method",
            "",
            *(f"- {line}" for line in method_lines(board)),
            "",
        ]
    )


def _list(all_studies: Sequence[Study | Games]) -> str:
    head = ["study", "topic", "records", "training / test accuracy, or another metric"]
    lines = [_row(head), _row(["---"] * len(head))]
    for study in all_studies:
        link = f"[{study.name}](results/{study.name}.md)"
        if isinstance(study, Games):
            points = _counted(len(study.record.points), "point")
            lines.append(_row([link, study.about, points, "–"]))
            continue
        first = next(iter(study.records.values()))
        about = _about(study.name, first)
        lines.append(_row([link, about, str(len(study.records)), _learned(first)]))
    return (
        "\n\n".join(
            [
                INTRODUCTION.rstrip().format(legend=_legend(LEGEND)),
                "The [leaderboard](results/leaderboard.md) compares all attacks of the catalogue."
                + " [Results on a GPU](results/gpu.md) has times and bits." * GPU_RESULTS.is_file(),
                "\n".join(lines),
                CONTENTS.format(pages="\n".join(_contents())),
            ]
        )
        + "\n"
    )


def _contents() -> Iterator[str]:
    yield "results/leaderboard"
    if GPU_RESULTS.is_file():
        yield "results/gpu"


def _learned(record: Record) -> str:
    accuracies = [
        record.where(topic="utility", metric=metric) for metric in (TRAIN_ACCURACY, TEST_ACCURACY)
    ]
    if all(accuracies):
        return " / ".join(
            f"{100 * fmean(metric.number for metric in runs):.0f}%" for runs in accuracies
        )
    other = [_of_task(record, part) for part in ("train", "test")]
    return " / ".join(other) if all(other) else "–"


def _of_task(record: Record, part: str) -> str:
    """Return the mean utility of a task without accuracy, with its name."""
    runs = [o for o in record.where(topic="utility") if o.metric.startswith(f"{part} ")]
    name = runs[0].metric.removeprefix(f"{part} ") if runs else ""
    return f"{fmean(estimate.number for estimate in runs):.2f} {name}" if runs else ""


def _section(study: Study) -> str:
    first = next(iter(study.records.values()))
    seeds = sorted({len(record.seeds) for record in study.records.values()})
    parts = [
        f"# {study.name}",
        f"{_about(study.name, first)} {study.note}".strip(),
        f"```\n{study.command}\n```",
        f"{_counted(len(study.records), 'record')} of {' or '.join(map(str, seeds))} "
        f"{'seed' if seeds == [1] else 'seeds'}. {_controls(study)}{_unknown_commits(study)}",
    ]
    parts += [warning] if (warning := _near_guessing(study)) else []
    parts += [_table(study, panel) for panel in _panels(study)]
    parts += [_sources(study)] if any(record.sources for record in study.records.values()) else []
    parts += [labels] if (labels := _labels(study)) else []
    parts += [_clusters(study)] if any(r.clusters for r in study.records.values()) else []
    return "\n\n".join(parts)


def _games(study: Games) -> str:
    tables = [points_table(study.record, in_rounds=in_rounds) for in_rounds in (False, True)]
    parts = (
        f"# {study.name}",
        f"{study.about} {study.note}".strip(),
        f"```\n{study.command}\n```",
        f"Data of the games: {study.record.points[0].samples}."
        + ("" if study.record.environment.commit else " The record states no commit."),
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
    commits = [record.environment.commit for record in study.records.values()]
    unknown = sum(not commit for commit in commits)
    changed = sum(commit.endswith("+") for commit in commits)
    without_commit = f" {unknown} of them state no commit." if unknown else ""
    return without_commit + (
        f" {changed} were created with uncommitted changes." if changed else ""
    )


def _near_guessing(study: Study) -> str:
    rows = [
        f"{name} ({100 * row.train_accuracy:.1f}%, chance level {100 * row.guess:.1f}%)"
        for name, record in study.records.items()
        for row in near_guessing(record)
    ]
    return f"**Training accuracy near chance level**: {', '.join(rows)}." if rows else ""


def _panels(study: Study) -> list[Panel]:
    figures = [figure for record in study.records.values() for figure in _shown(record)]
    targets = sorted({figure.target for figure in figures if figure.target is not None})
    contrasts = [name for name in NONMEMBERS if any(f.contrast == name for f in figures)]
    return [
        Panel(target, contrast, metric)
        for target in targets
        for contrast in contrasts
        for metric in METRICS
        if (metric, contrast) != ("tpr@0.001", "other_client")
    ]


def _shown(record: Record) -> list[Estimate]:
    has_one_seed = len(record.seeds) == 1
    return [f for f in record.findings if f.seed is None or has_one_seed]


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
        f"{METRICS[panel.metric]} of each attack, members of client {panel.target} against "
        f"{NONMEMBERS[panel.contrast]}:"
    )
    head = ["variant", "accuracy", *attacks]
    lines = [_row(head), _row(["---"] * len(head))]
    for name, record in study.records.items():
        figures = _shown(record)
        cells = [_cell(figures, panel, attack) for attack in attacks]
        lines.append(_row([name, _accuracy(record), *cells]))
    return f"{title}\n\n" + "\n".join(lines)


def _sources(study: Study) -> str:
    attacks = list(dict.fromkeys(run.attack for r in study.records.values() for run in r.sources))
    levels_made = [source for r in study.records.values() for source in source_attacks(r)]
    older = (
        " The records are of an earlier version and use the success with owners permuted within "
        "classes, which may be too high."
    ) * any(has_older_level(source.excess) for source in levels_made)
    meanings = (
        ("**bold**", "more than label distributions explain, by test and interval"),
        (
            "label distributions alone",
            "expected success rate of the first attack's answers if the owner of a sample depended "
            f"only on its class.{older}",
        ),
        (
            "label baseline",
            "success rate of naming the client with the largest fraction of the sample's class (– "
            "if the record's version used the largest count)",
        ),
        (
            "oracle round",
            "the first attack's best round, chosen afterwards, as in the paper's tables",
        ),
        (
            "overfitting",
            "mean absolute difference of training and test accuracy of the clients' models in the "
            "last round, in points",
        ),
    )
    title = f"Attack success rates:\n\n{_legend(meanings)}"
    levels_named = (
        "label distributions alone",
        "label baseline",
        "oracle round",
        "chance level",
        "overfitting",
    )
    head = ["variant", "accuracy", *attacks, *levels_named]
    lines = [_row(head), _row(["---"] * len(head))]
    for name, record in study.records.items():
        figures = {source.success.attack: source for source in source_attacks(record)}
        if not figures:
            continue
        first = figures[attacks[0]]
        runs = [run for run in record.sources if run.attack == first.success.attack]
        successes = [
            source
            for source in record.source_estimates
            if source.attack == first.success.attack and not source.against
        ]
        success = {
            (source.defense, source.view, source.seed): source.number for source in successes
        }
        best = fmean(
            max(run.by_round or [success[run.defense, run.view, run.seed]]) for run in runs
        )
        baseline = None if first.over_baseline is None else first.over_baseline.level
        levels = (first.label_level, baseline, best, first.chance)
        cells = [_named_share(figures[attack]) if attack in figures else "–" for attack in attacks]
        shares = ["–" if level is None else f"{100 * level:.1f}%" for level in levels]
        gaps = [abs(gap) for run in runs for gap in run.overfitting]
        overfitting = f"{100 * fmean(gaps):.1f}" if gaps else "–"
        lines.append(_row([name, _accuracy(record), *cells, *shares, overfitting]))
    return f"{title}\n\n" + "\n".join(lines)


def _labels(study: Study) -> str:
    """Return the table of label inference; empty if no record has any."""
    nulls = {GUESSING: "permuted classes", OTHER_CLIENT: OTHER_CLIENT}
    head = ["variant", "accuracy", "AUC", *nulls.values()]
    lines = []
    for name, record in study.records.items():
        for estimate in record.where(topic=LABEL_INFERENCE, seed=None):
            levels = [test.level for null in nulls if (test := estimate.test(null))]
            cells = ["–" if level is None else f"{level:.3f}" for level in levels]
            other = estimate.test(OTHER_CLIENT)
            value = _limited(estimate)
            bold = f"**{value}**" if other and other.significant else value
            lines.append(_row([name, _accuracy(record), bold, *cells]))
    if not lines:
        return ""
    title = (
        "Label inference, AUC over pairs of a client and a class, and its mean under two "
        "permutations. **bold**: more than with the classes of other clients, by a corrected test:"
    )
    return "\n".join([title, "", _row(head), _row(["---"] * len(head)), *lines])


def _limited(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.number:.3f}"
    return f"{estimate.number:.3f} ({estimate.low:.3f}–{estimate.high:.3f})"


def _named_share(named: SourceAttack) -> str:
    value = f"{100 * named.success.number:.1f}%"
    strong = f"**{value}**" if named.above_labels else value
    if named.success.low is None or named.success.high is None:
        return strong
    return f"{strong} ({100 * named.success.low:.1f}–{100 * named.success.high:.1f})"


class ClusterColumn(NamedTuple):
    """Figure of clustered learning and its format."""

    head: str
    figure: str
    group: str
    share: bool = True


CLUSTERS = (
    ClusterColumn("accuracy", clusters.ACCURACY, "everybody"),
    ClusterColumn("accuracy, majority", clusters.ACCURACY, "majority"),
    ClusterColumn("accuracy, minority", clusters.ACCURACY, "minority"),
    ClusterColumn("risk, majority", clusters.MODEL_RISK, "majority"),
    ClusterColumn("risk, minority", clusters.MODEL_RISK, "minority"),
    ClusterColumn("estimated risk, majority", clusters.MODEL_ESTIMATE, "majority"),
    ClusterColumn("estimated risk, minority", clusters.MODEL_ESTIMATE, "minority"),
    ClusterColumn("violations", clusters.VIOLATIONS, "everybody", share=False),
    ClusterColumn("violations by chance", clusters.CHANCE_VIOLATIONS, "everybody", share=False),
    ClusterColumn("expected violations", clusters.EXPECTED_VIOLATIONS, "everybody", share=False),
    ClusterColumn("agreement with the groups", clusters.GROUP_AGREEMENT, "everybody", share=False),
    ClusterColumn("demographic parity", "demographic parity", "everybody"),
    ClusterColumn("equal opportunity", "equal opportunity", "everybody"),
    ClusterColumn("equalised odds", "equalised odds", "everybody"),
)


def _clusters(study: Study) -> str:
    clients = {len(run.clients) for r in study.records.values() for run in r.clusters}
    counts = " or ".join(map(str, sorted(clients)))
    meanings = (
        (
            "risk",
            "balanced accuracy of membership inference on a model's members, at the attack's "
            "threshold",
        ),
        ("estimated risk", "the server's estimate, by shadow models"),
        (
            "violations",
            f"number of the {counts} clients whose model has a higher risk than they accept",
        ),
        ("violations by chance", "the number if every true risk were 50%"),
        ("expected violations", "the number by the estimated risk"),
        (
            "agreement with the groups",
            "adjusted Rand index of models and groups: 1 if identical, 0 at chance level, – if "
            "undefined",
        ),
        ("parity, opportunity, odds", "absolute differences between groups"),
    )
    title = f"Clustered learning, means over seeds:\n\n{_legend(meanings)}"
    head = ["variant", *(column.head for column in CLUSTERS)]
    lines = [_row(head), _row(["---"] * len(head))]
    for name, record in study.records.items():
        lines.append(_row([name, *(_cluster_cell(record, column) for column in CLUSTERS)]))
    return f"{title}\n\n" + "\n".join(lines)


def _cluster_cell(record: Record, column: ClusterColumn) -> str:
    def shown(value: float) -> str:
        return f"{100 * value:.1f}%" if column.share else f"{value:.3g}"

    coordinates = {
        "topic": "clusters",
        "metric": column.figure,
        "group": column.group,
        "seed": None,
    }
    for mean in record.where(**coordinates)[:1]:
        if mean.low is None or mean.high is None:
            return shown(mean.number)
        return f"{shown(mean.number)} ({shown(mean.low)}–{shown(mean.high)})"
    return "–"


def _legend(meanings: Iterable[Sequence[str]]) -> str:
    return "\n".join([_row(["in the table", "meaning"]), _row(["---"] * 2), *map(_row, meanings)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _accuracy(record: Record) -> str:
    values = [estimate.number for estimate in record.where(topic="utility", metric=TEST_ACCURACY)]
    return f"{100 * sum(values) / len(values):.1f}%" if values else _of_task(record, "test") or "–"


def _cell(figures: Sequence[Estimate], panel: Panel, attack: str) -> str:
    for figure in figures:
        key = Panel(-1 if figure.target is None else figure.target, figure.contrast, figure.metric)
        if key == panel and figure.attack == attack and figure.value is not None:
            return _figure(figure)
    return "–"


def _figure(figure: Estimate) -> str:
    def shown(value: float) -> str:
        return f"{value:.3f}" if figure.metric == "auc" else f"{100 * value:.1f}%"

    value = shown(figure.value or 0.0)
    strong = f"**{value}**" if above_chance(figure) else value
    limits = figure.at_threshold
    used = (limits.low, limits.high) if limits else (None, None)
    if figure.high is not None:
        least = f"{shown(figure.low)}–" if figure.low is not None else "≤ "
        return f"{strong} ({least}{shown(figure.high)})"
    if used[0] is not None and used[1] is not None:
        return f"{strong} [{shown(used[0])}–{shown(used[1])}]"
    return strong


def main() -> int:
    """Write the pages, and name the archives without a command in `results/made.toml`."""
    listed = studies()
    papers = judged_papers()
    paper_pages = {PAPERS / paper.page: paper_page(paper) for paper in papers}
    paper_pages[PAPERS.with_suffix(".md")] = index_page(papers)
    for folder in (FOLDER, PAPERS):
        folder.mkdir(exist_ok=True)
        for old_page in folder.glob("*.md"):
            old_page.unlink()
    for path, text in {**pages(listed), **paper_pages}.items():
        path.write_text(text, encoding="utf-8")
    mismatched = {path.parent.name for path in unpacked().rglob("*.json")} ^ {
        study.name for study in listed
    }
    for name in sorted(mismatched):
        print(f"results/made.toml and the archives differ in {name}")
    return 1 if mismatched else 0


if __name__ == "__main__":
    # Records are kept until the end, and each collection would look at all of them.
    gc.disable()
    sys.exit(main())
