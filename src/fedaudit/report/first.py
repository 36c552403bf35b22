"""The first screen of a report: verdict, picture, three numbers, controls, what to do next."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedaudit.report import evidence, words
from fedaudit.report.advice import Advice, advice
from fedaudit.report.deciding.acting import idle_parts
from fedaudit.report.figures.forest import Picture
from fedaudit.report.pictures import first_picture, games_picture
from fedaudit.report.text.games import GameVerdict
from fedaudit.report.text.points import contradicted, far_above, shown_points
from fedaudit.report.text.verdict import PlainVerdict
from fedaudit.report.tiles import (
    Tile,
    canary_tile,
    client_tiles,
    game_tiles,
    topic_tiles,
    utility_tile,
)
from fedaudit.report.unlearning import unlearning_tile
from fedaudit.report.verdict import (
    controls_line,
    controls_sign,
    figures_by_side,
    range_headline,
    wrong_sign,
)
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
        sound: Whether all do.
        next: What to do, most important first.
        sign: "?" where no control failed and some cannot tell; empty where ``sound`` decides.
    """

    look: evidence.Status
    status: str
    headline: str
    warning: str
    picture: Picture
    numbers: tuple[Tile, ...]
    controls: str
    sound: bool
    next: tuple[str, ...]
    beside: tuple[str, ...] = ()
    sign: str = ""

    @property
    def caveat(self) -> str:
        """The warning in a line; it is about other rows where an attack succeeds."""
        if self.look in _LEAKS:
            return "Training accuracy near guessing in other rows: nothing follows about them."
        return "Training accuracy near guessing: nothing follows about attacks or defenses."

    @property
    def low(self) -> bool:
        """True where the picture has so few rows that the steps fit below it."""
        most = max((len(forest.lines) for forest in self.picture), default=0)
        return bool(self.numbers) and 0 < most <= LOW


MOST_CLAIMS = 2
"""Mechanisms whose claimed epsilon is told to be far off beside the headline."""

LOW = 6
"""Rows up to which a picture leaves room below it, beside the numbers."""

