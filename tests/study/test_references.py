"""Reference federations in complete studies."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedaudit as fa
from fedaudit.core.errors import BadInput, Damaged, NotVisible
from fedaudit.core.values import NO_CLIENT, Capability
from fedaudit.extensions.references import References
from fedaudit.observe.measurements import Measurements
from fedaudit.plan.assignment import training_samples
from fedaudit.plan.identity import run_key, settings_of
from fedaudit.plan.parts import Setup
from fedaudit.plan.sections import Study
from fedaudit.results.record import Record
from fedaudit.study.build import build_setup
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.study.studies import Carried, small_study

TWO = {"count": 2}
HALVES = {"count": 4, "online": True}
NOISE = {"name": "gradient-noise", "options": {"sigma": 0.01}}


def final_study(**changes: object) -> Study:
    """What is left of a small federation is its final model."""
    values: dict[str, object] = {
        "partition": {"samples_per_client": 120},
        "training": {"batch_size": 30, "lr": 0.1},
        "audit": {"view": "final"},
        "references": TWO,
    }
    return small_study(**{**values, **changes})


@pytest.fixture(scope="module")
def final(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    folder = tmp_path_factory.mktemp("final")
    study = final_study(figures={"planted_leak": True})
    return Carried(run_study(study, folder), folder)


def aucs(record: Record, attack: str) -> list[float | None]:
    return [f.value for f in record.findings if f.metric == "auc" and f.attack == attack]


def trained_on(run: Setup) -> set[int]:
    return set(torch.cat([part.ids for part in run.assignment.clients.values()]).tolist())


def test_reference_data_are_disjoint_from_the_run() -> None:
    run = build_setup(final_study(), 1, None)
    first, second = run.additional_federations
    for federation in run.additional_federations:
        assert not trained_on(federation) & (
            trained_on(run) | set(run.assignment.audit.samples.ids.tolist())
        )
        audited = run.assignment.audit.samples.ids
        assert torch.equal(federation.assignment.audit.samples.ids[: len(audited)], audited)
        assert (federation.assignment.audit.owner[: len(audited)] == NO_CLIENT).all()
        assert (federation.algorithm, federation.measured_rounds) == (
            run.algorithm,
            run.measured_rounds,
        )
        assert not federation.defenses
    assert trained_on(first) != trained_on(second)


def test_samples_of_the_first_reference_are_measured_in_all() -> None:
    study = final_study(references={"count": 6}, audit={"view": "final", "fair": 30})
    run = build_setup(study, 1, None)
    (extension,) = run.extensions
    assert isinstance(extension, References)
    other_ids = {
        tuple(federation.assignment.audit.samples.ids[30:].tolist())
        for federation in extension.federations
    }
    (ids,) = other_ids
    assert len(set(ids)) == len(ids)
    assert not set(ids) & set(run.assignment.audit.samples.ids.tolist())
    for i, federation in enumerate(extension.federations):
        owner = federation.assignment.audit.owner[30:]
        for client, data in federation.assignment.clients.items():
            is_member = np.isin(ids, data.ids.numpy())
            assert (is_member == (owner == client)).all()
        assert ((owner == 0).sum() >= 100) == (i < 4)
    # Who trains on what is known of one reference by the others: not of a single one.
    alone = build_setup(final_study(references={"count": 1}), 1, None).additional_federations[0]
    assert len(alone.assignment.audit) == 90


def test_online_references_contain_every_sample_in_half() -> None:
    offline = build_setup(final_study(references={"count": 4}), 1, None)
    run = build_setup(final_study(references=HALVES), 1, None)
    audited = run.assignment.audit.samples.ids.numpy()
    inside = np.array(
        [
            [i in trained_on(federation) for i in audited]
            for federation in run.additional_federations
        ]
    )
    assert (inside.sum(0) == 2).all()
    for federation, plain, mask in zip(
        run.additional_federations, offline.additional_federations, inside, strict=True
    ):
        assert ((federation.assignment.audit.owner != NO_CLIENT) == mask).all()
        assert federation.assignment.sizes == plain.assignment.sizes
        assert not (trained_on(federation) & trained_on(run)) - set(audited[mask].tolist())
        for client, data in federation.assignment.clients.items():
            owned_ids = audited[federation.assignment.audit.owner == client].tolist()
            assert set(owned_ids) <= set(data.ids.tolist())
            assert len(set(data.ids.tolist())) == len(data)
            place = data.ids.tolist().index(owned_ids[0])
            position = audited.tolist().index(owned_ids[0])
            assert torch.equal(
                data.features[place], run.assignment.audit.samples.features[position]
            )


def test_only_views_without_uploads_have_default_references() -> None:
    data = {"partition": {"samples_per_client": 120}, "references": None}
    run = build_setup(final_study(**data), 1, None)
    assert {"rmia", "lira"} <= run.attacks.keys()
    assert len(run.additional_federations) == 4
    assert "needs several rounds" in run.refused["rmia-series"]
    uploads = small_study(partition={"samples_per_client": 120})
    run = build_setup(uploads, 1, None)
    assert not run.additional_federations
    assert "add [references], or list the attack by name" in run.refused["rmia"]
    assert Capability.REFERENCE_MODELS not in run.view.offers
    resolved = build_setup(small_study(**data, attacks={"lira-series": {}}), 1, None)
    assert len(resolved.additional_federations) == 4
    older = build_setup(final_study(**data, attack_set="2026-1"), 1, None)
    assert not older.additional_federations


def test_references_share_the_defense_and_do_not_change_the_run() -> None:
    def keys(**changes: object) -> list[str]:
        run = build_setup(final_study(**changes), 1, None)
        return [
            run_key(federation.study, federation.seed)
            for federation in (run, *run.additional_federations)
        ]

    audited, *reference_keys = keys()
    assert len({audited, *reference_keys}) == 3
    assert not {*keys(defense=NOISE)[1:]} & {*reference_keys}
    assert keys(defense=NOISE, references={**TWO, "defense": "none"})[1:] == reference_keys
    assert keys(references={"count": 3})[:3] == [audited, *reference_keys]
    assert not set(keys(training={"lr": 0.05})) & {audited, *reference_keys}
    assert "references" not in settings_of(final_study(references=None))


def test_reference_attacks_find_members_and_controls_pass(final: Carried) -> None:
    record = final.record
    for name in ("rmia", "lira"):
        against_unseen = [
            f
            for f in record.findings
            if (f.metric, f.attack, f.contrast) == ("auc", name, "unseen")
        ]
        assert len(against_unseen) == 1
    checks = {(c.control, c.attack): c.passed for c in record.controls}
    for name in ("rmia", "lira"):
        assert checks["planted leak", name] is True
        assert checks["untrained model", name] is True
        assert checks["permuted members", name] is True


@pytest.mark.slow
def test_workers_and_interruption_do_not_change_results(final: Carried, tmp_path: Path) -> None:
    study = final_study(figures={"planted_leak": True})
    assert run_study(study, tmp_path / "two", workers=2).content_hash == final.record.content_hash
    halted = shutil.copytree(final.folder, tmp_path / "halted")
    seed = build_setup(study, 1, None).additional_federations[1].seed
    shutil.rmtree(halted / "shadow" / f"seed-{seed}")
    assert run_study(study, halted).content_hash == final.record.content_hash


@pytest.mark.slow
def test_variants_share_undefended_references_from_the_pool(tmp_path: Path) -> None:
    pool, lines = tmp_path / "pool", list[str]()
    run_study(final_study(), tmp_path / "plain", pool=pool, log=lines.append)
    assert any("reference federations: 2 per run" in line for line in lines)
    lines.clear()
    noisy = final_study(defense=NOISE, references={**TWO, "defense": "none"})
    record = run_study(noisy, tmp_path / "noise", pool=pool, log=lines.append)
    assert any("undefended reference federations: 2 per run" in line for line in lines)
    ways = {row.name: row.over_clients for row in record.attacks}
    assert ways["rmia"] == ways["lira"] == "against undefended reference models"
    assert ways["blackbox-loss"] == "target only"
    assert any("models that use the defense of client 0" in line for line in record.untested)
    assert sum("already trained and measured" in line for line in lines) == 2
    assert len(list(pool.iterdir())) == 4


def test_a_recording_with_references_can_be_reattacked(final: Carried, tmp_path: Path) -> None:
    record = reattack(final.folder, ["rmia"], tmp_path / "again")
    assert aucs(record, "rmia") == aucs(final.record, "rmia") != []
    bare = final_study(attacks={"blackbox-loss": {}}, audit={"view": "final", "keep": "signals"})
    run_study(bare, tmp_path / "bare")
    with pytest.raises(BadInput, match=r"or add \[references\]"):
        reattack(tmp_path / "bare", ["rmia"], tmp_path / "bare-again")


def test_missing_references_are_reported_and_damaged_ones_refused(
    final: Carried, tmp_path: Path
) -> None:
    lost, lines = shutil.copytree(final.folder, tmp_path / "lost"), list[str]()
    first, second = sorted((lost / "shadow").glob("seed-*"))
    shutil.rmtree(first)
    record = reattack(lost, [], tmp_path / "again", log=lines.append)
    assert not aucs(record, "rmia")
    assert any(line.startswith("not run: rmia, lira (") for line in lines)
    damaged = shutil.copytree(final.folder, tmp_path / "damaged")
    place = damaged / "shadow" / first.name / "measured"
    shutil.rmtree(place)
    shutil.copytree(second / "measured", place)
    with pytest.raises(Damaged, match="belongs to another run"):
        reattack(damaged, [], tmp_path / "damaged-again")


@pytest.mark.slow
def test_an_attack_with_references_missing_in_one_run_is_skipped(
    tmp_path: Path,
) -> None:
    study = final_study(seeds=(1, 2), attacks={"rmia": {}, "blackbox-loss": {}})
    record = run_study(study, tmp_path / "two")
    shutil.rmtree(next((tmp_path / "two" / "shadow").glob("seed-*")))
    result = reattack(tmp_path / "two", [], tmp_path / "again")
    assert len(aucs(record, "rmia")) > 0 == len(aucs(result, "rmia"))
    assert aucs(result, "blackbox-loss") == aucs(record, "blackbox-loss")
    (row,) = (row for row in result.attacks if row.name == "rmia")
    assert row.status == "refused"
    assert "which does not exist" in row.note


def test_too_little_data_for_references_raises_or_skips_attacks() -> None:
    large = {"samples_per_client": 300}
    with pytest.raises(
        BadInput, match=r"reference federations cannot .*partition\.samples_per_client"
    ):
        build_setup(final_study(partition=large), 1, None)
    run = build_setup(final_study(partition=large, references=None), 1, None)
    assert "reference federations cannot be trained" in run.refused["rmia"]
    assert "blackbox-loss" in run.attacks
    with pytest.raises(NotVisible, match="several rounds"):
        build_setup(final_study(attacks={"rmia-series": {}}), 1, None)


@pytest.mark.parametrize("settings", [{"count": 2, "online": True}, {"count": 5, "online": True}])
def test_reference_halves_need_an_even_count(settings: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="an even number of at least 4"):
        final_study(references=settings)


def test_reference_clients_have_the_defense_of_the_audited_client() -> None:
    defense = {**NOISE, "clients": [0, 2]}
    audit = {"view": "uploads", "targets": [0, 1, 2], "fair": 30}
    study = final_study(audit=audit, defense=defense, attacks={"rmia": {}}, references={"count": 1})
    run = build_setup(study, 1, None)
    extension = run.extension(References)
    assert extension is not None
    assert extension.plan.representatives == {0: 0, 1: 1, 2: 0}
    (federation,) = extension.federations
    assert federation.defenses == run.defenses
    assert federation.study.audit.targets == (0, 1)

    def measured(values: list[float]) -> Measurements:
        cube = torch.tensor(values)[None, :, None]
        bases = torch.zeros(1, len(values), dtype=torch.int64)
        return Measurements(cube, (4,), tuple(range(len(values))), bases)

    none = torch.zeros((1, 1), dtype=torch.bool)
    attack = replace(run.attacks["rmia"]).with_settings({"offline": 1.0})
    attack = attack.with_references(
        [{"loss": measured([-1.0, -5.0])}], 0, none, extension.plan.representatives
    )
    scores = [float(attack.scores({"loss": measured([0.0, 0.0, 0.0])}, c)) for c in (0, 1, 2)]
    # A slope of 1 takes the reference's own probability: log(1) less minus its loss.
    assert scores == pytest.approx([1.0, 5.0, 1.0])


def test_reference_members_exclude_samples_held_out_by_the_defense() -> None:
    defense = {"name": "compensation", "options": {"validation": 0.3, "start": 2}}
    audit = {"view": "final", "fair": 60}
    study = final_study(references={**HALVES, "count": 6}, defense=defense, audit=audit)
    run = build_setup(study.model_copy(update={"attacks": {"rmia": {}}}), 1, None)
    for federation in run.additional_federations:
        trained_samples = training_samples(federation.assignment.clients, federation.holdout)
        trained_ids = torch.cat([part.ids for part in trained_samples.values()])
        inside = torch.isin(federation.assignment.audit.samples.ids, trained_ids).numpy()
        assert (inside == (federation.assignment.audit.owner != NO_CLIENT)).all()
        assert 0 < inside.sum() < 30


def test_too_few_references_raise_before_training() -> None:
    few = {"references": {"count": 1}}
    with pytest.raises(BadInput, match=r"'lira': a likelihood ratio .*at least 2 reference models"):
        build_setup(final_study(**few, attacks={"lira": {"variance": "each"}}), 1, None)
    run = build_setup(final_study(**few, attacks={"lira": {}}), 1, None)
    assert len(run.additional_federations) == 1
    defense = {"name": "compensation", "options": {"validation": 0.9, "start": 2}}
    by_default = build_setup(final_study(references=HALVES, defense=defense), 1, None)
    assert "increase references.count, or use RMIA" in by_default.refused["lira"]
    assert "rmia" in by_default.attacks


def test_objects_match_a_study_file(tmp_path: Path) -> None:
    federation = fa.Federation(
        "digits",
        clients=fa.partitions.IID(4, samples_per_client=60),
        model=fa.models.MLP(hidden="16"),
        algorithm=fa.algorithms.FedAvg(rounds=2),
    )
    run = fa.audit(
        federation,
        attacks=["rmia", "lira"],
        audit=fa.Audit(view="final", samples=60),
        options=fa.AuditOptions(references=fa.References(count=1)),
        out=tmp_path,
    )
    assert {f.attack for f in run.record.findings if f.metric == "auc"} == {"rmia", "lira"}
