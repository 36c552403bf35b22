"""Studies of clustered learning and their records."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

from fedaudit.core.errors import BadInput, Damaged, FedauditError, NotVisible, Unsupported
from fedaudit.core.seeds import seed_for
from fedaudit.evaluation.clusters import (
    CLUSTER_ROUND_KEY,
    FINAL_ROUND_KEY,
    cluster_notes,
    cluster_result,
    thresholds,
)
from fedaudit.fl.algorithms.base import Cluster, draw_cohort
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.ifca_mir import IfcaMir
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.measurements import MeasuredRound, StoredRound
from fedaudit.observe.round import Round
from fedaudit.plan.algorithm import shadow_cost
from fedaudit.plan.parts import Setup
from fedaudit.plan.sections import RiskSection, Study
from fedaudit.results.record import Record
from fedaudit.results.runs import ClusterResult, ClusterRound
from fedaudit.risk.catalog import resolve_measure
from fedaudit.risk.server import ServerRisk, shadow_sizes
from fedaudit.study.build import build_setup, raise_if_misfits
from fedaudit.study.running.run import run_study
from tests.study.studies import small_study

CLIENTS = 6
IFCA = {"name": "ifca"}


def clustered(**changes: object) -> Study:
    settings: dict[str, object] = {
        "partition": {"clients": CLIENTS, "samples_per_client": 60},
        "shift": {
            "kind": "rotation",
            "minority": 0.34,
            "minority_range": (0.0, 10.0),
            "majority_range": (80.0, 90.0),
        },
        "algorithm": {"name": "ifca-mir", "options": {"every": 2}},
        "risk": {"shadows": 2, "samples": 200},
        "training": {"rounds": 4, "lr": 0.2, "batch_size": 10},
        "audit": {"fair": 60, "every": 2},
        "attacks": {"blackbox-loss": {}},
    }
    return small_study(**settings | changes)


@pytest.mark.slow
def test_a_study_counts_rounds_in_which_risk_decided() -> None:
    counts = [row.rounds_decided_by_risk for row in cluster_record().usage]
    assert counts
    assert all(count is not None and 0 <= count <= 4 for count in counts)


@cache
def cluster_record() -> Record:
    with TemporaryDirectory() as folder:
        return run_study(clustered(), Path(folder))


@cache
def trained_clusters() -> tuple[Setup, tuple[Round, ...]]:
    """The same run by hand."""
    run = build_setup(clustered(), 1, None)
    seed = seed_for(1, "federation")
    return run, tuple(simulate(run.algorithm, run.assignment.clients, rounds=4, seed=seed))


def result() -> ClusterResult:
    (cluster,) = cluster_record().clusters
    return cluster


def number(metric: str) -> float:
    (estimate,) = cluster_record().where(topic="clusters", metric=metric, group="everybody", seed=1)
    return estimate.number


def noted(notes: dict[str, str]) -> StoredRound:
    """A measured round of which nothing but the notes is of interest."""
    return StoredRound(
        MeasuredRound(index=4, clients=(), bases=torch.zeros(0).long(), signals={}), notes
    )


def risk_of(run: Setup) -> ServerRisk:
    """The server's measure."""
    assert isinstance(run.algorithm, IfcaMir)
    assert isinstance(run.algorithm.risk, ServerRisk)
    return run.algorithm.risk


def by_updates(run: Setup) -> IfcaMir:
    """The run's algorithm with a measure of risk that looks at updates."""
    assert isinstance(run.algorithm, IfcaMir)
    return replace(
        run.algorithm, risk=replace(risk_of(run), measure=resolve_measure("grad-cosine"))
    )


def predictions(run: Setup, round: Round) -> np.ndarray:
    """Of each test sample, by the model that the client chose whose sample it is like."""
    place = run.groups.similar_client[run.dataset.test.ids.numpy()]
    expected = [
        int(round.after[round.chosen[int(client)]].module()(x[None]).argmax())
        for client, x in zip(place, run.dataset.test.features, strict=True)
    ]
    return np.array(expected)


