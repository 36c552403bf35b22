"""The verdict in plain words, for a reader who decides and does not attack."""

from typing import NamedTuple

from fedaudit.report.choosing import (
    RunsBehind,
    about_members,
    attacks_tried,
    distinct,
    headline,
    key_of,
    runs_behind,
    says_nothing,
)
from fedaudit.report.cleaning import cleaned
from fedaudit.report.cluster_words import (
    cluster_bullets,
    cluster_headline,
    cluster_meaning,
    cluster_question,
    cluster_status,
)
from fedaudit.report.clusters import clustered_of
from fedaudit.report.evidence import (
    LEAKS,
    ROOM_FOR_DOUBT,
    Status,
    gravest,
    largest,
    size_of,
    size_reached,
)
from fedaudit.report.found import Bullet, bullets, room
from fedaudit.report.grid import shortened
from fedaudit.report.names import NO_DEFENSE, defense_name
from fedaudit.report.open_points import open_points
from fedaudit.report.source_words import (
    SOURCE_HEADLINES,
    guessing,
    source_attacks_tried,
    source_audited,
    source_bullets,
    source_meaning,
    source_question,
    source_status,
)
from fedaudit.report.sources import on_sources
from fedaudit.report.verdict_texts import BESIDE_OTHERS, HEADLINES, MEANINGS, NOBODY
from fedaudit.report.words import capital, count, listed, plural, sentence, shown
from fedaudit.study.guessing import above_chance, by_test_alone, rate_of
from fedaudit.study.record import ControlResult, Figure, Record

MOST_NAMED = 5
"""Audited clients that are named; of more, their number stands."""


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
    record = cleaned(record)
    figures = headline(record)
    verdicts = _verdicts(record, figures)
    status = verdicts.together
    return Verdict(
        status,
        _headline(record, verdicts),
        _audited(record),
        () if status == "void" else _found(record, figures),
        _meanings(record, verdicts, figures),
        _controls(record.controls),
        open_points(record, figures),
    )


def _found(record: Record, figures: list[Figure]) -> tuple[Bullet, ...]:
    # Of clusters one sentence each: the others stand in their section.
    short = [Bullet(b.label, b.sentences[:2]) for b in cluster_bullets(record)]
    return (*bullets(figures), *source_bullets(record), *short)


class _Verdicts(NamedTuple):
    """On membership, sources and clusters, None where a record is not about it; and together."""

    membership: Status | None
    sources: Status | None = None
    clusters: Status | None = None

    @property
    def together(self) -> Status:
        return gravest([one for one in self if one is not None])


def _verdicts(record: Record, figures: list[Figure]) -> _Verdicts:
    """A verdict that makes all figures doubtful stands for both."""
    overall = _doubtful(record)
    if overall is not None:
        return _Verdicts(overall)
    return _Verdicts(
        _status(record, figures) if about_members(record) else None,
        source_status(on_sources(record)) if record.sources else None,
        cluster_status(clustered_of(record)) if record.clusters else None,
    )


def _headline(record: Record, verdicts: _Verdicts) -> str:
    others = []
    if verdicts.sources is not None:
        others.append(SOURCE_HEADLINES[verdicts.sources])
    if verdicts.clusters is not None:
        others.append(cluster_headline(clustered_of(record)))
    if verdicts.membership is None:
        return ". ".join(others)
    plain = HEADLINES[verdicts.membership]
    first = BESIDE_OTHERS.get(verdicts.membership, plain) if others else plain
    return ". ".join([first, *others])


def _meanings(record: Record, verdicts: _Verdicts, figures: list[Figure]) -> str:
    parts = []
    if verdicts.membership is not None:
        parts.append(_meaning(record, verdicts.membership, figures))
    if verdicts.sources is not None:
        parts.append(source_meaning(verdicts.sources, on_sources(record)))
    if verdicts.clusters is not None:
        parts.append(cluster_meaning(clustered_of(record)))
    return " ".join(parts)


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


def _doubtful(record: Record) -> Status | None:
    """The verdict on a record whose figures cannot be relied on."""
    if says_nothing(record):
        return "void"
    if any(control.passed is False for control in record.controls):
        return "control failed"
    return None


def _status(record: Record, figures: list[Figure]) -> Status:
    above = [figure for figure in figures if above_chance(figure)]
    if above:
        sizes = [size for figure in above if (size := size_of(figure))]
        return LEAKS[largest(sizes) or "trace"]
    return "no leak shown" if _little_can_hide(record, figures) else "inconclusive"


def _little_can_hide(record: Record, figures: list[Figure]) -> bool:
    """Whether no upper limit, of an AUC or a rate, leaves room for more than a weak leak.

    Every contrast must have an AUC and a rate at few false alarms: a leak of a few samples shows
    in the rate alone.
    """
    if not figures or any(by_test_alone(figure) for figure in figures):
        return False
    for contrast in distinct(figure.contrast for figure in figures):
        given = [f for f in figures if f.contrast == contrast and f.value is not None]
        if not any(f.metric == "auc" for f in given) or not any(rate_of(f.metric) for f in given):
            return False
    runs = runs_behind(record)
    highs = [(_upper_limit(f, runs), f.metric) for f in figures if f.value is not None]
    doubtful = ("strong", ROOM_FOR_DOUBT)
    return all(
        high is not None and size_reached(high, metric) not in doubtful for high, metric in highs
    )


def _upper_limit(figure: Figure, runs: RunsBehind) -> float | None:
    """A figure's upper limit; for a mean over runs that has none, the largest of the runs'."""
    if figure.high is not None or figure.seed is not None:
        return figure.high
    highs = [run.high for run in runs.get(key_of(figure), [])]
    known = [high for high in highs if high is not None]
    return max(known) if known and len(known) == len(highs) else None


