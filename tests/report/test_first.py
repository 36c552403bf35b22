"""The summary at the top of a report."""

import re
from collections.abc import Mapping

import pytest

from fedaudit.formatting.wording import attack_name, format_percent
from fedaudit.report.comparison.screen import first_of_comparison, front_figure
from fedaudit.report.comparison.tradeoffs import (
    SIZES_DIFFER,
    _differing,
    _parts,
    best_tradeoff,
    tradeoffs,
)
from fedaudit.report.evidence import LEAKS
from fedaudit.report.first import FirstScreen, first_screen
from fedaudit.report.page import comparison_html, report_html
from fedaudit.report.sources import source_attacks
from fedaudit.report.text.games import game_verdict
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.comparison import Row
from fedaudit.results.record import ClientRow, Record
from fedaudit.study.comparing import compare_records
from tests.estimates import changed
from tests.report.clustered import clustered, with_clusters
from tests.report.games import played
from tests.report.records import record, source, with_sources
from tests.report.seen import must, printed
from tests.report.test_plain import barely_trained
from tests.study.compare_records import PLAIN, STRONG, WEAK, make_record, noise

RECORDS = {
    "membership": record(),
    "sources": with_sources(source(), source(seed=2)),
    "clusters": with_clusters(clustered()),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_paragraphs_above_the_first_chart_have_at_most_three_lines(kind: str) -> None:
    page = report_html(RECORDS[kind])
    above = page[page.index("<main") : page.index('class="forest ')]
    for paragraph in re.findall(r"<(?:p|h1|h2)[^>]*>(.*?)</(?:p|h1|h2)>", above, re.DOTALL):
        assert len(re.sub(r"<[^>]+>", "", paragraph)) < 3 * 90


@pytest.mark.parametrize("kind", RECORDS)
def test_sections_after_the_summary_are_collapsed(kind: str) -> None:
    page = report_html(RECORDS[kind])
    sections = re.findall(r'<section id="([\w-]+)"[^>]*>(<details class="part">)?', page)
    assert [name for name, fold in sections if not fold] == ["verdict"]


def test_summary_chart_and_tiles_show_the_estimate_of_the_verdict() -> None:
    audit = record()
    audit_verdict = summarise_verdict(audit)
    first = first_screen(audit, audit_verdict)
    assert first.status == audit_verdict.status
    assert first.headline == audit_verdict.headline
    assert first.status in LEAKS.values()
    assert len(first.numbers) == 3
    auc = next(tile for tile in first.numbers if "AUC" in tile.label)
    top = first.picture[0].lines[0]
    assert top.cells[0].value == f"▲ {auc.value}"
    assert top.label in auc.detail


def test_every_attack_has_a_row_with_interval_and_chance_level() -> None:
    audit = record()
    forest = first_screen(audit, summarise_verdict(audit)).picture[0]
    assert forest.tracks[0].guess == 0.5
    ran = {figure.attack for figure in audit.findings if figure.attack}
    assert {line.label for line in forest.lines} == ran
    marks = [mark for line in forest.lines for mark in line.cells[0].marks]
    assert all(mark.low is not None and mark.low <= mark.value for mark in marks)
    assert len({mark.look for mark in marks}) == 2, "defended rows stand beside"


def test_tile_chart_and_text_use_the_same_label_baseline() -> None:
    audit = RECORDS["sources"]
    first = first_screen(audit, summarise_verdict(audit))
    (forest,) = first.picture
    assert forest.tracks[0].title == "Attack success rate"
    level = format_percent(source_attacks(audit)[0].label_level)
    assert f"label distributions alone {level}" in first.numbers[1].detail
    assert f"labels alone {level}" in forest.lines[0].cells[0].limits
    assert "label distributions alone" in [key.name for key in forest.keys]
    assert "mix of classes" in first.headline
    assert "baseline" not in str(first)


def test_badge_headline_and_tiles_use_the_same_leak_size() -> None:
    audit = with_sources(source(), source(seed=2), membership=True)
    audit_verdict = summarise_verdict(audit)
    assert len({status for _, status in audit_verdict.topics}) == 2, "the topics leak differently"
    first = first_screen(audit, audit_verdict)
    assert first.headline.startswith("Strong leakage")
    assert first.finding.startswith("Members can be distinguished")
    others = [word for word in ("trace", "weak", "clear") if word in first.headline.lower()]
    assert (first.status, others) == ("strong leak", [])
    assert all("Attack success" not in tile.label for tile in first.numbers)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["", "#11111111"])
