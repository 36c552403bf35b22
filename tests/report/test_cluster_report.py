"""Reports on clustered learning."""

import pytest

from fedaudit.formatting.grid import Grid
from fedaudit.report.clusters import cluster_sentence, cluster_table, clusterings
from fedaudit.report.comparison.tables import cluster_comparison
from fedaudit.report.page import report_html
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.record import Record
from fedaudit.results.runs import ClusterResult, ClusterRound, ModelState
from fedaudit.study.comparing import compare_records
from tests.estimates import changed
from tests.report.clustered import clustered, over_runs, with_clusters
from tests.report.records import source, with_sources
from tests.report.seen import must, printed, tiles, words

ONE = clustered()
SEEDS = tuple(clustered(seed=seed) for seed in (1, 2, 3))
SMALL = clustered(clients=20, minority=4, rounds=3)


def row(grid: Grid, name: str) -> list[str]:
    (row_found,) = [row_ for row_ in grid.rows if row_[0].text == name]
    return [cell.text for cell in row_found[1:]]


def tiny(*choices: list[int], **changes: object) -> ClusterResult:
    """Six clients, the last two the minority; risks 0.52 and 0.7."""
    rounds = [
        ClusterRound(
            round=i + 1,
            choice=choice,
            models=[
                ModelState(
                    clients=choice.count(model),
                    risk=risk,
                    low=risk - 0.03,
                    high=risk + 0.03,
                    estimated=risk,
                )
                for model, risk in enumerate((0.52, 0.7))
            ],
        )
        for i, choice in enumerate(choices)
    ]
    fields: dict[str, object] = {
        "clients": list(range(6)),
        "group": [0, 0, 0, 0, 1, 1],
        "thresholds": [0.51, 0.6, 0.7, 0.8, 0.68, 0.75],
        "rounds": rounds,
        **changes,
    }
    return changed(SMALL, **fields)


def with_models(*models: ModelState) -> Record:
    """The same after one round, in which each group has its model."""
    state = ClusterRound(round=1, choice=[0, 0, 0, 0, 1, 1], models=list(models))
    return with_clusters(tiny(rounds=[state]))


def test_the_verdict_starts_with_clients_of_risky_models() -> None:
    record = with_clusters(tiny([0, 0, 0, 0, 1, 1]))
    audit_verdict = summarise_verdict(record)
    front, uses = audit_verdict.headline.split(": ")
    assert front == "Strong leakage from the riskiest model"
    assert uses == "2 of 6 clients use a model riskier than they accept"
    grid = cluster_table(record)
    assert row(grid, "Violations") == ["2", "1", "1"]


def test_means_over_seeds_are_labelled() -> None:
    record = with_clusters(*SEEDS)
    assert summarise_verdict(record).headline.split(": ")[1].startswith("on average ")


def test_the_status_follows_from_the_riskiest_models_lower_limit() -> None:
    assert summarise_verdict(with_clusters(tiny([0, 0, 0, 0, 1, 1]))).status == "strong leak"
    safe = ModelState(clients=3, risk=0.5, low=0.47, high=0.53, estimated=0.5)
    assert summarise_verdict(with_models(safe, safe)).status == "no leak shown"
    wide = changed(safe, low=0.3, high=0.7)
    assert summarise_verdict(with_models(wide, wide)).status == "inconclusive"


def test_one_report_can_cover_membership_sources_and_clusters() -> None:
    record = with_sources(source(), membership=True)
    record = changed(record, clusters=[ONE], estimates=[*record.estimates, *over_runs(ONE)])
    assert "Membership-inference, source-inference and cluster audit" in words(report_html(record))
    text = summarise_verdict(record)
    assert "use a model riskier than they accept" in text.headline
    assert "How much does each of the federation's models reveal" in text.audited


def test_the_table_shows_the_servers_estimate_below_the_risk() -> None:
    record = with_models(
        ModelState(clients=4, risk=0.52, low=0.5, high=0.54, estimated=0.53),
        ModelState(clients=2, risk=0.7, low=0.68, high=0.72, estimated=0.6),
    )
    grid = cluster_table(record)
    assert row(grid, "Risk of the group’s model") == ["–", "52.0%", "70.0%"]
    assert row(grid, "Estimated risk of the group’s model") == ["–", "53.0%", "60.0%"]


def test_scaled_down_shadows_are_noted() -> None:
    record = with_models(
        ModelState(clients=4, risk=0.52, estimated=0.5, samples=42_500, shadow_samples=5_000),
        ModelState(clients=2, risk=0.7, estimated=0.71, samples=400, shadow_samples=400),
    )
    text = words(report_html(record))
    assert "trained on 5,000 instead of 42,500 samples, and small training sets overstate" in text


def test_violations_are_shown_with_the_number_expected_by_chance() -> None:
    model = ModelState(clients=3, risk=0.5, low=0.4, high=0.6, members=1, others=1)
    record = with_models(model, model)
    # A quarter of six clients.
    assert (
        summarise_verdict(record).headline
        == "0 of 6 clients (1.5 by chance) use a model riskier than they accept"
    )


