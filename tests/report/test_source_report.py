"""Reports on source inference."""

import pytest

from fedaudit.evaluation.source import SourceEvaluation
from fedaudit.formatting.grid import Grid
from fedaudit.formatting.wording import clean_texts
from fedaudit.report.comparison.tables import epsilon_comparison, source_comparison
from fedaudit.report.evidence import size_of_share
from fedaudit.report.page import comparison_html, report_html
from fedaudit.report.sources import source_sentence, source_table
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results import estimate as estimates
from fedaudit.results.record import Record
from fedaudit.results.runs import LABELS, LABELS_METHOD, OLDER_LEVEL
from fedaudit.study.comparing import compare_records
from tests.estimates import changed, estimate
from tests.gate.parts import control
from tests.report.records import source as source_run
from tests.report.records import utility, with_sources
from tests.report.seen import cells, column, must, printed, tiles, words

BY_CHANCE = {"p_value": 0.4, "class_p_value": 0.4, "mixes": 0.1}
SEEDS = tuple(source_run(right=right, seed=seed) for seed, right in enumerate((56, 60, 64)))


def details(grid: Grid | None, heading: str) -> list[str]:
    return [cell.detail for cell in cells(grid, heading)]


def test_source_leaks_are_reported_with_chance_and_label_baseline() -> None:
    audit_verdict = summarise_verdict(with_sources(source_run()))
    assert audit_verdict.status == "clear leak"
    assert audit_verdict.headline == (
        "Clear source leakage: attacks identify the client of a sample clearly more often than "
        "knowing each client's mix of classes would allow"
    )
    table = source_table(with_sources(source_run()))
    assert column(table, "Attack success rate") == ["▲ 50.0%"]
    (detail,) = details(table, "Attack success rate")
    assert detail.split("\n")[:4] == ["clear", "40.7–59.3%", "60/120", "guessing 10.0%"]
    assert column(table, "Beyond label distributions") == ["+30.0"]
    assert "over 20.0%" in details(table, "Beyond label distributions")[0].split("\n")
    assert (
        "Can the adversary find out which client a training sample is from?"
        in audit_verdict.audited
    )


def test_label_levels_of_earlier_versions_are_marked_everywhere() -> None:
    current = with_sources(*SEEDS)
    older = [
        estimate.model_copy(
            update={"method": estimate.method.replace(LABELS_METHOD, "Clopper-Pearson 95%")}
        )
        for estimate in current.estimates
    ]
    before = current.model_copy(update={"estimates": older})
    assert OLDER_LEVEL in must(source_table(before)).remark
    (tile,) = [tile for tile in tiles(before) if "beyond label" in tile.label]
    assert "which may be too high (earlier version)" in tile.detail
    assert OLDER_LEVEL not in must(source_table(current)).remark
    assert not any("too high" in tile.detail for tile in tiles(current))


def test_success_explained_by_labels_is_no_sample_leak() -> None:
    record = with_sources(source_run(mixes=0.48, class_p_value=0.3))
    audit_verdict = summarise_verdict(record)
    assert audit_verdict.status == "above guessing"
    assert (
        "not shown to do so more often than knowing each client's mix of classes would allow"
        in audit_verdict.headline
    )
    assert "this is still a leak" in audit_verdict.meaning
    assert column(source_table(record), "Attack success rate") == ["▷ 50.0%"]


def test_unmeasured_clients_are_mentioned() -> None:
    runs = [source_run(seed=seed, absent=[3] * seed) for seed in (0, 1)]
    assert "No measured round has a model of 1 client" in source_sentence(with_sources(*runs))
    assert "No measured round" not in source_sentence(with_sources(runs[0]))


def test_chance_level_success_with_a_narrow_interval_is_no_leak_shown() -> None:
    audit_verdict = summarise_verdict(with_sources(source_run(right=120, each=120, **BY_CHANCE)))  # type: ignore[arg-type]
    assert audit_verdict.status == "no leak shown"
    assert audit_verdict.headline.startswith(
        "No leak of sources shown: the attacks that were run are not"
    )
    assert "the client is identified for 11.9% of samples" in audit_verdict.meaning
    assert "not a proof" in audit_verdict.meaning


def test_few_samples_are_inconclusive() -> None:
    audit_verdict = summarise_verdict(with_sources(source_run(right=3, each=3, **BY_CHANCE)))  # type: ignore[arg-type]
    assert audit_verdict.status == "inconclusive"
    assert "whether attacks identify the client of a sample" in audit_verdict.headline