def test_a_custom_attacks_digest_is_printed_only_for_ambiguous_names(
    other: str,
) -> None:
    text = record().model_dump_json().replace("fedmia-2", "my-attack#0a1b2c3d")
    audit = Record.model_validate_json(text.replace("fedmia-1", f"my-attack{other}"))
    alone = Record.model_validate_json(text)
    page = report_html(alone).partition('class="config"')[0]
    for text_shown in (page, printed(alone)):
        assert "my-attack" in text_shown
        assert "0a1b2c3d" not in text_shown
    assert "my-attack#0a1b2c3d" in report_html(audit)


def test_the_first_advice_is_about_a_failed_control() -> None:
    broken = [changed(c, passed=False) for c in record().controls[:1]]
    audit = changed(record(), controls=[*broken, *record().controls[1:]])
    first = first_screen(audit, summarise_verdict(audit))
    assert first.sign == "✗"
    assert first.next[0].startswith("Find out why the control failed")


def test_uninformative_estimates_have_no_chart_and_no_tile() -> None:
    flawed = record(evaluation="redraw", details=False)
    first = first_screen(flawed, summarise_verdict(flawed))
    assert (first.picture, first.numbers) == ((), ())
    assert 'class="forest ' not in report_html(flawed)


def test_a_comparison_starts_with_its_best_trade_off() -> None:
    records: list[Record] = [PLAIN, WEAK, STRONG]
    comparison = compare_records(records)
    best = must(best_tradeoff(comparison))
    assert best.leakage < 0
    front = [
        (point.leakage - front.points[0].leakage) + must(point.lost)
        for front in comparison.fronts
        if (front.metric, front.attack) == ("auc", "strongest attack")
        and front.contrast == best.contrast
        for point in front.points[1:]
    ]
    assert best.cost == pytest.approx(min(front))
    first = first_of_comparison(
        comparison, records, [summarise_verdict(record) for record in records]
    )
    assert first.headline.startswith(f"{best.name}: {-100 * best.leakage:.1f} points less leakage")
    assert first.headline in comparison_html(comparison, records)


def test_without_an_undefended_leak_defenses_are_not_judged() -> None:
    quiet = [
        record(strengths=(0.0,), details=False, defenses=((name, 0.0),))
        for name in ("none", "cofedmid")
    ]
    first = first_of_comparison(
        compare_records(quiet), quiet, [summarise_verdict(record) for record in quiet]
    )
    assert (first.look, first.status) == ("inconclusive", "nothing to lower")
    assert not first.numbers
    assert "Then compare again." in first.next


def _of(comparison_of: list[Record]) -> FirstScreen:
    verdicts = [summarise_verdict(record) for record in comparison_of]
    return first_of_comparison(compare_records(comparison_of), comparison_of, verdicts)


def test_a_source_leak_alone_gives_no_membership_trade_off() -> None:
    quiet = [
        with_sources(
            source(),
            source(seed=2),
            membership=True,
            strengths=(0.0,),
            defenses=((name, 0.0),),
            name=name,
        )
        for name in ("none", "cofedmid")
    ]
    assert summarise_verdict(quiet[0]).status == "clear leak", "of sources alone"
    first = _of(quiet)
    assert (first.look, first.status, first.numbers) == ("inconclusive", "nothing to lower", ())
    assert "no membership attack is above guessing" in first.headline
    assert first.picture == (), "the front of membership stands there, not sources"


def test_an_insignificant_reduction_of_leakage_is_no_trade_off() -> None:
    plain = make_record("plain", {"a": {1: {0: 0.80}}}, {1: 0.9}, reach=0.1)
    less = make_record("less", {"a": {1: {0: 0.78}}}, {1: 0.9}, reach=0.1, defense=noise(0.1))
    first = _of([plain, less])
    assert (first.look, first.status) == ("inconclusive", "no trade-off")
    start = (
        "No defense is shown to lower the leakage to the strongest attack. gradient-noise (sigma"
    )
    assert first.headline.startswith(start)
    assert re.search(r"4\.0 points less leakage \(95% interval −[\d.]+ to [\d.]+\)", first.headline)
    assert first.numbers[0].tone == ""


def test_a_defense_that_costs_more_than_it_helps_is_no_trade_off() -> None:
    plain = make_record("plain", {"a": {1: {0: 0.80}}}, {1: 0.9}, reach=0.005)
    less = make_record("less", {"a": {1: {0: 0.78}}}, {1: 0.8}, reach=0.005, defense=noise(0.1))
    first = _of([plain, less])
    assert first.status == "no trade-off"
    assert first.headline.startswith("No defense is shown to lower leakage by more than it costs")
    assert best_tradeoff(compare_records([plain, less])) is None


def of_classes(name: str, accuracy: float, defense: Mapping[str, object] | None = None) -> Record:
    """A record over a hundred equally frequent classes, of a strong leak that a defense halves."""
    aucs = {"a": {1: {0: 0.75 if defense else 0.95}}}
    audit = make_record(name, aucs, {1: accuracy}, reach=0.005, defense=defense)
    row = ClientRow(client=0, samples=100, audited=10, class_counts=[1] * 100)
    return changed(audit, clients=[row])


