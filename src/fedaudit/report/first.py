"""The first screen of a report: verdict, picture, three numbers, controls, what to do next."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

from fedaudit.core.metric_names import AUC
from fedaudit.report.advice import Advice, advice
from fedaudit.report.evidence import (
    LEAKS,
    Status,
    a_leak,
    about_members,
    gravest,
    headline,
    label_among,
    leading,
    look_of,
    says_nothing,
    size_of,
    size_reached_by,
    strongest,
    tone_of,
)
from fedaudit.report.figures.forest import Picture
from fedaudit.report.grid import shortened
from fedaudit.report.pictures import comparison_picture, first_picture, games_picture
from fedaudit.report.text.clusters import (
    cluster_status,
    clustered_of,
    label_of,
    risk_size,
    riskiest,
)
from fedaudit.report.text.comparison import TradeOff, best_tradeoff
from fedaudit.report.text.games import GameVerdict
from fedaudit.report.text.membership import ALARMS, member_status, of_thousand, upper_bounds
from fedaudit.report.text.points import (
    ShownPoint,
    behind_mechanism,
    contradicted,
    epsilon,
    far_above,
    in_rounds,
    least_right,
    most_right,
    short,
    shown_points,
    times_named,
    times_text,
    without_mechanism,
)
from fedaudit.report.text.sources import (
    excess_size,
    labels_of_named,
    limits_in_words,
    on_sources,
    source_status,
    strongest_on_sources,
)
from fedaudit.report.text.verdict import PlainVerdict
from fedaudit.report.words import (
    NO_DEFENSE,
    contrast_name,
    count,
    defense_name,
    interval,
    interval_of,
    percent,
    plural,
    points,
    shown,
    value_of,
)
from fedaudit.results.comparison import Comparison
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import above_chance
from fedaudit.results.metrics import CHANCE_VIOLATIONS, TEST_ACCURACY, VIOLATIONS
from fedaudit.results.record import Record


class Tile(NamedTuple):
    """A number that stands at the top: what it is, the number, and what to read it against."""

    label: str
    value: str
    detail: str
    tone: str = ""


def tiles(record: Record) -> list[Tile]:
    """The numbers that stand at the top of a report."""
    figures = headline(record)
    # Figures that say nothing about leakage must not stand out as if they told something.
    found = (
        []
        if says_nothing(record)
        else [
            *_membership_tiles(figures),
            *_source_tiles(record),
            *_cluster_tiles(record),
        ]
    )
    return [tile for tile in found if tile is not None] + [
        *_utility_tile(record),
        _controls_tile(record),
    ]


def _membership_tiles(figures: list[Estimate]) -> list[Tile | None]:
    """The leading AUC and the leading rate, that with the larger word first."""
    found = leading(figures)
    auc = next((figure for figure in found if figure.metric == AUC), None)
    rate = next((figure for figure in found if figure.metric != AUC), None)
    tiles = [
        _strongest_tile(auc or strongest(figures, AUC), figures),
        _identified_tile(rate, figures),
    ]
    return tiles[::-1] if found and found[0] is rate else tiles


def _strongest_tile(best: Estimate | None, figures: list[Estimate]) -> Tile | None:
    if best is None:
        return None
    found, tone = _judged(best)
    parts = (found, interval_of(best) or "no interval", _place(best, figures))
    label = "Strongest attack, AUC" if above_chance(best) else "Highest AUC"
    return Tile(label, shown(best.value, AUC), " · ".join(parts), tone)


def _identified_tile(best: Estimate | None, figures: list[Estimate]) -> Tile | None:
    """Members that an attack identifies, where that is above guessing; else that none does."""
    label = "Identified of 1,000 members"
    if best is not None and best.value is not None:
        found, tone = _judged(best)
        price = f"{found} · at 1 false alarm in {ALARMS[best.metric]}"
        return Tile(label, of_thousand(best.value), f"{price} · {_place(best, figures)}", tone)
    left = upper_bounds([figure for figure in figures if figure.metric != AUC])
    return Tile(label, "none shown", f"upper limits: {left}") if left else None


def _source_tiles(record: Record) -> list[Tile]:
    """Attack success rate, and its excess over what label distributions explain."""
    named = on_sources(record)
    best = strongest_on_sources(named)
    if best is None:
        return []
    attack = labels_of_named(named)[named.index(best)]
    found = "above guessing" if best.above_guessing else "not above guessing"
    limits = interval(best.success.low, best.success.high, "accuracy") or "no interval"
    tone = "raised" if best.above_guessing else ""
    detail = f"{found} ({percent(best.chance)}) · {limits} · {shortened(attack, 60)}"
    size = excess_size(best)
    said = a_leak(size) if size else "not above them"
    beyond = f"{said} · they alone {percent(best.mixes)} · {limits_in_words(best.excess)}"
    return [
        Tile("Attack success rate", percent(best.success.number), detail, tone),
        Tile(
            "Beyond label distributions",
            f"{points(best.excess.number)} points",
            beyond,
            tone_of(size) if size else "",
        ),
    ]


def _cluster_tiles(record: Record) -> list[Tile]:
    """Of every algorithm and defense: who uses a model that is too risky, and how risky one is."""
    studies = clustered_of(record)
    found = []
    for one in studies:
        above, worst, label = one.mean(VIOLATIONS), riskiest(one), label_of(one, studies)
        if above is not None:
            floor = one.mean(CHANCE_VIOLATIONS)
            total = f"of {plural(len(one.runs[0].clients), 'client')}"
            total += f" · {value_of(floor)} by chance" if floor else ""
            found.append(
                _cluster_tile("Violations", above, total, label, "raised" if above.number else "")
            )
        if worst is not None:
            size = risk_size(worst)
            said = a_leak(size) if size else "not above guessing"
            found.append(
                _cluster_tile("Riskiest model", worst, said, label, tone_of(size) if size else "")
            )
    return found


def _cluster_tile(name: str, mean: Estimate, said: str, label: str, tone: str) -> Tile:
    limits = interval_of(mean)
    parts = (said, limits and f"95% interval {limits}", label)
    detail = " · ".join(part for part in parts if part)
    return Tile(name, value_of(mean), detail, tone)


def _judged(figure: Estimate) -> tuple[str, str]:
    """The finding in words, and the colour that goes with it."""
    size = size_of(figure)
    if size is None:
        return ("above guessing", "raised") if above_chance(figure) else ("not above guessing", "")
    return a_leak(size), look_of(figure).tone


def _place(figure: Estimate, figures: list[Estimate]) -> str:
    label = label_among(figure, figures)
    contrast = f"v. {contrast_name(figure.contrast).lower()}"
    return " · ".join(part for part in (shortened(figure.attack, 32), contrast, label) if part)


def _utility_tile(record: Record) -> list[Tile]:
    whole = record.where(topic="utility", metric=TEST_ACCURACY)
    plain = [one for one in whole if defense_name(one.defense) == defense_name(NO_DEFENSE)]
    results = plain or whole
    if not results:
        return []
    middle = sum(result.number for result in results) / len(results)
    first = results[0]
    detail = (
        f"mean of {plural(len(results), 'run')}"
        if len(results) > 1
        else interval(first.low, first.high, "accuracy")
    )
    defense = shortened(defense_name(first.defense), 32)
    return [Tile("Test accuracy", percent(middle), f"{detail} · {defense}")]


def _controls_tile(record: Record) -> Tile:
    ran = [control for control in record.controls if control.passed is not None]
    passed = sum(bool(control.passed) for control in ran)
    if not ran:
        return Tile("Controls", "none run", "nothing vouches for the figures", "alarm")
    tone = "good" if passed == len(ran) else "alarm"
    return Tile("Controls passed", f"{passed} of {len(ran)}", "checks on the audit itself", tone)


def game_tiles(record: Record) -> list[Tile]:
    """The numbers at the top of a report of games."""
    shown = shown_points(record.games)
    behind, bare = behind_mechanism(shown), without_mechanism(shown)
    what = "defense" if in_rounds(shown) else "mechanism"
    claiming = [one for one in shown if one.point.claimed_epsilon is not None]
    found = [
        _success_tile(f"Server right, most behind a {what}", behind),
        _success_tile(f"Server right, least behind a {what}", behind, most=False)
        if len(behind) > 1
        else None,
        _success_tile(f"Server right, no {what}", bare),
        _contradicted_tile(claiming) if claiming else None,
        _factor_tile(claiming),
    ]
    return [tile for tile in found if tile is not None]


def _success_tile(label: str, shown: Sequence[ShownPoint], *, most: bool = True) -> Tile | None:
    if not shown:
        return None
    one = most_right(shown) if most else least_right(shown)
    adv = one.point.adv
    size = size_reached_by(2 * adv.low - 1)
    detail = f"{short(one)}; 95% interval {interval(adv.low, adv.high, 'accuracy')}; guessing 50%"
    return Tile(label, percent(adv.value), detail, tone_of(size) if size else "")


def _contradicted_tile(claiming: Sequence[ShownPoint]) -> Tile:
    wrong = sum(contradicted(one.point) for one in claiming)
    detail = "points whose success refutes the epsilon that they claim"
    value = f"{count(wrong)} of {count(len(claiming))}"
    return Tile("Claimed epsilon contradicted", value, detail, "alarm" if wrong else "")


def _factor_tile(claiming: Sequence[ShownPoint]) -> Tile | None:
    known = [(ratio, one) for one in claiming if (ratio := times_named(one.point)) is not None]
    if not known:
        return None
    ratio, one = max(known, key=lambda pair: pair[0])
    value = f"{times_text(ratio)} ×"
    detail = f"{short(one)}: the actual one is {epsilon(one.point.actual_epsilon or 0.0)}"
    return Tile(
        "Actual epsilon over the claimed one", value, detail, "alarm" * far_above(one.point)
    )


class First(NamedTuple):
    """The part of a report that a reader sees before scrolling or opening anything.

    Attributes:
        look: The verdict whose colour the screen has.
        status: The verdict in two or three words.
        headline: In one sentence.
        warning: Why nothing follows from the figures; empty where the models learned.
        picture: Empty where no figure says anything, or a figure of the page stands in its place.
        numbers: Three at most.
        controls: How many hold, in a line.
        sound: Whether all do.
        next: What to do, most important first.
    """

    look: Status
    status: str
    headline: str
    warning: str
    picture: Picture
    numbers: tuple[Tile, ...]
    controls: str
    sound: bool
    next: tuple[str, ...]


_NEXT: Mapping[Status, tuple[str, ...]] = {
    "void": ("Run the study again with aligned evaluation; nothing follows from these figures.",),
    "control failed": (
        "Find out why the control failed (see Controls), then run the audit again.",
        "Decide nothing on these figures until then.",
    ),
    "strong leak": (
        "Run the same study with a defense (fedaudit list defenses names them).",
        "Set both side by side: fedaudit compare PLAIN DEFENDED shows leakage against accuracy.",
        "Stop a release that leaks this much: fedaudit gate RECORD --policy policy.toml.",
    ),
    "inconclusive": (
        "Audit more samples, of more clients: the intervals are too wide to conclude anything.",
        "Run more seeds where figures are means over seeds.",
    ),
    "no leak shown": (
        "Hold releases to it: fedaudit gate RECORD --policy policy.toml checks the upper limits.",
        "Audit a stronger adversary: one that sees every round, or more attacks.",
    ),
}
_LEAKS: tuple[Status, ...] = (*LEAKS.values(), "above guessing")
_UNLEARNED = (
    "Train the model until it has learned its training data, then audit again.",
    "Or audit fewer samples a client, which are learned sooner.",
)


def first_screen(record: Record, said: PlainVerdict) -> First:
    """The first screen of a record of a study or a recording."""
    topics = _topics(record)
    controls, sound = _held([record])
    return First(
        said.status,
        said.status,
        said.headline,
        said.warning,
        first_picture(record, topics=topics),
        _three(record, topics),
        controls,
        sound,
        next_steps(said, advice(record)),
    )


def _held(records: Sequence[Record]) -> tuple[str, bool]:
    """Number of controls that hold, in a line, and whether all do."""
    ran = [one for record in records for one in record.controls if one.passed is not None]
    held = sum(bool(control.passed) for control in ran)
    line = f"{held} of {len(ran)} controls hold" if ran else "No control was run"
    return line, bool(ran) and held == len(ran)


def next_steps(said: PlainVerdict, known: Advice | None = None) -> tuple[str, ...]:
    """Steps to take after a verdict, most important first.

    Args:
        said: The verdict.
        known: Of the leak ladder: what lowered such a leak elsewhere comes before general steps.
    """
    if said.warning and said.status not in ("void", "control failed"):
        return _UNLEARNED
    leaks = said.status in _LEAKS
    steps = _NEXT["strong leak" if leaks else said.status]
    return (known.step, *steps) if known and known.step and leaks else steps


def _topics(record: Record) -> list[str]:
    """The topics of a record, the gravest first, as its headline has them."""
    found: list[tuple[Status, str]] = []
    if about_members(record):
        found.append((member_status(record, headline(record)), "membership"))
    if record.sources:
        found.append((source_status(on_sources(record)), "sources"))
    if record.clusters:
        found.append((cluster_status(clustered_of(record)), "clusters"))
    order = get_args(Status)
    return [topic for _, topic in sorted(found, key=lambda pair: order.index(pair[0]))]


def _three(record: Record, topics: list[str]) -> tuple[Tile, ...]:
    """Of one topic two numbers, of several one each, and what the model is good for."""
    if says_nothing(record):
        return ()
    made = {
        "membership": [tile for tile in _membership_tiles(headline(record)) if tile is not None],
        "sources": _source_tiles(record),
        "clusters": _cluster_tiles(record),
    }
    each = 2 if len(topics) == 1 else 1
    found = [tile for topic in topics for tile in made[topic][:each]]
    return (*found, *_utility_tile(record))[:3]


def first_of_games(record: Record, said: GameVerdict) -> First:
    """The first screen of a record of games, which has no controls but its own bounds."""
    shown_ = shown_points(record.games)
    wrong = sum(contradicted(one.point) for one in shown_)
    claiming = [one for one in shown_ if one.point.claimed_epsilon is not None]
    of = len(claiming) or len(shown_)
    what = "claimed ε" if claiming else "noise bounds"
    if wrong:
        steps: tuple[str, ...] = (
            "Do not rely on the claimed ε: correct the mechanism or its accounting.",
            "Replace it by a mechanism whose actual ε is what it claims.",
        )
    elif said.look in ("inconclusive", "no leak shown"):
        steps = (
            "Play more games, targets or rounds: another neuron may do better.",
            "Rely on the actual ε, not on a success near 50%.",
        )
    else:
        steps = (
            "Let clients answer this server only behind a mechanism whose success stays near 50%.",
            "Choose it by its actual ε, from the mechanism’s own probabilities.",
        )
    return First(
        said.look,
        said.status,
        said.headline,
        "",
        games_picture(record),
        tuple(game_tiles(record)[:3]),
        f"{what} contradicted at {wrong} of {of} points",
        not wrong,
        steps,
    )


def _undefended(record: Record) -> bool:
    return {one.defense for one in record.findings} == {NO_DEFENSE}


def _nothing_to_lower(comparison: Comparison, plain: Status, records: Sequence[Record]) -> First:
    """The first screen of a comparison whose undefended rows have no attack above guessing."""
    return First(
        "inconclusive",
        "nothing to lower",
        f"Undefended the verdict is “{plain}”: which defense lowers a leak cannot be said here",
        "",
        comparison_picture(comparison),
        (),
        *_held(records),
        (
            "Audit more samples and seeds of the undefended federation, or one that learns its "
            "training data by heart, until an attack is above guessing.",
            "Then compare again.",
        ),
    )


def first_of_comparison(
    comparison: Comparison, records: Sequence[Record], verdicts: Sequence[PlainVerdict]
) -> First:
    """The first screen of a comparison: its best trade-off in front."""
    best = best_tradeoff(comparison)
    failed = any(said.status in ("void", "control failed") for said in verdicts)
    look: Status = "control failed" if failed else "inconclusive"
    plain = [said.status for one, said in zip(records, verdicts, strict=True) if _undefended(one)]
    if plain and not failed and not any(status in _LEAKS for status in plain):
        return _nothing_to_lower(comparison, gravest(plain), records)
    if best is None:
        grave = gravest([said.status for said in verdicts])
        text = f"{len(comparison.rows)} rows side by side; the gravest verdict is “{grave}”"
    elif best.leakage >= 0:
        text = "No defense here lowers the strongest attack’s leakage"
    else:
        look = look if failed else "no leak shown"
        text = (
            f"{shortened(best.name, 80)}: leakage {_points(best.leakage)}, "
            f"accuracy {_points(-best.error)}"
        )
    steps = (
        ("Repeat the records whose controls failed before any conclusion.",)
        if failed
        else (
            "Choose by the Pareto front: low leakage and low test error, on the line."
            if comparison.fronts
            else "Choose by the table: low leakage and high test accuracy, with their intervals.",
            "Repeat the chosen row with more seeds, then hold it: fedaudit gate.",
        )
    )
    return First(
        look,
        "control failed" if failed else "best trade-off" if best else "side by side",
        text,
        "",
        comparison_picture(comparison),
        _numbers_of(best) if best else (),
        *_held(records),
        steps,
    )


def _numbers_of(best: TradeOff) -> tuple[Tile, ...]:
    against = f"v. {contrast_name(best.contrast).lower()}"
    left = max(best.undefended + best.leakage, 0.0)
    return (
        Tile(
            "Membership advantage (2 AUC − 1)",
            _points(best.leakage),
            f"strongest attack {against}: {percent(best.undefended)} undefended, "
            f"{percent(left)} left",
            "good" if best.leakage < 0 else "",
        ),
        Tile("Test accuracy", _points(-best.error), "against no defense, same clients"),
        Tile(
            "Undefended AUC",
            f"{(best.undefended + 1) / 2:.3f}",
            f"strongest attack {against}; 0.5 is guessing",
        ),
    )


def _points(share: float) -> str:
    return f"{points(share)} points"
