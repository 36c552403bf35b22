"""The report as one HTML file that loads nothing from outside and runs no foreign script."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fedaudit.errors import BadInput
from fedaudit.report.choosing import (
    NO_DEFENSE,
    above_chance,
    differing,
    distinct,
    headline,
    says_nothing,
    setting_of,
    strongest,
)
from fedaudit.report.comparison import attack_tables as comparison_tables
from fedaudit.report.comparison import cautions, rows_table
from fedaudit.report.comparison import utility_table as comparison_utility
from fedaudit.report.drawing import Figures
from fedaudit.report.figures import figures_of
from fedaudit.report.fronts import front_figure, hypervolume_tables, tradeoff_figure
from fedaudit.report.grid import clean, shortened
from fedaudit.report.plain import WORDS_MEAN, verdict
from fedaudit.report.tables import (
    attack_tables,
    every_figure_table,
    exposed_table,
    groups_table,
    other_figures_table,
)
from fedaudit.report.tables_of_run import (
    catalogue_table,
    clients_table,
    controls_table,
    utility_table,
)
from fedaudit.report.usage import usage_figure, usage_table
from fedaudit.report.words import (
    contrast_name,
    count,
    interval,
    interval_of,
    percent,
    plural,
    shown,
)
from fedaudit.study.compared import Comparison
from fedaudit.study.record import Figure, Record

MOST_VERDICTS = 6
"""Verdicts that get a tile each; of more, the table of rows says it."""


class Tile(NamedTuple):
    """A number that stands at the top: what it is, the number, and what to read it against."""

    label: str
    value: str
    detail: str
    tone: str = ""


def write_report(record: Record, path: Path) -> None:
    """Writes the report of a record as one self-contained HTML file.

    The file opens offline, and its content policy lets it load nothing and run no script but
    its own, whatever names the record holds. It is written to a temporary name first.
    """
    _write(path, report_html(record))


def write_comparison(comparison: Comparison, records: Sequence[Record], path: Path) -> None:
    """Writes several records side by side as one self-contained HTML file.

    Args:
        comparison: What was found by holding the records against each other.
        records: Those that it is of, in its order.
        path: Where the file goes.
    """
    _write(path, comparison_html(comparison, records))


def comparison_html(comparison: Comparison, records: Sequence[Record]) -> str:
    """Several records side by side as an HTML document."""
    verdicts = [verdict(record) for record in records]
    drawn = front_figure(comparison) or tradeoff_figure(comparison)
    used = usage_figure(comparison, records)
    figures = {figure.ident: figure for figure in (drawn, used) if figure is not None}
    named_ = [(record.name, said) for record, said in zip(records, verdicts, strict=True)]
    return rendered(
        "comparison.html.j2",
        title=f"Comparison of {plural(len(records), 'audit')}",
        figures=figures,
        tradeoff=drawn,
        used=used,
        usage=usage_table(comparison, records),
        hypervolumes=hypervolume_tables(comparison),
        verdicts=named_ if len(records) <= MOST_VERDICTS else [],
        rows=rows_table(comparison, [said.status for said in verdicts]),
        tables=comparison_tables(comparison),
        outside=comparison_tables(comparison, "outside"),
        defended=any(row.family != NO_DEFENSE for row in comparison.rows),
        utility=comparison_utility(comparison),
        cautions=cautions(comparison, records),
        alarming=any(
            says_nothing(r) or s.status == "control failed"
            for r, s in zip(records, verdicts, strict=True)
        ),
        records=records,
    )


def report_html(record: Record) -> str:
    """The report of a record as an HTML document."""
    figures = figures_of(record)
    return rendered(
        "report.html.j2",
        title=f"Membership audit: {shortened(record.name, 80)}",
        figures=figures,
        record=record,
        verdict=verdict(record),
        words_mean=WORDS_MEAN,
        tiles=tiles(record),
        meta=_meta(record),
        attack_tables=attack_tables(record),
        other_figures=other_figures_table(record),
        catalogue=catalogue_table(record),
        groups={by: groups_table(record, by) for by in ("client", "class")},
        exposed=exposed_table(record),
        controls=controls_table(record) if record.controls else None,
        utility=utility_table(record) if record.utility else None,
        clients=clients_table(record) if record.clients else None,
        every_figure=every_figure_table(record),
        config=pretty(record.config),
        environment=_environment(record),
    )


def rendered(template: str, *, figures: Mapping[str, Figures], **values: object) -> str:
    """A template filled in, with plotly, the page's script and the figures' data inside."""
    scripts = {"guard": _file("guard.js"), "page": _file("page.js")}
    if figures:
        scripts["plotly"] = _plotly()
    data = {
        name: [[panel.spec for panel in choice.panels] for choice in figure.choices]
        for name, figure in figures.items()
    }
    return (
        _environment_of_templates()
        .get_template(template)
        .render(
            css=Markup(_file("report.css")),
            policy=_policy(list(scripts.values())),
            scripts={name: Markup(text) for name, text in scripts.items()},
            data=Markup(embedded(data)),
            figures=figures,
            **values,
        )
    )


def embedded(value: object) -> str:
    """JSON that can stand inside a script element: no character there can end the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def pretty(value: object) -> str:
    """JSON for a reader; the template escapes it, and control characters become visible."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    return "\n".join(clean(line) for line in text.split("\n"))


def _policy(scripts: list[str]) -> str:
    """A content policy that names the scripts by their hashes and allows nothing else."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def _plotly() -> str:
    text: str = get_plotlyjs()
    # HTML reads every line end as one line feed, and the policy's hash is over what it reads.
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment_of_templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedaudit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clean"] = clean
    environment.filters["shortened"] = shortened
    return environment


