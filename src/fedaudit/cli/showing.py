"""Commands that show results: report, ask, compare, list, explain, summary."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fedaudit.cli.application import (
    COMPARISON,
    KINDS_WITH_A_RECORD,
    POLICY,
    DataDir,
    Trust,
    app,
    explain_if_other_kind,
    log,
)
from fedaudit.core.errors import CATALOGUE_NAMES, BadInput
from fedaudit.core.files import (
    MANIFEST_FILE,
    RECORD_FILE,
    REPORT_FILE,
    raise_if_other_suffix,
    record_at,
    write_atomically,
)

if TYPE_CHECKING:
    from fedaudit.results.record import Record
    from fedaudit.summary.page import PackFacts
    from fedaudit.summary.statement import Statement


def record_path(path: Path) -> Path:
    """Return the path of a record. If a guard sent nothing, the error states it."""
    try:
        return record_at(path)
    except BadInput as error:
        # Attacks on such a guard are refused, so do not advise to run them.
        if reason := reason_without_record(path):
            raise BadInput(f"{path}: {reason}") from error
        raise


def reason_without_record(path: Path) -> str:
    """Return a sentence if a folder has no record because its guard sent nothing; else ""."""
    from fedaudit.live.decisions import reason_nothing_was_sent

    return reason_nothing_was_sent(path)


def record_in(path: Path) -> "Record":
    """Read the record in a file. If the file is of another kind, the error names this kind."""
    from fedaudit.results.read import read_record

    with explain_if_other_kind(path, *KINDS_WITH_A_RECORD):
        return read_record(path)


def baseline_in(path: Path) -> "Record":
    """Read the record of the last release. In a pack, it must be the one that was packed.

    Raises:
        BadInput: The record differs from the manifest of its pack.
    """
    from fedaudit.pack.integrity import changed_files, digest_faults, read_manifest

    file = record_path(path)
    manifest_file = file.with_name(MANIFEST_FILE)
    if file.name == RECORD_FILE and manifest_file.is_file():
        manifest = read_manifest(manifest_file)
        if isinstance(manifest, str):
            fault = f"{MANIFEST_FILE} {manifest}"
        else:
            packed = [packed for packed in manifest.files if packed.name == RECORD_FILE]
            faults = [f"{MANIFEST_FILE} {fault}" for fault in digest_faults(manifest, "")]
            faults += changed_files(file.parent, manifest.model_copy(update={"files": packed}))
            fault = next(iter(faults), "" if packed else f"{MANIFEST_FILE} names no {RECORD_FILE}")
        if fault:
            raise BadInput(
                f"the baseline {file.parent} is not the pack that was written: {fault}; restore "
                "it from a copy, and see `fedaudit verify`"
            )
    return record_in(file)


@app.command
def report(record: Path, /, *, out: Path | None = None) -> None:
    """Write the HTML report of a record.

    Parameters
    ----------
    record
        A record.json, its folder, or a live recording that was attacked.
    out
        HTML file to write; by default report.html next to the record. An existing file is replaced
        only if it is an HTML page.
    """
    from fedaudit.report.page import write_report
    from fedaudit.study.running.outputs import (
        raise_if_missing_folder,
        raise_if_page_not_replaceable,
    )

    path = record_path(record)
    target = out or path.with_name(REPORT_FILE)
    full_record = record_in(path)
    raise_if_missing_folder(target)
    raise_if_page_not_replaceable(target, [path])
    write_report(full_record, target)
    log(f"report: {target}")


@app.command
def ask(
    result: Path,
    /,
    *,
    row: int | None = None,
    line: int | None = None,
    sample: Path | None = None,
    person: int | None = None,
    target: str | None = None,
    seed: int | None = None,
    prior: float | None = None,
    false_alarm_rate: float = 0.05,
    json: Annotated[bool, Parameter(negative=())] = False,
    data_dir: DataDir = None,
    trust_code: Trust = False,
) -> None:
    """Print what the attacks of a result show about one audited sample or person.

    A flag is evidence that the models reveal membership to this adversary, not proof of
    membership. A missing flag is no proof of non-membership. The answer is personal data: it is
    printed, and neither a record nor a pack contains it.

    Parameters
    ----------
    result
        Folder of an audit that has finished, or of a live recording that was attacked.
    row
        Row of the sample or person in the scores of the first seed, from 0.
    line
        Line of an audited row in the CSV file of the audit; the header is line 1.
    sample
        File with the features of an audited sample, in the form of the model's input or of the data
        set: .npz (x, and y for its label), .csv (one row), .json (a list) or a picture. For a
        table also a .csv file with its header and one row, or a .json object of its columns.
    person
        Number of an audited person.
    target
        Client under audit, by number or name; required if there are several.
    seed
        Seed of the run to use; by default, all runs are used.
    prior
        Probability of membership before the attacks, such as 0.1; by default 0.5.
    false_alarm_rate
        Maximum probability of flagging a non-member.
    json
        Print the answer as JSON.
    """
    from fedaudit.api.answer_text import answer_lines
    from fedaudit.api.asking import Question, answer_to
    from fedaudit.core.importing import code_named_in

    path = record_path(result)
    question = Question(
        row=row,
        line=line,
        sample=sample,
        person=person,
        target=target,
        seed=seed,
        prior=prior,
        false_alarm_rate=false_alarm_rate,
    )
    with code_named_in(path.parent, trusted=trust_code, folder=Path.cwd()):
        answer = answer_to(question, path.parent, record_in(path), data_dir)
    if json:
        print(answer.model_dump_json(indent=1))
        return
    log(*answer_lines(answer))


_CATALOGUES = ", ".join(CATALOGUE_NAMES.values())


@app.command(name="list", help=f"List the names of all parts: {_CATALOGUES}.")
def list_command(
    kind: Annotated[str, Parameter(help=f"Catalogue to print: {_CATALOGUES}.")] = "", /
) -> None:
    """Print one catalogue, or all of them."""
    from rich.console import Console

    from fedaudit.catalogue import format_catalogue

    Console().print(format_catalogue(kind))


@app.command
def explain(
    name: Annotated[str, Parameter(help="Name that `fedaudit list` shows, such as fedmia-2.")] = "",
    /,
) -> None:
    """Explain an attack, defense, model or other part: method, settings and source."""
    from fedaudit.catalogue import explain_entry

    if not name:
        raise BadInput(
            "fedaudit explain needs the name of a part, such as fedmia-2; fedaudit list shows all "
            "names"
        )
    log(*explain_entry(name).split("\n"))


@app.command
def compare(*records: Path, out: Path | None = None) -> None:
    """Compare two or more records: what a defense gains, for which clients and at what cost.

    Parameters
    ----------
    records
        Two or more records, the baseline first: each a record.json, its folder, or a live
        recording that was attacked. Or one comparison.json, or its folder, to update the
        comparison from its records.
    out
        HTML file to write; the estimates are written next to it as JSON. The default is
        comparison.html in the current folder, or next to the comparison that is updated. Records,
        and comparisons of other records, are never replaced.
    """
    from fedaudit.report.page import write_comparison
    from fedaudit.report.terminal import print_comparison
    from fedaudit.results.comparison import COMPARISON_FILE, write_comparison_file
    from fedaudit.study.comparing import compare_records, record_paths, relative_path
    from fedaudit.study.running.outputs import raise_if_missing_folder

    earlier = _comparison_in(records[0]) if len(records) == 1 else None
    if earlier is not None:
        with explain_if_other_kind(earlier, COMPARISON):
            paths = record_paths(earlier)
    elif len(records) < 2:
        raise BadInput(
            f"a comparison needs at least two records or a {COMPARISON_FILE}, got {len(records)}"
        )
    else:
        paths = [record_path(record) for record in records]
    target = out or (earlier.with_suffix(".html") if earlier else Path("comparison.html"))
    full_records = [record_in(path) for path in paths]
    raise_if_not_replaceable(target, paths)
    raise_if_missing_folder(target)
    comparison = compare_records(
        full_records, [relative_path(path, target.parent) for path in paths]
    )
    write_comparison_file(comparison, target.with_suffix(".json"))
    write_comparison(comparison, full_records, target)
    print_comparison(comparison, full_records)
    log("", f"comparison: {target}")


def raise_if_not_replaceable(page: Path, records: Sequence[Path]) -> None:
    """Raise if a comparison's page, or the JSON file next to it, would replace another file."""
    from fedaudit.study.running import outputs

    if not page.name or page.suffix == ".json":
        raise BadInput(
            f"{page} cannot be the name of an HTML file; give --out a name such as "
            "comparison.html (the estimates are written next to it as JSON)"
        )
    outputs.raise_if_page_not_replaceable(page, records)
    outputs.raise_if_not_replaceable(page.with_suffix(".json"), records)
    outputs.raise_if_page_without_source(page, page.with_suffix(".json"))


