import inspect
import runpy
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedaudit.attacks import ATTACKS
from fedaudit.catalogue import (
    CATALOGUES,
    CatalogueEntry,
    explain_entry,
    format_catalogue,
    parse_docstring,
)
from fedaudit.core.errors import BadInput
from fedaudit.datasets.catalog import SOURCES
from fedaudit.datasets.draws.fair import DRAWS
from fedaudit.datasets.partitions.schemes import PARTITIONS
from fedaudit.defenses import DEFENSES
from fedaudit.fl.training.local import SCHEDULES
from fedaudit.models import MODELS
from fedaudit.observe.views import VIEWS

DICTIONARIES: dict[str, Mapping[str, object]] = {
    "attacks": ATTACKS,
    "defenses": DEFENSES,
    "views": VIEWS,
    "models": MODELS,
    "partitions": PARTITIONS,
    "draws": DRAWS,
    "data": SOURCES,
    "schedules": SCHEDULES,
}
ENTRIES = [entry for entries in CATALOGUES.values() for entry in entries()]


def listing_text(kind: str, *, width: int = 200) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(format_catalogue(kind))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_generated_pages_are_up_to_date() -> None:
    script = Path(__file__).parents[1] / "docs" / "pages.py"
    for name, text in runpy.run_path(str(script))["pages"]().items():
        page = script.parent / name
        assert page.is_file(), f"run `python docs/pages.py`, and commit docs/{name}"
        written = page.read_text(encoding="utf-8")
        assert written == text, f"docs/{name} is not what the code says: run `python docs/pages.py`"


@pytest.mark.parametrize("kind", DICTIONARIES)
def test_every_catalogue_entry_is_listed(kind: str) -> None:
    names = [line.split(" ")[0] for line in listing_text(kind).splitlines()]
    assert set(DICTIONARIES[kind]) <= set(names)


@pytest.mark.parametrize("width", [40, 70, 120])
def test_names_are_never_truncated_in_narrow_terminals(width: int) -> None:
    lines = listing_text("", width=width).splitlines()
    assert not any("\u2026" in line or len(line) > width for line in lines)
    names = {name for names in DICTIONARIES.values() for name in names}
    assert names <= {line.split(" ")[0] for line in lines}


def test_without_a_name_all_catalogues_are_listed() -> None:
    everything = listing_text("")
    assert all(f"\n{kind}" in f"\n{everything}" for kind in CATALOGUES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_every_entry_is_explained_with_its_kind_and_settings(entry: CatalogueEntry) -> None:
    text = explain_entry(entry.name)
    assert f"{entry.name} ({entry.kind})" in text
    assert entry.doc.first, "an entry says what it is"
    assert all(f"  {setting.name}" in text for setting in entry.settings)
    assert all(setting.meaning for setting in entry.settings), "every setting says what it means"


def test_an_attack_is_explained_as_its_row_of_the_table() -> None:
    text = explain_entry("fedmia-2")
    for line in (
        "signal:       gradient-cosine",
        "over clients: one-sided likelihood",
        "over rounds:  mean",
        "needs:        global model, update, uploads, several rounds",
        "runs in view: uploads, shuffled\n",
        "in set:       2026-1, 2026-2, 2026-3\n",
        "outlier_sigmas = 3.0: ",
        "Paper: Zhu et al. 2024 (FedMIA), Eqs. (7)-(12), cosine",
        "Differs from the paper: The score is minus the mean upper tail",
    ):
        assert line in text


def test_a_name_in_two_catalogues_is_explained_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRAWS, "mlp", DRAWS["fair"])
    text = explain_entry("mlp")
    assert "mlp (model)" in text
    assert "mlp (draw)" in text


def test_a_misspelt_name_gets_the_nearest_entry() -> None:
    with pytest.raises(BadInput, match="did you mean 'fedmia-2'"):
        explain_entry("fedmai-2")


def test_a_misspelt_catalogue_gets_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'attacks'"):
        format_catalogue("atacks")


def test_the_page_has_every_entry_and_tables_of_even_width() -> None:
    page = (Path(__file__).parents[1] / "docs/catalogue.md").read_text()
    assert all(f"`{entry.name}`" in page for entry in ENTRIES)
    for block in page.split("\n\n"):
        if block.startswith("| "):
            # An escaped bar belongs to a cell.
            widths = {line.replace("\\|", "").count("|") for line in block.splitlines()}
            assert len(widths) == 1, block


def test_docstrings_are_split_at_their_headings() -> None:
    doc = parse_docstring(
        inspect.cleandoc(
            """First line, about :class:`~fedaudit.core.values.Model`.

            A paragraph
            over two lines.

            Attributes:
                one: Means this,
                    and that.
                two: Something: with a colon.

            Raises:
                BadInput: never: shown.

            Source: A paper, Eq. (1); another
                paper.
            Differs: Not at all.
            """
        )
    )
    assert doc.first == "First line, about Model."
    assert doc.rest == ("A paragraph over two lines.",)
    assert doc.attributes == {"one": "Means this, and that.", "two": "Something: with a colon."}
    assert doc.source == "A paper, Eq. (1); another paper."
    assert doc.differs == "Not at all."


def test_no_docstring_gives_empty_parts() -> None:
    assert parse_docstring("").first == ""
    assert parse_docstring("").attributes == {}
