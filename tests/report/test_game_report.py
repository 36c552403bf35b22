"""Reports on security games."""

import json
import math
from pathlib import Path

import pytest

from fedaudit.formatting.grid import Grid
from fedaudit.formatting.wording import format_interval, format_percent
from fedaudit.games.run import read_points, run_games
from fedaudit.metrics.epsilon import ConfusionCounts, clopper_pearson_epsilon
from fedaudit.report.figures.forest import MOST_LINES
from fedaudit.report.page import report_html
from fedaudit.report.reproducing import reproduction_steps
from fedaudit.report.tables.games import certificates_table, points_table
from fedaudit.report.text.games import game_verdict, games_picture
from fedaudit.report.text.points import (
    format_epsilon,
    game_tiles,
    largest_empirical_epsilon,
    shown_points,
)
from fedaudit.results.games import FIT_AUC, HELD_OUT, PointPlayed, Spread
from tests.estimates import changed
from tests.programs import exit_code
from tests.report.games import HONEST, NONE, REFUTED, SPREAD, certificate, played, point, shared
from tests.report.seen import cells, column, must, printed, words

ALL = played()


def tones(grid: Grid | None, name: str) -> list[str]:
    return [cell.tone for cell in cells(grid, name)]


def names(*points: PointPlayed) -> list[str]:
    return [shown_point.name for shown_point in shown_points(points)]


def test_points_are_labelled_by_their_differing_settings() -> None:
    assert names(NONE, point(), shared(), HONEST) == [
        "no mechanism",
        "bitrand, ε 3",
        "bitrand, shared mask, ε 3",
        "bitwise-rr, ε 7",
    ]
    bits = {"mechanism.options.bits": "10"}
    same = [point(claimed=e, settings=bits | point(claimed=e).settings) for e in (1.0, 3.0)]
    assert names(*same) == ["bitrand, ε 1", "bitrand, ε 3"]
    assert names(same[0], point()) == ["bitrand, bits=10, ε 1", "bitrand, ε 3"]
    labelled = must(points_table(played(point(label="weak"), point(label="a=1,b=2"))))
    assert [(row[0].text, row[0].detail) for row in labelled.rows] == [
        ("bitrand, ε 3", "weak"),
        ("bitrand, ε 3", ""),
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3.0, "3"), (0.25, "0.25"), (6.999999, "7"), (668.02, "668"), (1e5, "100,000"), (0.0, "0")],
)
def test_epsilons_are_formatted_briefly(value: float, expected: str) -> None:
    assert format_epsilon(value) == expected


def test_a_refuted_epsilon_is_reported_first() -> None:
    verdict_of_games = game_verdict(ALL)
    assert (verdict_of_games.first.status, verdict_of_games.first.look) == (
        "claim contradicted",
        "strong leak",
    )
    assert verdict_of_games.first.headline == "Success contradicts the claimed epsilon: ome, ε 1"
    (alarm,) = verdict_of_games.contradictions
    assert alarm.endswith("proves an epsilon of at least 2.06; 1 is claimed.")
    document = report_html(ALL)
    assert document.index(verdict_of_games.first.headline) < document.index('class="glance')
    assert document.index('class="notice alarm" role="alert"') < document.index(
        '<section id="asked">'
    )
    assert alarm in words(document)
    tile = next(tile for tile in game_tiles(ALL) if tile.label == "Claimed epsilon contradicted")
    assert (tile.value, tile.tone) == ("1 of 5", "alarm")
    calm = report_html(played(NONE, point(), HONEST))
    assert 'role="alert"' not in calm


def test_a_contradiction_is_severe_even_with_little_success() -> None:
    small = point("ome", 0.1, 35_342.3, right=60, games=4000)
    verdict_of_games = game_verdict(played(small))
    assert (verdict_of_games.first.status, verdict_of_games.first.look) == (
        "claim contradicted",
        "strong leak",
    )
    assert game_verdict(played(point("ome", 3.0, right=60, games=4000))).first.look == "clear leak"


