"""Suppression of single samples and small groups in packs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.pack.suppressing import suppressed, wrongly_suppressed
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.results.record import ClientRow, ControlResult, OtherClients, Record
from fedaudit.results.runs import ClassSuccess
from tests.gate.parts import auc, record_of, tpr
from tests.report.records import record, source, with_sources

FULL = record(strengths=(1.5, 1.0), seeds=(1,), defenses=(("none", 1.0),))


def reread(record: Record) -> Record:
    """As it is read from a file, with all that a record must hold to."""
    return Record.model_validate_json(record.model_dump_json())


def test_packs_remove_exposed_samples_and_histograms() -> None:
    given, counts = suppressed(FULL)
    assert FULL.exposed
    assert FULL.histograms
    assert not given.exposed
    assert not given.histograms
    assert counts["exposed"] == len(FULL.exposed)
    assert given.findings == FULL.findings
    assert given.content_hash == FULL.content_hash


def test_groups_below_the_minimum_size_are_suppressed() -> None:
    sizes = [(9, 100), (100, 9), (100, 100)]
    estimate = [
        estimate.model_copy(update={"n_members": 209, "n_nonmembers": 209})
        for estimate in FULL.estimates
        if not estimate.by
    ]
    first = FULL.groups[0].model_copy(update={"by": "class", "contrast": "mixed"})
    rows = [
        first.model_copy(update={"n_members": n, "n_nonmembers": m, "group": f"{n},{m}"})
        for n, m in sizes
    ]
    given, counts = suppressed(FULL.model_copy(update={"estimates": [*estimate, *rows]}), 10)
    assert [row.group for row in given.groups] == ["100,100"]
    assert counts["groups"] == 2


def test_estimates_on_few_samples_lose_value_and_curve() -> None:
    few = auc(0.4, 0.9, n_members=9, attack="fedmia-1")
    curve = FULL.curves[0].model_copy(
        update={"attack": "fedmia-1", "contrast": "unseen", "seed": 1}
    )
    other = curve.model_copy(update={"attack": "fedmia-2"})
    given, counts = suppressed(record_of(few, tpr(20), curves=[curve, other]))
    assert (given.findings[0].value, given.findings[0].high) == (None, None)
    assert given.findings[0].note == "suppressed: fewer than 10 samples on a side"
    assert given.findings[1] == tpr(20)
    assert given.curves == [other]
    assert counts["findings"] == counts["curves"] == 1


def test_a_formal_epsilon_is_not_suppressed() -> None:
    settings = {"attack": "", "metric": "formal_epsilon", "value": 4.0, "low": None, "high": None}
    formal = auc(0.0, 1.0, **settings, n_members=0, n_nonmembers=0)
    assert suppressed(record_of(formal)).record.findings == [formal]


def test_small_classes_and_small_clients_are_suppressed() -> None:
    rows = [
        ClientRow(client=0, samples=100, audited=20, class_counts=[91, 9]),
        ClientRow(client=1, samples=100, audited=20, class_counts=[100, 0]),
        ClientRow(client=2, samples=9, audited=1, class_counts=[9, 0]),
    ]
    given = suppressed(FULL.model_copy(update={"clients": rows})).record
    assert [(row.client, row.class_counts) for row in given.clients] == [(0, []), (1, [100, 0])]


def test_small_counts_of_audited_samples_are_suppressed() -> None:
    rows = [
        ClientRow(client=n, samples=100, audited=audited, class_counts=[100])
        for n, audited in enumerate((0, 9, 10, 30))
    ]
    given = suppressed(FULL.model_copy(update={"clients": rows}), 10)
    # The client with 10 too: the number over all clients is known, and 9 would follow from it.
    assert [row.audited for row in given.record.clients] == [0, None, None, 30]
    assert suppressed(given.record, 10).record == given.record


def test_sample_aucs_of_few_people_are_suppressed() -> None:
    def on(unit: str, members: int, seed: int) -> Estimate:
        given = auc(0.4, 0.9, n_members=members, attack="rmia", seed=seed)
        return given.model_copy(update={"unit": unit})

    people, few = on("person", 40, 1), on("person", 9, 2)
    samples = [on("sample", 900, 1), on("sample", 500, 2)]
    given = suppressed(record_of(people, few, *samples), 10).record
    assert given.unit == "person"
    assert given.findings[0] == people
    assert given.findings[1].value is None
    assert given.of_single_samples == samples[:1]
    assert reread(given) == given


def test_summaries_of_other_clients_follow_the_smallest_one() -> None:
    others = OtherClients(
        clients=40, samples=900, fewest=12, most=90, audited=0, class_counts=[891, 9]
    )
    large = FULL.model_copy(update={"other_clients": others})
    assert suppressed(large, 9).record.other_clients == others
    given = suppressed(large, 10)
    assert given.record.other_clients == others.model_copy(update={"class_counts": []})
    assert given.counts["clients"] == suppressed(FULL, 10).counts["clients"] + 1
    assert suppressed(large, 13).record.other_clients is None


def test_source_results_on_few_samples_are_suppressed() -> None:
    classes = [
        ClassSuccess(label=0, samples=9, right=1),
        ClassSuccess(label=1, samples=11, right=1),
        ClassSuccess(label=2, samples=100, right=1),
    ]
    one = with_sources(source("sia", classes=classes))
    given = suppressed(one, 10).record
    # The class of 11 too: samples and answers over all classes are known.
    assert [row.label for row in given.sources[0].classes] == [2]
    none = suppressed(one, 13).record  # 120 samples of 10 clients are 12 of each
    assert none.sources == []
    assert none.where(topic="source") == []
    assert reread(none) == none


@settings(max_examples=20)
@given(st.integers(0, 150))
def test_suppression_is_idempotent_and_gives_a_valid_record(smallest: int) -> None:
    one = with_sources(source("sia"))
    estimates = [*FULL.estimates, *one.where(topic="source")]
    whole = FULL.model_copy(update={"sources": one.sources, "estimates": estimates})
    once = suppressed(whole, smallest).record
    again = suppressed(once, smallest)
    assert again.record == once
    assert not any(again.counts.values())
    assert reread(once) == once


def test_restored_curves_of_suppressed_estimates_are_detected() -> None:
    few = auc(0.4, 0.9, n_members=9, attack="fedmia-1")
    curve = FULL.curves[0].model_copy(
        update={"attack": "fedmia-1", "contrast": "unseen", "seed": 1}
    )
    given = suppressed(record_of(few, curves=[curve])).record
    assert suppressed(given.model_copy(update={"curves": [curve]})).counts["curves"] == 1


def test_sizes_of_small_clients_are_removed_from_settings() -> None:
    config: dict[str, object] = {"name": "x", "recording": {"sizes": {"0": 100, "1": 9}}}
    given = suppressed(FULL.model_copy(update={"config": config}), 10).record
    assert given.config["recording"] == {"sizes": {"0": 100}}


def test_limits_that_reveal_a_suppressed_estimate_are_removed() -> None:
    further = Interval(low=0.5, high=0.9, method="t")
    few = auc(0.4, 0.9, n_members=9, seed=None)
    few = few.model_copy(update={"further": further, "labels_alone": 0.7})
    (given,) = suppressed(record_of(few), 10).record.findings
    assert (given.further, given.labels_alone, given.tests) == (None, None, [])


def test_estimates_that_reveal_a_suppressed_one_are_suppressed() -> None:
    sizes = {"unseen": 40, "other_client": 9, "mixed": 49}
    figures = [
        auc(0.4, 0.9, n_members=40, n_nonmembers=n, contrast=contrast, seed=seed)
        for contrast, n in sizes.items()
        for seed in (1, 2)
    ]
    given = suppressed(record_of(*figures), 10).record
    assert {estimate.contrast for estimate in given.findings if estimate.value is not None} == {
        "unseen"
    }
    assert wrongly_suppressed(given, 10) == []
    blank = {"value": None, "low": None, "high": None, "note": given.findings[-1].note}
    false = [estimate.model_copy(update=blank) for estimate in given.findings]
    assert len(wrongly_suppressed(given.model_copy(update={"estimates": false}), 10)) == 4


def test_means_over_a_suppressed_run_are_suppressed() -> None:
    runs = [auc(0.4, 0.9, n_members=n, seed=seed) for seed, n in ((1, 9), (2, 40), (None, 49))]
    given = suppressed(record_of(*runs), 10).record
    assert [estimate.seed for estimate in given.findings if estimate.value is not None] == [2]


def test_controls_on_small_clients_keep_only_their_outcome() -> None:
    few = auc(0.4, 0.9, n_members=9)
    about = ControlResult(
        control="reported training metrics",
        target=few.target,
        seed=few.seed,
        defense=few.defense,
        expected="0.5",
        value=0.88,
        passed=False,
        note="measured 0.88 on 9 audited members",
    )
    other = about.model_copy(update={"target": (few.target or 0) + 1})
    given, counts = suppressed(record_of(few, controls=[about, other]))
    assert given.controls == [
        about.model_copy(update={"value": None, "note": "suppressed: fewer than 10 samples"}),
        other,
    ]
    assert counts["controls"] == 1
    assert suppressed(given).record == given
