"""Shortened client names remain distinguishable."""

from collections.abc import Sequence

import pytest
from pydantic import BaseModel

from fedaudit.formatting.grid import shorten_middle
from fedaudit.formatting.wording import LONGEST_NAME, client_names
from fedaudit.report.terminal import _fitting

LONG = "a" * 60


class Named(BaseModel):
    config: dict[str, dict[str, dict[str, str]]]


def printed(names: Sequence[str]) -> list[str]:
    numbered = {str(10**8 + i): name for i, name in enumerate(names)}
    record = Named(config={"recording": {"names": numbered}})
    return [client.name for client in client_names(record).values()]


@pytest.mark.parametrize(
    "names",
    [
        [LONG + "1", LONG + "2"],
        ["1" + LONG, "2" + LONG],
        ["a" * 40 + "1" + LONG, "a" * 40 + "2" + LONG],
        [LONG, LONG, "short"],
        ["a" * 40, "a" * 41],
        ["A", "A\u200b"],
    ],
    ids=["end", "start", "middle", "equal", "length", "invisible"],
)
def test_long_client_names_stay_distinguishable(names: Sequence[str]) -> None:
    names_printed = printed(names)
    assert len({*names_printed}) == len(names)
    assert all(len(name) <= LONGEST_NAME for name in names_printed)


def test_a_name_that_fits_is_printed_unchanged() -> None:
    names = ["hospital-a", "b" * LONGEST_NAME, "Universitätsklinik"]
    assert printed(names) == names


@pytest.mark.parametrize("limit", [1, 2, 8, 30, 40])
def test_a_name_that_is_cut_fills_its_place_and_keeps_its_end(limit: int) -> None:
    cut = shorten_middle("a" * 60 + "-north", limit)
    assert len(cut) == limit
    assert limit < 8 or cut.endswith("th")


def test_a_narrow_row_keeps_the_ends_of_names_and_the_attack() -> None:
    labels = [
        _fitting(f"{name} · avg-cosine", 24) for name in ("hospital-of-x-1", "hospital-of-x-2")
    ]
    assert labels[0] != labels[1]
    assert all(label.endswith("· avg-cosine") for label in labels)
    assert _fitting("a · b-hospital · avg-cosine", 22).endswith("l · avg-cosine")
