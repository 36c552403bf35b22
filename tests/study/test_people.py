"""Person-level audits in complete studies."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.core.metric_names import Origin
from fedaudit.evaluation.sample_scores import read_scores
from fedaudit.evaluation.truth import mean_by, target_truth
from fedaudit.plan.sections import Study
from fedaudit.report.deciding.caveats import independence
from fedaudit.report.page import report_html
from fedaudit.report.tables.membership import attack_tables
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.record import Record
from fedaudit.study.build import build_setup
from fedaudit.study.comparing import compare_records
from fedaudit.study.running.run import run_study
from fedaudit.summary.page import summary_markdown
from tests.study.studies import Carried, small_study

PEOPLE = {
    "name": "synthetic",
    "options": {"samples": 8000, "people": 240, "dimensions": 40, "classes": 10, "alike": 0.1},
}


def people_study(**changes: object) -> Study:
    """Members have some 27 samples each, which the last model barely leaks."""
    audit = {"unit": "person", "fair": 120, "view": "final"}
    values: dict[str, object] = {
        "data": PEOPLE,
        "partition": {"clients": 4, "samples_per_client": 1000},
        "model": {"name": "mlp", "options": {"hidden": "200"}},
        "training": {"rounds": 20, "epochs": 8, "batch_size": 32, "lr": 0.2},
        "attacks": {"blackbox-loss": {}},
        "figures": {"permutations": 40, "blind_classifier": True},
    }
    audit_settings = changes.pop("audit", {})
    assert isinstance(audit_settings, dict)
    return small_study(**{**values, "audit": {**audit, **audit_settings}, **changes})


def brief_study(*, rounds: int = 3, epochs: int = 8) -> Study:
    """Return a faster study, with fewer random draws, for tests that only need a leak."""
    return people_study(
        training={"rounds": rounds, "epochs": epochs},
        figures={"permutations": 20, "blind_classifier": False},
    )


def sample_study() -> Study:
    return people_study(
        training={"rounds": 1, "epochs": 1},
        figures={"permutations": 20, "blind_classifier": False},
        audit={"unit": "sample", "fair": 300},
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    folder = tmp_path_factory.mktemp("people")
    return Carried(run_study(brief_study(), folder), folder)


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, list[str]]:
    """The same data, audited sample by sample; and what was logged."""
    lines = list[str]()
    record = run_study(sample_study(), tmp_path_factory.mktemp("samples"), log=lines.append)
    return record, lines


def test_sample_intervals_with_known_people_state_that_they_ignore_them(
    one_by_one: tuple[Record, list[str]],
) -> None:
    record, lines = one_by_one
    limited = [f for f in record.findings if f.attack and f.high is not None]
    assert limited
    assert all(f.method.endswith(", people ignored") for f in limited)
    assert all(f.method.endswith(", people ignored") for f in record.groups if f.high is not None)
    # A bound on epsilon rests on a coin for each sample, however alike samples are.
    assert not any("people" in f.method for f in record.findings if f.metric == "epsilon")
    assert any("audit people instead" in line for line in lines)


def test_a_record_has_the_number_of_people_in_the_clients_data(
    one_by_one: tuple[Record, list[str]],
) -> None:
    record, _ = one_by_one
    run = build_setup(sample_study(), 1, None)
    assert run.dataset.person is not None
    people = {
        client: {*run.dataset.person[samples.ids].tolist()}
        for client, samples in run.assignment.clients.items()
    }
    assert [row.people for row in record.clients] == [len(p) for p in people.values()]
    assert record.people == len(set().union(*people.values()))
    summary = summary_markdown(record)
    assert f"{record.people} in the clients’ data" in summary
    assert "People" in report_html(record)


def test_a_report_advises_a_person_audit_if_people_are_known(
    one_by_one: tuple[Record, list[str]],
) -> None:
    record, _ = one_by_one
    advice_text = 'audit people (audit.unit = "person")'
    assert advice_text in summarise_verdict(record).headline
    first, *others = attack_tables(record)
    assert "DeLong 95%, people ignored" in first.remark
    assert advice_text in first.remark
    assert not any(advice_text in other.remark for other in others)


def test_person_audits_have_no_independence_note(finished: Carried) -> None:
    assert independence(finished.record) == ""
    assert not any("people ignored" in f.method for f in finished.record.estimates)


def auc(record: Record, unit: str) -> tuple[float, float, float]:
    estimates = record.findings if unit == "person" else record.of_single_samples
    (estimate,) = [
        f for f in estimates if (f.metric, f.contrast, f.unit) == ("auc", "unseen", unit)
    ]
    assert estimate.value is not None and estimate.low is not None and estimate.high is not None  # noqa: PT018
    return estimate.value, estimate.low, estimate.high


@pytest.mark.slow
def test_people_can_leak_if_single_samples_do_not(tmp_path: Path) -> None:
    record = run_study(people_study(), tmp_path)
    assert record.unit == "person"
    person, sample = auc(record, "person"), auc(record, "sample")
    assert sample[0] < 0.6 < 0.75 < person[0]
    assert sample[2] < person[1]
    assert all(control.passed is not False for control in record.controls)


@pytest.mark.slow
def test_person_audits_give_person_estimates_and_a_sample_auc(
    finished: Carried,
) -> None:
    record = finished.record
    assert {f.unit for f in record.findings if f.attack} == {"person"}
    assert {(f.metric, f.unit) for f in record.of_single_samples} == {("auc", "sample")}
    assert all("people" in f.method and not f.tests for f in record.of_single_samples)
    assert all(f.n_members < 70 for f in record.findings if f.attack)
    assert {exposed.unit for exposed in record.exposed} == {"person"}
    (epsilon,) = [f for f in record.findings if f.metric == "epsilon"]
    assert epsilon.unit == "person"


def test_person_scores_average_all_samples(finished: Carried) -> None:
    run = build_setup(brief_study(), 1, None)
    truth = target_truth(run, 0)
    scores_of_run = read_scores(finished.folder / "scores.safetensors")[1, 0]
    audit = run.assignment.audit
    assert audit.person is not None
    assert scores_of_run.ids.tolist() == sorted(set(audit.person.tolist()))
    for person, origin in zip(scores_of_run.ids, scores_of_run.origin, strict=True):
        owners = set(audit.owner[audit.person == person].tolist())
        expected = Origin.MEMBER if 0 in owners else Origin.UNSEEN
        assert origin == (Origin.OTHER_CLIENT if owners & {1, 2, 3} else expected)
    scores = np.arange(len(truth.positions), dtype=np.float64)
    scores[3] = np.inf
    person_scores = truth.unit_scores(scores)
    finite = np.where(np.isinf(scores), scores[np.isfinite(scores)].max(), scores)
    by_hand = [finite[audit.person == person].mean() for person in scores_of_run.ids]
    assert person_scores == pytest.approx(np.array(by_hand))


def test_mean_by_averages_rows_per_person() -> None:
    values = np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 0.0]])
    assert mean_by(np.array([7, 2, 7]), values).tolist() == [[3.0, 30.0], [3.0, 5.0]]


def test_report_and_terminal_describe_people(finished: Carried) -> None:
    summary, page = summarise_verdict(finished.record), report_html(finished.record)
    assert "people whose data were trained on can be distinguished from others" in summary.headline
    assert "whether a given person's data were in the training data" in summary.audited
    assert "Single samples of these people" in page
    assert "Most exposed people" in page
    assert ">Person<" in page


def test_null_members_label_half_of_the_held_out_people() -> None:
    study = people_study(figures={"null_members": True, "permutations": 20})
    truth = target_truth(build_setup(study, 1, None), 0)
    units = truth.units
    assert set(units.origin) == {Origin.MEMBER, Origin.UNSEEN}
    assert abs(int(units.is_member.sum()) - len(units.ids) / 2) <= 1
    assert truth.person is not None
    for person, origin in zip(units.ids, units.origin, strict=True):
        assert set(truth.origin[truth.person == person]) == {origin}


def test_online_references_contain_each_person_in_half() -> None:
    study = people_study(
        attacks={"rmia": {}}, references={"count": 4, "online": True},
        partition={"clients": 4, "samples_per_client": 300}, audit={"fair": 40},
    )  # fmt: skip
    run = build_setup(study, 1, None)
    audit = run.assignment.audit
    assert audit.person is not None
    has = np.array(
        [federation.assignment.audit.owner >= 0 for federation in run.additional_federations]
    )
    assert (has.sum(0) == 2).all()
    for person in set(audit.person.tolist()):
        assert len(np.unique(has[:, audit.person == person], axis=1).T) == 1


def test_estimates_of_a_target_use_only_its_people() -> None:
    study = people_study(audit={"targets": [0, 2], "fair": 40})
    run = build_setup(study, 1, None)
    for target in (0, 2):
        truth = target_truth(run, target)
        assert len(truth.units.ids) == 40
        assert truth.fair.all()


def test_people_at_several_clients_count_as_members_of_the_target(
    tmp_path: Path,
) -> None:
    study = people_study(audit={"clients_per_person": 2, "fair": 90}, name="visits")
    run = build_setup(study, 1, None)
    units = target_truth(run, 0).units
    audit = run.assignment.audit
    assert audit.person is not None
    for person, origin in zip(units.ids, units.origin, strict=True):
        owners = set(audit.owner[audit.person == person].tolist())
        assert (0 in owners) == (origin == Origin.MEMBER)
        assert len(owners) == (1 if origin == Origin.UNSEEN else 2)


@pytest.mark.parametrize(
    ("audit", "message"),
    [
        ({"draw": "fedmia_paper"}, 'needs the draw "fair"'),
        ({"unit": "sample", "clients_per_person": 2}, "clients_per_person is 2"),
        ({"unit": "household"}, "unit"),
        ({"people": 10}, "the same setting"),
    ],
)
def test_contradictory_settings_of_people_are_refused(
    audit: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        people_study(audit=audit)


@pytest.mark.slow
def test_two_runs_of_people_with_one_seed_are_the_same(tmp_path: Path) -> None:
    study = brief_study(rounds=2, epochs=1)
    first, second = (run_study(study, tmp_path / name) for name in ("one", "two"))
    assert first.content_hash == second.content_hash
    assert torch.equal(*(torch.tensor(auc(record, "person")) for record in (first, second)))


def test_source_inference_raises_for_people() -> None:
    with pytest.raises(NotVisible, match="infers the source of single samples"):
        build_setup(people_study(attacks={"sia": {}}, audit={"view": "uploads"}), 1, None)
    run = build_setup(
        people_study(attacks={}, attack_set="2026-1", audit={"view": "uploads"}), 1, None
    )
    assert not run.source_attacks
    assert "single samples" in run.refused["sia"]


def test_a_person_is_drawn_fairly_only_if_all_samples_are() -> None:
    study = people_study(
        audit={"view": "uploads", "merge": [0, 1], "clients_per_person": 2, "fair": 90}
    )
    truth = target_truth(build_setup(study, 1, None), 0)
    assert truth.person is not None
    for person, fair in zip(truth.units.ids, truth.units.fair, strict=True):
        assert fair == truth.fair[truth.person == person].all()


def test_people_of_a_malicious_client_are_left_out_with_all_samples() -> None:
    study = people_study(
        audit={"view": "globals", "clients_per_person": 2, "fair": 90},
        attacker={"kind": "mislabel", "client": 3, "first": 3},
        attacks={"recovery": {}},
    )
    run = build_setup(study, 1, None)
    truth, audit = target_truth(run, 0), run.assignment.audit
    assert truth.person is not None
    assert audit.person is not None
    theirs = set(audit.person[audit.owner == 3].tolist())
    assert theirs
    assert set(truth.person.tolist()) == set(audit.person.tolist()) - theirs


def test_people_and_samples_are_not_compared(finished: Carried) -> None:
    record = finished.record
    samples = record.model_copy(
        update={
            "estimates": [
                estimate.model_copy(update={"unit": "sample"})
                for estimate in record.findings
                if estimate.unit == "person"
            ]
        }
    )
    with pytest.raises(BadInput, match="audit people and others single samples"):
        compare_records([record, samples])