_NEXT: Mapping[evidence.Status, tuple[str, ...]] = {
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
_LEAKS: tuple[evidence.Status, ...] = (*evidence.LEAKS.values(), "above guessing")
_DEFENDED_LEAKS = (
    "Strengthen the defense, or choose another: this record leaks with the one in force.",
    "Set it beside the same study without a defense: fedaudit compare PLAIN DEFENDED.",
    "Stop a release that leaks this much: fedaudit gate RECORD --policy policy.toml.",
)
_LABELS_ALONE = (
    "Decide whether the classes that each client holds are a secret: they identify its samples.",
    "Audit more samples of each client, to see whether attacks exceed label distributions.",
)
_UNLEARNED = (
    "Train the model until it has learned its training data, then audit again.",
    "Or train on fewer samples a client, which are learned sooner.",
)
_OF_RECORDINGS: Mapping[str, str] = {
    _NEXT["strong leak"][0]: "Train with a defense on the clients, or a stronger one, and record "
    "that training (fedaudit list defenses names them).",
    _NEXT["inconclusive"][0]: "Set more samples of each client aside before the next training: the "
    "intervals are too wide to conclude anything.",
    _NEXT["inconclusive"][1]: "",
    _NEXT["void"][0]: "",
    _DEFENDED_LEAKS[1]: "Set it next to a recording without a defense: fedaudit compare PLAIN "
    "DEFENDED.",
    _UNLEARNED[0]: "Record rounds in which the model has learned its training data.",
    _UNLEARNED[1]: "",
}
"""Steps that only a study can take, and what a federation can do instead; "" where nothing."""
_CHECK_SIGN = "Check the sign of the scores: larger must be likelier to be a member."


def first_screen(record: Record, said: PlainVerdict) -> First:
    """The first screen of a record of a study or a recording."""
    controls, sound = _held([record])
    front = next(iter(figures_by_side(record).values()))
    ranged = said.status == "trace of a leak" and said.topics[0][0] == "membership"
    steps = next_steps(said, advice(record))
    if record.watched:
        steps = tuple(filter(None, (_OF_RECORDINGS.get(step, step) for step in steps)))
    if said.status == "inconclusive" and wrong_sign(front):
        steps = (_CHECK_SIGN, *steps)
    if said.status in evidence.LEAKS.values() and evidence.checks_of(record.controls).failed:
        steps = (_NEXT["control failed"][0], *steps)
    return First(
        said.status,
        "leak shown" if ranged and range_headline(front) else said.status,
        said.headline,
        said.warning,
        first_picture(record, topics=[topic for topic, _ in said.topics]),
        _three(record, said),
        controls,
        sound,
        steps,
        idle_parts(record),
        sign=controls_sign([record]),
    )


def _held(records: Sequence[Record]) -> tuple[str, bool]:
    return controls_line(records), controls_sign(records) != "✗"


def next_steps(said: PlainVerdict, known: Advice | None = None) -> tuple[str, ...]:
    """Steps to take after a verdict, most important first.

    Args:
        said: The verdict.
        known: Of the leak ladder: what lowered such a leak elsewhere comes before general steps.
    """
    leaks = said.status in _LEAKS
    if said.warning and not leaks and said.status not in ("void", "control failed"):
        return _UNLEARNED
    if said.status == "above guessing" and said.topics[0][0] == "sources":
        # No defense changes what the label distributions of clients reveal.
        rest = next((one for topic, one in said.topics if topic == "membership"), said.status)
        return _NEXT.get(rest, _LABELS_ALONE)
    steps = _NEXT["strong leak" if leaks else said.status]
    if leaks and said.defended:
        steps = _DEFENDED_LEAKS
    return (known.step, *steps) if known and known.step and leaks else steps


def _three(record: Record, said: PlainVerdict) -> tuple[Tile, ...]:
    """Of one topic two numbers, of several one each, and what the model is good for.

    A leak smaller than that of the verdict is left to the full one: one word stands in front.
    """
    made = topic_tiles(record)
    if not made:
        return ()
    grave = said.topics[0][1]
    topics = [topic for topic, one in said.topics if one == grave or one not in _LEAKS]
    each = 2 if len(topics) == 1 else 1
    found = [tile for topic in topics for tile in made[topic][:each]]
    # A study of canary clients or of unlearning was made for what these tell.
    special = [*canary_tile(record), *client_tiles(record), *unlearning_tile(record)]
    return (*found[: 2 - len(special)], *special, *utility_tile(record))[:3]


def first_of_games(record: Record, said: GameVerdict) -> First:
    """The first screen of a record of games, which has no controls but its own bounds."""
    shown_ = shown_points(record.games)
    wrong = sum(contradicted(one.point) for one in shown_)
    claiming = [one for one in shown_ if one.point.claimed_epsilon is not None]
    far = sum(far_above(one.point) for one in claiming)
    of = len(claiming) or len(shown_)
    what = "claimed ε" if claiming else "bounds by the noise"
    if wrong:
        steps: tuple[str, ...] = (
            "Do not rely on the claimed ε: correct the mechanism or its accounting.",
            "Replace it by a mechanism whose actual ε is what it claims.",
        )
    elif far:
        steps = (
            "Do not rely on the claimed ε: the actual ε, from the mechanism’s own probabilities, "
            "is far above it.",
            "Choose a mechanism by its actual ε, and by a success here that stays near 50%.",
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
        f"{words.capital(what)} far below the actual ε at {far} of {of} points, and contradicted "
        f"by games at {wrong}"
        if far
        else f"{words.capital(what)} contradicted at {wrong} of {of} points",
        not wrong and not far,
        steps,
        said.claims[:MOST_CLAIMS],
    )