def _comparison_in(path: Path) -> Path | None:
    """Return the comparison file that a path names; None if it names a record."""
    from fedaudit.results.comparison import COMPARISON_FILE

    if path.is_dir():
        return path / COMPARISON_FILE if (path / COMPARISON_FILE).is_file() else None
    return path if path.is_file() and path.name != RECORD_FILE else None


Format = Literal["html", "markdown"]


@app.command
def summary(
    record: Path,
    /,
    *,
    format: Annotated[Format | None, Parameter(show_choices=True)] = None,
    out: Path | None = None,
    policy: Path | None = None,
    baseline: Path | None = None,
    valid_until: str = "",
) -> None:
    """Write a summary for archiving: question, model, answer, policy, and what was not tested.

    The HTML page prints on one or two pages and has lines for signatures. Markdown is written to
    standard output, for example to append it to $GITHUB_STEP_SUMMARY. The exit code is 0 for every
    outcome of the policy; `fedaudit gate` has an exit code for each outcome.

    Parameters
    ----------
    record
        A record.json, its folder, a live recording that was attacked, or a pack.
    format
        Format of the summary. By default, the suffix of --out determines it; without --out, it is
        HTML.
    out
        File to write; by default summary.html next to the record, and standard output for
        Markdown. An existing file is replaced only if it is an earlier summary or an HTML page.
    policy
        Policy file; the summary states its outcome. For a pack, the default is the pack's policy.
    baseline
        Record of the last release, with which the policy compares this one.
    valid_until
        Last day on which the summary is valid, such as 2027-06-30.
    """
    from fedaudit.gate.outputs import evaluated_policy_section
    from fedaudit.report.page import write_page
    from fedaudit.summary.page import SUMMARY_FILE, summary_html, summary_markdown

    path = record_path(record)
    is_html, pack_policy = _format_of(format, out) == "html", _policy_of_pack(path)
    if pack_policy is not None and out is None and is_html:
        raise BadInput(
            f"{path.parent} is a pack, but the {SUMMARY_FILE} of a pack must not be replaced; "
            "give another file with --out"
        )
    target = path.with_name(SUMMARY_FILE) if out is None and is_html else out
    full_record = record_in(path)
    policy_file = policy or pack_policy
    if target is not None:
        inputs = [path] if policy_file is None else [path, policy_file]
        _raise_if_overwriting(target, inputs, is_html=is_html)
    outcome = None
    if policy_file is not None:
        with explain_if_other_kind(policy_file, POLICY):
            older = _baseline_of_pack(path) if baseline is None else baseline_in(baseline)
            outcome = evaluated_policy_section(full_record, policy_file, older)
    format_summary = summary_html if is_html else summary_markdown
    text = format_summary(
        full_record, outcome, valid_until, _statement_of_pack(path), _facts_of_pack(path)
    )
    if target is None:
        print(text, end="")
        return
    if is_html:
        write_page(target, text)
    else:
        write_atomically(target, text, owner_only=True)
    log(f"summary: {target}")


