"""The command that writes the page to be filed: summary."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fedaudit.cli.application import app, log
from fedaudit.cli.kinds import POLICY, meant_as
from fedaudit.cli.showing import record_in
from fedaudit.core.errors import BadInput
from fedaudit.core.files import open_regular, record_at, refuse_other_suffix, write_whole

if TYPE_CHECKING:
    from fedaudit.report.summary import PolicyOutcome
    from fedaudit.results.record import Record

Format = Literal["html", "markdown"]


@app.command
def summary(
    record: Path,
    /,
    *,
    format: Annotated[Format | None, Parameter(show_choices=True)] = None,
    out: Path | None = None,
    policy: Path | None = None,
    valid_until: str = "",
) -> None:
    """Write the page that can be filed: question, model, answer, policy, what was not tested.

    It prints on one or two pages, with lines for signatures. Markdown goes to standard output, as
    for $GITHUB_STEP_SUMMARY. The exit code is 0 whatever the policy says; `fedaudit gate` has one
    for each outcome.

    Parameters
    ----------
    record
        A record.json, or the folder it is in, or a live recording that was attacked, or a pack.
    format
        HTML by default, or what the name of --out says.
    out
        The file; by default summary.html beside the record, and standard output for Markdown.
        Only an earlier summary, or another HTML page, is ever replaced.
    policy
        The policy whose outcome is printed; by default that of a pack, and none elsewhere.
    valid_until
        Last day on which the page may be relied on, such as 2027-06-30.
    """
    from fedaudit.report.page import write_page
    from fedaudit.report.summary import SUMMARY_FILE, summary_html, summary_markdown

    path = record_at(record)
    kind, packed = _format_of(format, out), _policy_of_pack(path)
    if packed is not None and out is None and kind == "html":
        raise BadInput(
            f"{path.parent} is a pack, which has a {SUMMARY_FILE} that must stay as it is; give "
            "another file with --out"
        )
    target = path.with_name(SUMMARY_FILE) if out is None and kind == "html" else out
    whole = record_in(path)
    asked = policy or packed
    if target is not None:
        _refuse_taken(target, kind, [path, *([asked] if asked else [])])
    outcome = None if asked is None else _judged(whole, asked)
    text = (summary_html if kind == "html" else summary_markdown)(whole, outcome, valid_until)
    if target is None:
        print(text, end="")
        return
    if kind == "html":
        write_page(target, text)
    else:
        write_whole(target, text, private=True)
    log(f"summary: {target}")


def _format_of(given: Format | None, out: Path | None) -> Format:
    from fedaudit.report.summary import MARKDOWN_SUFFIXES

    if given is not None:
        return given
    is_markdown = out is not None and out.suffix.lower() in MARKDOWN_SUFFIXES
    return "markdown" if is_markdown else "html"


def _policy_of_pack(record: Path) -> Path | None:
    """Return the policy next to a record in a pack; None elsewhere."""
    from fedaudit.pack.manifest import MANIFEST_FILE
    from fedaudit.pack.packing import POLICY_FILE

    is_packed = record.with_name(MANIFEST_FILE).is_file()
    return record.with_name(POLICY_FILE) if is_packed else None


def _judged(record: "Record", policy: Path) -> "PolicyOutcome":
    from fedaudit.gate.summary import judged

    with meant_as(policy, POLICY):
        return judged(record, policy)


def _refuse_taken(target: Path, kind: Format, inputs: list[Path]) -> None:
    """Raise if a summary would replace another kind of file, or what it is made from."""
    from fedaudit.report.summary import MARK, MARKDOWN_SUFFIXES
    from fedaudit.study.running.outputs import refuse_foreign_page, refuse_missing_folder

    refuse_missing_folder(target)
    if kind == "html":
        refuse_foreign_page(target, inputs)
        return
    refuse_other_suffix(target, *MARKDOWN_SUFFIXES, what="a Markdown file")
    if not target.exists():
        return
    start = b""
    if target.is_file():
        with open_regular(target) as file:
            start = file.read(len(MARK))
    if start != MARK.encode():
        raise BadInput(
            f"{target} is there and is no summary, so that it is not replaced; write to another "
            "file with --out, or delete it"
        )