def test_losing_three_quarters_of_the_learned_accuracy_is_no_trade_off() -> None:
    first = _of([of_classes("plain", 0.039), of_classes("less", 0.017, defense=noise(0.1))])
    assert first.status == "no trade-off"
    assert "75.9% of the accuracy above guessing lost" in first.headline
    assert first.numbers[1].value == "1.7%"
    assert first.numbers[1].detail.startswith("3.9% without the defense")


def test_accuracy_costs_are_relative_to_chance_level() -> None:
    records = [of_classes("plain", 0.039), of_classes("less", 0.032, defense=noise(0.1))]
    (tradeoff,) = tradeoffs(compare_records(records))
    assert tradeoff.lost == pytest.approx(0.007 / 0.029)
    assert tradeoff.error == pytest.approx(0.007)
    assert tradeoff.pays
    assert best_tradeoff(compare_records(records)) == tradeoff


def test_an_undefended_model_at_chance_level_gives_no_trade_off() -> None:
    records = [of_classes("plain", 0.01), of_classes("less", 0.01, defense=noise(0.1))]
    (tradeoff,) = tradeoffs(compare_records(records))
    assert (tradeoff.lost, tradeoff.pays) == (None, False)
    assert best_tradeoff(compare_records(records)) is None


def test_unchanged_accuracy_is_reported_as_neither_lost_nor_safe() -> None:
    first = _of([of_classes("plain", 0.5), of_classes("less", 0.5, defense=noise(0.1))])
    assert first.status == "best trade-off"
    assert first.headline.endswith("a loss of accuracy was neither shown nor ruled out")


def test_a_loss_of_accuracy_is_ruled_out_by_an_interval_above_zero() -> None:
    pair = [make_record("plain", {"a": {1: {0: 0.9}}}, {1: 0.3}, reach=0.005)]
    pair += [make_record("x", {"a": {1: {0: 0.7}}}, {1: 0.8}, reach=0.005, defense=noise(0.1))]
    first = _of(pair)
    assert "+48.5 to" in first.numbers[1].detail
    assert first.headline.endswith("a loss of accuracy was ruled out by its interval")


def test_a_stronger_second_attack_makes_the_reduction_insignificant() -> None:
    plain = make_record("plain", {"a": {1: {0: 0.80}}, "b": {1: {0: 0.6}}}, {1: 0.9})
    other = make_record(
        "other", {"a": {1: {0: 0.6}}, "b": {1: {0: 0.79}}}, {1: 0.9}, defense=noise(0.1)
    )
    (tradeoff,) = tradeoffs(compare_records([plain, other]))
    assert tradeoff.leakage < 0
    assert must(tradeoff.high) > 0
    assert not tradeoff.lowers


def test_the_best_trade_off_has_an_interval_of_the_change() -> None:
    first = _of([PLAIN, WEAK, STRONG])
    assert re.search(r"less leakage \(95% interval [\d.]+ to [\d.]+\)", first.headline)
    assert first.headline.startswith("gradient-noise (sigma 0.1) · "), "the strength is named"
    numbers = [set(re.findall(r"\d+\.\d", text)) for text in (first.headline, str(first.numbers))]
    assert not numbers[0] & numbers[1], "no figure is printed twice"


def test_undefended_rows_start_with_their_largest_difference() -> None:
    quiet = make_record("quiet", {"a": {1: {0: 0.6}}}, {1: 0.9}, rounds=30)
    first = _of([make_record("plain", {"a": {1: {0: 0.8}}}, {1: 0.9}), quiet])
    assert first.headline.endswith(
        "Largest difference in the strongest AUC v. unseen: −0.200 (95% interval −0.229 to −0.171)"
        ", rounds 30 against rounds 10"
    )


def test_rows_of_one_defense_are_named_by_their_different_settings() -> None:
    rows = []
    for name, value, kind in (("first", 0.6, "vector"), ("second", 0.8, "published")):
        settings = {"m_max": 15, "sigma": 0.1, "noise": kind}
        defense = {"name": "cofedmid", "options": settings}
        rows.append(make_record(name, {"a": {1: {0: value}}}, {1: 0.9}, defense=defense))
    headline = _of(rows).headline
    assert headline.endswith("cofedmid (noise published) against cofedmid (noise vector)"), headline


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("a (x 1, y 2)", "a (x 1, y 3)", "a (y 3) against a (y 2)"),
        ("a (x 1); undefended shadow", "a (x 2); undefended shadow", "(x 2); undefended shadow"),
        ("a (x 1) + b (y 1, z 1)", "a (x 1) + b (y 1, z 2)", "a (x 1) + b (y 1, z 2)"),
        ("a (x [0, 1], y 2)", "a (x [0, 2], y 2)", "a (x [0, 2]) against a (x [0, 1])"),
    ],
)
def test_only_the_settings_of_a_single_defense_are_taken_apart(
    first: str, second: str, names: str
) -> None:
    rows = [Row(source=0, defense=name, family=name, base=None) for name in (first, second)]
    parts = [_parts(row, row.defense) for row in rows]
    text = f"{_differing(*parts[::-1])} against {_differing(*parts)}"
    assert names in text
    assert text.count("(") == text.count(")")


