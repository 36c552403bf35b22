"""Suppression of single samples and small groups in packs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.pack.suppressing import suppress_small_groups, wrongly_suppressed
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.results.record import ClientRow, ControlResult, OtherClients, Record
from fedaudit.results.runs import ClassSuccess
from tests.gate.parts import auc, record_of, tpr
from tests.report.records import record, source, with_sources

FULL = record(strengths=(1.5, 1.0), seeds=(1,), defenses=(("none", 1.0),))


def reread(record: Record) -> Record:
    """Validate a record as if it was read from a file."""
    return Record.model_validate_json(record.model_dump_json())


def test_packs_remove_exposed_samples_and_histograms() -> None:
    packed, counts = suppress_small_groups(FULL)
    assert FULL.exposed
    assert FULL.histograms
    assert not packed.exposed
    assert not packed.histograms
    assert counts["exposed"] == len(FULL.exposed)
    assert packed.findings == FULL.findings
    assert packed.content_hash == FULL.content_hash


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
    packed, counts = suppress_small_groups(
        FULL.model_copy(update={"estimates": [*estimate, *rows]}), 10
    )
    assert [row.group for row in packed.groups] == ["100,100"]
    assert counts["groups"] == 2


def test_estimates_on_few_samples_lose_value_and_curve() -> None:
    few = auc(0.4, 0.9, n_members=9, attack="fedmia-1")
    curve = FULL.curves[0].model_copy(
        update={"attack": "fedmia-1", "contrast": "unseen", "seed": 1}
    )
    other = curve.model_copy(update={"attack": "fedmia-2"})
    packed, counts = suppress_small_groups(record_of(few, tpr(20), curves=[curve, other]))
    assert (packed.findings[0].value, packed.findings[0].high) == (None, None)
    assert packed.findings[0].note == "suppressed: fewer than 10 samples on a side"
    assert packed.findings[1] == tpr(20)
    assert packed.curves == [other]
    assert counts["findings"] == counts["curves"] == 1


def test_a_formal_epsilon_is_not_suppressed() -> None:
    settings = {"attack": "", "metric": "formal_epsilon", "value": 4.0, "low": None, "high": None}
    formal = auc(0.0, 1.0, **settings, n_members=0, n_nonmembers=0)
    assert suppress_small_groups(record_of(formal)).record.findings == [formal]


def test_small_classes_and_small_clients_are_suppressed() -> None:
    rows = [
        ClientRow(client=0, samples=100, audited=20, class_counts=[91, 9]),
        ClientRow(client=1, samples=100, audited=20, class_counts=[100, 0]),
        ClientRow(client=2, samples=9, audited=1, class_counts=[9, 0]),
    ]
    packed = suppress_small_groups(FULL.model_copy(update={"clients": rows})).record
    assert [(row.client, row.class_counts) for row in packed.clients] == [(0, []), (1, [100, 0])]


def test_small_counts_of_audited_samples_are_suppressed() -> None:
    rows = [
        ClientRow(client=n, samples=100, audited=audited, class_counts=[100])
        for n, audited in enumerate((0, 9, 10, 30))
    ]
    result = suppress_small_groups(FULL.model_copy(update={"clients": rows}), 10)
    # The total over clients is known, so a visible 10 would reveal the 9.
    assert [row.audited for row in result.record.clients] == [0, None, None, 30]
    assert suppress_small_groups(result.record, 10).record == result.record


def test_sample_aucs_of_few_people_are_suppressed() -> None:
    def on(unit: str, members: int, seed: int) -> Estimate:
        estimate = auc(0.4, 0.9, n_members=members, attack="rmia", seed=seed)
        return estimate.model_copy(update={"unit": unit})

    people, few = on("person", 40, 1), on("person", 9, 2)
    samples = [on("sample", 900, 1), on("sample", 500, 2)]
    packed = suppress_small_groups(record_of(people, few, *samples), 10).record
    assert packed.unit == "person"
    assert packed.findings[0] == people
    assert packed.findings[1].value is None
    assert packed.of_single_samples == samples[:1]
    assert reread(packed) == packed


def test_summaries_of_other_clients_follow_the_smallest_one() -> None:
    others = OtherClients(
        clients=40, samples=900, fewest=12, most=90, audited=0, class_counts=[891, 9]
    )
    large = FULL.model_copy(update={"other_clients": others})
    assert suppress_small_groups(large, 9).record.other_clients == others
    result = suppress_small_groups(large, 10)
    assert result.record.other_clients == others.model_copy(update={"class_counts": []})
    assert result.counts["clients"] == suppress_small_groups(FULL, 10).counts["clients"] + 1
    assert suppress_small_groups(large, 13).record.other_clients is None


def test_source_results_on_few_samples_are_suppressed() -> None:
    classes = [
        ClassSuccess(label=0, samples=9, right=1),
        ClassSuccess(label=1, samples=11, right=1),
        ClassSuccess(label=2, samples=100, right=1),
    ]
    sourced = with_sources(source("sia", classes=classes))
    packed = suppress_small_groups(sourced, 10).record
    # The totals over classes are known, so the class with 11 would reveal the one with 9.
    assert [row.label for row in packed.sources[0].classes] == [2]
    emptied = suppress_small_groups(sourced, 13).record  # 120 samples of 10 clients, 12 per client
    assert emptied.sources == []
    assert emptied.where(topic="source") == []
    assert reread(emptied) == emptied


@settings(max_examples=20)
@given(st.integers(0, 150))
def test_suppression_is_idempotent_and_gives_a_valid_record(smallest: int) -> None:
    sourced = with_sources(source("sia"))
    estimates = [*FULL.estimates, *sourced.where(topic="source")]
    full = FULL.model_copy(update={"sources": sourced.sources, "estimates": estimates})
    once = suppress_small_groups(full, smallest).record
    repeated = suppress_small_groups(once, smallest)
    assert repeated.record == once
    assert not any(repeated.counts.values())
    assert reread(once) == once


def test_restored_curves_of_suppressed_estimates_are_detected() -> None:
    few = auc(0.4, 0.9, n_members=9, attack="fedmia-1")
    curve = FULL.curves[0].model_copy(
        update={"attack": "fedmia-1", "contrast": "unseen", "seed": 1}
    )
    packed = suppress_small_groups(record_of(few, curves=[curve])).record
    assert (
        suppress_small_groups(packed.model_copy(update={"curves": [curve]})).counts["curves"] == 1
    )


def test_sizes_of_small_clients_are_removed_from_settings() -> None:
    config: dict[str, object] = {"name": "x", "recording": {"sizes": {"0": 100, "1": 9}}}
    packed = suppress_small_groups(FULL.model_copy(update={"config": config}), 10).record
    assert packed.config["recording"] == {"sizes": {"0": 100}}


def test_limits_that_reveal_a_suppressed_estimate_are_removed() -> None:
    further = Interval(low=0.5, high=0.9, method="t")
    few = auc(0.4, 0.9, n_members=9, seed=None)
    few = few.model_copy(update={"further": further, "labels_alone": 0.7})
    (estimate,) = suppress_small_groups(record_of(few), 10).record.findings
    assert (estimate.further, estimate.labels_alone, estimate.tests) == (None, None, [])


def test_estimates_that_reveal_a_suppressed_one_are_suppressed() -> None:
    sizes = {"unseen": 40, "other_client": 9, "mixed": 49}
    figures = [
        auc(0.4, 0.9, n_members=40, n_nonmembers=n, contrast=contrast, seed=seed)
        for contrast, n in sizes.items()
        for seed in (1, 2)
    ]
    packed = suppress_small_groups(record_of(*figures), 10).record
    assert {estimate.contrast for estimate in packed.findings if estimate.value is not None} == {
        "unseen"
    }
    assert wrongly_suppressed(packed, 10) == []
    blank = {"value": None, "low": None, "high": None, "note": packed.findings[-1].note}
    false = [estimate.model_copy(update=blank) for estimate in packed.findings]
    assert len(wrongly_suppressed(packed.model_copy(update={"estimates": false}), 10)) == 4


def test_means_over_a_suppressed_run_are_suppressed() -> None:
    runs = [auc(0.4, 0.9, n_members=n, seed=seed) for seed, n in ((1, 9), (2, 40), (None, 49))]
    packed = suppress_small_groups(record_of(*runs), 10).record
    assert [estimate.seed for estimate in packed.findings if estimate.value is not None] == [2]


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
    packed, counts = suppress_small_groups(record_of(few, controls=[about, other]))
    assert packed.controls == [
        about.model_copy(update={"value": None, "note": "suppressed: fewer than 10 samples"}),
        other,
    ]
    assert counts["controls"] == 1
    assert suppress_small_groups(packed).record == packed


def with_people(total: int | None, *people: int | None, samples: int = 100) -> Record:
    rows = [
        ClientRow(client=i, samples=samples, audited=50, class_counts=[samples], people=number)
        for i, number in enumerate(people)
    ]
    return FULL.model_copy(update={"clients": rows, "people": total})


def test_numbers_of_people_stay_if_none_is_small() -> None:
    packed, counts = suppress_small_groups(with_people(35, 10, 25))
    assert [row.people for row in packed.clients] == [10, 25]
    assert packed.people == 35
    assert counts["clients"] == 0


def test_a_small_number_of_people_is_hidden_with_the_total_that_reveals_it() -> None:
    packed, counts = suppress_small_groups(with_people(34, 9, 25))
    assert [row.people for row in packed.clients] == [None, 25]
    assert packed.people is None
    assert counts["clients"] == 2
    # The numbers of a packed record are not changed again.
    again, more = suppress_small_groups(packed)
    assert again.clients == packed.clients
    assert more["clients"] == 0


def test_a_total_of_people_does_not_reveal_a_client_without_a_row() -> None:
    record = with_people(28, 25, 3, samples=25)
    rows = [record.clients[0], record.clients[1].model_copy(update={"samples": 3})]
    packed, _ = suppress_small_groups(record.model_copy(update={"clients": rows}))
    assert [row.client for row in packed.clients] == [0]
    assert packed.people is None