def _format_of(chosen: Format | None, out: Path | None) -> Format:
    from fedaudit.summary.page import MARKDOWN_SUFFIXES

    if chosen is not None:
        return chosen
    is_markdown = out is not None and out.suffix.lower() in MARKDOWN_SUFFIXES
    return "markdown" if is_markdown else "html"


def _policy_of_pack(record: Path) -> Path | None:
    from fedaudit.pack.packing import POLICY_FILE

    is_packed = record.with_name(MANIFEST_FILE).is_file()
    return record.with_name(POLICY_FILE) if is_packed else None


def _baseline_of_pack(record: Path) -> "Record | None":
    from fedaudit.pack.packing import BASELINE_FILE

    path = record.with_name(BASELINE_FILE)
    is_packed = record.with_name(MANIFEST_FILE).is_file()
    return record_in(path) if is_packed and path.is_file() else None


def _facts_of_pack(record: Path) -> "PackFacts | None":
    """Return what the manifest of a pack states about its contents; None for other records."""
    from fedaudit.pack.integrity import read_manifest
    from fedaudit.pack.packing import pack_facts

    path = record.with_name(MANIFEST_FILE)
    manifest = read_manifest(path) if path.is_file() else ""
    if isinstance(manifest, str):
        return None
    return pack_facts(record_in(record), manifest.smallest_group, manifest.model_file)


def _statement_of_pack(record: Path) -> "Statement | None":
    from fedaudit.pack.statement import STATEMENT_FILE, read_statement

    path = record.with_name(STATEMENT_FILE)
    is_packed = record.with_name(MANIFEST_FILE).is_file()
    return read_statement(path) if is_packed and path.exists() else None


def _raise_if_overwriting(target: Path, inputs: list[Path], *, is_html: bool) -> None:
    """Raise if a summary would replace one of its inputs, or a file that is not a summary."""
    from fedaudit.gate.outputs import raise_if_overwriting
    from fedaudit.study.running.outputs import (
        raise_if_missing_folder,
        raise_if_page_not_replaceable,
    )
    from fedaudit.summary.page import MARKDOWN_MARK, MARKDOWN_SUFFIXES

    raise_if_missing_folder(target)
    if is_html:
        raise_if_page_not_replaceable(target, inputs)
        return
    raise_if_other_suffix(target, *MARKDOWN_SUFFIXES, format_name="a Markdown file")
    raise_if_overwriting(target, inputs, what="summary", marks=[MARKDOWN_MARK.encode()])
