"""Which figures of a record stand in front: the most summarised ones, setting by setting."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from fedaudit.report.grid import shortened
from fedaudit.report.names import NO_DEFENSE, defense_name
from fedaudit.report.reading import HEADLINE_METRICS, Figure, Record, above_chance


class Setting(NamedTuple):
    """What a table of figures holds fixed; None stands for "over all of them"."""

    defense: str
    view: str
    target: int | None
    seed: int | None


class Key(NamedTuple):
    """What a figure is of, whichever run it was found in."""

    attack: str
    defense: str
    view: str
    contrast: str
    target: int | None
    metric: str


RunsBehind = Mapping[Key, list[Figure]]
"""The figures of single runs, by what they are of."""

Kept = TypeVar("Kept")


def setting_of(figure: Figure) -> Setting:
    """The setting that a figure was found in."""
    return Setting(figure.defense, figure.view, figure.target, figure.seed)


def distinct(items: Iterable[Kept]) -> list[Kept]:
    """The items without repetition, in the order of their first appearance."""
    return list(dict.fromkeys(items))


def headline(record: Record) -> list[Figure]:
    """The figures of attacks for the main tables, each attack at its most summarised level.

    Where figures over several runs (``seed=None``) exist for an attack, its figures of single
    runs are left to the list of all figures; the same for targets.
    """
    levels: dict[tuple[str, str, str], list[Figure]] = {}
    for figure in _without_repeats(record.findings):
        if figure.attack and figure.metric in HEADLINE_METRICS:
            levels.setdefault((figure.attack, figure.defense, figure.view), []).append(figure)
    return [figure for figures in levels.values() for figure in _most_summarised(figures)]


def about_members(record: Record) -> bool:
    """Whether a record has figures of membership attacks, or is about nothing else."""
    return bool(headline(record)) or not (record.sources or record.clusters)


def _without_repeats(figures: list[Figure]) -> list[Figure]:
    """Without "mixed" where only one kind of non-members gave figures: it is the same again."""
    given = {figure.contrast for figure in figures if figure.attack and figure.n_nonmembers}
    if len(given) == 2 and "mixed" in given:
        return [figure for figure in figures if figure.contrast != "mixed"]
    return figures


def _most_summarised(figures: list[Figure]) -> list[Figure]:
    over_seeds = [figure for figure in figures if figure.seed is None] or figures
    return [figure for figure in over_seeds if figure.target is None] or over_seeds


def key_of(figure: Figure) -> Key:
    """What a figure is of."""
    where = (figure.attack, figure.defense, figure.view, figure.contrast)
    return Key(*where, figure.target, figure.metric)


def runs_behind(record: Record) -> RunsBehind:
    """The figures of single runs that the record's means are over."""
    found: dict[Key, list[Figure]] = {}
    for figure in record.findings:
        if figure.seed is not None:
            found.setdefault(key_of(figure), []).append(figure)
    return found


def settings_of(figures: list[Figure]) -> list[Setting]:
    """The settings of the figures, no defense first, else in the record's order."""
    found = distinct(setting_of(figure) for figure in figures)
    return sorted(found, key=lambda setting: setting.defense != NO_DEFENSE)


def differing(settings: list[Setting]) -> list[str]:
    """A label for each setting that names only what differs between them."""
    varies = [len({setting[field] for setting in settings}) > 1 for field in range(4)]
    return [_label(setting, varies) for setting in settings]


def label_among(figure: Figure, figures: list[Figure]) -> str:
    """What tells a figure's setting from those of other figures; empty where nothing does."""
    settings = distinct(setting_of(one) for one in figures)
    return shortened(differing(settings)[settings.index(setting_of(figure))], 120)


def _label(setting: Setting, varies: list[bool]) -> str:
    target = "all targets" if setting.target is None else f"client {setting.target}"
    seed = "over seeds" if setting.seed is None else f"seed {setting.seed}"
    parts = (defense_name(setting.defense), f"view: {shortened(setting.view)}", target, seed)
    return " · ".join(part for part, differs in zip(parts, varies, strict=True) if differs)


def attacks_tried(record: Record) -> int:
    """How many attacks gave scores; those refused or failed are listed all the same."""
    return sum(row.status == "run" for row in record.attacks)


def says_nothing(record: Record) -> bool:
    """Whether a record was made to show a flaw, and its figures describe no leakage."""
    return record.evaluation == "redraw" or record.nobody_is_a_member


def strongest(figures: Iterable[Figure], metric: str) -> Figure | None:
    """The figure of a metric with the largest value; None where all were refused."""
    given = [figure for figure in figures if figure.metric == metric and figure.value is not None]
    return max(given, key=lambda figure: figure.value or 0.0, default=None)


def above_chance_attacks(record: Record) -> set[tuple[str, str, int | None]]:
    """Attacks with a figure above guessing, with the defense and the client it is of."""
    found = [figure for figure in headline(record) if above_chance(figure)]
    return {(figure.attack, figure.defense, figure.target) for figure in found}