def _meaning(record: Record, status: Status, figures: list[Figure]) -> str:
    if status == "void" and record.nobody_is_a_member:
        return NOBODY
    parts = [MEANINGS[status]]
    if status in LEAKS.values():
        parts += [_where_found(figures), "Attacks not tried here may find more."]
    if status == "no leak shown":
        parts += [_power(record), _hidden(figures)]
    return " ".join(part for part in parts if part)


def _where_found(figures: list[Figure]) -> str:
    """Under which defenses there is a leak, and how much larger than shown it may be."""
    return " ".join(part for part in (_affected(figures), _may_be_larger(figures)) if part)


def _affected(figures: list[Figure]) -> str:
    """Nothing where there is one defense only, or none: that is said before."""
    affected = distinct(defense_name(f.defense) for f in figures if above_chance(f))
    every = distinct(defense_name(f.defense) for f in figures)
    if len(every) < 2:
        return ""
    spared = [shortened(name, 60) for name in every if name not in affected]
    with_ = listed([shortened(name, 60) for name in affected])
    return f"Found with {with_}" + (f", not found with {listed(spared)}." if spared else ".")


def _may_be_larger(figures: list[Figure]) -> str:
    above = [figure for figure in figures if above_chance(figure)]
    highs = [size_reached(f.high, f.metric) for f in above if f.high is not None]
    least = largest([size for figure in above if (size := size_of(figure))])
    most = largest([size for size in highs if size])
    if least is None or most is None or most == least:
        return ""
    return f"The size is by the lower limits; the upper limits allow a {most} leak."


def _power(record: Record) -> str:
    if any(c.control == "planted leak" and c.passed for c in record.controls):
        return "They do find a leak that was planted on purpose, so they work."
    return "No leak was planted on purpose to show that they could find one."


def _hidden(figures: list[Figure]) -> str:
    """What a reader must not take "no leak shown" for."""
    fewest = [f.value for f in figures if f.metric == "tpr@0.001"]
    unknown = (
        "Of members named at fewer false alarms than one in 100 this audit says nothing. "
        if not fewest or None in fewest
        else ""
    )
    return (
        f"What could still be hidden: {room(figures)}. {unknown}"
        "This is a measurement, not a proof: a stronger attack may exist."
    )


def _audited(record: Record) -> str:
    sizes = [row.samples for row in record.clients]
    held = f" holding {_from_to(sizes)} samples each" if sizes else ""
    targets = sorted({f.target for f in record.findings if f.target is not None})
    used = [figure.defense for figure in record.findings]
    used += [run.defense for run in record.sources]
    used += [run.defense for run in record.clusters]
    defenses = distinct(defense_name(defense) for defense in used)
    against = f", with {listed([shortened(name, 60) for name in defenses])}" if defenses else ""
    view = shortened(record.view.description, 400) or "not described in the record"
    clients = plural(len(record.clients), "client")
    if record.watched:
        trained = f"watched a federation of {clients} that somebody else trained"
    else:
        seeds = plural(len(record.seeds), "seed")
        trained = f"trained a federation of {clients}{held} ({seeds}){against}"
    return (
        f"This audit {trained}, and asked {_question(record, targets)} "
        f"The adversary: {sentence(view)}{_undefended(record, targets)}"
    )


def _from_to(sizes: list[int]) -> str:
    low, high = min(sizes), max(sizes)
    return count(low) if low == high else f"{count(low)} to {count(high)}"


def _question(record: Record, targets: list[int]) -> str:
    """What was asked of the federation, and how many attacks tried to answer it."""
    on_clusters = f" It also asked {_of_clusters(record)}" if record.clusters else ""
    if not about_members(record) and not record.sources:
        return _of_clusters(record)
    if not about_members(record):
        tried = plural(source_attacks_tried(record), "attack was", "attacks were")
        return (
            f"of {source_question(record)}: can an adversary name the client that a sample is "
            f"from? {tried} tried; a guess is right for {guessing(record)}.{on_clusters}"
        )
    others = max(attacks_tried(record) - source_attacks_tried(record), 0)
    tried = plural(others, "attack was", "attacks were")
    return (
        f"of {_asked(targets)}: can an adversary tell whether a given sample was among the "
        f"training data? {tried} tried; guessing gives an AUC of 0.5."
        f"{' ' + source_audited(record) if record.sources else ''}{on_clusters}"
    )


def _of_clusters(record: Record) -> str:
    return cluster_question(clustered_of(record))


def _undefended(record: Record, targets: list[int]) -> str:
    """Which audited clients do not use the defense that others use: their leak is not its own."""
    used = [row for row in record.usage if row.defense != NO_DEFENSE]
    users = {row.client for row in used if row.defended}
    others = [t for t in targets if t in {row.client for row in used} - users]
    if not users or not others:
        return ""
    who = f"{count(len(others))} of the audited clients"
    if len(others) <= MOST_NAMED:
        who = capital(_by_number(others))
    return f" {who} {'does' if len(others) == 1 else 'do'} not use the defense."


def _asked(targets: list[int]) -> str:
    if not targets:
        return "them"
    if len(targets) > MOST_NAMED:
        return f"{count(len(targets))} of them in turn"
    return _by_number(targets) + " in turn" * (len(targets) > 1)


def _by_number(clients: list[int]) -> str:
    return f"client{'s' * (len(clients) > 1)} {listed([str(client) for client in clients])}"


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