def test_success_beyond_the_actual_epsilon_blames_the_mechanism() -> None:
    wrong = point("bitwise-rr", 1.0, 1.0, right=95)
    verdict_of_games = game_verdict(played(wrong))
    assert "is not what it claims to be" in verdict_of_games.contradictions[0]
    below_its_claim = played(point("bitwise-rr", 9.0, 1.0, right=95))
    headline = game_verdict(below_its_claim).first.headline
    assert headline == "Success contradicts the actual epsilon: bitwise-rr, ε 9"
    assert not [tile for tile in game_tiles(below_its_claim) if "contradicted" in tile.label]
    (cell,) = cells(points_table(played(wrong)), "Lower bound")
    assert (cell.text, cell.detail) == (format_epsilon(wrong.empirical_epsilon), "> actual")


def test_an_actual_epsilon_above_the_claim_is_reported_with_its_factor() -> None:
    verdict_of_games = game_verdict(ALL)
    assert verdict_of_games.claims == (
        "bitrand claims ε 3 to 5 but has an actual ε of 668 for one sample, by its own "
        "probabilities: 134 to 223 times as much.",
        "bitrand, shared mask claims ε 3 but has no finite ε: all samples of a batch get "
        "the same noise, so one sample reveals the noise on the others.",
        "ome claims ε 1 but has an actual ε of 35,342 for one sample, by its own "
        "probabilities: 35,342 times as much.",
    )
    tile = next(tile for tile in game_tiles(ALL) if tile.label.startswith("Actual epsilon"))
    assert (tile.value, tile.tone) == ("35,342 times", "alarm")
    assert game_verdict(played(NONE, HONEST)).claims == ()


def test_the_headline_gives_success_rate_and_mechanism() -> None:
    best = point("ldp-laplace", 500.0, 500.0, right=92)
    assert game_verdict(played(NONE, HONEST, best)).first.headline == (
        "With ldp-laplace, ε 500 the server is right in 92.0% of games, with bitwise-rr, ε 7 in "
        "49.0%; guessing is right in 50%"
    )
    assert game_verdict(played(NONE)).first.headline == (
        "The server is right in 99.0% of games without a mechanism; guessing is right in 50%"
    )


def test_mechanisms_are_compared_at_their_weakest_point() -> None:
    points = (point(right=60), point(claimed=5.0, right=90), HONEST)
    loud = point("bitwise-rr", 9.0, 9.0, right=70)
    verdict_of_games = game_verdict(played(NONE, *points, loud))
    assert verdict_of_games.first.headline == (
        "With bitrand, ε 5 the server is right in 90.0% of games, with bitwise-rr, ε 9 in 70.0%; "
        "guessing is right in 50%"
    )
    labels = [(tile.label, tile.value) for tile in game_tiles(played(NONE, *points, loud))[:3]]
    assert labels == [
        ("Server guesses correctly, weakest mechanism", "90.0%"),
        ("Server guesses correctly, strongest mechanism", "70.0%"),
        ("Server guesses correctly, no mechanism", "99.0%"),
    ]


def test_status_headline_and_tile_use_the_same_point() -> None:
    sure, lucky = point("bitrand", 5.0, right=96, games=2000), point("ome", 5.0, right=99, games=20)
    games = played(NONE, lucky, sure)
    assert sure.success.low > lucky.success.low
    assert "bitrand" in game_verdict(games).first.headline.split(",")[0]
    assert game_tiles(games)[0].value == format_percent(sure.success.value)


@pytest.mark.parametrize(
    ("right", "games", "status"),
    [(95, 2000, "strong leak"), (50, 10_000, "no leak shown"), (60, 20, "inconclusive")],
)
def test_the_status_describes_the_remaining_leak(right: int, games: int, status: str) -> None:
    behind = point("bitwise-rr", 50.0, 50.0, right=right, games=games)
    assert game_verdict(played(NONE, behind)).first.status == status


def test_the_ceiling_of_the_epsilon_bound_matches_the_metric() -> None:
    for games in (2, 40, 200, 10_000):
        half = games // 2
        bound = clopper_pearson_epsilon(ConfusionCounts(half, half, 0, half))
        assert largest_empirical_epsilon(point(right=100, games=games)) == pytest.approx(
            bound.ceiling, abs=1e-9
        )


