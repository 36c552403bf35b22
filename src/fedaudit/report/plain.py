"""The verdict in plain words, for a reader who decides and does not attack."""

from typing import Literal, NamedTuple

from fedaudit.report.choosing import (
    STRONG_AUC,
    STRONG_TPR,
    above_chance,
    defense_name,
    differing,
    distinct,
    headline,
    is_strong,
    says_nothing,
    setting_of,
    settings_of,
    strongest,
)
from fedaudit.report.grid import shortened
from fedaudit.report.words import (
    CONTRAST_MEANINGS,
    contrast_order,
    count,
    interval_of,
    level_of,
    listed,
    metric_name,
    number,
    plural,
    rate_of,
    shown,
    with_interval,
)
from fedaudit.study.record import ControlResult, Figure, Record

Status = Literal["void", "control failed", "strong leak", "leak", "inconclusive", "no leak shown"]

ROOM_FOR_DOUBT = 0.6
"""An AUC's upper limit above this is too wide to speak of "no leak shown"."""

WORDS_MEAN = (
    f"“Strong” is written where the lower limit of an AUC is at least {STRONG_AUC}, or that of "
    f"a true-positive rate at 1% false positives or fewer at least {STRONG_TPR:.0%}. “No leak "
    f"shown” needs every upper limit of an AUC at or below {ROOM_FOR_DOUBT}."
)

_FATES = {"refused": "was refused", "failed": "was tried and failed"}
_HEADLINES: dict[Status, str] = {
    "void": "These figures say nothing about leakage",
    "control failed": "A control failed: do not rely on these figures yet",
    "strong leak": "Strong leakage: training data can be told from other data",
    "leak": "Some leakage: training data can be told apart better than by guessing",
    "inconclusive": "Inconclusive: this audit is too small to say",
    "no leak shown": "No leak shown by the attacks that were run",
}


class Sentence(NamedTuple):
    """Whom members were told from, and what was found."""

    against: str
    found: str


class Bullet(NamedTuple):
    """What was found under one setting: a heading and a sentence or two for each contrast."""

    label: str
    sentences: tuple["Sentence", ...]


class Verdict(NamedTuple):
    """A record in plain words.

    Attributes:
        status: The verdict as one of a few fixed words.
        headline: The verdict as a sentence.
        audited: What was audited, and against whom.
        found: What was found, setting by setting.
        meaning: What follows from it, and what does not.
        controls: Whether the checks passed.
        open: What could not be concluded, point by point.
    """

    status: Status
    headline: str
    audited: str
    found: tuple[Bullet, ...]
    meaning: str
    controls: str
    open: tuple[str, ...]


def verdict(record: Record) -> Verdict:
    """The verdict on a record, computed from its figures and controls alone."""
    figures = headline(record)
    status = _status(record, figures)
    return Verdict(
        status,
        _HEADLINES[status],
        _audited(record),
        () if status == "void" else _found(figures),
        _meaning(record, status, figures),
        _controls(record.controls),
        _open(record, figures),
    )


def as_text(record: Record) -> str:
    """The verdict as plain text, for a terminal or a mail."""
    whole = verdict(record)
    lines = [whole.headline + ".", "", whole.audited, ""]
    for bullet in whole.found:
        lines += [f"{bullet.label}:"] if bullet.label else []
        lines += [f"- {said.against}: {said.found}" for said in bullet.sentences]
    lines += ["", whole.meaning, "", whole.controls]
    if whole.open:
        lines += ["", "Not concluded:", *(f"- {point}" for point in whole.open)]
    return "\n".join(lines) + "\n"


def _status(record: Record, figures: list[Figure]) -> Status:
    if says_nothing(record):
        return "void"
    if any(control.passed is False for control in record.controls):
        return "control failed"
    above = [figure for figure in figures if above_chance(figure)]
    if any(is_strong(figure) for figure in above):
        return "strong leak"
    if above:
        return "leak"
    highs = [figure.high for figure in figures if figure.metric == "auc"]
    if not highs or any(high is None or high > ROOM_FOR_DOUBT for high in highs):
        return "inconclusive"
    return "no leak shown"


