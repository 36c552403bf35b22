"""The page that can be filed: what was asked, of which model, the answer, what was not tested.

HTML and Markdown are two templates over the same sections. Verdict, numbers and controls are those
of the report.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from fedaudit.core.errors import BadInput
from fedaudit.core.files import write_whole
from fedaudit.core.metric_names import AUC
from fedaudit.report import wording
from fedaudit.report.deciding.deletion import WITHHELD
from fedaudit.report.evidence import SIZES, checks_of, distinct
from fedaudit.report.first import First, first_screen
from fedaudit.report.fixed import fixed_texts
from fedaudit.report.grid import Tile, clean, shortened
from fedaudit.report.page import templates, write_page
from fedaudit.report.reproducing import inline, reproducing
from fedaudit.report.sources import kind_of
from fedaudit.report.tables.run import controls_table
from fedaudit.report.text.answers import CHECKS, NO_LIMIT, residual
from fedaudit.report.text.games import first_of_games, game_verdict
from fedaudit.report.text.points import protection_name
from fedaudit.report.text.verdict import verdict
from fedaudit.report.tiles import tiles_of
from fedaudit.report.verdict import clients_named, coverage_gaps, left_out, units_of
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.record import Record
from fedaudit.results.text import without_commands

SUMMARY_FILE = "summary.html"
"""Name of the page next to a record and in a pack."""
MARKDOWN_SUFFIXES = (".md", ".markdown")
"""Endings of the names of Markdown files."""
MARK = "<!-- fedaudit summary -->"
"""First line of the Markdown, which distinguishes an earlier summary from other files."""
MOST_LISTED = 14
"""Entries of a list or rows of a table at most; the report has the others."""
TAKEN_BACK = ("void", "control failed")
"""Verdicts that take every figure back."""
POLICY_TITLE = "What the policy says"
_LONG, _SHORT = 300, 80
_FIXED = fixed_texts("summary")


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


class Summary(NamedTuple):
    """A record on one page that can be filed.

    Attributes:
        name: Of the record.
        kind: Kind of audit.
        digest: Content hash of the record.
        sections: All parts but signature and glossary.
        signed: Statement that the signatures stand for: the finding, and the policy's outcome.
        valid_until: Until when the page may be relied on.
        glossary: Terms that the page uses, each with one line of explanation.
    """

    name: str
    kind: str
    digest: str
    sections: tuple[Section, ...]
    signed: str
    valid_until: str
    glossary: tuple[tuple[str, str], ...]


def summary_html(record: Record, policy: Section | None = None, valid_until: str = "") -> str:
    """Return the summary of a record as an HTML document.

    It loads nothing, runs no script, and prints name, digest and page number on each page.

    Args:
        record: Of any kind.
        policy: Outcome of a policy for it, of :func:`fedaudit.gate.outputs.policy_section`; None
            without one.
        valid_until: Last day on which the page may be relied on, such as "2027-06-30"; empty
            for none.

    Raises:
        BadInput: The text is not a date, or the date is before the audit.
    """
    summary = summary_of(record, policy, valid_until)
    return templates().get_template("summary.html.j2").render(summary=summary)


def summary_markdown(record: Record, policy: Section | None = None, valid_until: str = "") -> str:
    """Return the summary of a record as Markdown, as for ``$GITHUB_STEP_SUMMARY``.

    Names in the record can start no markup: see :func:`summary_html` for the arguments.
    """
    summary = summary_of(record, policy, valid_until)
    form = templates().overlay(finalize=_in_markdown)
    form.filters = {**form.filters, "row": _row, "paragraph": _paragraph}
    text = form.get_template("summary.md.j2").render(summary=summary)
    return without_commands(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def write_summary(
    record: Record, path: Path, policy: Section | None = None, valid_until: str = ""
) -> None:
    """Write the summary of a record, as Markdown if the name ends in .md, else as HTML.

    Args:
        record: Of any kind.
        path: The file; it is written whole or not at all.
        policy: Outcome of a policy for the record; None without one.
        valid_until: Last day on which the page may be relied on; empty for none.

    Raises:
        BadInput: The path is no place for such a file, or the date is none.
    """
    if path.suffix.lower() in MARKDOWN_SUFFIXES:
        write_whole(path, summary_markdown(record, policy, valid_until), private=True)
    else:
        write_page(path, summary_html(record, policy, valid_until))


_BACKSLASHED = re.compile(r"([\\`*_\[\]|~])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "#": "&#35;", "$": "&#36;"}
_LINKS = re.compile(r"://|(?i:\bwww)\.")
_OPENS_BLOCK = re.compile(r"^(\s*)([-+=]|\d+[.)])")


def escaped(text: str) -> str:
    """Return a text as Markdown that shows it as it is: one line, without markup or links."""
    safe = "".join(_ENTITIES.get(char, char) for char in clean(text))
    safe = _BACKSLASHED.sub(r"\\\1", safe)
    return _LINKS.sub(lambda match: match[0].replace(":", "&#58;").replace(".", "&#46;"), safe)


def _in_markdown(value: object) -> object:
    if isinstance(value, str) and not isinstance(value, Markup):
        return Markup(escaped(value))
    return value


def _row(cells: Sequence[str]) -> Markup:
    return Markup(f"| {' | '.join(map(escaped, cells))} |")


def _paragraph(text: str) -> Markup:
    """Return a text for the start of a line, where further characters start a list or heading."""
    return Markup(_OPENS_BLOCK.sub(r"\1\\\2", escaped(text)))


def summary_of(record: Record, policy: Section | None = None, valid_until: str = "") -> Summary:
    """Return the contents of a summary: see :func:`summary_html` for the arguments."""
    until = _valid_until(record, valid_until)
    record = wording.cleaned(record, wording.without_digests([record]))
    if record.kind == "games":
        played = game_verdict(record)
        first, asked, kind = first_of_games(record, played), played.played, "Security games"
        meaning, unsettled = played.meaning, played.limits
        warnings = (*played.contradictions, *played.claims)
    else:
        plain = verdict(record)
        first, asked, kind = first_screen(record, plain), plain.audited, kind_of(record)
        meaning, unsettled = plain.meaning, plain.open
        warnings = (plain.warning, *first.beside)
    about = shortened(str(record.config.get("about") or ""), _LONG)
    described = (f"Described by its author as: “{about}”",) if about else ()
    sections = (
        Section("What was asked", paragraphs=(asked,), remarks=described),
        Section("Of which model", facts=tuple(_facts(record).items())),
        _answer(record, first, meaning, warnings),
        policy or Section(POLICY_TITLE, **_FIXED["no_policy"]),
        _controls(record, first),
        _untested(record, unsettled),
        _verifying(record, is_judged=policy is not None),
    )
    used = wording.explained(str(sections))
    name, digest = shortened(record.name, _SHORT), shortened(record.content_hash, 80)
    outcome = "no policy was applied" if policy is None else f"by the policy: {policy.badge}"
    signed = f"{name}: {first.status}; {outcome}"
    return Summary(name, kind, digest, sections, signed, until, used)


def _valid_until(record: Record, text: str) -> str:
    if not text:
        return f"{_FIXED['change']}. No date was set."
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
    return f"{last}, or {_FIXED['change']}, whichever comes first."


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


_TABLES = ("data", "partition", "model", "algorithm", "training", "defense")


def _facts(record: Record) -> dict[str, str]:
    config, known, made = record.config, record.coverage, record.environment
    digest = f"{shortened(record.content_hash, 80)} (SHA-256)"
    facts = {"Result": shortened(record.name, _SHORT), "Digest of the result": digest}
    if record.kind == "games":
        facts["Data"] = settings_line(config.get("data"))
        protections = "; ".join(distinct(map(protection_name, record.games)))
        facts["Protection"] = shortened(protections, _LONG)
    else:
        models = shortened(known.identity, 80) if known else ""
        facts["Digest of the models"] = models or _FIXED["models"]
        if record.watched:
            recording = config.get("recording")
            model = recording.get("model", "") if isinstance(recording, dict) else ""
            facts["Model"] = shortened(str(model), _LONG) or "not stated in the result"
            facts |= _FIXED["recorded"]
        else:
            facts |= {wording.capital(name): settings_line(config.get(name)) for name in _TABLES}
    seen = [wording.sight_name(one) for one in record.view.sees]
    facts["The adversary sees"] = wording.listed(seen[:12])
    if record.kind != "games":
        facts["Audited"] = _audited(record)
    if known:
        facts["Coverage"] = f"{known.measured} of {known.rounds} rounds measured"
    version = shortened(made.versions.get("fedaudit", "not recorded"), 30)
    facts["Audit made"] = f"{shortened(made.started[:10], 10)}, fedaudit {version}"
    return facts


_ZERO_IS_UNSET = ("first_class", "samples_per_client")


def settings_line(entry: object) -> str:
    """Return a table of a study in one line: "dp-sgd (clip = 1.0, noise_multiplier = 2.0)"."""
    if not isinstance(entry, dict):
        return "not stated in the result"
    rest, options = dict(entry), entry.get("options")
    name = shortened(str(rest.pop("name", None) or rest.pop("scheme", "")), _SHORT)
    rest.pop("options", None)
    rest |= options if isinstance(options, dict) else {}
    stated = {
        key: value
        for key, value in rest.items()
        if value not in (None, "", [], {}) and (value or key not in _ZERO_IS_UNSET)
    }
    more = inline(stated)[1:-1]
    return shortened(f"{name} ({more})" if name and more else name or more, _LONG)


def _audited(record: Record) -> str:
    aucs = [one for one in record.findings if one.metric == AUC and one.seed is not None]
    figures = [one for one in aucs if one.n_members and one.contrast != "mixed"]
    if not figures:
        return "every client" if record.sources or record.clusters else "no sample"
    targets = sorted({one.target for one in figures if one.target is not None})
    members = wording.from_to(one.n_members for one in figures)
    others = wording.from_to(one.n_nonmembers for one in figures)
    each = " for each" * (len(targets) > 1)
    whose = clients_named(targets) if targets else "all clients"
    return f"{whose}: {members} {units_of(record)} as members, {others} as non-members{each}"


def _answer(record: Record, first: First, meaning: str, warnings: tuple[str, ...]) -> Section:
    texts, numbers = [meaning], _numbers(record, first)
    of_one_client = record.config.get("canaries") or record.config.get("secure_sum")
    if first.look in TAKEN_BACK:
        numbers = []
        texts.append(_FIXED["taken_back"])
    elif numbers and not of_one_client and not checks_of(record.controls).failed:
        # The headline above it has the bounds on epsilon.
        left = residual(record, with_epsilons=False).text
        if left != NO_LIMIT:
            left = left[:1].lower() + left[1:]
            texts.append(f"By the attacks tried here, with 95% confidence each: {left}")
    head = ("Figure", "Measured", "Range (95% unless stated), and what to compare it with")
    rows = tuple((one.label, one.value, one.detail) for one in numbers)
    sizes = _FIXED["sizes"].format(
        words=wording.listed([one.word for one in SIZES[1:]]),
        aucs=wording.listed([f"{one.auc:g}" for one in SIZES[1:]]),
        shares=wording.listed([f"{one.share:.0%}" for one in SIZES[1:]]),
    )
    return Section(
        "The answer",
        badge=first.status,
        tone=_FIXED["tones"].get(first.look, "alarm"),
        lead=wording.sentence(first.headline),
        paragraphs=tuple(wording.sentence(text) for text in (*texts, *warnings[:4]) if text),
        table=Table(head, rows) if rows else None,
        remarks=(sizes,) if rows else (),
    )


def _numbers(record: Record, first: First) -> list[Tile]:
    """Return the numbers of the first screen and of each topic that no control takes back."""
    topics = {} if record.kind == "games" else tiles_of(record)
    every = [*first.numbers, *(tile for tiles in topics.values() for tile in tiles[:2])]
    return [
        one for one in distinct(every) if one.value != WITHHELD and NOT_RELIED_ON not in one.detail
    ]


def _controls(record: Record, first: First) -> Section:
    title, lead = "Checks of the audit itself (controls)", wording.sentence(first.controls)
    if record.kind == "games":
        return Section(title, lead=lead, remarks=(_FIXED["no_controls"],))
    grid, table = controls_table(record), None
    if grid.rows:
        rows = tuple(tuple(cell.text for cell in row) for row in grid.rows)
        table = Table(tuple(column.text for column in grid.columns), rows[:MOST_LISTED])
    signs = {"✓": ("hold", "good"), "?": ("in part", "doubt")}
    badge, tone = signs.get(first.sign, ("failed", "alarm"))
    return Section(title, badge, tone, lead, table=table)


def _untested(record: Record, unsettled: tuple[str, ...]) -> Section:
    items = [*record.untested, *_unmeasured(record), *left_out(record)]
    if record.kind == "games":
        items = [*_FIXED["untested_games"], *items]
        games = wording.plural(sum(point.adv.total for point in record.games), "game")
        scale = f"{games} over {wording.plural(len(record.points), 'setting')}; others were not"
        scale += " played."
    else:
        ran = wording.plural(sum(row.status == "run" for row in record.attacks), "attack")
        runs = wording.plural(len(record.seeds), "training run")
        scale = f"{ran}, {runs}. More attacks, samples or runs may find more."
    listed = [wording.sentence(shortened(item, _LONG)) for item in distinct(items) if item]
    more = len(listed) - MOST_LISTED
    left = [f"And {more} more; the report has them."] * (more > 0)
    notes = [f"Not settled: {shortened(item, 2 * _LONG)}" for item in unsettled[:4]]
    return Section(
        "What was not tested",
        lead="The answer says nothing about these.",
        items=(*listed[:MOST_LISTED], *left),
        remarks=(f"Scale: {scale}", *notes),
    )


def _unmeasured(record: Record) -> Iterator[str]:
    """Yield which rounds and clients were not measured, and which controls were not run."""
    known = record.coverage
    if known and known.rounds - known.measured > known.n_missing_rounds:
        skipped = f"{known.rounds - known.measured} of {known.rounds} rounds"
        yield f"What clients sent in {skipped}, which were not measured"
    yield coverage_gaps(record)
    if known and known.never_measured:
        yield f"Never took part in a measured round: {clients_named(known.never_measured)}"
    ran = {one.control for one in checks_of(record.controls).ran}
    absent = [name for name in CHECKS if name not in ran]
    if absent and record.kind != "games":
        yield f"Controls that were not run: {wording.listed(absent)}"


def _verifying(record: Record, *, is_judged: bool) -> Section:
    again, option = reproducing(record), " --policy policy.toml" * is_judged
    steps = [("Make this page again from the result", f"fedaudit summary RESULT{option}")]
    if record.watched:
        steps.append(("Attack the recording again", "fedaudit attack RECORDING"))
    elif again.study:
        needs = f" (needs the data set “{again.data}”)" if again.data else ""
        steps.append((f"Train and audit again; study.toml is in the report{needs}", again.command))
    steps.append(
        ("Check an evidence pack and everything in it", "fedaudit verify PACK --digest DIGEST")
    )
    same = "Attacking the same recording" if record.watched else "Training with the same settings"
    appendix = _FIXED["appendix"].format(same=same)
    return Section(
        "How to verify this page",
        paragraphs=(appendix,),
        commands=tuple(steps),
    )
