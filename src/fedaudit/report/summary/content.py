"""Contents of a summary: what was asked, of which model, the answer, and what was not tested."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import AUC
from fedaudit.report import evidence, words
from fedaudit.report.first import First, first_screen
from fedaudit.report.grid import shortened
from fedaudit.report.reproducing import reproducing, study_file
from fedaudit.report.summary.figures import NOTHING, Figure, figures_of
from fedaudit.report.summary.glossary import explained, signal_name
from fedaudit.report.tables.sources import kind_of
from fedaudit.report.text.bounds import residual
from fedaudit.report.text.games import first_of_games, game_verdict
from fedaudit.report.text.verdict import verdict
from fedaudit.report.tiles import utility_tile
from fedaudit.report.verdict import coverage_gaps, left_out, unit_of
from fedaudit.results.estimate import NO_DEFENSE
from fedaudit.results.record import NAMES_OWNERS, Record
from fedaudit.results.unlearning import unlearning_rows

MOST_LISTED = 14
"""Entries of a list or rows of a table at most; the report has the others."""
_LONG, _SHORT = 300, 80
_NOT_STATED = "not stated in the result"
_BLANK = ("void", "control failed")
"""Answers that take every figure back."""


class Table(NamedTuple):
    """A table of texts; every row has as many cells as the head."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """One part of a summary, in the order in which it is printed.

    Attributes:
        title: Its heading.
        badge: The answer in two or three words; empty elsewhere.
        tone: Colour of the badge: "good", "doubt" or "alarm".
        lead: Sentence in large type.
        paragraphs: Sentences below it.
        facts: Names with what they stand for.
        table: Figures, rules or controls.
        items: A list.
        commands: Each with what it is for.
        remarks: Explanations in small type.
    """

    title: str
    badge: str = ""
    tone: str = ""
    lead: str = ""
    paragraphs: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    table: Table | None = None
    items: tuple[str, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()


class Rule(NamedTuple):
    """One line of a policy with its outcome.

    Attributes:
        outcome: In words.
        name: What is judged.
        allowed: The most that is allowed; empty for a demand on the evidence.
        measured: The worst figure with its limits; empty for a demand.
        reason: Which figure that is, or what was found, and why it is not settled.
    """

    outcome: str
    name: str
    allowed: str
    measured: str
    reason: str


class PolicyOutcome(NamedTuple):
    """Outcome of a policy for a record, as :mod:`fedaudit.gate` decides it.

    Attributes:
        name: Of the policy.
        digest: SHA-256 over its settings.
        outcome: "pass", "fail" or "inconclusive".
        rules: Lines of the policy, the gravest first, less those in ``kept``.
        kept: Demands on the evidence that are met, by name.
        unjudged: What the record has and the policy does not ask about.
    """

    name: str
    digest: str
    outcome: str
    rules: tuple[Rule, ...]
    kept: tuple[str, ...]
    unjudged: tuple[str, ...]


class Summary(NamedTuple):
    """A record on one page that can be filed.

    Attributes:
        name: Of the record.
        kind: Kind of audit.
        digest: Content hash of the record.
        sections: All parts but signature and glossary.
        valid_until: Until when the page may be relied on.
        glossary: Terms that the page uses, each with one line of explanation.
    """

    name: str
    kind: str
    digest: str
    sections: tuple[Section, ...]
    valid_until: str
    glossary: tuple[tuple[str, str], ...]


def summary_of(
    record: Record, policy: PolicyOutcome | None = None, valid_until: str = ""
) -> Summary:
    """Return the summary of a record.

    Args:
        record: Of any kind.
        policy: Outcome of a policy for it; None without one.
        valid_until: Last day on which the page may be relied on, such as "2027-06-30"; empty
            for none.

    Raises:
        BadInput: The text is not a date, or the date is before the audit.
    """
    until = _valid_until(record, valid_until)
    speak = words.without_digests([record])
    record = words.cleaned(record, speak)
    games = record.kind == "games"
    if games:
        wording = game_verdict(record)
        first, asked = first_of_games(record, wording), wording.played
        meaning, open_points = wording.meaning, wording.limits
        warnings = (*wording.contradictions, *wording.claims)
    else:
        plain = verdict(record)
        first, asked = first_screen(record, plain), plain.audited
        meaning, open_points = plain.meaning, plain.open
        warnings = (*filter(None, [plain.warning]), *first.beside)
    sections = (
        _question(record),
        _model(record, asked),
        _answer(record, first, meaning, warnings),
        _policy(policy, answered=first.look not in _BLANK),
        _controls(record, first),
        _untested(record, open_points),
        _verifying(record, policy),
    )
    kind = "Security games" if games else kind_of(record)
    name = shortened(record.name, _SHORT)
    used = explained(" ".join(_texts(sections)))
    return Summary(name, kind, shortened(record.content_hash, 80), sections, until, used)


def _texts(sections: tuple[Section, ...]) -> Iterator[str]:
    for item in sections:
        yield from (item.badge, item.lead, *item.paragraphs, *item.items, *item.remarks)
        for row in (*item.facts, *item.commands, *(item.table or Table((), ())).rows):
            yield from row
        yield from (item.table or Table((), ())).head


def _valid_until(record: Record, text: str) -> str:
    change = "the model, the data, the defense or the adversary changes"
    if not text:
        return f"{change}. No date was set."
    last, started = _date(text), _date(record.environment.started[:10])
    if last is None:
        raise BadInput(
            f"the date until which a summary is valid is {text[:40]!r}, which is no date; write "
            "it as year-month-day, such as 2027-06-30"
        )
    if started is not None and last < started:
        raise BadInput(
            f"a summary that is valid until {last} would have ended before the audit of {started}; "
            "give a later date"
        )
    return f"{last}, or {change}, whichever comes first."


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _question(record: Record) -> Section:
    about = record.config.get("about")
    wording = f"Described by its author as: “{shortened(str(about), _LONG)}”" if about else ""
    return Section(
        "What was asked", items=tuple(_questions(record)), remarks=tuple(filter(None, [wording]))
    )


def _questions(record: Record) -> Iterator[str]:
    if record.kind == "games":
        yield (
            "How surely can a server that tampers with the model find out whether one given record "
            "was in the data that a client trained on?"
        )
        return
    units = {"person": "a given person's data were", "canary sample": "a given canary sample was"}
    if evidence.about_members(record):
        what = units.get(unit_of(record), "a given sample was")
        targets = evidence.distinct(f.target for f in record.findings if f.target is not None)
        who = words.listed([words.client_name(target) for target in targets[:5]])
        who = who if len(targets) <= 5 else words.plural(len(targets), "client")
        of = f" of {who}" if who else ""
        yield f"Can the adversary find out whether {what} in the training data{of}?"
    if record.sources:
        yield "Can the adversary find out which client a training sample is from?"
    if record.clusters:
        yield (
            "How surely does each of the federation's models reveal what it was trained on, and is "
            "that more than its clients accept?"
        )
    if unlearning_rows(record):
        yield "After samples were deleted from the model: does it still reveal them?"
    if record.config.get("secure_sum"):
        yield "How well does the sum of one round hide the update of one client?"
    if record.config.get("canaries"):
        yield "How much can the model reveal of the whole contribution of one client?"


def _model(record: Record, asked: str) -> Section:
    return Section(
        "Of which model",
        facts=tuple((name, text or _NOT_STATED) for name, text in _facts(record)),
        remarks=(asked,) if record.kind == "games" else (),
    )


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    config = record.config
    yield "Result", shortened(record.name, _SHORT)
    yield "Digest of the result", f"{shortened(record.content_hash, 80)} (SHA-256)"
    identity = record.coverage.identity if record.coverage else ""
    if record.kind != "games":
        absent = "not in the result; whoever signs names the released model below"
        yield "Digest of the models", shortened(identity, 80) or absent
        yield "Federation", _federation(record)
    yield "Data", _data(record)
    if record.kind == "games":
        names = [one.rounds.defense if one.rounds else one.mechanism for one in record.games]
        yield "Protection", words.listed(evidence.distinct(shortened(n, 60) for n in names)[:6])
    elif record.watched:
        recording = _table(config, "recording")
        yield "Model", shortened(str(recording.get("model", "")), _LONG)
        yield "Training", "by somebody else; the audit recorded it and knows no settings"
        yield "Defense", "not known: the clients of a recorded federation may use any"
    else:
        learned = record.parameters
        size = f"; {words.plural(learned, 'trained parameter')}" if learned else ""
        yield "Model", _part(config, "model") + size
        yield "Algorithm", _part(config, "algorithm")
        yield "Training", _training(_table(config, "training"))
        yield "Defense", _defense(record)
    yield "Adversary", words.capital(shortened(record.view.description, _LONG)).rstrip(".")
    sees = [words.sight_name(item) for item in record.view.sees]
    yield "It sees", words.listed(sees[:12])
    if record.kind != "games":
        yield "Audited", _audited(record)
        for tile in utility_tile(record):
            yield tile.label, f"{tile.value} ({tile.detail})" if tile.detail else tile.value
    environment = record.environment
    version = shortened(environment.versions.get("fedaudit", ""), 30)
    yield (
        "Audit made",
        ", ".join(
            filter(
                None, [shortened(environment.started[:10], 10), version and f"fedaudit {version}"]
            )
        ),
    )


def _federation(record: Record) -> str:
    others = record.other_clients
    sizes = [row.samples for row in record.clients]
    sizes += [others.fewest, others.most] if others else []
    held = f" with {words.from_to(sizes)} samples each" if sizes else ""
    runs = words.plural(len(record.seeds), "training run")
    known = record.coverage
    rounds = f"; {known.measured} of {known.rounds} rounds measured" if known else ""
    return f"{words.plural(record.federation_size, 'client')}{held}; {runs}{rounds}"


def _data(record: Record) -> str:
    if record.watched:
        return "not known: the audit recorded what clients sent, and its own audited samples"
    dealt = _table(record.config, "partition")
    scheme = f", dealt to clients as {_part(record.config, 'partition', 'scheme')}" if dealt else ""
    return f"{_part(record.config, 'data')}{scheme}"


def _training(entry: Mapping[str, object]) -> str:
    rounds, epochs = entry.get("rounds"), entry.get("epochs")
    wording = words.plural(rounds, "round") if isinstance(rounds, int) else ""
    if wording and isinstance(epochs, int):
        wording += f"; in each, {words.plural(epochs, 'pass', 'passes')} over a client's data"
    return f"{wording}; the report has all settings" if wording else ""


def _defense(record: Record) -> str:
    entry = _table(record.config, "defense")
    if str(entry.get("name", NO_DEFENSE)) == NO_DEFENSE and not entry.get("also"):
        return "none"
    parts = [_part(record.config, "defense")]
    for key in ("chain", "also"):
        more = entry.get(key)
        parts += [_part({"": item}, "") for item in more] if isinstance(more, list) else []
    users = entry.get("clients")
    whose = f"; used by {words.plural(len(users), 'client')}" if isinstance(users, list) else ""
    return shortened(f"{' and '.join(filter(None, parts))}{whose}", _LONG)


def _audited(record: Record) -> str:
    figures = [item for item in record.findings if item.attack and item.n_members]
    single = [item for item in figures if item.seed is not None and item.metric == AUC] or figures
    targets = evidence.distinct(item.target for item in single if item.target is not None)
    if not single:
        counts = [item.samples for item in record.on_sources if item.samples]
        return f"{words.from_to(counts)} samples, of all clients" if counts else ""
    names = words.listed([words.client_name(target) for target in targets[:5]])
    who = names if len(targets) <= 5 else words.plural(len(targets), "client")
    unit = {"person": "people", "canary sample": "canary samples"}.get(unit_of(record), "samples")
    members = words.from_to([item.n_members for item in single])
    others = words.from_to(
        [item.n_nonmembers for item in single if item.contrast != "mixed"] or [0]
    )
    each = " for each" * (len(targets) > 1)
    return f"{who}: {members} {unit} as members and {others} as non-members{each}"


def _table(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    entry = config.get(name)
    return entry if isinstance(entry, dict) else {}


def _part(config: Mapping[str, object], table: str, name: str = "name") -> str:
    """Return a part of a study with its options: "dp-sgd (clip = 1.0, noise_multiplier = 2.0)"."""
    entry = _table(config, table)
    options = _table(entry, "options")
    rest = {
        key: value
        for key, value in entry.items()
        if key in ("clients", "samples_per_client") and table == "partition" and value
    }
    more = _settings({**rest, **options})
    called = shortened(str(entry.get(name, "")), _SHORT)
    return shortened(f"{called}{f' ({more})' * bool(more)}", _LONG)


def _settings(entry: Mapping[str, object]) -> str:
    """Return settings in one line, as a study file has them."""
    lines = study_file(dict(entry)).split("\n")
    return shortened(", ".join(line for line in lines if line), _LONG)


_TONES: Mapping[str, str] = {
    "no leak shown": "good",
    "inconclusive": "doubt",
    "weak leak": "doubt",
    "trace of a leak": "doubt",
    "above guessing": "doubt",
}


def _answer(record: Record, first: First, meaning: str, warnings: tuple[str, ...]) -> Section:
    answered = first.look not in _BLANK
    figures = figures_of(record) if answered else []
    wording = [words.sentence(meaning)]
    of_one_client = record.config.get("canaries") or record.config.get("secure_sum")
    if figures and not of_one_client and not evidence.checks_of(record.controls).failed:
        left = words.sentence(residual(record).text)
        wording.append(f"With 95% confidence each: {left[:1].lower()}{left[1:]}")
    if not answered:
        wording.append(
            "This page prints no figure, because the answer is taken back. The report shows the "
            "figures and what is wrong with them."
        )
    remarks = [_of_attacks(record, figures), _of_sizes(figures)] if figures else []
    return Section(
        "The answer",
        badge=first.status,
        tone=_TONES.get(first.look, "alarm"),
        lead=words.sentence(first.headline),
        paragraphs=tuple(filter(None, [*wording, *map(words.sentence, warnings[:4])])),
        table=_table_of(figures) if figures else None,
        remarks=tuple(filter(None, remarks)),
    )


def _table_of(figures: list[Figure]) -> Table:
    head = ("Strongest figure", "Measured", "Range", "Guessing", "Compare with")
    rows = [(f.meaning, f.value, f.interval, f.chance, f.baseline) for f in figures]
    return Table(head, tuple(rows[:MOST_LISTED]))


def _of_attacks(record: Record, figures: list[Figure]) -> str:
    """Return in a sentence what the attacks behind the figures look at."""
    named = {figure.attack for figure in figures}
    descriptions = [
        f"{shortened(row.name, 60)} uses "
        f"{shortened(words.listed([signal_name(item) for item in row.signals]), 160)}"
        f"{f' ({shortened(row.source, 80)})' * bool(row.source)}"
        for row in record.attacks
        if row.name in named and row.signals
    ]
    return f"Attacks: {'; '.join(descriptions)}." if descriptions else ""


def _of_sizes(figures: list[Figure]) -> str:
    """Return the words for the size of a leak with the least figures that earn them."""
    if any(figure.meaning.startswith("AUC") for figure in figures):
        what, least = "of an AUC", [f"{item.auc:g}" for item in evidence.SIZES]
    else:
        what = "of the share named or won, out of what guessing leaves open"
        least = [words.percent(item.share) for item in evidence.SIZES]
    first, *steps = zip((item.word for item in evidence.SIZES), least, strict=True)
    named = ", ".join(f"{word} from {value}" for word, value in steps)
    return (
        f"The word for the size of a leak follows the lower end of the range: {what}, {first[0]} "
        f"above {first[1]}, {named}. The words are conventions of this tool, not of law."
    )


_OUTCOMES = {
    "pass": ("PASS", "good", "every rule is kept by the upper end of the range"),
    "fail": ("FAIL", "alarm", "at least one rule is broken"),
    "inconclusive": ("UNDECIDED", "doubt", "the evidence shows neither that all rules are kept "
                     "nor that one is broken, which is not a pass"),
}  # fmt: skip


def _row(rule: Rule, *, answered: bool) -> tuple[str, ...]:
    """Return a rule as a row of a table, without its figure where the answer is taken back."""
    allowed = rule.allowed or NOTHING
    if rule.allowed and not answered:
        return (TAKEN_BACK, rule.name, allowed, NOTHING, "a figure of this record does not count")
    return (rule.outcome, rule.name, allowed, rule.measured or NOTHING, rule.reason)


def _policy(policy: PolicyOutcome | None, *, answered: bool) -> Section:
    title = "What the policy says"
    if policy is None:
        return Section(
            title,
            lead="No policy was applied.",
            paragraphs=(
                "This page reports what was measured. It does not say whether that is acceptable: "
                "a policy with allowed values decides that.",
            ),
            commands=(("To apply a policy", "fedaudit summary RESULT --policy policy.toml"),),
        )
    badge, tone, meaning = _OUTCOMES.get(policy.outcome, (policy.outcome, "doubt", ""))
    rows = [_row(item, answered=answered) for item in policy.rules]
    more = len(rows) - MOST_LISTED
    left = f"And {words.plural(more, 'more rule')}; the verdict has all." if more > 0 else ""
    kept = f"Kept as well: {'; '.join(policy.kept)}." if policy.kept else ""
    return Section(
        title,
        badge=badge,
        tone=tone,
        lead=f"By the policy “{shortened(policy.name, _SHORT)}” {meaning}.",
        table=Table(
            ("Outcome", "Rule", "Allowed at most", "Measured (range)", "Which figure, and why"),
            tuple(rows[:MOST_LISTED]),
        ),
        items=tuple(f"Not judged: {words.sentence(item)}" for item in policy.unjudged[:6]),
        remarks=tuple(filter(None, [left, shortened(kept, 2 * _LONG)])),
    )


TAKEN_BACK = "– taken back"
"""Outcome of a rule whose figures a failed control takes back."""

CONTROLS: Mapping[str, str] = {
    "permuted members": "with members and non-members shuffled, attacks find nothing",
    "untrained model": "in a model before any training, attacks find nothing",
    "blind classifier": "without a model, members and non-members look alike",
    "planted leak": "a leak that was planted on purpose is found",
    "retrained federation": "in a model that never had the deleted samples, attacks find nothing",
    "nothing deleted": "a model from which nothing was deleted is recognised as such",
    "claimed epsilon": "the measured privacy loss does not refute the claimed one",
    "exact copies": "non-members are no copies of training samples",
    "reported training metrics": "what clients report of their training fits what was measured",
    "peer updates": "the updates of the other clients are ordinary ones",
}
"""What each kind of control shows if it holds."""
_EXPECTED = ("permuted members", "untrained model", "blind classifier", "planted leak")


def _controls(record: Record, first: First) -> Section:
    rows = []
    for kind, same in evidence.grouped(record.controls, lambda item: item.control).items():
        checks = evidence.checks_of(same)
        what = CONTROLS.get(kind, "") or shortened(same[0].expected, 160)
        rows.append((shortened(kind, _SHORT), what, _held(checks)))
    games = record.kind == "games"
    ran = {row[0] for row in rows}
    absent = [f"{kind} ({CONTROLS[kind]})" for kind in _EXPECTED if kind not in ran]
    wording = "Games have no controls but their own bounds." if games else ""
    if absent and not games:
        wording = f"Not run: {words.listed(absent)}."
    tone = "good" if first.sign == "✓" else "doubt" if first.sign == "?" else "alarm"
    return Section(
        "Checks of the audit itself (controls)",
        badge="" if games else {"good": "hold", "doubt": "in part", "alarm": "failed"}[tone],
        tone="" if games else tone,
        lead=words.sentence(first.controls),
        table=Table(("Control", "What holds if it passes", "Result"), tuple(rows[:MOST_LISTED]))
        if rows
        else None,
        remarks=tuple(filter(None, [wording])),
    )


def _held(checks: evidence.Checks) -> str:
    total = len(checks.ran)
    wording = f"{checks.passed} of {total} hold" if total else "not run"
    if checks.failed:
        attacks = evidence.distinct(shortened(item.attack, 40) for item in checks.failed)
        about = words.listed([item for item in attacks if item][:3])
        wording = f"✗ {len(checks.failed)} of {total} failed{f': {about}' * bool(about)}"
    return wording + f"; {checks.untold} cannot tell" * bool(checks.untold)


_BEYOND_GAMES = (
    "Servers that send the model as it is, and what they see of honest training.",
    "Servers with another neuron, other targets, more rounds or more data of their own.",
    "Attacks published after this version.",
    "Reconstruction of records, and inference of properties of a client's data.",
)


def _untested(record: Record, open_points: tuple[str, ...]) -> Section:
    wording = [*(_BEYOND_GAMES if record.kind == "games" else ()), *record.untested]
    wording += [words.sentence(item) for item in (coverage_gaps(record), *left_out(record)) if item]
    absent = record.coverage.never_measured if record.coverage else []
    if absent:
        names = words.listed([words.client_name(item) for item in absent[:5]])
        rest = len(absent) - 5
        more = f" and {words.plural(rest, 'more client')}" if rest > 0 else ""
        wording.append(f"Never took part in a measured round: {names}{more}.")
    wording += [
        f"{shortened(row.name, 60)} on clients with too few rounds: "
        f"{words.sentence(shortened(row.uncovered, 160))}"
        for row in record.attacks
        if row.uncovered
    ]
    wording = [shortened(item, _LONG) for item in evidence.distinct(wording)]
    beyond = len(wording) - MOST_LISTED
    wording = wording[:MOST_LISTED] + [f"And {beyond} more; the report has them."] * (beyond > 0)
    scale = _scale(record)
    unsettled = [shortened(item, 2 * _LONG) for item in open_points[:4]]
    return Section(
        "What was not tested",
        lead="The answer says nothing about these.",
        items=tuple(wording),
        remarks=tuple(filter(None, [scale, *(f"Not settled: {item}" for item in unsettled)])),
    )


def _scale(record: Record) -> str:
    """Return the size of the evidence, beyond which the answer was not tried."""
    ran = [row for row in record.attacks if row.status == "run"]
    if record.kind == "games":
        games = sum(point.adv.total for point in record.games)
        points = words.plural(len(record.points), "setting")
        return f"Scale: {words.plural(games, 'game')} over {points}; others were not played."
    owners = sum(row.over_clients.endswith(NAMES_OWNERS) for row in ran)
    kinds = f", {owners} of them on whose a sample is" if 0 < owners < len(ran) else ""
    runs = words.plural(len(record.seeds), "training run")
    return (
        f"Scale: {words.plural(len(ran), 'attack')}{kinds}, {runs}. More attacks, samples or runs "
        "may find more."
    )


def _verifying(record: Record, policy: PolicyOutcome | None) -> Section:
    again = reproducing(record)
    option = " --policy policy.toml" * (policy is not None)
    steps = [("Make this page again from the result", f"fedaudit summary RESULT{option}")]
    if record.watched:
        steps.append(("Attack the recording again", "fedaudit attack RECORDING"))
    elif again.study:
        needs = f" (needs the data set “{again.data}”)" if again.data else ""
        steps.append((f"Train and audit again; study.toml is in the report{needs}", again.command))
    steps.append(
        ("Check an evidence pack and everything in it", "fedaudit verify PACK --digest DIGEST")
    )
    facts = [("Digest of the policy", shortened(policy.digest, 80))] if policy else []
    same = "Attacking the same recording" if record.watched else "Training with the same settings"
    return Section(
        "How to verify this page",
        facts=tuple(facts),
        paragraphs=(
            "The report (report.html, next to the result) is the appendix: it has every figure, "
            "attack, control and setting, and shows the same digest of the result. "
            f"{same} on the same machine with the same versions gives the same digest.",
        ),
        commands=tuple(steps),
    )
