"""Tables for papers: an attack per row, an audit per column, and an interval in every cell."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

from fedaudit.api.comparing import Audited, record_of
from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.core.metric_names import AUC
from fedaudit.formatting.wording import (
    MISSING,
    confidence_level,
    contrast_meaning,
    format_value,
    interval_text,
    metric_name,
)
from fedaudit.report.evidence import main_estimates, unique_items
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import NOT_RELIED_ON, mark_doubts
from fedaudit.results.record import Record
from fedaudit.results.text import escape_markdown

Form: TypeAlias = Literal["text", "markdown", "latex"]
_MARK = "*"
"""Mark of a value on which a failed control casts doubt."""
_LATEX = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "−": "$-$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "ε": r"$\varepsilon$",
}


def estimates_by_attack(
    record: Record, metric: str, contrast: str, attacks: Sequence[str] = ()
) -> dict[str, Estimate]:
    """Return a record's estimates of a metric by attack, and by client if it has several.

    An estimate is the mean over seeds if there are several. If any estimate compares samples of a
    fair draw, the others are left out.

    Args:
        record: The record.
        metric: Metric with a value per attack.
        contrast: Non-members that members are compared with.
        attacks: Names of the attacks; all attacks if empty.

    Raises:
        BadInput: The record has no such estimate.
    """
    estimates = [
        estimate
        for estimate in main_estimates(mark_doubts(record))
        if (estimate.metric, estimate.contrast) == (metric, contrast)
        and estimate.value is not None
        and (not attacks or estimate.attack in attacks)
    ]
    if not estimates:
        estimates_of_record = main_estimates(record)
        raise BadInput(
            f"{record.name!r} has no values of the metric {metric!r} and the contrast "
            f"{contrast!r} for these attacks; metrics: "
            f"{_listed(e.metric for e in estimates_of_record)}; "
            f"contrasts: {_listed(e.contrast for e in estimates_of_record)}; attacks: "
            f"{_listed(e.attack for e in estimates_of_record)}"
        )
    has_several_targets = len({estimate.target for estimate in estimates}) > 1
    return {
        f"{estimate.attack}, client {estimate.target}"
        if has_several_targets
        else estimate.attack: estimate
        for estimate in estimates
    }


def _listed(names: Iterable[str]) -> str:
    return ", ".join(unique_items(names)) or "none"


def table(
    audited: Audited | Mapping[str, Audited],
    form: Form = "text",
    *,
    metric: str = AUC,
    contrast: str = "mixed",
    attacks: Sequence[str] = (),
    caption: str = "",
) -> str:
    r"""Return a table of estimates with their confidence intervals, for a paper or a text.

    Values that a failed control invalidates are marked with an asterisk, and the caption says so.

    Args:
        audited: A run, its record or its folder; or several by the headings of their columns, such
            as the result of :meth:`fedaudit.Grid.audit`.
        form: "text", "markdown", or "latex", which needs the package booktabs.
        metric: Metric with a value per attack, such as "auc" or "tpr@0.01".
        contrast: Non-members that members are compared with: "other_client", "unseen" or "mixed".
        attacks: Names of the attacks; all attacks if empty.
        caption: Sentence at the beginning of the caption, which states metric and intervals.

    Raises:
        BadInput: A record has no value of this metric and contrast, or there is no such form.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
        >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/tabulated")
        >>> print(fa.table(run, "latex").splitlines()[0])
        \begin{table}
    """
    if form not in get_args(Form):
        raise unknown_name("form of table", str(form), get_args(Form))
    columns = audited if isinstance(audited, Mapping) else {"estimate": audited}
    records = {heading: record_of(item) for heading, item in columns.items()}
    estimates = {
        heading: estimates_by_attack(record, metric, contrast, attacks)
        for heading, record in records.items()
    }
    attack_names = unique_items(name for column in estimates.values() for name in column)
    rows = [
        [name, *(_cell(column.get(name)) for column in estimates.values())] for name in attack_names
    ]
    all_estimates = [estimate for column in estimates.values() for estimate in column.values()]
    unit = next(iter(records.values())).unit
    full_caption = _full_caption(all_estimates, metric, contrast_meaning(contrast, unit), caption)
    write = {"text": _text, "markdown": _markdown, "latex": _latex}[form]
    return write(["attack", *estimates], rows, full_caption)


def _cell(estimate: Estimate | None) -> str:
    if estimate is None:
        return MISSING
    value, limits = format_value(estimate.value, estimate.metric), interval_text(estimate)
    return value + _MARK * bool(estimate.doubt) + (f" ({limits})" if limits else "")


def _full_caption(
    estimates: Sequence[Estimate], metric: str, nonmembers: str, lead_sentence: str
) -> str:
    levels = unique_items(confidence_level(estimate.method) for estimate in estimates)
    levels = [level for level in levels if level]
    interval = f", with {' or '.join(levels)} confidence intervals" if levels else ""
    means = " Values are means over seeds." * any(e.note.startswith("mean") for e in estimates)
    doubts = f" {_MARK}: {NOT_RELIED_ON}." * any(estimate.doubt for estimate in estimates)
    lead = f"{lead_sentence.strip().rstrip('.')}. " if lead_sentence else ""
    return f"{lead}{metric_name(metric)} of members against {nonmembers}{interval}.{means}{doubts}"


def _text(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    padded = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([*padded, "", caption])


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    lines = [list(map(escape_markdown, line)) for line in (head, *rows)]
    lines.insert(1, ["---"] * len(head))
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", escape_markdown(caption)])


def _latex(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    lines = [" & ".join(map(_escape_latex, line)) + r" \\" for line in (head, *rows)]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_escape_latex(caption)}}}",
            rf"  \begin{{tabular}}{{l{'c' * (len(head) - 1)}}}",
            r"    \toprule",
            f"    {lines[0]}",
            r"    \midrule",
            *(f"    {line}" for line in lines[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