def tiles(record: Record) -> list[Tile]:
    """The numbers that stand at the top of a report."""
    figures = headline(record)
    # Figures that say nothing about leakage must not stand out as if they told something.
    found = [] if says_nothing(record) else [_strongest_tile(figures), _identified_tile(figures)]
    return [tile for tile in found if tile is not None] + [
        *_utility_tile(record),
        _controls_tile(record),
    ]


def _strongest_tile(figures: list[Figure]) -> Tile | None:
    best = strongest(figures, "auc")
    if best is None:
        return None
    where = _place(best, figures)
    return Tile(
        "Highest AUC",
        shown(best.value, "auc"),
        f"{interval_of(best) or 'no interval'} · {where}",
        "alarm" if above_chance(best) else "",
    )


def _identified_tile(figures: list[Figure]) -> Tile | None:
    for metric, alarms in (("tpr@0.001", "1,000"), ("tpr@0.01", "100")):
        best = strongest(figures, metric)
        if best is not None and best.value is not None:
            return Tile(
                "Identified of 1,000 members",
                count(round(1000 * best.value)),
                f"at 1 false alarm in {alarms} · {_place(best, figures)}",
                "alarm" if above_chance(best) else "",
            )
    return None


def _place(figure: Figure, figures: list[Figure]) -> str:
    settings = distinct(setting_of(one) for one in figures)
    label = differing(settings)[settings.index(setting_of(figure))]
    contrast = f"v. {contrast_name(figure.contrast).lower()}"
    return " · ".join(part for part in (shortened(figure.attack, 32), contrast, label) if part)


def _utility_tile(record: Record) -> list[Tile]:
    plain = [result for result in record.utility if result.defense in ("", "none")]
    results = plain or record.utility
    if not results:
        return []
    middle = sum(result.test_accuracy for result in results) / len(results)
    first = results[0]
    detail = (
        f"mean of {plural(len(results), 'run')}"
        if len(results) > 1
        else interval(first.test_low, first.test_high, "accuracy")
    )
    defense = "no defense" if plain else shortened(first.defense, 32)
    return [Tile("Test accuracy", percent(middle), f"{detail} · {defense}")]


def _controls_tile(record: Record) -> Tile:
    ran = [control for control in record.controls if control.passed is not None]
    passed = sum(bool(control.passed) for control in ran)
    if not ran:
        return Tile("Controls", "none run", "nothing vouches for the figures", "alarm")
    tone = "good" if passed == len(ran) else "alarm"
    return Tile("Controls passed", f"{passed} of {len(ran)}", "checks on the audit itself", tone)


def _meta(record: Record) -> list[str]:
    parts = [
        clean(record.environment.started)[:10],
        plural(len(record.clients), "client"),
        plural(len(record.attacks), "attack"),
        plural(len(record.seeds), "seed"),
        f"record {shortened(record.content_hash, 13)}",
    ]
    return [part for part in parts if part]


def _environment(record: Record) -> list[tuple[str, str]]:
    made = record.environment
    rows = [
        ("Content hash", clean(record.content_hash)),
        ("Seeds", ", ".join(str(seed) for seed in record.seeds)),
        ("Evaluation", record.evaluation),
        ("Commit", clean(made.commit) or "not recorded"),
        ("Device", clean(made.device) or "not recorded"),
        ("Started", clean(made.started) or "not recorded"),
        ("Time taken", "not recorded" if made.seconds is None else _duration(made.seconds)),
    ]
    return rows + [
        (shortened(name, 60), shortened(version, 120)) for name, version in made.versions.items()
    ]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _write(path: Path, document: str) -> None:
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is not a file, so no report is written there; name a new file")
    partial = path.with_name(path.name + ".partial")
    partial.write_text(document, encoding="utf-8", newline="\n")
    partial.replace(path)