def test_epsilons_that_so_few_games_could_never_contradict_are_counted() -> None:
    text = " ".join(game_verdict(ALL).limits)
    assert "at most 3.28" in text
    assert "cannot contradict the epsilon claimed at 2 of 5 points" in text


def test_intervals_of_repeated_targets_are_labelled() -> None:
    several = "for these targets: each was used in several games"
    assert several in game_verdict(ALL).limits[-1]
    each = played(point(targets=200))
    assert several not in game_verdict(each).limits[-1]


def test_the_printed_games_start_with_contradictions() -> None:
    lines = printed(ALL).splitlines()
    assert lines[0].startswith("CLAIM CONTRADICTED: Success contradicts the claimed epsilon")
    assert any(line.startswith("! ") for line in lines)
    for text in ("bitwise-rr", "shared mask", "99.0%", "Next: "):
        assert any(text in line for line in lines), text
    assert max(map(len, lines)) <= 80
    assert len(lines) < 40


def test_the_points_table_lists_success_epsilons_and_rates() -> None:
    grid = must(points_table(ALL))
    assert sum(heading.span for heading in grid.headings) == len(grid.columns)
    document = words(report_html(ALL))
    for row, game in zip(grid.rows, ALL.games, strict=True):
        by_column = dict(zip([column.text for column in grid.columns], row, strict=True))
        for name, rate in {"Adv": game.success, "TPR": game.tpr, "TNR": game.tnr}.items():
            limits = format_interval(rate.low, rate.high, "accuracy")
            assert (by_column[name].text, by_column[name].detail) == (
                format_percent(rate.value),
                limits,
            )
        assert by_column["Fires for others"].text == format_percent(game.by_others.value)
        bounded = game.actual_epsilon is not None
        assert by_column["At most"].text == (
            format_percent(game.largest_success) if bounded else "no bound"
        )
        assert by_column["Lower bound"].text == format_epsilon(game.empirical_epsilon)
        assert all(" ".join(cell.text.split()) in document for cell in row)


def test_table_alarms_match_the_record() -> None:
    grid = points_table(ALL)
    assert [tone == "alarm" for tone in tones(grid, "Lower bound")] == [
        p.refuted for p in ALL.games
    ]
    assert column(grid, "Actual ε") == ["no bound", "668", "668", "no bound", "35,342", "7"]
    assert [tone == "alarm" for tone in tones(grid, "Actual ε")] == [False, *[True] * 4, False]


def test_the_first_chart_labels_every_row_with_its_epsilon() -> None:
    (forest,) = games_picture(ALL)
    assert [line.label for line in forest.lines] == [
        "no mechanism",
        "bitrand, ε 3",
        "bitrand, ε 5",
        "bitrand, shared mask, ε 3",
        "ome, ε 1",
        "bitwise-rr, ε 7",
    ]
    assert [
        line.label for line in forest.lines if line.cells[0].marks[0].look.symbol == "diamond"
    ] == ["ome, ε 1"]


def test_rows_show_the_maximum_success_for_claimed_and_actual_epsilon() -> None:
    (forest,) = games_picture(ALL)
    by_label = {line.label: line.cells[0].marks for line in forest.lines}
    success, claimed, actual = by_label["bitwise-rr, ε 7"]
    assert (success.low, success.high) == (HONEST.success.low, HONEST.success.high)
    assert [claimed.value, actual.value] == pytest.approx([1 / (1 + math.exp(-7))] * 2)
    assert len(by_label["bitrand, ε 3"]) == 2, "an epsilon of 668 bounds nothing"
    assert len(by_label["no mechanism"]) == 1, "nothing bounds it"
    refuted, claimed, *_ = by_label["ome, ε 1"]
    assert must(refuted.low) > claimed.value
    assert "contradicts its ε or noise bound" in [key.name for key in forest.keys]