@pytest.mark.slow
def test_the_record_lists_model_choices_of_measured_rounds() -> None:
    _, rounds = trained_clusters()
    assert [round_.round for round_ in result().rounds] == [2, 4]
    for round_ in result().rounds:
        chosen = rounds[round_.round - 1].chosen
        assert [f"model-{choice}" for choice in round_.choice] == [
            chosen[c] for c in range(CLIENTS)
        ]
        assert [model.clients for model in round_.models] == [
            round_.choice.count(number) for number in range(2)
        ]


@pytest.mark.slow
def test_clients_receive_the_risks_that_the_server_measured() -> None:
    run, rounds = trained_clusters()
    assert isinstance(run.algorithm, IfcaMir)
    assert [model.told for model in result().rounds[0].models] == [0.5, 0.5]
    sent_risks = rounds[2].sent[0].extra["risk"].tolist()
    assert [model.told for model in result().rounds[1].models] == sent_risks
    untrained = set(rounds[1].after) - set(rounds[1].chosen.values())
    assert all(sent_risks[list(rounds[1].after).index(name)] == 0.5 for name in untrained)


def test_accuracy_is_of_each_groups_samples_by_its_clients_models() -> None:
    run, rounds = trained_clusters()
    right = predictions(run, rounds[-1]) == run.dataset.test.labels.numpy()
    place = run.groups.similar_client[run.dataset.test.ids.numpy()]
    minority = place < 2
    expected = {"majority": right[~minority], "minority": right[minority], "everybody": right}
    accuracies = cluster_record().where(topic="clusters", metric="accuracy", seed=1)
    assert {
        estimate.group: round(estimate.number * estimate.samples) for estimate in accuracies
    } == {name: int(part.sum()) for name, part in expected.items()}
    (test,) = cluster_record().where(metric="test_accuracy")
    assert test.value == pytest.approx(right.mean())


def test_violations_are_clients_with_more_risk_than_they_accept() -> None:
    last, accepted = result().rounds[-1], result().thresholds
    risks = [last.models[choice].risk for choice in last.choice]
    assert number("violations") == sum(
        risk is not None and risk > accepted_risk
        for risk, accepted_risk in zip(risks, accepted, strict=True)
    )
    assert number("sure violations") <= number("violations")
    run, _ = trained_clusters()
    assert isinstance(run.algorithm, IfcaMir)
    seed = seed_for(1, "federation")
    assert accepted == thresholds(run)
    assert accepted == [run.algorithm.preference.threshold(seed, c) for c in range(CLIENTS)]


def test_actual_risk_compares_members_with_held_out_samples() -> None:
    run, _ = trained_clusters()
    last = result().rounds[-1]
    place = run.groups.similar_client[run.dataset.test.ids.numpy()]
    for number, model in enumerate(last.models):
        clients = [c for c in range(CLIENTS) if last.choice[c] == number]
        assert model.members == sum(run.assignment.sizes[client] for client in clients)
        assert model.others == int(np.isin(place, clients).sum())
        assert (model.estimated is None) == (not clients)


@pytest.mark.slow
@pytest.mark.parametrize("updates", [False, True])
def test_estimated_and_actual_risk_match_hand_calculation(updates: bool) -> None:
    run, rounds = trained_clusters()
    run = replace(run, algorithm=by_updates(run)) if updates else run
    risk, last, data = risk_of(run), rounds[-1], run.assignment.clients
    users = {name: [c for c in data if last.chosen[c] == name] for name in last.after}
    clusters = [
        Cluster(
            model, sum(len(data[c]) for c in users[name]), len(users[name]) or 1, last.trained[name]
        )
        for name, model in last.after.items()
    ]
    judged = risk.estimate(clusters, seed=seed_for(1, "risk of real members", 4))
    state_of_round = ClusterRound.model_validate_json(cluster_notes(run, last)[CLUSTER_ROUND_KEY])
    place = run.groups.similar_client[run.dataset.test.ids.numpy()]
    for judge, state, (name, model) in zip(
        judged, state_of_round.models, last.after.items(), strict=True
    ):
        if judge is None:
            assert state.risk is None
            continue
        start = last.observed[users[name][0]].base
        others = run.dataset.test.take(torch.from_numpy(np.isin(place, users[name])))
        caught = torch.cat([judge.attack(model, data[c], start=start) for c in users[name]])
        cleared = ~judge.attack(model, others, start=start)
        assert state.estimated == judge.value
        assert state.risk == pytest.approx(
            float(caught.double().mean() + cleared.double().mean()) / 2
        )