@pytest.mark.parametrize(
    ("right", "status"),
    [(480, "strong leak"), (300, "weak leak"), (260, "trace of a leak")],
)
def test_the_leak_size_follows_from_the_lower_limit(right: int, status: str) -> None:
    assert summarise_verdict(with_sources(source_run(right=right, each=100))).status == status


def test_sizes_start_at_their_thresholds() -> None:
    shares = (-0.1, 0.0, 0.01, 0.05, 0.15, 0.3, 1.0)
    words_ = [size_of_share(share) for share in shares]
    assert words_ == [None, None, "trace", "weak", "clear", "strong", "strong"]


def test_means_over_seeds_are_labelled() -> None:
    table = source_table(with_sources(*SEEDS))
    assert column(table, "Attack success rate") == ["▲ 50.0%"]
    assert details(table, "Attack success rate")[0].split("\n")[1] == "44.6–55.4%"
    assert "Means over seeds" in table.remark


def test_the_source_table_has_corrected_and_uncorrected_p_values() -> None:
    grid = source_table(with_sources(source_run(p_value=0.01), source_run("b", p_value=0.02)))
    levels = [detail.split("\n")[-1] for detail in details(grid, "Attack success rate")]
    assert levels == ["p 0.020, alone 0.010", "p 0.020"]
    assert "Holm" in grid.remark


def test_agreeing_seeds_have_a_verdict_from_run_limits() -> None:
    assert (
        summarise_verdict(with_sources(source_run(seed=1), source_run(seed=2))).status
        == "clear leak"
    )


def test_leaks_found_only_by_the_test_have_an_unknown_size() -> None:
    record = with_sources(source_run(seed=1, right=11), source_run(seed=2, right=17))
    assert column(source_table(record), "Attack success rate") == ["△ 11.7%"]
    assert details(source_table(record), "Attack success rate")[0].startswith("size unknown")
    audit_verdict = summarise_verdict(record)
    assert "more seeds" in audit_verdict.meaning


def test_the_table_uses_the_significance_of_the_record() -> None:
    record = with_sources(source_run())
    quiet = [
        changed(estimate, tests=[estimates.Test(null=LABELS, significant=False)])
        if estimate.against == LABELS
        else estimate
        for estimate in record.estimates
    ]
    assert summarise_verdict(changed(record, estimates=quiet)).status == "above guessing"


def test_the_headline_gives_membership_before_sources() -> None:
    audit_verdict = summarise_verdict(with_sources(source_run(), membership=True))
    assert audit_verdict.status == "strong leak"
    first, second = audit_verdict.headline.split(". ")
    assert first == "Strong leakage: members can be distinguished from non-members"
    assert second == "Source inference shows a smaller leak than membership attacks"
    assert "which client a training sample is from?" in audit_verdict.audited


def test_the_second_of_two_leaks_of_one_size_does_not_repeat_the_size() -> None:
    strong = source_run(right=110)
    audit_verdict = summarise_verdict(with_sources(strong, membership=True))
    assert [status for _, status in audit_verdict.topics] == ["strong leak", "strong leak"]
    assert audit_verdict.headline == (
        "Strong leakage: members can be distinguished from non-members. Attacks identify the "
        "client of a sample far more often than knowing each client's mix of classes would allow"
    )


def test_the_verdict_is_at_least_as_severe_as_source_inference() -> None:
    quiet = with_sources(source_run(), membership=True, strengths=(0.02, 0.03, 0.0))
    audit_verdict = summarise_verdict(quiet)
    assert audit_verdict.status == "clear leak"
    first, second = audit_verdict.headline.split(". ")
    assert first.startswith("Clear source leakage")
    assert second.startswith("No leak of membership shown")


def test_a_failed_control_takes_precedence_over_source_leaks() -> None:
    audit_verdict = summarise_verdict(
        with_sources(source_run(), controls=(control("untrained model", passed=False),))
    )
    assert audit_verdict.status == "control failed"


def test_estimates_with_a_failed_control_are_marked_in_the_table() -> None:
    failed = clean_texts(
        with_sources(source_run(), controls=(control("untrained model", passed=False),))
    )
    for row in source_table(failed).rows:
        assert all("not relied on" in cell.detail for cell in row[1:])


def test_a_source_only_report_does_not_mention_membership() -> None:
    document = report_html(with_sources(source_run(), source_run("b", by_round=[]), controls=()))
    text = words(document)
    assert "<title>Source-inference audit: digits-fedavg-10</title>" in document
    assert "Source-inference audit of a federated-learning run" in text
    assert "find out which client a training sample is from?" in text
    assert "AUC" not in text.partition("Open questions for a privacy assessment")[0]
    assert 'id="attacks"' not in document


