"""Tables of security games: points, certificates, and indicators of a planted neuron."""

from collections.abc import Sequence

from fedaudit.formatting.fixed import fixed_text, fixed_texts
from fedaudit.formatting.grid import Cell, Cells, Grid, Tone, grid_of, name_cell, shorten
from fedaudit.formatting.wording import (
    format_count,
    format_interval,
    format_number,
    format_optional,
    format_percent,
    format_range,
    join_some,
    rate_texts,
)
from fedaudit.report.evidence import lower_limit, unique_items
from fedaudit.report.tables.cells import Section, estimate_table, table_section
from fedaudit.report.text import points
from fedaudit.results import games
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import Detection, PointPlayed, Rate, TargetCertificate
from fedaudit.results.record import Record


def game_sections(record: Record) -> list[Section]:
    """Return the sections on games: points by sign, points in rounds, certificates, detection."""
    sections = [
        table_section(ident, title, table, fixed_text(f"games.{ident}"))
        for ident, title, table in (
            ("points", "Every point", points_table(record)),
            ("rounds", "In real rounds", points_table(record, in_rounds=True)),
            ("certificates", "Certificates", certificates_table(record)),
        )
    ]
    if detection := record.detection:
        text, sentences = [fixed_text("games.detector")], detector_words(detection)
        tables = [detector_table(detection)]
        sections.append(Section("detector", "What a client can see", text, sentences, tables))
    return [part for part in sections if part is not None]


def points_table(record: Record, *, in_rounds: bool = False) -> Grid | None:
    """Return the estimates of all points by sign (or in rounds); None without such points."""
    every = points.shown_points(record.games)
    items = [item for item in every if bool(item.point.rounds) == in_rounds]
    if not items:
        return None
    rows = [
        {"Point": name_cell(item.name, _label(item.point)), **_row(item.point)} for item in items
    ]
    used_columns = {place for row in rows for place, cell in row.items() if cell}
    sizes = (
        f"{format_range(item.point.success.total for item in items)} games a point, "
        f"{format_range(item.point.targets for item in items)} targets, "
        f"batches of {format_range(item.point.batch for item in items)} samples"
    )
    remark = fixed_text("games.remark_rounds" if in_rounds else "games.remark_points")
    return grid_of(
        f"Games {'in rounds' if in_rounds else 'by sign'}: {sizes}",
        [{place: cell for place, cell in row.items() if place in used_columns} for row in rows],
        remark=f"{fixed_text('games.remark')} {remark}",
    )


def certificates_table(record: Record) -> Grid | None:
    """Return the certified properties of each point's targets; None without certificates."""
    rows = [
        {"Point": name_cell(item.name), **_certified(item.point.certificates)}
        for item in points.shown_points(record.games)
        if item.point.certificates
    ]
    remark = fixed_text("games.remark_certificates")
    return grid_of("Certificates", rows, remark=remark) if rows else None


_NO_BOUND = Cell("no bound", tone="muted")
_SMALL_FAILURE, _NEAR_GUESSING = 0.01, 0.6


def _certified(certificates: Sequence[TargetCertificate]) -> Cells:
    played = [certificate.played for certificate in certificates if certificate.played is not None]
    sound = [
        certificate.delta_sound
        for certificate in certificates
        if certificate.delta_sound is not None
    ]
    misleading = any(
        certificate.delta_observed <= _SMALL_FAILURE and (certificate.high or 1.0) <= _NEAR_GUESSING
        for certificate in certificates
    )
    published = format_range(
        (certificate.delta_observed for certificate in certificates), text=format_number
    )
    success, failure = "Success on one target", "Failure probability of the sign"
    return {
        "Targets": f"{len(certificates):,}",
        (success, "At least"): format_range(
            (c.low or 0.0 for c in certificates), text=format_percent
        ),
        (success, "At most"): format_range(
            (c.high or 1.0 for c in certificates), text=format_percent
        ),
        (success, "Played"): format_range(played, text=format_percent) if played else None,
        (failure, "Sound"): format_range(sound, text=format_number) if sound else "no range",
        (failure, "As published"): Cell(
            published, "yet near guessing" * misleading, "alarm" if misleading else ""
        ),
    }


def _label(point: PointPlayed) -> str:
    """Return the author's name of a point; "" if it only repeats settings."""
    by_settings = point.label == point.mechanism or set("=,") & set(point.label)
    return "" if by_settings else shorten(point.label)


