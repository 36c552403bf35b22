"""The report of a study of security games as one HTML file, as self-contained as any report."""

import ast
from dataclasses import replace
from pathlib import Path

from fedaudit.report.cluster_tables import risk_sizes_table
from fedaudit.report.game_detector import detector_table, detector_words, weights_figure
from fedaudit.report.game_figures import game_figures
from fedaudit.report.game_rounds import rounds_table
from fedaudit.report.game_tables import certificates_table, points_table
from fedaudit.report.game_tiles import game_tiles
from fedaudit.report.game_words import CERTIFICATES, game_verdict
from fedaudit.report.grid import Grid, columns_of, shortened
from fedaudit.report.page import rendered, write_page
from fedaudit.report.reading import GameRecord, cleaned
from fedaudit.report.reproducing import Again, needed_data, rows_of_environment
from fedaudit.report.study_file import study_file
from fedaudit.report.words import plural

MOST_ROWS = 40
"""Rows of certificates up to which their table stands open."""

MOST_SETTINGS = 500_000
"""Characters of settings up to which they stand in the page as a study file."""


def write_games_report(record: GameRecord, path: Path) -> None:
    """Writes the report of a record of games as one self-contained HTML file.

    The file opens offline, and its content policy lets it load nothing and run no script but
    its own, whatever names the record holds. It is written to a temporary name first.
    """
    write_page(path, games_html(record))


def games_html(record: GameRecord) -> str:
    """The report of a record of games as an HTML document."""
    record = cleaned(record)
    certificates = certificates_table(record)
    detector = record.detector
    weights = weights_figure(detector) if detector else None
    return rendered(
        "games.html.j2",
        title=f"Security games: {shortened(record.name, 80)}",
        figures=game_figures(record) | ({weights.ident: weights} if weights else {}),
        detector=detector_table(detector) if detector else None,
        detected=detector_words(detector) if detector else [],
        record=record,
        verdict=game_verdict(record),
        tiles=game_tiles(record),
        sizes=_sizes_table(),
        meta=_meta(record),
        points=points_table(record),
        rounds=rounds_table(record),
        certificates=certificates,
        certificates_open=certificates is not None and len(certificates.rows) <= MOST_ROWS,
        certified=CERTIFICATES,
        again=games_again(record),
    )


def games_again(record: GameRecord) -> Again:
    """How to play a record's games again: its settings, with a variant for each other point.

    The study file is empty where settings are larger than any study's.
    """
    varied: dict[str, object] = {
        point.label: {name: _value(text) for name, text in point.settings.items()}
        for point in record.points
        if point.label
    }
    config = record.config | ({"variants": varied} if varied else {})
    # What no study file could hold is no study's: it would only make the page too large to open.
    study = study_file(config) if _size(config) <= MOST_SETTINGS else ""
    needed = needed_data(record.config)
    command = "fedaudit games study.toml" + (" --data-dir FOLDER" if needed else "")
    made = rows_of_environment(record.content_hash, record.environment)
    return Again(study, command, needed, made)


def _sizes_table() -> Grid:
    """From where on success has which word: as for a model’s risk, which is the same figure."""
    return replace(
        risk_sizes_table(),
        caption="Words for the server’s success",
        columns=columns_of("Word", "Adv", numeric=("Adv",)),
        remark="The lower limit of the interval decides, at the point behind a mechanism where it "
        "is highest; it is not corrected for the number of points. The thresholds are conventions "
        "of this report, not of law.",
    )


def _size(value: object) -> int:
    """Characters of all texts of a JSON value, about."""
    if isinstance(value, dict):
        return sum(len(str(key)) + _size(inner) for key, inner in value.items())
    if isinstance(value, list):
        return sum(1 + _size(inner) for inner in value)
    return len(value) if isinstance(value, str) else 1


def _value(text: str) -> object:
    """A setting as it was before it became a text."""
    if text in ("inf", "-inf", "nan"):
        return float(text)
    if len(text) > _LONGEST_VALUE:
        return text
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text


_LONGEST_VALUE = 300


def _meta(record: GameRecord) -> list[str]:
    parts = [
        record.environment.started[:10],
        plural(len(record.points), "point"),
        plural(sum(one.tpr.total + one.tnr.total for one in record.points), "game"),
        f"record {shortened(record.content_hash, 13)}",
    ]
    return [part for part in parts if part]
