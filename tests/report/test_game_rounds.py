"""Reports on games in simulated rounds."""

import math

import pytest

from fedaudit.formatting.wording import format_percent
from fedaudit.metrics.games import gaussian_success
from fedaudit.report.page import report_html
from fedaudit.report.tables.games import points_table
from fedaudit.report.text.games import game_verdict, games_picture
from fedaudit.report.text.points import by_protection, game_tiles, shown_points
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import (
    DISTANCE,
    EXPECTED_SUCCESS,
    GAMES,
    PLANTED_SHARE,
    SIGN_SUCCESS,
    InRounds,
    PointPlayed,
)
from fedaudit.results.record import Record
from fedaudit.summary.page import summary_markdown
from tests.report.games import NONE, played, point, shared
from tests.report.records import HOSTILE, HOSTILE_TAG
from tests.report.seen import column, must


def rounds(noise: float | None = None, *, right: int = 60, **changes: object) -> PointPlayed:
    """A point in rounds: behind DP-SGD, or behind nothing."""
    averaged = changes.get("averaged", 1)
    assert isinstance(averaged, int)
    distance = None if noise is None else 2 * math.sqrt(averaged) / noise
    options = {} if noise is None else {"clip": "1.0", "noise_multiplier": str(noise)}
    batch = changes.pop("batch", 20)
    how: dict[str, object] = {
        "defense": "none" if noise is None else "dp-sgd",
        "options": options,
        "averaged": 1,
        "neurons": 1,
        "louder": 1.0,
        "clients": 1,
        "others": "honest",
        "simulated": 1,
        **changes,
    }
    figures = {
        PLANTED_SHARE: 0.3,
        DISTANCE: distance,
        EXPECTED_SUCCESS: None if distance is None else gaussian_success(0.15 * distance),
    }
    bound = 1.0 if distance is None else gaussian_success(distance)
    in_rounds = InRounds.model_validate(how)
    played = point("none", None, None, right=right, largest=bound, batch=batch, figures=figures)
    signs = Estimate(topic=GAMES, metric=SIGN_SUCCESS, value=0.99, low=0.9, high=1.0, n_members=100)
    given_ = {"rounds": in_rounds, "estimates": [*played.estimates, signs]}
    return PointPlayed.model_validate({**dict(played), **given_})


SOME = played(
    NONE,
    point(),
    rounds(right=99),
    rounds(2.0, right=55),
    rounds(2.0, right=70, averaged=10),
    rounds(2.0, right=80, averaged=10, neurons=4),
    rounds(2.0, right=60, averaged=1, neurons=4, batch=100),
    rounds(clients=10, others="dead", right=99),
)
ONLY = played(*(game for game in SOME.games if game.rounds))


def test_round_points_are_labelled_by_defense_and_server() -> None:
    assert [game.name for game in shown_points(SOME.games)] == [
        "no mechanism",
        "bitrand, ε 3",
        "in rounds, no defense",
        "in rounds, dp-sgd, clip 1, noise 2",
        "in rounds, dp-sgd, clip 1, noise 2, 10 rounds",
        "in rounds, dp-sgd, clip 1, noise 2, 4 neurons, 10 rounds",
        "in rounds, dp-sgd, clip 1, noise 2, 4 neurons, batch 100",
        "in rounds, no defense, sum of 10, others get a model with dead neurons",
    ]
    assert shown_points(ONLY.games)[0].name == "no defense"


def test_round_points_have_a_separate_table_without_epsilons() -> None:
    assert len(must(points_table(SOME)).rows) == 2
    table = points_table(SOME, in_rounds=True)
    assert len(column(table, "Point")) == 6
    assert not any("ε" in column.text for column in must(table).columns)
    assert points_table(ONLY) is None
    assert points_table(played(), in_rounds=True) is None