def _audited(record: Record) -> str:
    sizes = [row.samples for row in record.clients]
    held = f" holding {count(min(sizes))} to {count(max(sizes))} samples each" if sizes else ""
    ran = [row for row in record.attacks if row.status == "run"]
    targets = sorted({f.target for f in record.findings if f.target is not None})
    defenses = distinct(defense_name(figure.defense) for figure in record.findings)
    against = f", with {listed([shortened(name, 60) for name in defenses])}" if defenses else ""
    asked = (
        f"client {targets[0]}"
        if len(targets) == 1
        else f"{count(len(targets))} of them in turn"
        if targets
        else "them"
    )
    return (
        f"This audit trained a federation of {plural(len(record.clients), 'client')}{held} "
        f"({plural(len(record.seeds), 'seed')}){against}, and asked of {asked}: can an "
        f"adversary tell whether a given sample was among the training data? "
        f"{plural(len(ran), 'attack was', 'attacks were')} tried; guessing gives an AUC of 0.5. "
        f"The adversary: {_sentence(record.view.description)}"
    )


def _sentence(text: str) -> str:
    text = shortened(text, 400).strip() or "not described in the record"
    return text if text.endswith((".", "!", "?", "…")) else text + "."


def _found(figures: list[Figure]) -> tuple[Bullet, ...]:
    """One bullet for each defense and view; clients and seeds are named where they matter."""
    whole = distinct(setting._replace(target=None, seed=None) for setting in settings_of(figures))
    return tuple(
        Bullet(
            _title(label),
            _by_contrast([f for f in figures if (f.defense, f.view) == setting[:2]]),
        )
        for setting, label in zip(whole, differing(whole), strict=True)
    )


def _title(label: str) -> str:
    """A setting as a heading; names of defenses keep their own capitals."""
    label = shortened(label, 120)
    if not label or label.startswith(("no defense", "view:", "client", "seed", "all", "over")):
        return label[:1].upper() + label[1:]
    return f"With {label}"


def _by_contrast(figures: list[Figure]) -> tuple[Sentence, ...]:
    contrasts = sorted({figure.contrast for figure in figures}, key=contrast_order)
    return tuple(
        _contrast(contrast, [figure for figure in figures if figure.contrast == contrast])
        for contrast in contrasts
    )


def _contrast(contrast: str, figures: list[Figure]) -> Sentence:
    """The strongest attack of a contrast, and what it means among 1,000 members."""
    against = f"Against {CONTRAST_MEANINGS.get(contrast, shortened(contrast))}"
    best = strongest(figures, "auc")
    above = [figure for figure in figures if above_chance(figure)]
    if best is None and not above:
        return Sentence(against, "no attack gave a usable figure.")
    room = max((f.high for f in figures if f.metric == "auc" and f.high is not None), default=None)
    name = f"{shortened(best.attack, 60)}{_where(best, figures)}" if best else ""
    auc = _auc_sentence(name, best, room, any_above=bool(above)) if best else ""
    sentences = [auc, _identified(figures, best)]
    return Sentence(against, " ".join(sentence for sentence in sentences if sentence))


def _where(figure: Figure, figures: list[Figure]) -> str:
    """Which client and seed a figure is of, where there is more than one of them."""
    settings = distinct(setting_of(one) for one in figures)
    label = differing(settings)[settings.index(setting_of(figure))]
    return f" ({label})" if label else ""


def _auc_sentence(name: str, best: Figure, room: float | None, *, any_above: bool) -> str:
    figure = f"AUC {with_interval(best)}"
    if above_chance(best):
        return f"the strongest attack is {name}, {figure}."
    if any_above:
        return f"the highest AUC is that of {name}, {figure}, not above guessing{_allowing(best)}."
    left = "" if room is None else f" The data leave room for an AUC up to {number(room)}."
    return f"no attack is above guessing{_allowing(best)}; the highest is {name}, {figure}.{left}"


def _allowing(best: Figure) -> str:
    """Why a figure whose interval lies above 0.5 is still not called above guessing."""
    alone = best.low is not None and best.low > 0.5
    return " once the number of figures tested is allowed for" if alone else ""


def _identified(figures: list[Figure], strongest_by_auc: Figure | None) -> str:
    """ "Of 1,000 members, N ..." at the lowest false-positive rate that was given."""
    for metric, alarms in (("tpr@0.001", "1,000"), ("tpr@0.01", "100")):
        best = strongest(figures, metric)
        if best is None or best.value is None:
            continue
        other = strongest_by_auc
        same = other is not None and (other.attack, *setting_of(other)) == (
            best.attack,
            *setting_of(best),
        )
        name = "it" if same else f"{shortened(best.attack, 60)}{_where(best, figures)}"
        guessed = round(1000 * (rate_of(metric) or 0))
        return (
            f"Of 1,000 members, {name} identifies {_of_thousand(best)} at the price of one false "
            f"alarm in {alarms} non-members; guessing would find {guessed}."
        )
    return ""


