"""Summary of an audit for archives: question, model, answer, and what was not tested.

One template for HTML and one for Markdown print the same sections. Verdict, numbers and controls
equal those of the report.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import NamedTuple

from markupsafe import Markup

from fedaudit.core.errors import BadInput
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_texts
from fedaudit.formatting.grid import Cell, Tile, as_one_line, shorten
from fedaudit.report.clauses import CHECKS, residual_risks
from fedaudit.report.deciding import caveats
from fedaudit.report.evidence import SIZES, attacks_tried, has_membership, outcomes_of, unique_items
from fedaudit.report.exposure import exposed_class_sentence, exposure_sentence
from fedaudit.report.first import FirstScreen, first_screen, tiles_of
from fedaudit.report.page import templates
from fedaudit.report.reproducing import inline_toml, reproduction_steps
from fedaudit.report.sources import kind_of, source_attacks, strongest_attack
from fedaudit.report.tables.run import controls_table
from fedaudit.report.text.games import game_verdict
from fedaudit.report.text.points import protection_name
from fedaudit.report.text.verdict import audited_samples, summarise_verdict
from fedaudit.report.unlearning import WITHHELD
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.record import Record
from fedaudit.results.runs import Coverage
from fedaudit.results.text import escape_markdown, without_commands
from fedaudit.summary.statement import Statement

SUMMARY_FILE = "summary.html"  # name of the page next to a record and in a pack
MARKDOWN_SUFFIXES = (".md", ".markdown")  # endings of the names of Markdown files
MARKDOWN_MARK = "<!-- fedaudit summary -->"
"""First line of the Markdown, by which an earlier summary is recognised."""
MAX_LISTED = 14  # largest number of entries of a list or rows of a table; the report has all
WITHDRAWN = ("void", "control failed")  # verdicts under which no estimate counts
POLICY_TITLE = "What the policy says"
_MAX_UNDECIDED = 4  # largest number of undecided points on the page; the report has all
_LONG, _SHORT = 300, 80  # lengths at which texts and names are cut
_FIXED = fixed_texts("summary")


class SummaryTable(NamedTuple):
    """A table of texts; every row has as many cells as the head."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class SummarySection:
    """Section of a summary; both formats print the fields in this order.

    ``points`` is a list that ends the paragraphs. ``terms`` explains the terms that no earlier
    section uses.
    """

    title: str
    badge: str = ""
    tone: str = ""
    lead: str = ""
    paragraphs: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    terms: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    table: SummaryTable | None = None
    items: tuple[str, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()


class PackFacts(NamedTuple):
    """What a pack contains, for its summary.

    Attributes:
        left_out: Sentence on what the pack leaves out; empty if it leaves out nothing.
        model_file: Name and SHA-256 of the released file; empty if the packer named none.
    """

    left_out: str
    model_file: str = ""


class Summary(NamedTuple):
    """Contents of a summary.

    ``signed`` is the statement above the signatures, and ``model_file`` the file that is signed.
    """

    name: str
    kind: str
    digest: str
    sections: tuple[SummarySection, ...]
    signed: str
    valid_until: str
    model_file: str = ""
    digest_note: str = _FIXED["digest_note"]


def summary_html(
    record: Record,
    policy: SummarySection | None = None,
    valid_until: str = "",
    statement: Statement | None = None,
    pack: PackFacts | None = None,
) -> str:
    """Return the summary of a record as an HTML document that loads nothing and runs no script.

    Args:
        record: A record of any kind.
        policy: Section on a policy's outcome for the record, as returned by
            :func:`fedaudit.gate.outputs.policy_section`.
        valid_until: Last day on which the page may be relied on, such as "2027-06-30"; by default,
            that of the statement.
        statement: Statement of the packer.
        pack: What the pack of the summary contains; None for a summary outside a pack.

    Raises:
        BadInput: ``valid_until`` is not a date, or a date before the audit.
    """
    summary = summary_of(record, policy, valid_until, statement, pack)
    return templates().get_template("summary.html.j2").render(summary=summary)


def summary_markdown(
    record: Record,
    policy: SummarySection | None = None,
    valid_until: str = "",
    statement: Statement | None = None,
    pack: PackFacts | None = None,
) -> str:
    """Return the summary as Markdown, for example for ``$GITHUB_STEP_SUMMARY``.

    Names in the record are escaped. The arguments are those of :func:`summary_html`.
    """
    summary = summary_of(record, policy, valid_until, statement, pack)
    form = templates().overlay(finalize=_in_markdown)
    form.filters = {**form.filters, "row": _row, "paragraph": _paragraph, "code": _code}
    text = form.get_template("summary.md.j2").render(summary=summary)
    return without_commands(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


_OPENS_BLOCK = re.compile(r"^(\s*)([-+=]|\d+[.)])")


def _in_markdown(value: object) -> object:
    if isinstance(value, str) and not isinstance(value, Markup):
        return Markup(escape_markdown(value))
    return value


def _row(cells: Sequence[str]) -> Markup:
    return Markup(f"| {' | '.join(map(escape_markdown, cells))} |")


def _paragraph(text: str) -> Markup:
    """Escape a text at the start of a line, where further characters begin a list or heading."""
    return Markup(_OPENS_BLOCK.sub(r"\1\\\2", escape_markdown(text)))


def _code(text: str) -> Markup:
    """Format a command as a code span, in which Markdown decodes no entities or backslashes."""
    return Markup(f"`{as_one_line(text).replace('`', '')}`")


def summary_of(
    record: Record,
    policy: SummarySection | None = None,
    valid_until: str = "",
    statement: Statement | None = None,
    pack: PackFacts | None = None,
) -> Summary:
    """Return the contents of a summary; see :func:`summary_html` for the arguments."""
    until = _valid_until(record, valid_until or (statement.last_day if statement else ""))
    record = wording.printable_record(record, wording.attack_title)
    if record.kind == "games":
        played = game_verdict(record)
        first, question = played.first, played.played
        meaning, undecided = played.meaning, played.limits
        warnings = (*played.contradictions, *played.claims)
    else:
        plain = summarise_verdict(record)
        first, question = first_screen(record, plain), plain.audited
        meaning, undecided = plain.meaning, plain.open
        warnings = (plain.warning, *first.caveats)
    about = shorten(str(record.config.get("about") or ""), _LONG)
    rows = _facts(record)
    settings = wording.join_parts(_FIXED["settings"], pack.left_out if pack else "", by=" ")
    if statement is not None:
        stated = {"role": statement.role, "purpose": statement.purpose}
        rows["Stated by the packer"] = _FIXED["stated"].format(**stated)
    elif pack is not None:
        rows["Role and purpose"] = _FIXED["not_stated"]
    described = (f"Described by its author as: “{about}”",) if about else ()
    sections = (
        SummarySection("What was asked", paragraphs=(question,), remarks=described),
        SummarySection("Which model", remarks=(settings,), facts=tuple(rows.items())),
        _answer(record, first, meaning, warnings),
        policy or SummarySection(POLICY_TITLE, **_FIXED["no_policy"]),
        _controls(record, first),
        _untested(record, undecided),
        _verifying(record, is_judged=policy is not None),
    )
    name, digest = shorten(record.name, _SHORT), shorten(record.content_hash, 80)
    outcome = "no policy was applied" if policy is None else f"by the policy: {policy.badge}"
    signed = f"{name}: {first.status}; {outcome}"
    return Summary(
        name,
        kind_of(record),
        digest,
        tuple(_with_terms(sections)),
        signed,
        until,
        pack.model_file if pack else "",
    )


def _with_terms(sections: Sequence[SummarySection]) -> Iterator[SummarySection]:
    """Yield the sections, each with the glossary entries of terms that it uses first."""
    explained = set[tuple[str, str]]()
    for section in sections:
        entries = wording.glossary_entries(str(section))
        yield replace(section, terms=tuple(entry for entry in entries if entry not in explained))
        explained.update(entries)


def _valid_until(record: Record, text: str) -> str:
    if not text:
        return f"{_FIXED['change']}. No date was set."
    last, started = _date(text), _date(record.environment.started[:10])
    if last is None:
        raise BadInput(
            f"the last day of validity is {text[:40]!r}, which is not a date; write it as "
            "year-month-day, such as 2027-06-30"
        )
    if started is not None and last < started:
        raise BadInput(
            f"the last day of validity is {last}, before the audit of {started}; give a later date"
        )
    return f"{last}, or {_FIXED['change']}, whichever comes first."


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _sights(sees: Sequence[str]) -> str:
    """Describe what an adversary sees; model outputs come last, behind the models."""
    parts = sorted((part.lower() for part in sees), key=lambda part: part == "predictions")
    # Whoever sees uploads can compute the change of the model from them.
    omitted = {"rounds", "update"} if "uploads" in parts else {"rounds"}
    sights = wording.join_and([wording.sight_name(p) for p in parts if p not in omitted])
    return f"{_FIXED['every_round']}{sights}" if "rounds" in parts else sights


_ZERO_IS_UNSET = ("first_class", "samples_per_client")  # settings that are unset if they are 0


def _facts(record: Record) -> dict[str, str]:
    config, coverage, environment = record.config, record.coverage, record.environment
    # The block for signatures has the digest of the result.
    facts = dict[str, str]()
    if record.kind == "games":
        facts["Data"] = settings_line(config.get("data"))
        protections = "; ".join(unique_items(map(protection_name, record.games)))
        facts["Protection"] = shorten(protections, _LONG)
    else:
        facts |= _model_digests(coverage) if coverage else {"Released model": _FIXED["models"]}
        if record.watched:
            model = wording.study_setting(record, "recording", "model")
            facts["Model"] = shorten(str(model or ""), _LONG) or "not stated in the result"
            facts |= _FIXED["recorded"]
        else:
            labels = _FIXED["labels"].items()
            facts |= {label: settings_line(config.get(table)) for table, label in labels}
    facts["The adversary sees"] = _sights(record.view.sees[:12])
    if record.kind != "games":
        facts["Audited"] = audited_samples(record)
        facts["People"] = _people(record)
    if coverage:
        chosen = f", every {coverage.every} by choice" * coverage.sampled_rounds
        measured = f"{coverage.measured} of {coverage.rounds} rounds measured{chosen}"
        facts["Coverage"] = caveats.guard_decisions(record) or measured
    version = shorten(environment.versions.get("fedaudit", "not recorded"), 30)
    facts["Audit made"] = f"{shorten(environment.started[:10], 10)}, fedaudit {version}"
    return facts


def _people(record: Record) -> str:
    """Return the number of people in the training data, or why it is not known."""
    if record.people is not None:
        known: str = _FIXED["people"]["known"]
        return known.format(people=record.people)
    named = any(
        wording.study_setting(record, "data", "options", key) for key in ("person", "subject")
    )
    is_named = named or record.unit == "person" or any(row.people for row in record.clients)
    text: str = _FIXED["people"]["not_stated" if is_named else "unknown"]
    return text


def _model_digests(coverage: Coverage) -> dict[str, str]:
    """Return the known digests, from the initial or base model to the final models."""
    digests = {
        "base model": coverage.base_model,
        # The adapter of the first round is untrained, and belongs to no released model.
        "initial model": "" if coverage.adapter else coverage.initial_model,
    }
    final = coverage.final_models
    digests |= {coverage.final_model_name(models): models.after for models in final[:MAX_LISTED]}
    facts = {
        f"Digest of the {name}": f"{digest} ({_FIXED['tensors']})"
        for name, digest in digests.items()
        if digest
    }
    if not final:
        facts["Released model"] = _FIXED["models"]
    if len(final) > MAX_LISTED:
        excess = len(final) - MAX_LISTED
        facts["Further models"] = f"{excess}; the manifest of a pack has their digests"
    if coverage.unidentified:
        names = wording.join_some([shorten(text, _SHORT) for text in coverage.unidentified])
        facts["Models without a digest"] = names
    if coverage.identity:
        facts["Digest of all models that were sent"] = shorten(coverage.identity, 80)
    return facts


def settings_line(entry: object) -> str:
    """Format a table of settings: "dp-sgd (clip = 1.0, noise_multiplier = 2.0)"."""
    if not isinstance(entry, dict):
        return "not stated in the result"
    settings, options = dict(entry), entry.get("options")
    name = shorten(str(settings.pop("name", None) or settings.pop("scheme", "")), _SHORT)
    settings.pop("options", None)
    settings |= options if isinstance(options, dict) else {}
    stated = {
        key: value
        for key, value in settings.items()
        if value not in (None, "", [], {}) and (value or key not in _ZERO_IS_UNSET)
    }
    values = inline_toml(stated)[1:-1]
    return shorten(f"{name} ({values})" if name and values else name or values, _LONG)


def _answer(
    record: Record, first: FirstScreen, meaning: str, warnings: tuple[str, ...]
) -> SummarySection:
    texts, numbers, risks = [meaning], _numbers(record, first), list[str]()
    of_one_client = record.config.get("canaries") or record.config.get("secure_sum")
    texts += [text for text in warnings[:4] if text]
    if first.look in WITHDRAWN:
        numbers = []
        texts.append(_FIXED["taken_back"])
    elif numbers and not of_one_client and (risks := residual_risks(record)):
        texts += [exposure_sentence(record)] * (not record.games and has_membership(record))
        texts.append(exposed_class_sentence(record))
        has_means = any("mean over" in detail for number in numbers for detail in number.details)
        runs = wording.format_count(len(record.seeds), "run")
        scope = _FIXED["means"].format(runs=runs) if has_means else ""
        texts.append(_FIXED["risks"].format(scope=scope))
    rows = tuple((n.label, n.value, " ".join(map(_sentence, n.details))) for n in numbers)
    return SummarySection(
        "The answer",
        badge=first.status,
        tone=_FIXED["tones"].get(first.look, "alarm"),
        lead=wording.with_full_stop(first.finding),
        paragraphs=tuple(
            text if text.endswith(":") else wording.with_full_stop(text) for text in texts
        ),
        points=tuple(map(_sentence, risks)),
        table=SummaryTable(tuple(_FIXED["columns"]), rows) if rows else None,
        remarks=(_sizes(record, numbers),) if rows else (),
    )


def _sizes(record: Record, numbers: Sequence[Tile]) -> str:
    """Explain the words for the size of a leak, for the measures that have such a word."""
    texts, labels = _FIXED["sizes"], [number.label for number in numbers]
    metrics = {
        "auc": any(label.endswith("AUC") for label in labels),
        "rate": any("TPR" in label for label in labels),
    }
    level, name = 0.5, "guessing"
    strong = wording.format_percent(level + SIZES[-1].share * (1 - level))
    best = strongest_attack(source_attacks(record))
    if best is not None and any(label.startswith("Success beyond") for label in labels):
        level, name = best.label_level, "knowing only the mix of classes"
        # The table states this measure in points above the level.
        strong = f"+{100 * SIZES[-1].share * (1 - level):.1f} points"
    values = {
        "level": f"{name} gives {wording.format_percent(level)}",
        "strong": strong,
        "auc": ", ".join(f"{size.word} from {size.auc:g}" for size in SIZES[1:]),
        "rate": ", ".join(f"{size.word} from {size.percent_rate:.0%}" for size in SIZES[1:]),
        "share": ", ".join(f"{size.word} from {size.share:.0%}" for size in SIZES[1:]),
    }
    parts = [name for name, applies in metrics.items() if applies] or ["share"]
    if any(label.startswith(_SHARES) for label in labels):
        parts = [*(name for name in parts if name != "share"), "share"]
    sentences = (texts[name].format(**values) for name in ("lead", *parts, "trace"))
    return " ".join(sentences)


_SHARES = ("Success beyond", "Riskiest model", "Server guesses")
"""Beginnings of the labels of numbers whose size is a fraction of the possible excess."""


def _sentence(text: str) -> str:
    return wording.with_full_stop(wording.capitalise(text))


def _numbers(record: Record, first: FirstScreen) -> list[Tile]:
    topics = {} if record.kind == "games" else tiles_of(record)
    tiles = [*first.numbers, *(tile for tiles in topics.values() for tile in tiles[:2])]
    taken_back = (WITHHELD, NOT_RELIED_ON)
    return [t for t in unique_items(tiles) if not any(text in t.line for text in taken_back)]


def _controls(record: Record, first: FirstScreen) -> SummarySection:
    title, lead = "Checks of the audit itself (controls)", wording.with_full_stop(first.controls)
    if record.kind == "games":
        return SummarySection(title, lead=lead, remarks=(_FIXED["no_controls"],))
    ran = {control.control for control in outcomes_of(record.controls).ran}
    lead = caveats.controls_line([record], states_kinds=True)
    if absent := [name for name in CHECKS if name not in ran]:
        lead = f"{lead}; not run: {wording.join_and(absent)}"
    lead = wording.with_full_stop(lead)
    rows = tuple(_control_row(row) for row in controls_table(record).rows[:MAX_LISTED])
    table = SummaryTable(tuple(_FIXED["controls_columns"]), rows) if rows else None
    signs = {"✓": ("passed", "good"), "?": ("incomplete", "doubt")}
    badge, tone = signs.get(first.sign, ("failed", "alarm"))
    return SummarySection(title, badge, tone, lead, table=table)


def _control_row(row: tuple[Cell, ...]) -> tuple[str, ...]:
    control, result, passed, *_, expected = row
    purpose = _FIXED["controls"].get(control.text) or wording.with_full_stop(expected.text)
    detail = wording.with_full_stop(shorten(expected.detail, 200))
    # A control without a failure has details only of attacks on which it could not run.
    label = "Not as expected" if result.text.startswith("✗") else "Not run"
    failures = f" {label}: {detail}" if expected.detail else ""
    return control.text, result.text, passed.text, purpose + failures


def _untested(record: Record, undecided: tuple[str, ...]) -> SummarySection:
    if record.kind == "games":
        games = wording.format_count(sum(point.success.total for point in record.games), "game")
        points = wording.format_count(len(record.points), "setting")
        scale = _FIXED["scale"]["games"].format(games=games, points=points)
    else:
        attacks = wording.format_count(attacks_tried(record), "attack")
        runs = wording.format_count(len(record.seeds), "training run")
        scale = _FIXED["scale"]["attacks"].format(attacks=attacks, runs=runs)
    texts = [_OTHERS.sub(_FIXED["other_adversaries"], item) for item in caveats.untested(record)]
    texts = [_SETTING.sub("", text) for text in texts]
    listed = [wording.with_full_stop(shorten(text, _LONG)) for text in texts]
    excess = len(listed) - MAX_LISTED
    open_points = [f"Undecided: {shorten(point, 2 * _LONG)}" for point in undecided]
    more_points = len(open_points) - _MAX_UNDECIDED
    if more_points > 0:
        note = (
            f"And {wording.format_count(more_points, 'undecided point')} more; the report has them."
        )
        open_points = [*open_points[:_MAX_UNDECIDED], note]
    excess_note = [f"And {excess} more; the report has them."] * (excess > 0)
    return SummarySection(
        "What was not tested",
        lead="The answer above does not cover the following.",
        items=(*listed[:MAX_LISTED], *excess_note),
        remarks=(scale, *open_points),
    )


_OTHERS = re.compile(
    r"(?s)(?:Adversaries other than this one\.|Other adversaries than this one:).*"
)
"""Sentence with the description of the adversary, which the first section has too."""
_SETTING = re.compile(r" \([a-z_]+\.[a-z_]+ = \w+\)")
"""Setting of a study behind a sentence, which says nothing to the readers of a summary."""


def _verifying(record: Record, *, is_judged: bool) -> SummarySection:
    recipe, option = reproduction_steps(record), " --policy policy.toml" * is_judged
    why = _FIXED["verify"]
    steps = [(why["page"], f"fedaudit summary RESULT{option}")]
    if record.watched:
        steps.append((why["recording"], "fedaudit attack RECORDING"))
    elif recipe.of_script:
        steps.append((why["script"], "python SCRIPT"))
    elif recipe.study:
        needs = f" (needs the data set “{recipe.data}”)" if recipe.data else ""
        steps.append((why["study"] + needs, recipe.command))
    steps.append((why["pack"], "fedaudit verify PACK --digest DIGEST"))
    same = "Attacking the same recording" if record.watched else "Training with the same settings"
    appendix = _FIXED["appendix"].format(same=same)
    return SummarySection("How to verify this page", paragraphs=(appendix,), commands=tuple(steps))