def test_the_record_states_the_sample_size_of_shadows() -> None:
    run, _ = trained_clusters()
    last = result().rounds[-1]
    sizes = []
    for number, model in enumerate(last.models):
        clients = [c for c in range(CLIENTS) if last.choice[c] == number]
        assert model.samples == sum(run.assignment.sizes[client] for client in clients)
        sizes.append(model.samples)
    # 200 of the server's own: scaled down where a model's clients have more than half of that.
    assert [m.shadow_samples for m in last.models] == shadow_sizes(sizes, 200)
    assert max(m.shadow_samples for m in last.models) < max(sizes)


def test_models_are_trained_in_the_rounds_in_which_a_client_chose_them() -> None:
    _, rounds = trained_clusters()
    for name in rounds[-1].after:
        assert rounds[-1].trained[name] == sum(name in round_.chosen.values() for round_ in rounds)


def test_the_cost_of_shadow_models_is_reported_before_the_run() -> None:
    run, _ = trained_clusters()
    assert isinstance(run.algorithm, IfcaMir)
    # Two shadows on up to 200 samples, in rounds 2 and 4 for the record and for the clients alike:
    # 2 x 200 x 12 rounds, where the federation takes 4 over 361, all of two epochs.
    assert "at 4 measurements; up to 3.3 times" in shadow_cost(run)
    cheap = run.study.model_copy(update={"risk": RiskSection(samples=200, shadows=2, epochs=1)})
    assert "continued, at 4 measurements; up to 0.6 times" in shadow_cost(replace(run, study=cheap))
    averaged = FedAvg(run.algorithm.architecture, LocalTraining())
    assert shadow_cost(replace(run, algorithm=averaged)) == ""
    lines: list[str] = []
    with TemporaryDirectory() as folder:
        run_study(clustered(training={"rounds": 2}, algorithm=IFCA), Path(folder), log=lines.append)
    assert any("shadow models: 2 for each model" in line for line in lines)


def test_epochs_apply_to_continued_shadow_models() -> None:
    assert RiskSection().training == "repeated"
    assert RiskSection(epochs=7).training == "continued"
    with pytest.raises(ValueError, match="remove one of them"):
        RiskSection(epochs=7, training="repeated")


def test_samples_held_out_by_a_client_are_nonmembers() -> None:
    options = {"name": "ifca-mir-clients", "options": {"held_out": 0.3}}
    run = build_setup(clustered(algorithm=options), 1, None)
    (first, *_) = simulate(
        run.algorithm, run.assignment.clients, rounds=1, seed=seed_for(1, "federation")
    )
    models = ClusterRound.model_validate_json(cluster_notes(run, first)[CLUSTER_ROUND_KEY]).models
    used = sum(
        len(set(first.client_notes[client]["used"].tolist())) for client in run.assignment.clients
    )
    assert sum(model.members for model in models) == used < sum(run.assignment.sizes.values())


def test_the_servers_samples_are_of_no_client() -> None:
    run, _ = trained_clusters()
    server_ids = set(risk_of(run).samples.ids.tolist())
    used = {int(i) for data in run.assignment.clients.values() for i in data.ids}
    assert len(server_ids) == 200
    assert not server_ids & (used | set(run.assignment.audit.samples.ids.tolist()))
    assert server_ids <= set(run.dataset.train.ids.tolist())


def test_plain_ifca_reveals_no_risk_and_has_the_same_figures() -> None:
    run = build_setup(clustered(algorithm={"name": "ifca"}), 1, None)
    (*_, last) = simulate(run.algorithm, run.assignment.clients, rounds=4, seed=1)
    notes = cluster_notes(run, last)
    cluster = cluster_result(run, [noted(notes)])
    assert cluster is not None
    assert [model.told for model in cluster.clusters.rounds[0].models] == [None, None]
    assert any(model.risk is not None for model in cluster.clusters.rounds[0].models)