def test_the_bound_from_noise_is_next_to_every_success_rate() -> None:
    table = points_table(SOME, in_rounds=True)
    allowed = [format_percent(gaussian_success(mu)) for mu in (1.0, math.sqrt(10))]
    bounds = column(table, "At most")
    assert bounds == ["no bound", allowed[0], allowed[1], allowed[1], allowed[0], "no bound"]
    assert column(table, "Limit")[1] == format_percent(gaussian_success(0.15))


def test_rows_show_the_maximum_success_under_noise() -> None:
    (forest,) = games_picture(SOME)
    by_label = {line.label: line.cells[0].marks for line in forest.lines}
    once, often = (f"in rounds, dp-sgd, clip 1, noise 2{suffix}" for suffix in ("", ", 10 rounds"))
    values = [[mark.value for mark in by_label[name]] for name in (once, often)]
    assert values[0] == pytest.approx([0.55, gaussian_success(1.0)])
    assert values[1] == pytest.approx([0.7, gaussian_success(math.sqrt(10))])
    assert len(by_label["in rounds, no defense"]) == 1


def test_the_verdict_counts_sums_and_noise_as_defenses() -> None:
    points = shown_points(ONLY.games)
    behind, bare = by_protection(points)
    assert [game.name for game in bare] == ["no defense"]
    assert len(behind) == 5
    verdict_of_games = game_verdict(ONLY)
    assert verdict_of_games.first.headline.endswith("guessing is right in 50%")
    assert [tile.label for tile in game_tiles(ONLY)][::2] == [
        "Server guesses correctly, weakest defense",
        "Server guesses correctly, no defense",
    ]
    assert "the success of one kind of server" in " ".join(verdict_of_games.limits)
    assert "the success of one kind of server" not in " ".join(game_verdict(played()).limits)


def test_games_in_rounds_have_no_actual_epsilon_to_rely_on() -> None:
    for right in (50, 55, 95):
        verdict_of_games = game_verdict(played(rounds(2.0, right=right)))
        assert "actual ε" not in " ".join((*verdict_of_games.first.next, verdict_of_games.meaning))
    assert "actual ε" in " ".join(game_verdict(played(NONE, point("ome", 3.0, 3.0))).first.next)


def test_success_above_the_noise_bound_is_an_alarm() -> None:
    wrong = played(rounds(8.0, right=95))
    verdict_of_games = game_verdict(wrong)
    assert verdict_of_games.first.status == "claim contradicted"
    assert (
        "more than the 55.0% that its noise allows any server" in verdict_of_games.contradictions[0]
    )
    assert verdict_of_games.first.headline.startswith(
        "Success contradicts the bound of the noise: dp-sgd"
    )
    table = must(points_table(wrong, in_rounds=True))
    assert table.rows[0][1].tone == "alarm"
    first = verdict_of_games.first
    assert first.controls == "Noise bound contradicted by games at 1 of 1 point"
    assert game_verdict(ONLY).first.controls == ("No noise bound contradicted by games (4 points)")


def test_the_summary_names_defenses_in_rounds_as_protection() -> None:
    assert "| no defense; dp-sgd, clip 1, noise 2; no defense, sum of 10 |" in summary_markdown(
        ONLY
    )
    shared_mask = summary_markdown(played(NONE, shared()))
    assert "| Protection | no mechanism; bitrand, shared mask |" in shared_mask


@pytest.mark.parametrize("record", [SOME, ONLY, played()])
def test_a_page_has_the_sections_that_its_points_need(record: Record) -> None:
    document = report_html(record)
    points = [point.rounds is not None for point in record.points]
    assert ('<section id="rounds">' in document) == any(points)
    assert ('<section id="points">' in document) != all(points)


def test_names_that_try_to_break_out_of_the_page_do_not() -> None:
    bad = HOSTILE + HOSTILE_TAG + "x" * 9000
    points = [
        rounds(2.0, defense=f"{place}{bad}", options={bad: bad}, averaged=averaged)
        for place in range(30)
        for averaged in (1, 10)
    ]
    document = report_html(played(*points))
    assert HOSTILE_TAG not in document
    assert len(document) < 9_000_000
