"""Texts, numbers and charts of a page on a running audit."""

from collections.abc import Iterator
from typing import NamedTuple

from fedaudit.core.limits import EstimateWithLimits
from fedaudit.core.metric_names import AUC
from fedaudit.formatting.grid import Cell, Cells, Grid, Tile, as_one_line, grid_of, shorten, tile
from fedaudit.formatting.wording import (
    attack_name,
    format_count,
    format_interval,
    format_number,
    join_some,
)
from fedaudit.metrics.increase import Increase
from fedaudit.report.evidence import size_reached
from fedaudit.report.figures.charts import (
    GREY,
    MUTED,
    Axis,
    Choice,
    Curve,
    Figures,
    LegendEntry,
    Panel,
    Point,
    Style,
    style,
    ticks,
)
from fedaudit.results.estimate import Interval
from fedaudit.results.ladder import Auc
from fedaudit.results.runs import DecideBy, GuardOutcome
from fedaudit.watch.state import GuardState, RoundEstimates, RunState, WatchState

PROVISIONAL = (
    "Provisional: no control has run, and the limits are not corrected for the number of attacks."
)
_RESULT_FOLLOWS = "The result follows at the end."
_RESULT_BY_COMMAND = "Run `fedaudit attack` for the result."
_MOST_MISSING = 3
_ONE_SIDED_ALPHA = 0.025
"""Level of the lower one of two 95 % limits."""

_KINDS = {
    "study": "Study",
    "games": "Security games",
    "recording": "Live recording",
    "guard": "Guard of a client",
    "result": "Result",
}
_BADGES = {
    "waiting": "starting",
    "training": "training",
    "adversary": "training for the adversary",
    "evaluating": "evaluating",
    "recording": "recording",
    "finished": "finished",
}
_DECIDED_BY: dict[DecideBy, str] = {
    "upper": "compared with the upper limit of each AUC",
    "estimate": "compared with each AUC",
    "lower": "compared with the lower limit of each AUC",
}
_OUTCOMES: dict[GuardOutcome, tuple[str, Style]] = {
    "sent": ("sent", Style("#009E73", "", "circle")),
    "filtered": ("sent after the filter", Style("#B97800", "", "diamond")),
    "withheld": ("withheld", Style("#D55E00", "", "square")),
}


class View(NamedTuple):
    """Contents of a page.

    Attributes:
        kind: Kind of the audit, as a text.
        name: Name of the audit.
        badge: Phase in one or two words, or the verdict of the result.
        look: Class that decides the colour of the badge.
        headline: What is happening, in one line.
        detail: What the estimates say so far, or what the result means.
        provisional: Why the shown estimates are not final, and when the result follows; empty if
            there are none, or if they are final.
        progress: Fraction of all rounds that are trained; None if the number is unknown.
        tiles: Main numbers.
        figure: Chart over rounds; None before the first measured round.
        tables: Tables below the chart.
        texts: Sentences below the tables.
        problems: Damaged files.
        has_report: True if the page links to a report.
        last_change: Time in seconds since the epoch of the last change of a file.
    """

    kind: str
    name: str
    badge: str
    look: str
    headline: str
    detail: str
    provisional: str
    progress: float | None
    tiles: tuple[Tile, ...]
    figure: Figures | None
    tables: tuple[Grid, ...]
    texts: tuple[str, ...]
    problems: tuple[str, ...]
    has_report: bool
    last_change: float

    @property
    def spoken(self) -> str:
        """The state in one sentence, for screen readers."""
        return f"{self.badge}: {self.headline}. {self.detail}"


def view_of(state: WatchState) -> View:
    """Return the contents of the page on an audit."""
    result = state.result
    return View(
        kind=_KINDS[state.kind],
        name=shorten(state.name, 80),
        badge=result.status if result else _badge(state),
        look=result.look.replace(" ", "-") if result else "weak-leak" if state.is_silent else "now",
        headline=result.finding if result else as_one_line(_headline(state)),
        detail="" if result else as_one_line(_detail(state)),
        provisional=_provisional(state),
        progress=None if result else _progress(state),
        tiles=tuple(result.numbers if result else _tiles(state)),
        figure=_figure(state),
        # The estimates of the result are corrected, and differ from provisional ones.
        tables=() if result else tuple(_tables(state)),
        texts=tuple(map(as_one_line, filter(None, ("" if result else state.ladder, *state.notes)))),
        problems=tuple(map(as_one_line, state.problems)),
        has_report=state.has_report,
        last_change=state.last_change,
    )


def _badge(state: WatchState) -> str:
    if state.is_silent:
        return "no news"
    is_guarding = state.kind == "guard" and state.phase == "recording"
    return "guarding" if is_guarding else _BADGES[state.phase]