def test_without_server_estimates_the_report_notes_missing_warnings() -> None:
    model = ModelState(clients=3, risk=0.6, low=0.5, high=0.7)
    assert "it could not have warned any client" in words(report_html(with_models(model, model)))


def test_the_table_has_all_clients_and_groups() -> None:
    grid = cluster_table(with_clusters(tiny([0, 0, 0, 0, 1, 1])))
    assert [column.text for column in grid.columns] == [
        "Figure",
        "Everybody",
        "Majority",
        "Minority",
    ]
    assert row(grid, "Risk of the group’s model") == ["–", "52.0%", "70.0%"]
    assert row(grid, "Violations") == ["2", "1", "1"]
    assert row(grid, "Clients with the group’s model") == ["–", "4", "2"]


def test_tiles_have_violations_and_the_riskiest_model() -> None:
    by_label = {tile.label: tile for tile in tiles(with_clusters(tiny([0, 0, 0, 0, 1, 1])))}
    assert by_label["Violations"].value == "2"
    assert by_label["Riskiest model"].value == "70.0%"
    assert "a strong leak" in by_label["Riskiest model"].detail


UNKNOWN = [ModelState(clients=3), ModelState(clients=3)]
EMPTY = [
    ModelState(clients=6, risk=0.5, low=0.4, high=0.6, loss=1e9, accuracy=0.0),
    ModelState(clients=0),
]


@pytest.mark.parametrize(
    "results",
    [
        (clustered(clients=12, minority=0),),
        (clustered(clients=30, minority=10, models=5),),
        (clustered(clients=12, minority=6, rounds=1),),
        tuple(clustered(clients=20, minority=5, rounds=2, seed=seed) for seed in range(4)),
        (tiny(rounds=[ClusterRound(round=3, choice=[0] * 6, models=EMPTY)] * 2),),
        (tiny(rounds=[ClusterRound(round=3, choice=[0, 1] * 3, models=UNKNOWN)]),),
        (SMALL, clustered("ifca", clients=20, minority=4)),
        (changed(SMALL, defense="dp-sgd"), SMALL),
        (tiny([0] * 6, [1] * 6, [0] * 6), tiny([1] * 6, seed=2)),
    ],
    ids=["one-group", "five", "one-round", "seeds", "empty", "unknown", "two", "defense", "all"],
)
def test_every_report_is_complete(results: tuple[ClusterResult, ...]) -> None:
    record = with_clusters(*results)
    assert 'id="clusters"' in report_html(record)
    assert "controls" in printed(record, width=100).lower()
    assert cluster_comparison(compare_records([record, record]))


def both(seeds: tuple[int, ...] = (1, 2, 3)) -> list[Record]:
    return [
        with_clusters(*(clustered(name, seed=seed) for seed in seeds), name=name)
        for name in ("ifca", "ifca-mir")
    ]


def test_a_comparison_has_the_metrics_of_the_paper_with_paired_changes() -> None:
    records = both()
    grid = must(cluster_comparison(compare_records(records)))
    assert [column.text for column in grid.columns[1:]] == ["ifca", "ifca-mir"]
    names = {row[0].text for row in grid.rows}
    assert {"Accuracy", "Violations", "Agreement of models and groups"} < names
    assert {"Demographic parity", "Equal opportunity", "Equalised odds"} < names
    (row,) = [
        row_ for row_ in grid.rows if (row_[0].text, row_[0].detail) == ("Violations", "Everybody")
    ]
    coordinates = {"topic": "clusters", "metric": "violations", "group": "everybody"}
    plain, mir = (
        [estimate.number for estimate in record.where(**coordinates) if estimate.seed is not None]
        for record in records
    )
    change = sum(b - a for a, b in zip(plain, mir, strict=True)) / 3
    assert row[2].detail.split("\n")[0].startswith(f"Δ −{abs(change):.1f}")
    assert "over these 3 runs" in grid.remark
    assert "an interval over further runs needs 5 seeds, got 3" in grid.remark


def test_records_without_clusters_have_no_cluster_tables() -> None:
    plain = with_clusters(membership=True)
    assert clusterings(plain) == ()
    assert 'id="clusters"' not in report_html(plain)
    assert cluster_comparison(compare_records([plain, plain])) is None


def test_one_seed_gives_changes_without_intervals() -> None:
    grid = must(cluster_comparison(compare_records(both((1,)))))
    assert "one seed" in grid.remark


def test_clients_that_never_participated_are_excluded_with_a_note() -> None:
    late_client = tiny([0, 0, 0, 0, 1, 0], joined=[1, 1, 1, 1, 1, None])
    assert "1 of 6 clients took part in no round" in cluster_sentence(with_clusters(late_client))
    assert "took part" not in cluster_sentence(with_clusters(ONE))
