"""Figures are written without plotly's Python objects, so these check the figures here."""

import json
import re
from collections.abc import Callable, Iterator, Sequence

import plotly.graph_objects as go
import pytest

from fedaudit.report.figures.drawing import Spec, spec_of
from fedaudit.report.page import comparison_html, games_html, report_html
from fedaudit.results.record import Record, UsageRow
from fedaudit.study.comparing import compared
from tests.report.clustered import clustered, with_clusters
from tests.report.games import hostile_games, played
from tests.report.records import hostile, record, source, with_sources
from tests.study.compare_records import PLAIN, STRONG, WEAK

USED = UsageRow(
    defense="none",
    seed=1,
    client=0,
    defended=False,
    samples=10,
    distinct=[10, 8],
    times_used=[0, 2, 8],
    times_recycled=[10],
    extra_bytes=0,
    seconds=2.0,
)


def drawn(document: str) -> Iterator[Spec]:
    """Every figure of a page, in whichever choice it stands."""
    data = re.search(r'id="figure-data">(.*?)</script>', document, re.DOTALL)
    assert data is not None
    for choices in json.loads(data[1]).values():
        for panels in choices:
            yield from panels


def as_plotly_writes(spec: Spec) -> Spec:
    """What plotly's Python objects make of a figure: they refuse what they do not know."""
    figure = go.Figure({**spec, "layout": {**layout(spec), "template": go.layout.Template()}})
    written: dict[str, Spec] = json.loads(str(figure.to_json()))
    del written["layout"]["template"]
    return {**written}


def layout(spec: Spec) -> Spec:
    found = spec["layout"]
    assert isinstance(found, dict)
    return found


def comparison(records: Sequence[Record]) -> str:
    return comparison_html(compared(records), records)


PAGES: dict[str, Callable[[], str]] = {
    "members": lambda: report_html(record(strengths=(2.6, 0.5))),
    "hostile names": lambda: report_html(hostile()),
    "sources": lambda: report_html(with_sources(source(), source(seed=2))),
    "clusters": lambda: report_html(with_clusters(clustered(clients=20, minority=4, rounds=3))),
    "games": lambda: games_html(played()),
    "hostile games": lambda: games_html(hostile_games()),
    "fronts": lambda: comparison([PLAIN.model_copy(update={"usage": [USED]}), WEAK, STRONG]),
    "tradeoff": lambda: comparison([record(name="one"), record(name="two", strengths=(0.5,))]),
}


@pytest.mark.parametrize("page", PAGES)
def test_plotly_knows_every_value_of_every_figure_and_would_change_none(page: str) -> None:
    specs = list(drawn(PAGES[page]()))
    assert len(specs) > 1
    for spec in specs:
        assert as_plotly_writes(spec) == spec


@pytest.mark.parametrize(
    "wrong", [{"xaxis": {"titel": "Round"}}, {"hovermode": "nearest"}, {"margin": {"l": "wide"}}]
)
def test_a_value_that_plotly_does_not_know_would_be_found(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Invalid"):
        as_plotly_writes(spec_of([], **wrong))