def test_a_report_on_both_topics_describes_both() -> None:
    text = words(report_html(with_sources(source_run(), membership=True)))
    assert "Membership-inference and source-inference audit of a federated-learning run" in text
    assert "whether a given sample was in the training data of" in text
    assert "which client a training sample is from?" in text


def test_a_membership_only_report_has_no_source_section() -> None:
    document = report_html(with_sources(membership=True))
    assert "Membership-inference audit:" in document
    assert 'id="sources"' not in document


EMPTY: dict[str, object] = {
    "by_round": [],
    "overfitting": [],
    "chained": [],
    "answers": [],
    "classes": [],
}


@pytest.mark.parametrize(
    "results",
    [
        (source_run(**EMPTY),),  # type: ignore[arg-type]
        (source_run(clients=2, right=20),),
        (source_run(clients=40, right=200), source_run("sia-mean", clients=40, right=480)),
        tuple(source_run(seed=seed) for seed in range(8)),
        (source_run(right=0, mixes=0.0), source_run("all", right=120, mixes=1.0)),
        (source_run(defense="dp-sgd"), source_run(), source_run(view="globals")),
        (source_run(), source_run(right=20, seed=2, clients=4, **EMPTY)),  # type: ignore[arg-type]
        (
            source_run(p_value=0.0, class_p_value=0.0),
            source_run(seed=2, p_value=0.0, class_p_value=1.0),
        ),
    ],
    ids=["empty", "two", "forty", "seeds", "none-and-all", "settings", "uneven", "zero"],
)
def test_every_report_is_complete(results: tuple[SourceEvaluation, ...]) -> None:
    record = with_sources(*results)
    for audit in (record, with_sources(*results, membership=True)):
        assert 'id="sources"' in report_html(audit)
        assert "Source inference" in printed(audit, width=100)
    assert "Source inference" in comparison_html(
        compare_records([record, record]), [record, record]
    )


def test_the_guarantee_is_printed_below_the_source_table() -> None:
    budget = estimate(metric="formal_epsilon", value=2.5, contrast="unseen", method="Renyi")
    record = with_sources(source_run())
    record = changed(record, estimates=[budget, *record.estimates])
    document = report_html(record)
    assert "2.500" in words(document)
    assert 'id="attacks"' not in document


def defended(right: int, seeds: tuple[int, ...] = (1,)) -> Record:
    found_ = [source_run(right=right + 3 * seed, seed=seed, defense="dp-sgd") for seed in seeds]
    budget = estimate(
        metric="formal_epsilon",
        defense="dp-sgd",
        value=1.9,
        contrast="unseen",
        method="Renyi accountant, delta 1e-05",
        note="unit: one sample",
    )
    a_round = changed(budget, metric="formal_epsilon_of_a_round", value=0.7)
    record = with_sources(*found_)
    return changed(
        record,
        name="defended",
        estimates=[
            budget,
            a_round,
            *record.where(topic="source"),
            *(
                estimate
                for seed in seeds
                for estimate in utility("dp-sgd", seed, 0.5 + 0.01 * seed)
            ),
        ],
    )


def test_compared_records_show_success_and_formal_epsilon() -> None:
    records = [with_sources(source_run(right=60)), defended(21)]
    table = must(source_comparison(compare_records(records)))
    assert column(table, "sia") == ["▲ 50.0%", "▷ 20.0%"]
    assert details(table, "sia")[1].split("\n")[-2] == "Δ −30.0 points *"
    epsilons = must(epsilon_comparison(compare_records(records), records))
    assert column(epsilons, "Formal ε, training") == ["1.900"]
    assert column(epsilons, "Formal ε, one round") == ["0.700"]
    assert "sees only the upload of that round" in epsilons.remark
    assert "unit: one sample" in epsilons.remark


def test_changes_are_paired_by_seed() -> None:
    seeds = (1, 2, 3)
    plain = with_sources(*(source_run(right=60 + 3 * seed, seed=seed) for seed in seeds))
    records = [plain, defended(30, (2, 3, 9))]
    table = must(source_comparison(compare_records(records)))
    assert details(table, "sia")[1].split("\n")[-2:] == [
        "Δ −25.0 points *",
        "(−33.7 to −15.7)",
    ]


def test_records_without_sources_have_no_source_comparison() -> None:
    records = [with_sources(membership=True), with_sources(membership=True)]
    assert source_comparison(compare_records(records)) is None
    mixed = [with_sources(membership=True), with_sources(source_run())]
    table = must(source_comparison(compare_records(mixed)))
    assert len(table.rows) == 1