def test_federated_averaging_has_no_clusters() -> None:
    run = build_setup(clustered(algorithm={"name": "fedavg"}), 1, None)
    (first, *_) = simulate(run.algorithm, run.assignment.clients, rounds=4, seed=1)
    assert cluster_notes(run, first) == {}
    assert cluster_result(run, []) is None


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"audit": {"fair": 60, "view": "sum"}}, NotVisible, "train different models"),
        ({"audit": {"fair": 60, "merge": (1, 2)}, "shift": None}, NotVisible, "different models"),
        ({"audit": {"fair": 60, "merge": (1, 2)}}, Unsupported, "mistake for membership"),
        ({"audit": {"fair": 60, "targets": (0, 5)}}, Unsupported, "mistake for membership"),
        ({"risk": {"shadows": 101}}, BadInput, "100"),
        ({"risk": {"samples": 5000}}, BadInput, "risk.samples"),
        ({"risk": {"samples": 10}}, BadInput, "must be from 100 to"),
        ({"risk": {"measure": "train-mea"}}, BadInput, "train-mia"),
        ({"risk": {"measure": "seqmia"}}, FedauditError, "cannot measure the risk"),
        ({"risk": {"low": 0.9, "high": 0.6}}, BadInput, "low must be below high"),
        ({"algorithm": IFCA, "risk": {"samples": 5000}}, BadInput, "risk.samples"),
        ({"algorithm": IFCA, "risk": {"measure": "train-mea"}}, BadInput, "train-mia"),
        ({"algorithm": IFCA, "risk": {"low": 0.9}}, BadInput, "low must be below high"),
        (
            {"algorithm": {"name": "ifca-mir", "options": {"every": 4}}},
            BadInput,
            "never use a measured risk",
        ),
        ({"shift": {"kind": "shear"}}, BadInput, "known: attribute, brightness, rotation"),
        ({"shift": {"kind": "rotation", "minority_range": (9, 1)}}, BadInput, "smaller first"),
        ({"shift": {"kind": "brightness"}}, BadInput, "standardise"),
        (
            {"algorithm": {"name": "ifca", "options": {"models": 0}}},
            BadInput,
            "whole number from 1",
        ),
    ],
)
def test_impossible_settings_raise_before_training(
    changes: dict[str, object], kind: type[FedauditError], says: str
) -> None:
    with pytest.raises(kind, match=says.replace(".", r"\.")):
        raise_if_misfits([clustered(**changes)])


def test_attacks_do_not_learn_membership_from_shifted_samples() -> None:
    with pytest.raises(Unsupported, match="learn this difference"):
        build_setup(clustered(attacks={"seqmia": {}}, shadow={"mode": "known-split"}), 1, None)


def test_clients_without_visible_updates_cannot_be_audited() -> None:
    rounds, share, seed = 2, 0.17, seed_for(1, "federation")
    run, _ = trained_clusters()
    *_, last = simulate(
        run.algorithm, run.assignment.clients, rounds=rounds, seed=seed, participation=share
    )
    for client in range(CLIENTS):
        study = clustered(
            algorithm=IFCA,
            training={"rounds": rounds, "participation": share},
            audit={"fair": 60, "targets": (client,)},
        )
        if client in last.uploads:
            assert build_setup(study, 1, None).study.audit.targets == (client,)
            continue
        with pytest.raises(BadInput, match=f"client {client} takes part in no measured round"):
            build_setup(study, 1, None)


def test_impossible_notes_are_reported_as_damage() -> None:
    run, rounds = trained_clusters()
    notes = cluster_notes(run, rounds[-1])
    for broken in ({}, notes | {FINAL_ROUND_KEY: "{}"}, notes | {"clusters": '{"round": 4}'}):
        with pytest.raises(Damaged, match="lack valid notes on clusters"):
            cluster_result(run, [noted(broken)])


def test_with_a_shift_members_are_compared_with_unseen_samples_only() -> None:
    figures = [figure for figure in cluster_record().findings if figure.attack == "blackbox-loss"]
    against = {f.contrast: f for f in figures if f.metric == "auc" and f.seed == 1}
    assert against["unseen"].value is not None
    assert against["other_client"].value is None
    assert "no other_client samples" in against["other_client"].note
    assert against["mixed"].n_nonmembers == against["unseen"].n_nonmembers
    assert any("a shift makes these differ" in line for line in cluster_record().untested)