def _row(point: PointPlayed) -> Cells:
    in_rounds, exceeded = point.rounds is not None, points.exceeds_bound(point)
    bound = point.figure(games.DISTANCE) if in_rounds else point.actual_epsilon
    ceiling = Cell(format_percent(point.largest_success), "exceeded" * exceeded)
    return {
        ("Success rate", "Adv"): _rate(point.success, "alarm" if in_rounds and exceeded else ""),
        ("Success rate", "At most"): _NO_BOUND if bound is None else ceiling,
        ("Success rate", "Limit"): format_optional(point.figure(games.EXPECTED_SUCCESS)),
        ("ε of one sample", "Claimed ε"): format_optional(
            point.claimed_epsilon, points.format_epsilon
        ),
        ("ε of one sample", "Actual ε"): None if in_rounds else _actual(point),
        ("ε of one sample", "Lower bound"): None if in_rounds else _proven(point),
        ("Games", "TPR"): _rate(point.tpr),
        ("Games", "TNR"): _rate(point.tnr),
        ("Games", "Fires for others"): format_percent(point.by_others.value),
    }


def _rate(estimate: Rate, tone: Tone = "") -> Cell:
    return Cell(*rate_texts(estimate), tone)


def _actual(point: PointPlayed) -> Cell:
    actual, above = point.actual_epsilon, points.epsilon_ratio(point)
    if not points.far_above(point):
        return _NO_BOUND if actual is None else Cell(points.format_epsilon(actual))
    text = _NO_BOUND.text if actual is None else points.format_epsilon(actual)
    return Cell(text, "" if above is None else f"× {points.format_ratio(above)}", "alarm")


def _proven(point: PointPlayed) -> Cell:
    above = "> actual" if points.exceeds_bound(point) else "> claimed" if point.refuted else ""
    return Cell(points.format_epsilon(point.empirical_epsilon), above, "alarm" if above else "")


_DISTINGUISHES = 0.95
_MOST_SERVERS = 6


def detector_table(detection: Detection) -> Grid:
    """Return a table of how well each indicator distinguishes planted from honest models."""
    servers = _servers(detection)
    columns = {
        games.INDICATOR_AUC: "AUC",
        games.DETECTION_RATE: "Found",
        games.FALSE_ALARMS: "False alarms",
    }
    right = {_server(name): format_optional(detection.success(name)) for name in servers}
    return estimate_table(
        f"Indicators of a planted neuron, over {format_count(detection.runs, 'federation')}",
        [e for e in detection.estimates if e.group and e.attack in servers and e.metric in columns],
        rows=lambda item: name_cell(*_indicator(item.group)),
        columns=lambda item: (
            _server(item.attack) * (item.metric != games.FALSE_ALARMS),
            columns[item.metric],
        ),
        cell=_indicator_cell,
        order=("False alarms",),
        first="Indicator",
        under={name: f"right in {success}" for name, success in right.items() if success},
        remark=fixed_text(
            "games.remark_detector",
            judged=format_count(detection.judged, "federation"),
            federation=shorten(detection.federation, 200),
            honest=f"{detection.honest:,}",
            planted=f"{detection.planted:,}",
            own=f"{detection.own:,}",
        ),
    )


def detector_words(detection: Detection) -> list[str]:
    """Return a sentence for each server: the indicators that identify nearly all of its models."""
    sentences = []
    for server in _servers(detection):
        aucs = {
            indicator: estimates[games.INDICATOR_AUC]
            for (name, indicator), estimates in detection.indicators.items()
            if name == server
        }
        clear = [name for name, auc in aucs.items() if lower_limit(auc) >= _DISTINGUISHES]
        names = join_some([_indicator(name)[0].lower() for name in clear])
        sentences.append(
            f"{_server(server)}: {len(clear)} of {format_count(len(aucs), 'indicator')} identify "
            f"nearly every planted model (AUC of {format_number(_DISTINGUISHES)} or more)"
            f"{f': {names}' * bool(names)}."
        )
    return sentences


def _indicator_cell(item: Estimate) -> Cell:
    if item.metric == games.INDICATOR_AUC:
        return Cell(format_number(item.number), format_interval(item.low, item.high, "figure"))
    total = item.n_members + item.n_nonmembers
    limits = format_interval(item.low, item.high, "accuracy")
    return Cell(f"{round(item.number * total)} of {total}", limits)


def _indicator(name: str) -> tuple[str, str]:
    heading, _, detail = fixed_texts("indicators").get(name, shorten(name)).partition(": ")
    return heading, detail


def _servers(detection: Detection) -> Sequence[str]:
    return unique_items(server for server, _ in detection.indicators)[:_MOST_SERVERS]


def _server(name: str) -> str:
    return str(fixed_texts("servers").get(name) or shorten(name))