def _provisional(state: WatchState) -> str:
    if state.result is not None or state.estimates is None:
        return ""
    is_recording = state.kind == "recording"
    return f"{PROVISIONAL} {_RESULT_BY_COMMAND if is_recording else _RESULT_FOLLOWS}"


def format_duration(seconds: float) -> str:
    """Format a duration roughly, such as "40 s", "3 min" or "2 h 10 min"."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s" if seconds >= 0.95 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{round(hours / 24)} days"


def _headline(state: WatchState) -> str:
    if state.kind == "guard":
        return _guard_headline(state.guard)
    if state.phase == "waiting":
        return "No round is complete yet"
    if state.phase == "recording":
        return f"Round {state.runs[0].done} of the training is recorded"
    if state.phase == "evaluating":
        return "All rounds are trained; attacks and controls are being computed"
    if state.phase == "finished":
        state_text = {"recording": "The recording is closed", "guard": "The guard is closed"}
        return state_text.get(state.kind, "The audit has finished")
    if state.kind == "games":
        return "The games are being played"
    time_left = f"; about {format_duration(state.seconds_left)} left" if state.seconds_left else ""
    if state.phase == "adversary":
        done = sum(run.is_complete for run in state.additional)
        return f"Federation {done + 1} of {len(state.additional)} for the adversary{time_left}"
    run = state.run
    assert run is not None
    assert state.current is not None
    place = f" ({state.current + 1} of {len(state.runs)})"
    among = f", {run.title}{place}" if len(state.runs) > 1 else ""
    return f"Round {run.done} of {run.total}{among}{time_left}"


def _detail(state: WatchState) -> str:
    if state.is_silent:
        pace = state.seconds_per_round
        usual = f" A round takes about {format_duration(pace)}." if pace else ""
        return f"No file has changed for a while, so the training may have stopped.{usual}"
    if state.kind == "guard":
        return f"Last decision: {state.guard.last}" if state.guard else ""
    estimates = state.estimates
    best = estimates.strongest if estimates else None
    if estimates is None or best is None:
        return ""
    auc = f"AUC {format_number(best.value)}, {format_interval(best.low, best.high, AUC)}"
    if _is_above_guessing(estimates):
        return (
            "So far, this training leaks: an attack distinguishes training samples from held-out "
            f"samples better than guessing ({auc})."
        )
    is_only_one = len(estimates.aucs) == 1
    corrected = "" if is_only_one else f" after a correction for {len(estimates.aucs)} attacks"
    return (
        f"So far, no attack is clearly better than guessing{corrected} ({auc}). "
        "That is no result yet."
    )


def _is_above_guessing(estimates: RoundEstimates) -> bool:
    """Return True if the strongest attack is above guessing, corrected for the number of attacks.

    The correction is Bonferroni's, since the strongest of many attacks that guess is often above
    0.5 by its own limits.
    """
    best = estimates.strongest
    if best is None:
        return False
    guessing = EstimateWithLimits(0.5, 0.5, 0.5)
    return Increase(best, guessing).p_value() * len(estimates.aucs) <= _ONE_SIDED_ALPHA


def _guard_headline(guard: GuardState | None) -> str:
    if guard is None:
        return "No upload was checked yet"
    counts = [
        f"{guard.count(outcome)} {text}"
        for outcome, (text, _) in _OUTCOMES.items()
        if guard.count(outcome)
    ]
    return f"{format_count(len(guard.uploads), 'upload')} checked: {', '.join(counts)}"


def _progress(state: WatchState) -> float | None:
    runs = [*state.runs, *state.additional]
    total = sum(run.total or 0 for run in runs)
    if not total or any(run.total is None for run in runs):
        return None
    return sum(min(run.done, run.total or 0) for run in runs) / total


def _tiles(state: WatchState) -> Iterator[Tile]:
    estimates, run = state.estimates, state.run
    if estimates and (best := estimates.strongest):
        has_several_clients = len(estimates.clients) > 1
        yield tile(
            "Strongest attack so far, AUC",
            format_number(best.value),
            f"95 % limits {format_interval(best.low, best.high, AUC)}",
            attack_name(best.attack),
            f"mean of {len(estimates.clients)} clients" if has_several_clients else "",
            "0.5 is guessing",
            tone=_tone(estimates),
        )
    if state.guard is not None:
        yield from _guard_tiles(state.guard)
    if estimates and estimates.gap is not None:
        yield tile(
            "Loss gap, members v. held-out",
            format_number(estimates.gap),
            "standard deviations",
            f"round {estimates.round}",
        )
    if state.expected:
        low, high = state.expected
        yield tile(
            "Leak ladder at this gap, AUC",
            f"{low:.2f}–{high:.2f}",
            "strongest attack on similar federations",
        )
    if clients := state.clients:
        of = "" if clients.expected is None else f" of {clients.expected}"
        missing = join_some([shorten(name, 40) for name in clients.missing], _MOST_MISSING)
        yield tile(
            f"Clients in round {clients.round}",
            f"{clients.n_received}{of}",
            f"missing: {missing}" if missing else "none is missing",
            tone="weak" if missing else "",
        )
    if state.phase in ("training", "adversary", "recording") and run:
        yield _time_tile(state)


def _time_tile(state: WatchState) -> Tile:
    pace = state.seconds_per_round
    if pace is None:
        return tile("Training time left", "unknown", "after the next round")
    per_round = f"{format_duration(pace)} per round"
    if state.seconds_left is None:
        return tile("Time per round", format_duration(pace), "the number of rounds is unknown")
    federations = len(state.runs) + len(state.additional)
    federations_text = f"for {federations} federations" if federations > 1 else ""
    time_left = format_duration(state.seconds_left) if state.seconds_left else "none"
    return tile(
        "Training time left", time_left, federations_text, per_round, "then attacks and controls"
    )


def _guard_tiles(guard: GuardState) -> Iterator[Tile]:
    tones = {"sent": "", "filtered": "weak", "withheld": "alarm"}
    for outcome, (text, _) in _OUTCOMES.items():
        count = guard.count(outcome)
        yield tile(f"Uploads {text}", f"{count:,}", tone=tones[outcome] if count else "")
    yield tile("Limit of the policy, AUC", f"{guard.limit:g}", _DECIDED_BY[guard.decide_by])


def _tone(estimates: RoundEstimates) -> str:
    """Return the tone of a leak; a value near chance level has none, as it is no sign of safety."""
    best = estimates.strongest
    if best is None or not _is_above_guessing(estimates):
        return ""
    return size_reached(best.low, AUC) or ""


def _figure(state: WatchState) -> Figures | None:
    if state.guard is not None:
        return _guard_figure(state.guard)
    run = state.run
    if run is None or not run.estimates or run.estimates[-1].strongest is None:
        return None
    panels, keys = [_auc_panel(run)], _auc_keys(run)
    if any(row.gap is not None for row in run.estimates):
        panels.append(_gap_panel(run))
    when = "during training, " if state.result else ""
    caption = (
        f"AUC of attacks {when}with the signals of all rounds up to each round, members against "
        "held-out samples. Bars: 95 % limits, not corrected for the number of attacks."
    )
    if len(state.runs) > 1:
        caption = f"{as_one_line(run.title).capitalize()}. {caption}"
    return Figures("watch", caption, (Choice("", tuple(panels)),), keys, "")


def _auc_panel(run: RunState) -> Panel:
    best = run.estimates[-1].strongest
    assert best is not None
    curves, lows = [], [0.5]
    names = dict.fromkeys(auc.attack for row in run.estimates for auc in row.aucs)
    for name in sorted(names, key=lambda name: name == best.attack):
        rows = [(row.round, auc) for row in run.estimates for auc in row.aucs if auc.attack == name]
        look = style(0) if name == best.attack else Style(MUTED, "solid")
        x, y = [index for index, _ in rows], [auc.value for _, auc in rows]
        curves.append(Curve(attack_name(name), x, y, look))
        lows += [auc.low if name == best.attack else auc.value for _, auc in rows]
    x_axis = _round_axis(run)
    curves.insert(0, Curve("guessing", (x_axis.low, x_axis.high), (0.5, 0.5), _GUESS))
    points = [
        _auc_point(row.round, auc)
        for row in run.estimates
        for auc in row.aucs
        if auc.attack == best.attack
    ]
    y_low = min(0.45, min(lows) - 0.02)
    y_axis = Axis("AUC", y_low, 1.0, ticks(y_low, 1.0, 7))
    summary = (
        f"AUC by round. {attack_name(best.attack)}: {format_number(best.value)} after round "
        f"{run.estimates[-1].round}."
    )
    return Panel("Attacks", summary, x_axis, y_axis, curves, points)


_GUESS = Style(GREY, "dot")


def _auc_point(index: int, auc: Auc) -> Point:
    text = f"round {index}: {format_number(auc.value)} ({format_interval(auc.low, auc.high, AUC)})"
    return Point(index, auc.value, style(0), text, y_limits=Interval(low=auc.low, high=auc.high))


def _auc_keys(run: RunState) -> tuple[LegendEntry, ...]:
    best = run.estimates[-1].strongest
    assert best is not None
    keys = [LegendEntry(f"{attack_name(best.attack)}, strongest now", style(0))]
    if len(run.estimates[-1].aucs) > 1:
        keys.append(LegendEntry("other attacks", Style(MUTED, "solid")))
    return (*keys, LegendEntry("guessing", _GUESS))


def _gap_panel(run: RunState) -> Panel:
    rows = [(row.round, row.gap) for row in run.estimates if row.gap is not None]
    x, y = [index for index, _ in rows], [gap for _, gap in rows]
    low, high = min(0.0, *y), max(0.1, *y) * 1.08
    look = style(1)
    points = [Point(i, gap, look, f"round {i}: {format_number(gap)}") for i, gap in rows]
    summary = f"Gap in loss by round; {format_number(y[-1])} in round {x[-1]}."
    y_axis = Axis("standard deviations", low, high, ticks(low, high, 5))
    curve = Curve("gap in loss", x, y, look)
    return Panel(
        "Loss gap, members v. held-out", summary, _round_axis(run), y_axis, [curve], points
    )


def _round_axis(run: RunState) -> Axis:
    last = max(run.total or 0, run.estimates[-1].round, 2)
    values = [(value, f"{value:.0f}") for value, _ in ticks(1, last, 5) if value == int(value)]
    return Axis("round", 0.5, last + 0.5, tuple(values))


def _guard_figure(guard: GuardState) -> Figures | None:
    uploads = [(n, u) for n, u in enumerate(guard.uploads, 1) if u.auc is not None]
    if not uploads:
        return None
    points, lows = [], [0.5]
    for n, upload in uploads:
        estimate, (text, look) = upload.auc, _OUTCOMES[upload.outcome]
        assert estimate is not None
        limits = format_interval(estimate.low, estimate.high, AUC)
        label = f"round {upload.round}, {text}: {format_number(estimate.value)} ({limits})"
        interval_ = Interval(low=estimate.low, high=estimate.high)
        points.append(Point(n, estimate.value, look, label, y_limits=interval_))
        lows.append(estimate.low)
    x_low, x_high = 0.5, len(guard.uploads) + 0.5
    y_low = min(0.45, min(lows) - 0.02)
    limit = Style(_OUTCOMES["withheld"][1].color, "dash")
    curves = [
        Curve("guessing", (x_low, x_high), (0.5, 0.5), _GUESS),
        Curve("limit", (x_low, x_high), (guard.limit, guard.limit), limit),
    ]
    numbers = [v for v, _ in ticks(1, max(len(guard.uploads), 2), 8) if v == int(v)]
    x_ticks = tuple((v, f"{v:.0f}") for v in numbers)
    panel = Panel(
        "",
        _guard_headline(guard),
        Axis("upload", x_low, x_high, x_ticks),
        Axis("AUC", y_low, 1.0, ticks(y_low, 1.0, 7)),
        curves,
        points,
    )
    used_outcomes = [entry for outcome, entry in _OUTCOMES.items() if guard.count(outcome)]
    keys = [LegendEntry(text, look) for text, look in used_outcomes]
    keys += [LegendEntry("limit of the policy", limit), LegendEntry("guessing", _GUESS)]
    caption = (
        "For each checked upload, the AUC nearest to the limit or farthest above it, with the "
        "confidence limits of the policy."
    )
    return Figures("guard", caption, (Choice("", (panel,)),), tuple(keys), "")


def _tables(state: WatchState) -> Iterator[Grid]:
    estimates = state.estimates
    if estimates and estimates.aucs:
        ordered = sorted(estimates.aucs, key=lambda auc: -auc.value)
        rows: list[Cells] = [
            {"attack": Cell(attack_name(auc.attack)), **_auc_cells(auc)} for auc in ordered
        ]
        yield grid_of(f"Attacks after round {estimates.round}", rows)
    if estimates and len(estimates.clients) > 1:
        yield _client_table(estimates)
    if len(state.runs) > 1:
        yield grid_of("Seeds", [_run_row(run) for run in state.runs])


def _client_table(estimates: RoundEstimates) -> Grid:
    rows: list[Cells] = [
        {
            "client": Cell(shorten(name), detail=attack_name(auc.attack)),
            **_auc_cells(auc),
        }
        for name, auc in estimates.clients
    ]
    return grid_of(f"Strongest attack on each client, round {estimates.round}", rows)


def _run_row(run: RunState) -> Cells:
    best = run.estimates[-1].strongest if run.estimates else None
    return {
        "run": Cell(as_one_line(run.title)),
        "rounds": Cell(f"{run.done} of {run.total}"),
        **(_auc_cells(best) if best else {"AUC": None, "95 % limits": None}),
    }


def _auc_cells(auc: Auc) -> Cells:
    return {
        "AUC": Cell(format_number(auc.value)),
        "95 % limits": Cell(format_interval(auc.low, auc.high, AUC)),
    }