def test_groups_are_equal_parts_of_the_test_samples() -> None:
    run, _ = trained_clusters()
    place = torch.from_numpy(run.groups.similar_client)[run.dataset.test.ids]
    counts = torch.bincount(place, minlength=CLIENTS)
    assert int(counts.max() - counts.min()) <= 1


def test_a_shadow_federation_has_separate_groups() -> None:
    run = build_setup(clustered(attacks={"seqmia": {}}, audit={"fair": 30, "every": 2}), 1, None)
    (theirs,), ours = run.additional_federations, run
    assert not torch.equal(theirs.dataset.train.features, ours.dataset.train.features)
    assert (theirs.groups.names, theirs.groups.group) == (ours.groups.names, ours.groups.group)
    used = {int(i) for data in theirs.assignment.clients.values() for i in data.ids}
    assert not used & {int(i) for data in ours.assignment.clients.values() for i in data.ids}


def test_a_shadow_server_has_samples_of_neither_federation() -> None:
    study = clustered(
        attacks={"seqmia": {}}, audit={"fair": 30, "every": 2}, risk={"samples": 0, "shadows": 1}
    )
    ours = build_setup(study, 1, None)
    (theirs,) = ours.additional_federations
    used = {
        int(i)
        for assignment in (ours.assignment, theirs.assignment)
        for data in (*assignment.clients.values(), assignment.audit.samples)
        for i in data.ids
    }
    assert not used & set(risk_of(theirs).samples.ids.tolist())


def test_no_accuracies_of_shadow_models_are_stored() -> None:
    run, (first, *_) = trained_clusters()
    assert cluster_notes(run, first)
    assert cluster_notes(replace(run, is_auxiliary=True), first) == {}


def test_update_attacks_skip_untrained_models() -> None:
    run, (_, second, *_) = trained_clusters()
    updates = replace(run, algorithm=by_updates(run))
    (idle, *_) = set(second.chosen.values())
    others = {c: observed for c, observed in second.observed.items() if second.chosen[c] != idle}
    notes = cluster_notes(updates, replace(second, observed=others))
    models = ClusterRound.model_validate_json(notes[CLUSTER_ROUND_KEY]).models
    (state,) = [m for name, m in zip(second.after, models, strict=True) if name == idle]
    assert state.estimated is not None
    assert state.risk is None


def test_a_client_that_never_participated_has_no_model_and_no_violation() -> None:
    training = {"rounds": 3, "lr": 0.2, "batch_size": 10, "participation": 0.34}
    seed = seed_for(1, "federation")
    target = draw_cohort(list(range(CLIENTS)), 0.34, seed, 3)[0]
    audit = {"fair": 60, "every": 3, "targets": (target,)}
    accepted = {"samples": 200, "low": 0, "high": 0.01}
    study = clustered(algorithm=IFCA, training=training, audit=audit, risk=accepted)
    run = build_setup(study, 1, None)
    rounds = tuple(
        simulate(run.algorithm, run.assignment.clients, rounds=3, seed=seed, participation=0.34)
    )
    assert sum(len(round.selected) for round in rounds) > len(
        {c for r in rounds for c in r.selected}
    )
    first = {client: round.index for round in reversed(rounds) for client in round.selected}
    cluster = cluster_result(run, [noted(cluster_notes(run, rounds[-1]))])
    assert cluster is not None
    assert cluster.clusters.joined == [first.get(client) for client in range(CLIENTS)]
    assert None in cluster.clusters.joined
    # All clients accept less than the risk of any model.
    counted = {
        estimate.metric: estimate.value
        for estimate in cluster.estimates
        if estimate.group == "everybody"
    }
    assert counted["violations"] == counted["expected violations"] == len(first)


@pytest.mark.parametrize(("share", "held_out"), [(0.001, "0 of"), (0.999, "57 of")])
def test_holding_out_no_or_all_samples_is_refused_before_training(
    share: float, held_out: str
) -> None:
    study = clustered(algorithm={"name": "ifca-mir-clients", "options": {"held_out": share}})
    with pytest.raises(BadInput, match=f"would hold out {held_out}"):
        build_setup(study, 1, None)
