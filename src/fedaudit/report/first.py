"""The first screen of a report: verdict, picture, three numbers, controls, what to do next."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedaudit.report import evidence, words
from fedaudit.report.advice import Advice, advice
from fedaudit.report.deciding.acting import idle_parts
from fedaudit.report.deciding.findings import LEAKS
from fedaudit.report.figures.forest import Picture
from fedaudit.report.grid import Tile, shortened
from fedaudit.report.pictures import comparison_picture, first_picture
from fedaudit.report.text.comparison import (
    SIZES_DIFFER,
    TradeOff,
    best_tradeoff,
    holds_defenses,
    least_cost,
    nothing_to_lower,
    sizes_differ,
    tradeoffs,
)
from fedaudit.report.text.verdict import PlainVerdict
from fedaudit.report.tiles import tiles_of
from fedaudit.report.verdict import (
    controls_line,
    controls_sign,
    figures_by_side,
    is_defended,
    range_headline,
    wrong_sign,
)
from fedaudit.results.comparison import Comparison
from fedaudit.results.estimate import NO_DEFENSE
from fedaudit.results.metrics import TEST_ACCURACY
from fedaudit.results.record import Record


class First(NamedTuple):
    """The part of a report that a reader sees before scrolling or opening anything.

    Attributes:
        look: The verdict whose colour the screen has.
        status: The verdict in two or three words.
        headline: In one sentence.
        warning: Why nothing follows from the figures; empty where the models learned.
        beside: Sentences without which the headline would mislead.
        picture: Empty where no figure says anything, or a figure of the page stands in its place.
        numbers: Three at most.
        controls: How many hold, in a line.
        sign: "✓" if all hold, "✗" if one failed or none was run, "?" if some cannot tell.
        next: What to do, most important first.
    """

    look: evidence.Status
    status: str
    headline: str
    warning: str
    picture: Picture
    numbers: tuple[Tile, ...]
    controls: str
    sign: str
    next: tuple[str, ...]
    beside: tuple[str, ...] = ()

    @property
    def caveat(self) -> str:
        """Return the warning in a line; it is about other rows where an attack succeeds."""
        if self.look in LEAKS:
            return "Training accuracy near guessing in other rows: nothing follows about them."
        return "Training accuracy near guessing: nothing follows about attacks or defenses."

    @property
    def low(self) -> bool:
        """Return True if the picture has so few rows that the steps fit below it."""
        most = max((len(forest.lines) for forest in self.picture), default=0)
        return bool(self.numbers) and 0 < most <= LOW


LOW = 6
"""Rows up to which a picture leaves room below it, beside the numbers."""


class Step(NamedTuple):
    """Something to do after a study, and what a recording can do instead; "" for nothing."""

    study: str
    recording: str


def _both(*texts: str) -> tuple[Step, ...]:
    return tuple(Step(text, text) for text in texts)


_STOP = _both("Stop a release that leaks this much: fedaudit gate RECORD --policy policy.toml.")
_FIND_OUT = _both("Find out why the control failed (see Controls), then run the audit again.")
_STEPS: Mapping[str, tuple[Step, ...]] = {
    "void": (
        Step(
            "Run the study again with aligned evaluation; nothing follows from these figures.", ""
        ),
    ),
    "control failed": (*_FIND_OUT, *_both("Decide nothing on these figures until then.")),
    "leak": (
        Step(
            "Run the same study with a defense (fedaudit list defenses names them).",
            "Train with a defense on the clients, or a stronger one, and record that training "
            "(fedaudit list defenses names them).",
        ),
        *_both(
            "Set both side by side: fedaudit compare PLAIN DEFENDED shows leakage against accuracy."
        ),
        *_STOP,
    ),
    "leak with a defense": (
        *_both(
            "Strengthen the defense, or choose another: this record leaks with the one in force."
        ),
        Step(
            "Set it beside the same study without a defense: fedaudit compare PLAIN DEFENDED.",
            "Set it next to a recording without a defense: fedaudit compare PLAIN DEFENDED.",
        ),
        *_STOP,
    ),
    # No defense changes what the label distributions of clients reveal.
    "labels": _both(
        "Decide whether the classes that each client holds are a secret: they identify its "
        "samples.",
        "Audit more samples of each client, to see whether attacks exceed label distributions.",
    ),
    "wrong sign": _both("Check the sign of the scores: larger must be likelier to be a member."),
    "inconclusive": (
        Step(
            "Audit more samples, of more clients: the intervals are too wide to conclude anything.",
            "Set more samples of each client aside before the next training: the intervals are "
            "too wide to conclude anything.",
        ),
        Step("Run more seeds where figures are means over seeds.", ""),
    ),
    "no leak shown": _both(
        "Hold releases to it: fedaudit gate RECORD --policy policy.toml checks the upper limits.",
        "Audit a stronger adversary: one that sees every round, or more attacks.",
    ),
    "not learned": (
        Step(
            "Train the model until it has learned its training data, then audit again.",
            "Record rounds in which the model has learned its training data.",
        ),
        Step("Or train on fewer samples a client, which are learned sooner.", ""),
    ),
}
_GAME_STEPS: Mapping[str, tuple[str, ...]] = {
    "contradicted": (
        "Do not rely on the claimed ε: correct the mechanism or its accounting.",
        "Replace it by a mechanism whose actual ε is what it claims.",
    ),
    "far above": (
        "Do not rely on the claimed ε: the actual ε, from the mechanism’s own probabilities, is "
        "far above it.",
        "Choose a mechanism by its actual ε, and by a success here that stays near 50%.",
    ),
    "no leak": (
        "Play more games, targets or rounds: another neuron may do better.",
        "Rely on the actual ε, not on a success near 50%.",
    ),
    "leak": (
        "Let clients answer this server only behind a mechanism whose success stays near 50%.",
        "Choose it by its actual ε, from the mechanism’s own probabilities.",
    ),
}


def first_screen(record: Record, said: PlainVerdict) -> First:
    """Return the first screen of a record of a study or a recording."""
    front = next(iter(figures_by_side(record).values()))
    ranged = said.status == "trace of a leak" and said.topics[0][0] == "membership"
    return First(
        said.status,
        "leak shown" if ranged and range_headline(front) else said.status,
        said.headline,
        said.warning,
        first_picture(record, topics=[topic for topic, _ in said.topics]),
        _three(record, said),
        controls_line([record]),
        controls_sign([record]),
        next_steps(record, said, advice(record)),
        idle_parts(record),
    )


def next_steps(record: Record, said: PlainVerdict, known: Advice | None) -> tuple[str, ...]:
    """Return the steps to take after a verdict, most important first.

    Args:
        record: The record.
        said: Its verdict.
        known: What the leak ladder says: what lowered such a leak elsewhere comes before general
            steps.
    """
    situation, leaks = _situation(record, said), said.status in LEAKS
    front = next(iter(figures_by_side(record).values()))
    steps = _STEPS[situation]
    if situation.startswith("leak") and known and known.step:
        steps = (Step(known.step, known.step), *steps)
    if said.status == "inconclusive" and wrong_sign(front):
        steps = (*_STEPS["wrong sign"], *steps)
    if leaks and said.status != "above guessing" and evidence.checks_of(record.controls).failed:
        steps = (*_FIND_OUT, *steps)
    return tuple(filter(None, (one.recording if record.watched else one.study for one in steps)))


def _situation(record: Record, said: PlainVerdict) -> str:
    status = said.status
    if status == "above guessing" and said.topics[0][0] == "sources":
        status = next((one for topic, one in said.topics if topic == "membership"), status)
        return "labels" if status == "above guessing" else status
    if status in LEAKS:
        return "leak with a defense" if is_defended(record) else "leak"
    unlearned = said.warning and status not in ("void", "control failed")
    return "not learned" if unlearned else status


def _three(record: Record, said: PlainVerdict) -> tuple[Tile, ...]:
    """Return of one topic two numbers, of several one each, and what the model is good for.

    A leak smaller than that of the verdict is left to the full one: one word stands in front.
    """
    made = tiles_of(record)
    if not made:
        return ()
    grave = said.topics[0][1]
    topics = [topic for topic, one in said.topics if one == grave or one not in LEAKS]
    each = 2 if len(topics) == 1 else 1
    found = [tile for topic in topics for tile in made[topic][:each]]
    # A study of canary clients or of unlearning was made for what these tell.
    special = [*made["epsilon"], *made["deletion"]]
    return (*found[: max(2 - len(special), 0)], *special, *made["utility"])[:3]


def first_of_comparison(
    comparison: Comparison, records: Sequence[Record], verdicts: Sequence[PlainVerdict]
) -> First:
    """Return the first screen of a comparison: its best trade-off in front."""
    failed = any(said.status == "void" for said in verdicts)
    failed = failed or any(evidence.checks_of(one.controls).failed for one in records)
    nothing = "" if failed else _nothing_leaks(comparison, records, verdicts)
    found, best = tradeoffs(comparison), best_tradeoff(comparison)
    shown = best or least_cost([one for one in found if one.lowers]) or least_cost(found)
    status, text = _best(comparison, verdicts, best, shown)
    if nothing:
        status, text, shown = "nothing to lower", nothing, None
    return First(
        "control failed" if failed else "no leak shown" if status == "best trade-off" else _OPEN,
        "control failed" if failed else status,
        text,
        "",
        () if comparison.fronts else comparison_picture(comparison),
        _numbers_of(shown, comparison) if shown else (),
        controls_line(records),
        controls_sign(records),
        _STEPS_OF_COMPARISONS["control failed" if failed else status],
        (SIZES_DIFFER,) if sizes_differ(records) else (),
    )


_OPEN: evidence.Status = "inconclusive"
_REPEAT = "Repeat the chosen row with more seeds, then hold it: fedaudit gate."
_STEPS_OF_COMPARISONS: Mapping[str, tuple[str, ...]] = {
    "control failed": ("Repeat the records whose controls failed before any conclusion.",),
    "nothing to lower": (
        "Audit more samples and seeds of the undefended federation, or one that memorises its "
        "training data, until an attack is above guessing.",
        "Then compare again.",
    ),
    "no trade-off": (
        "Audit more samples and seeds of the same rows until a change is shown, or try other "
        "defenses and strengths.",
        "Rely on no defense here until then.",
    ),
    "best trade-off": (
        "Choose by the picture: low leakage at a low test error; a hollow mark is a row that "
        "another one betters on both axes.",
        _REPEAT,
    ),
    "side by side": (
        "Choose by the table: low leakage and high test accuracy, with their intervals.",
        _REPEAT,
    ),
}


def _nothing_leaks(
    comparison: Comparison, records: Sequence[Record], verdicts: Sequence[PlainVerdict]
) -> str:
    """Return the headline of a comparison whose undefended rows show no leak; empty elsewhere."""
    bare = [
        said
        for one, said in zip(records, verdicts, strict=True)
        if {figure.defense for figure in one.findings} == {NO_DEFENSE}
    ]
    cannot = "which defense lowers a leak cannot be said here"
    if not holds_defenses(comparison):
        statuses = [said.status for said in bare]
        if not statuses or any(status in LEAKS for status in statuses):
            return ""
        return f"Undefended the verdict is “{evidence.gravest(statuses)}”: {cannot}"
    if not nothing_to_lower(comparison):
        return ""
    # Of membership alone: that sources are named is no leak that its front could show lower.
    statuses = [one for said in bare for topic, one in said.topics if topic == "membership"]
    plain = f" (“{evidence.gravest(statuses)}”)" if statuses else ""
    return f"Undefended no membership attack is above guessing{plain}: {cannot}"


def _best(
    comparison: Comparison,
    verdicts: Sequence[PlainVerdict],
    best: TradeOff | None,
    shown: TradeOff | None,
) -> tuple[str, str]:
    """Return status and headline of a comparison."""
    if not holds_defenses(comparison):
        grave = evidence.gravest([said.status for said in verdicts])
        rows = len(comparison.rows)
        return "side by side", f"{rows} rows side by side; the gravest verdict is “{grave}”"
    if best is not None:
        return "best trade-off", f"{shortened(best.name, 80)}: {_bargain(best)}"
    if shown is not None and shown.lowers:
        return "no trade-off", (
            "No defense is shown to take away more leakage than it costs. "
            f"{shortened(shown.name, 60)}: {_bargain(shown)}"
        )
    return "no trade-off", "No defense is shown to lower the leakage to the strongest attack"


def _bargain(one: TradeOff) -> str:
    limits = ""
    if one.low is not None and one.high is not None:
        limits = f" (95% interval {-100 * one.high:.1f} to {-100 * one.low:.1f})"
    points = f"{-100 * one.leakage:.1f} points less leakage{limits}"
    return f"{points} to the strongest attack, {_price(one)}"


def _price(one: TradeOff) -> str:
    before, after = (
        words.percent(1 - error)
        for error in (one.undefended_error, one.undefended_error + one.error)
    )
    if one.error <= 0:
        return f"at no cost in accuracy ({before} to {after})"
    accuracy = f"accuracy {before} to {after}"
    if one.lost is None:
        return f"{accuracy}, where guessing does as well"
    return f"{words.percent(one.lost)} of what was learned above guessing lost ({accuracy})"


def _numbers_of(one: TradeOff, comparison: Comparison) -> tuple[Tile, ...]:
    against, rows = words.against(one.contrast), len(tradeoffs(comparison))
    picked = f", not corrected for picking one of {rows} rows" if rows > 1 else ""
    limits = _limits(one.low, one.high) or "no interval"
    left = words.percent(max(one.undefended + one.leakage, 0.0))
    utility = comparison.on("utility", TEST_ACCURACY)
    change = next((entry.change for entry in utility if entry.row == one.row), None)
    spread = _limits(change.low, change.high) if change else ""
    return (
        Tile(
            "Membership advantage (2 AUC − 1)",
            f"{words.points(one.leakage)} points",
            f"{shortened(one.name, 40)}, strongest attack {against}: {limits}{picked}; {left} left",
            "good" if one.lowers else "",
        ),
        Tile(
            "Test accuracy",
            f"{words.points(-one.error)} points",
            "; ".join(filter(None, ("against no defense, same clients", spread, _price(one)))),
        ),
        Tile(
            "Membership advantage undefended",
            words.percent(one.undefended),
            f"strongest attack {against}, an AUC of {(one.undefended + 1) / 2:.3f}; "
            "guessing has 0%",
        ),
    )


def _limits(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    return f"95% interval {words.points(low)} to {words.points(high)}"