def test_games_are_compared_with_chance_and_list_contradictions() -> None:
    audit = played()
    first = game_verdict(audit).first
    (forest,) = first.picture
    assert forest.tracks[0].guess == 0.5
    assert len(forest.lines) > 1
    assert "points" in first.controls
    assert report_html(audit).index('class="forest ') < report_html(audit).index('id="asked"')


def test_the_summary_warns_of_an_epsilon_above_the_claim() -> None:
    audit = played()
    verdict_of_games = game_verdict(audit)
    first = verdict_of_games.first
    assert verdict_of_games.claims
    assert first.caveats == verdict_of_games.claims[:2]
    assert first.sign == "✗"
    assert "far below the actual ε at" in first.controls
    page = report_html(audit)
    above = page[: page.index('class="forest ')]
    assert verdict_of_games.claims[0] in re.sub(r"<[^>]+>", "", above)
    assert "✓" not in above


def test_games_summary_describes_the_leak_under_the_mechanism() -> None:
    audit = played()
    first = game_verdict(audit).first
    assert "without" not in first.headline
    assert any(tile.label.startswith("Server guesses correctly, no ") for tile in first.numbers)


def test_a_leak_of_a_barely_trained_model_has_no_warning() -> None:
    audit = with_sources(source(), source(seed=2))
    hardly = barely_trained(audit, 0.1)
    first = first_screen(hardly, summarise_verdict(hardly))
    assert not first.warning
    assert first.look in LEAKS.values()
    page = report_html(hardly)
    assert "nothing follows" not in page
    assert "barely learned" not in printed(hardly)


def test_different_sample_sizes_are_noted_below_the_headline() -> None:
    fewer = record(size=500, details=False, defenses=(("cofedmid", 0.35),))
    larger = record(details=False, defenses=(("none", 1.0),))
    first = _of([larger, fewer])
    (caveat,) = first.caveats
    assert caveat == SIZES_DIFFER.format(members="members (500 to 1,000)")
    page = comparison_html(compare_records([larger, fewer]), [larger, fewer])
    assert page.count(caveat) == 1
    assert page.index(caveat) < page.index('class="glance')
    assert _of([larger, larger]).caveats == ()


def test_comparison_tiles_and_axes_are_in_per_cent() -> None:
    comparison = compare_records([PLAIN, WEAK, STRONG])
    figure = must(front_figure(comparison))
    (panel,) = figure.choices[0].panels
    assert all(text.endswith("%") for axis in (panel.x, panel.y) for _, text in axis.ticks)
    assert all(tile.value.endswith("%") for tile in _of([PLAIN, WEAK, STRONG]).numbers)


@pytest.mark.parametrize("width", [40, 80])
def test_a_printed_comparison_starts_with_trade_off_and_membership_rows(width: int) -> None:
    text = printed(PLAIN, WEAK, STRONG, width=width)
    lines = text.splitlines()
    assert lines[0].startswith("BEST TRADE-OFF: ")
    assert max(map(len, lines)) <= width
    assert "▲ 0.820" in text
    assert "91.0%" in text
    if width == 80:
        assert len(lines) <= 38, "the names of files follow"
    else:
        place = next(i for i, line in enumerate(lines) if line.startswith("no defense"))
        assert lines[place + 1].startswith("  Strongest AUC ▲ 0.820")
        assert lines[place + 2].startswith("  ")


def test_requested_attacks_without_estimates_are_listed_with_a_reason() -> None:
    audit = record(details=False)
    refused = [changed(row, status="refused", note="needs 2 peers") for row in audit.attacks[:1]]
    name = refused[0].name
    cases: tuple[tuple[dict[str, object], int], ...] = (({"attacks": {name: {}}}, 1), ({}, 0))
    for config, lines in cases:
        with_refused = changed(audit, attacks=[*refused, *audit.attacks[1:]], config=config)
        reasons = [
            text
            for text in first_screen(with_refused, summarise_verdict(with_refused)).caveats
            if name in text
        ]
        assert reasons == [f"No figures of {attack_name(name)}: needs 2 peers"] * lines