def test_the_first_chart_of_many_points_shows_extremes_per_mechanism() -> None:
    points = [point(name, 1.0 + i) for name in ("bitrand", "ome") for i in range(MOST_LINES)]
    (forest,) = games_picture(played(*points))
    assert [line.label for line in forest.lines] == [
        "bitrand, ε 1",
        f"bitrand, ε {MOST_LINES}",
        "ome, ε 1",
        f"ome, ε {MOST_LINES}",
    ]
    assert f"{2 * MOST_LINES - 4} more points" in forest.caption
    assert "smallest and the largest of each mechanism" in forest.caption


def test_the_first_chart_of_many_mechanisms_shows_the_best_points() -> None:
    names = [f"m{i}" for i in range(MOST_LINES)]
    points = [point(name, 1.0 + i, right=50 + i) for name in names for i in range(3)]
    (forest,) = games_picture(played(*points))
    assert [line.label for line in forest.lines] == [f"{name}, ε 3" for name in names]
    assert "with the server’s highest success" in forest.caption


def test_no_contradiction_is_reported_without_one() -> None:
    calm = played(NONE, HONEST)
    assert not [tile for tile in game_tiles(calm) if "contradicted" in tile.label]
    first = game_verdict(calm).first
    assert first.controls == "No claimed ε contradicted by games (1 point)"
    far = played(NONE, point())
    assert "contradicted" not in game_verdict(far).first.controls
    bare = played(NONE)
    first_line = game_verdict(bare).first
    assert (first_line.controls, first_line.sign) == ("No claim to check", "?")


FLAT = Spread(edges=[0.0, 0.0], of_target=[0], of_others=[0])


@pytest.mark.parametrize(
    "points",
    [
        (NONE,),
        (point(),),
        (shared(),),
        (REFUTED,),
        (NONE, changed(NONE, label="legacy")),
        (NONE, point(claimed=1e5, true=1e15), point("ldp-laplace", 1e-12, 0.0)),
        (point(claimed=0.0, true=0.0), point(claimed=0.0, true=5.0)),
        (point(claimed=None, true=5.0), point(claimed=4.0, true=None)),
        (point(spread=FLAT), point(claimed=2.0, spread=SPREAD)),
        tuple(point(f"m{place}", 1.0 + place) for place in range(40)),
    ],
    ids=["none", "one", "shared", "refuted", "two", "far", "zero", "half", "flat", "many"],
)
def test_every_report_is_complete(points: tuple[PointPlayed, ...]) -> None:
    record = played(*points)
    document = report_html(record)
    assert len(cells(points_table(record), "Point")) == len(points)
    for part in ("verdict", "asked", "points", "reproduce"):
        assert f'id="{part}"' in document
    assert "guessing" in " ".join(printed(record).split())


STUDY = """
name = "again"
[data]
name = "digits"
[game]
games = 20
targets = 4
batch = 5
copies = 4
background = 12
validation = 30
validation_copies = 5
certified = 1
certificate_copies = 20
[neuron]
hidden = 10
epochs = 5
[[grid]]
"mechanism.name" = ["bitrand"]
"mechanism.options.nominal_epsilon" = [8.0]
"mechanism.options.shared_mask" = [false, true]
[variants.legacy]
"neuron.output" = "two-sigmoids"
"""


