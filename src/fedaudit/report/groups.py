"""Tables of where the risk sits: by audited client, by whose samples, by class."""

from fedaudit.report.choosing import headline
from fedaudit.report.evidence import look_of
from fedaudit.report.grid import Cell, Grid, columns_of, named, without_constants
from fedaudit.report.names import contrast_name, defense_name
from fedaudit.report.reading import Figure, GroupFigure, Record
from fedaudit.report.words import MISSING, count, interval, interval_of, shown


def targets_of(record: Record) -> list[int]:
    """The audited clients."""
    return sorted({figure.target for figure in record.findings if figure.target is not None})


def targets_table(record: Record) -> Grid | None:
    """AUC of each audited client; None where only one was audited."""
    figures = target_figures(record)
    if not figures:
        return None
    rows = [
        (
            Cell(f"Client {figure.target}"),
            named(figure.attack),
            Cell(contrast_name(figure.contrast)),
            named(defense_name(figure.defense)),
            Cell("mean" if figure.seed is None else str(figure.seed)),
            _figure_cell(figure),
            Cell(f"{count(figure.n_members)} / {count(figure.n_nonmembers)}"),
        )
        for figure in sorted(figures, key=lambda figure: figure.target or 0)
    ]
    numeric = ("AUC", "Members / non-members")
    columns = columns_of(
        "Client", "Attack", "Non-members", "Defense", "Seed", *numeric, numeric=numeric
    )
    return without_constants(Grid("AUC by audited client", columns, tuple(rows)), numeric)


def target_figures(record: Record) -> list[Figure]:
    """AUCs of the audited clients, over seeds where there are means; none for a single client."""
    if len(targets_of(record)) < 2:
        return []
    return [f for f in headline(record) if f.metric == "auc" and f.target is not None]


def _figure_cell(figure: Figure) -> Cell:
    if figure.value is None:
        return Cell(MISSING, tone="muted")
    look = look_of(figure)
    lines = (look.word, interval_of(figure))
    return Cell(
        f"{look.sign}{shown(figure.value, 'auc')}",
        "\n".join(line for line in lines if line),
        look.tone,
    )


def groups_table(record: Record, by: str) -> Grid | None:
    """AUC by whose samples ("client") or by "class"; None where the record has none."""
    groups = [group for group in record.groups if group.by == by]
    if not groups:
        return None
    numeric = ("AUC", "Members / non-members")
    columns = columns_of(
        "Non-members of" if by == "client" else "Class",
        "Target",
        "Attack",
        "Contrast",
        "Defense",
        "Seed",
        *numeric,
        numeric=numeric,
    )
    caption = (
        "AUC of the target's members against each other client's samples"
        if by == "client"
        else "AUC by class"
    )
    grid = Grid(caption, columns, tuple(_group_row(group) for group in groups))
    return without_constants(grid, numeric)


def group_name(group: GroupFigure) -> str:
    """A group as a reader sees it: a client's samples, or a class."""
    return f"Client {group.group}" if group.by == "client" else f"Class {group.group}"


def _group_row(group: GroupFigure) -> tuple[Cell, ...]:
    return (
        named(group_name(group)),
        Cell(MISSING if group.target is None else f"client {group.target}"),
        named(group.attack),
        Cell(contrast_name(group.contrast)),
        named(defense_name(group.defense)),
        Cell(str(group.seed)),
        Cell(
            shown(group.value, "auc"),
            interval(group.low, group.high, "auc"),
            "muted" if group.value is None else "",
        ),
        Cell(f"{count(group.n_members)} / {count(group.n_nonmembers)}"),
    )