def _of_thousand(figure: Figure) -> str:
    middle = round(1000 * (figure.value or 0))
    if figure.low is None or figure.high is None:
        return f"about {count(middle)}"
    level = level_of(figure.method)
    named = f"{level} interval " if level else ""
    return f"{count(middle)} ({named}{round(1000 * figure.low)} to {round(1000 * figure.high)})"


def _meaning(record: Record, status: Status, figures: list[Figure]) -> str:
    if status == "void" and record.nobody_is_a_member:
        return (
            "Nobody is a member here: half of the unseen samples were called members, to show what "
            "this evaluation finds where there is nothing to find. A sound evaluation finds an AUC "
            "of 0.5."
        )
    if status == "void":
        return (
            "The non-members were drawn anew for every round and client, as the published code "
            "does. That alone produces high figures where nothing leaks, so nothing here "
            "describes the model. Run the study with aligned evaluation."
        )
    if status == "control failed":
        return (
            "A failed control means that the figures may measure something other than "
            "membership, or that the attacks do not work here. Find the cause and run the "
            "audit again before anything is decided on these figures."
        )
    if status in ("strong leak", "leak"):
        affected = distinct(defense_name(f.defense) for f in figures if above_chance(f))
        spared = [
            name
            for name in distinct(defense_name(f.defense) for f in figures)
            if name not in affected
        ]
        with_ = listed([shortened(name, 60) for name in affected])
        if spared:
            with_ += f", not found with {listed([shortened(name, 60) for name in spared])}"
        return (
            f"Somebody with this view can learn which samples, and so whose data, took part in "
            f"the training (found with {with_}). Treat membership as disclosed to that adversary "
            "unless a defense brings it down. Attacks not tried here may find more."
        )
    if status == "inconclusive":
        return (
            "The intervals are too wide, or too many figures had to be refused, to tell a leak "
            "from none. That is not a sign of safety. More audited samples narrow them."
        )
    proof = any(c.control == "planted leak" and c.passed for c in record.controls)
    return (
        "These attacks do not tell members apart here. "
        + (
            "They do find a leak that was planted on purpose, so they work. "
            if proof
            else "No leak was planted on purpose to show that they could find one. "
        )
        + "This is a measurement, not a proof: a stronger attack may exist."
    )


def _controls(controls: list[ControlResult]) -> str:
    ran = [control for control in controls if control.passed is not None]
    if not ran:
        return "No control was run, so nothing vouches for these figures."
    failed = [control for control in ran if not control.passed]
    unrun = len(controls) - len(ran)
    not_run = f" {plural(unrun, 'control')} could not be run." if unrun else ""
    if not failed:
        return f"Controls: all {count(len(ran))} that were run passed.{not_run}"
    named = distinct(
        f"{shortened(c.control)} (expected: {_expected(c.expected)}; got {_got(c)})" for c in failed
    )
    more = f" and {count(len(named) - 4)} more" if len(named) > 4 else ""
    return (
        f"Controls: {count(len(failed))} of {count(len(ran))} failed: "
        f"{'; '.join(named[:4])}{more}.{not_run}"
    )


def _expected(text: str) -> str:
    return shortened(text, 120).rstrip(".")


def _got(control: ControlResult) -> str:
    return shown(control.value, "auc") if control.value is not None else "no value"


def _open(record: Record, figures: list[Figure]) -> tuple[str, ...]:
    refused: dict[tuple[str, str], int] = {}
    for figure in figures:
        if figure.value is None:
            key = (metric_name(figure.metric), shortened(figure.note, 200) or "no reason recorded")
            refused[key] = refused.get(key, 0) + 1
    points = [
        f"{metric}: {plural(times, 'figure')} not given: {_sentence(reason)}"
        for (metric, reason), times in refused.items()
    ]
    points += [
        f"{shortened(row.name, 60)} {_FATES[row.status]}: "
        f"{_sentence(shortened(row.note, 200) or 'no reason recorded')}"
        for row in record.attacks
        if row.status != "run"
    ]
    below = [f for f in figures if f.metric == "auc" and f.high is not None and f.high < 0.5]
    points += [
        f"{shortened(f.attack, 60)} ranks members below non-members (AUC {number(f.value or 0)}, "
        f"{interval_of(f)}); it is reported as it is, since turning a score round after the "
        "fact would be choosing the answer."
        for f in below[:3]
    ]
    return tuple(points)