def test_the_study_file_of_a_report_reproduces_its_games(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(STUDY)
    record = run_games(read_points(first), tmp_path / "one")
    study_file = reproduction_steps(record)
    assert study_file.command == "fedaudit run study.toml"
    second.write_text(study_file.study)
    assert run_games(read_points(second), tmp_path / "two").content_hash == record.content_hash


def test_report_accepts_the_folder_or_file_of_a_games_record(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(ALL.model_dump_json())
    page = tmp_path / "report.html"
    assert exit_code("report", tmp_path) == 0
    assert page.read_text() == report_html(ALL)
    page.unlink()
    assert exit_code("report", path, "--out", tmp_path / "other.html") == 0
    assert not page.exists()


def test_report_overwrites_only_html_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, study = tmp_path / "record.json", tmp_path / "study.toml"
    path.write_text(ALL.model_dump_json())
    study.write_text(STUDY)
    mine = tmp_path / "report.html"
    mine.write_text("mine")
    for command in (["report", str(path)], ["run", str(study), "--out", str(tmp_path)]):
        assert exit_code(*command) == 2
        assert "not an HTML file" in capsys.readouterr().err
    assert exit_code("report", path, "--out", path) == 2
    assert mine.read_text() == "mine"
    assert json.loads(path.read_text())["name"] == ALL.name


def test_games_records_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    path.write_text(ALL.model_dump_json())
    assert exit_code("compare", path, path, "--out", tmp_path / "two.html") == 2
    assert "is a record of games, but only studies can be compared" in capsys.readouterr().err


def test_damaged_games_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    document = json.loads(ALL.model_dump_json())
    for changes, says in (
        ({"points": []}, "there is no point"),
        ({"name": "\x1b[31m"}, "control characters"),
        ({"version": 9}, "version 9"),
        ({"format": "other"}, "is not a fedaudit record"),
    ):
        path.write_text(json.dumps({**document, **changes}))
        assert exit_code("report", path) == 2
        assert says in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_untrained_neurons_give_a_warning() -> None:
    warned = game_verdict(played(point(), point("ome", figures={FIT_AUC: 0.55}))).limits
    assert any("protection at ome, ε 3: neurons do not separate even" in text for text in warned)
    text = printed(played(point("ome", figures={FIT_AUC: 0.55})))
    assert "do not separate even" in " ".join(text.split())
    fine = game_verdict(played(point(figures={FIT_AUC: 0.9}))).limits
    assert not any("do not separate even" in text for text in fine)


def test_memorised_neurons_give_a_warning() -> None:
    heart, fine = (
        point(name, figures={FIT_AUC: 1.0, HELD_OUT: held_out})
        for name, held_out in (("ome", 0.62), ("bitrand", 0.9))
    )
    warned = game_verdict(played(fine, heart)).limits
    (warning,) = [text for text in warned if "have memorised their training rows" in text]
    assert "protection at ome, ε 3: neurons have memorised" in warning
    assert not any("memorised" in text for text in game_verdict(played(fine)).limits)
    unfit = point(figures={FIT_AUC: 0.8, HELD_OUT: 0.5})
    assert not any("memorised" in text for text in game_verdict(played(unfit)).limits)


def test_point_labels_include_the_threshold_and_a_lost_sign() -> None:
    as_trained = {"game.validation": "0", "game.validation_copies": "0"}
    lost = {"mechanism.options.sign_lost": "True"}
    standard_point = point()
    others = [
        changed(standard_point, settings=standard_point.settings | options)
        for options in (as_trained, lost, as_trained | lost)
    ]
    assert [shown_point.family for shown_point in shown_points([standard_point, *others])] == [
        "bitrand",
        "bitrand, threshold as trained",
        "bitrand, sign lost",
        "bitrand, threshold as trained, sign lost",
    ]


@pytest.mark.parametrize(("claimed", "rate"), [(3.0, "60.0%"), (2.0, "60.0%"), (1.0, "55.0%")])
def test_mechanisms_are_compared_at_equal_or_weakest_epsilon(claimed: float, rate: str) -> None:
    others = [point("rr", 4.0, right=60), point("rr", 1.0, right=55)]
    (least,) = [
        tile
        for tile in game_tiles(played(point(claimed=claimed, right=90), *others))
        if "strongest" in tile.label
    ]
    assert least.value == rate
    alone = game_tiles(played(point(claimed=1.0, right=60), point(claimed=3.0, right=90)))
    assert not any("strongest" in tile.label for tile in alone)


def test_certificates_of_a_point_have_a_row_with_their_limits() -> None:
    (row,) = must(certificates_table(ALL)).rows
    assert [cell.text for cell in row] == [
        "bitrand, ε 5",
        "2",
        "55.0%",
        "70.0%",
        "60.0%",
        "0.200",
        "1.00e−08",
    ]
    near = certificate(low=0.5, high=0.52)
    (row,) = must(certificates_table(played(point(certificates=[near])))).rows
    assert (row[-1].tone, row[-1].detail) == ("alarm", "yet near guessing")
    assert certificates_table(played(NONE)) is None
