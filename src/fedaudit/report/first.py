"""The first screen of a report: verdict, picture, three numbers, controls, what to do next."""

from collections.abc import Mapping
from typing import NamedTuple

from fedaudit.report import evidence, wording
from fedaudit.report.advice import Advice, advice
from fedaudit.report.deciding.findings import LEAKS
from fedaudit.report.evidence import grouped
from fedaudit.report.figures.forest import Picture
from fedaudit.report.fixed import fixed_texts
from fedaudit.report.grid import Tile, shortened
from fedaudit.report.pictures import first_picture
from fedaudit.report.text.verdict import PlainVerdict
from fedaudit.report.tiles import tiles_of
from fedaudit.report.verdict import (
    controls_line,
    controls_sign,
    figures_by_side,
    is_defended,
    wrong_sign,
)
from fedaudit.results.estimate import NO_DEFENSE
from fedaudit.results.guessing import above_chance
from fedaudit.results.record import Record

_STEPS = fixed_texts("steps")


def idle_parts(record: Record) -> tuple[str, ...]:
    """Return a sentence for each defense that never acted, and for risks that decided nothing.

    A record without these counts gives none: most defenses always act.
    """
    found = []
    defended = [row for row in record.usage if row.defended and row.defense != NO_DEFENSE]
    for defense, rows in grouped(defended, lambda row: row.defense).items():
        counts = [row.rounds_acted for row in rows if row.rounds_acted is not None]
        if counts and len(counts) == len(rows) and not any(counts):
            found.append(
                f"The defense {shortened(defense, 60)} changed nothing: its condition was met "
                f"in no round of {wording.plural(len(rows), 'client')}, so that these figures are "
                "those of no defense."
            )
    decided = [
        row.rounds_decided_by_risk for row in record.usage if row.rounds_decided_by_risk is not None
    ]
    if decided and not any(decided):
        found.append(
            "The models' risks changed no client's choice in any round: clients chose as they "
            "would by loss alone."
        )
    return tuple(found)


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
        sign: "✓" if all hold, "✗" if one failed, "?" if some cannot tell or none was run.
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


def first_screen(record: Record, said: PlainVerdict) -> First:
    """Return the first screen of a record of a study or a recording."""
    return First(
        said.status,
        said.badge,
        said.headline,
        said.warning,
        first_picture(record, topics=[topic for topic, _ in said.topics]),
        _three(record, said),
        controls_line([record]),
        controls_sign([record]),
        next_steps(record, said, advice(record)),
        (*idle_parts(record), *unanswered(record)),
    )


def unanswered(record: Record) -> tuple[str, ...]:
    """Return why attacks that the study names have no figures."""
    named = record.config.get("attacks") or ()
    return tuple(
        f"No figures of {shortened(row.name, 60)}: {shortened(row.note, 240)}"
        for row in record.attacks
        if row.status != "run" and isinstance(named, Mapping) and row.name in named
    )


def next_steps(record: Record, said: PlainVerdict, known: Advice | None) -> tuple[str, ...]:
    """Return the steps to take after a verdict, most important first.

    Args:
        record: The record.
        said: Its verdict.
        known: What the leak ladder says: what lowered such a leak elsewhere comes before general
            steps.
    """
    situations, texts = [_situation(record, said)], list[str]()
    if situations[0].startswith("leak") and known and known.step:
        texts.append(known.step)
    if said.status == "inconclusive" and wrong_sign(evidence.headline(record)):
        situations.insert(0, "wrong sign")
    failed = evidence.checks_of(record.controls).failed
    if failed and said.status in LEAKS and said.status != "above guessing":
        texts.insert(0, _STEPS["steps"]["find out"])
    for name in (name for one in situations for name in _STEPS["situations"][one]):
        step = _STEPS["steps"][name]
        of_kind = "recording" if record.watched else "study"
        texts.append(step if isinstance(step, str) else step.get(of_kind, ""))
    return tuple(filter(None, texts))


def _situation(record: Record, said: PlainVerdict) -> str:
    status = said.status
    if status == "above guessing" and said.topics[0][0] == "sources":
        status = next((one for topic, one in said.topics if topic == "membership"), status)
        return "labels" if status == "above guessing" else status
    if status in LEAKS:
        defended, *others = figures_by_side(record).values()
        if others and not any(map(above_chance, defended)):
            return "leak without the defense"
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
