"""Learned attacks in complete studies."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from fedaudit.attacks import resolve_attack
from fedaudit.core.errors import BadInput, Damaged, NotVisible
from fedaudit.core.metric_names import Origin
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import Capability
from fedaudit.datasets.draws.audit_set import KnownMembers
from fedaudit.evaluation.truth import origin_of, target_truth
from fedaudit.extensions.examples import (
    ExampleSource,
    KnownSplit,
    Shadow,
    TrainingExamples,
    _fit_attacks,
)
from fedaudit.metrics import auc_interval
from fedaudit.observe.measurements import Measurements, StoredRound
from fedaudit.observe.tensors import read_tensors
from fedaudit.plan.assignment import training_samples
from fedaudit.plan.identity import run_key, settings_of
from fedaudit.plan.parts import FitContext, Setup
from fedaudit.plan.sections import Study
from fedaudit.plan.values import study_from
from fedaudit.results.older import resolve_older_settings
from fedaudit.results.record import Record
from fedaudit.signals.outputs import Loss
from fedaudit.study.build import build_setup
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.study.studies import Carried, small_study


def learning_study(**changes: object) -> Study:
    """A small study with an attack that learns, quickly."""
    training = changes.pop("training", {})
    assert isinstance(training, dict)
    values: dict[str, object] = {
        "partition": {"samples_per_client": 120},
        "attacks": {"seqmia": {"epochs": 2}, "loss-series": {}},
        "training": {"batch_size": 30, **training},
    }
    return small_study(**{**values, **changes})


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    folder = tmp_path_factory.mktemp("learned")
    return Carried(run_study(learning_study(), folder), folder)


def ids_of(run: Setup) -> set[int]:
    parts = [*run.assignment.clients.values(), run.assignment.audit.samples]
    return set(torch.cat([part.ids for part in parts]).tolist())


def shadow_of(run: Setup) -> Setup:
    extension = run.extension(Shadow)
    assert extension is not None
    return extension.federations[0]


def known_members_of(run: Setup) -> KnownMembers:
    (extension,) = run.extensions
    assert isinstance(extension, KnownSplit)
    return extension.known


def areas(record: Record, attack: str) -> list[float | None]:
    return [f.value for f in record.findings if f.metric == "auc" and f.attack == attack]


NOISE = {"name": "gradient-noise", "options": {"sigma": 0.01}}
KNOWN = {"mode": "known-split", "known": 60}


def test_a_shadow_federation_has_the_same_defense_and_other_data() -> None:
    run = build_setup(learning_study(defense=NOISE), 1, None)
    shadow = shadow_of(run)
    assert not ids_of(run) & ids_of(shadow)
    assert shadow.defenses == run.defenses != {}
    assert seed_for(shadow.seed, "federation") != seed_for(run.seed, "federation")
    assert shadow.algorithm == run.algorithm
    assert shadow.measured_rounds == run.measured_rounds
    assert shadow.assignment.sizes.keys() == run.assignment.sizes.keys()
    assert shadow.assignment.audit.fair.all()
    assert {signal.name for signal in shadow.signals} == {
        signal.name for signal in run.attacks["seqmia"].signals
    }


def test_the_shadow_depends_on_seed_training_and_defense() -> None:
    def key(seed: int = 1, **changes: object) -> str:
        shadow = shadow_of(build_setup(learning_study(**changes), seed, None))
        return run_key(shadow.study, shadow.seed)

    plain = key()
    assert plain == key(name="other") == key(figures={"alpha": 0.1})
    changed = [key(2), key(training={"lr": 0.05}), key(audit={"every": 1}), key(shadow={"fair": 9})]
    assert len({plain, *changed, key(defense=NOISE)}) == 6


@pytest.mark.slow
def test_an_undefended_shadow_equals_that_of_the_undefended_study(tmp_path: Path) -> None:
    undefended = {"defense": "none"}
    run = build_setup(learning_study(defense=NOISE, shadow=undefended), 1, None)
    shadow, plain = shadow_of(run), shadow_of(build_setup(learning_study(), 1, None))
    assert not shadow.defenses
    assert run_key(shadow.study, shadow.seed) == run_key(plain.study, plain.seed)

    record = run_study(learning_study(defense=NOISE, shadow=undefended), tmp_path / "none")
    rows = {row.name: row.over_rounds for row in record.attacks}
    assert rows["seqmia"] == "learned on an undefended federation"
    assert any("shadow.defense), which may miss a leak" in line for line in record.untested)
    adaptive = run_study(learning_study(defense=NOISE), tmp_path / "same")
    assert {row.name: row.over_rounds for row in adaptive.attacks}["seqmia"] == "learned"
    assert not any("shadow.defense" in line for line in adaptive.untested)
    assert any("adapts to the defense in other ways" in line for line in adaptive.untested)


def test_attacks_learn_from_a_shadow_client_with_the_same_defense() -> None:
    defense = {**NOISE, "clients": [0, 2]}
    audit = {"targets": [0, 1, 2], "fair": 30}
    run = build_setup(learning_study(defense=defense, audit=audit), 1, None)
    extension = run.extension(Shadow)
    assert extension is not None
    assert extension.plan.representatives == {0: 0, 1: 1, 2: 0}
    assert extension.federations[0].study.audit.targets == (0, 1)
    assert extension.federations[0].defenses.keys() == {0, 2}
    # Without a defense, one shadow client represents all, and no further data are used.
    plain = build_setup(learning_study(audit=audit), 1, None).extension(Shadow)
    assert plain is not None
    assert plain.plan.representatives == dict.fromkeys((0, 1, 2), 0)
    assert plain.federations[0].study.audit.targets == (0,)


def test_attacks_learned_for_one_client_do_not_score_another() -> None:
    def noisy(is_member: Tensor, sign: float, seed: int) -> Tensor:
        drawn = torch.randn(2, len(is_member), generator=torch.Generator().manual_seed(seed))
        return sign * 3 * is_member + drawn

    is_member = torch.arange(200) % 2 == 0

    # Members have larger values at client 0 and smaller ones at client 1.
    def cube(seed: int) -> Measurements:
        values = torch.stack([noisy(is_member, s, seed + i) for i, s in enumerate((1, -1))], 1)
        return Measurements(values, (1, 2), (0, 1), torch.zeros(2, 2, dtype=torch.int64))

    signal = Loss()
    run = build_setup(learning_study(audit={"targets": [0, 1], "fair": 30}), 1, None)
    attack = replace(resolve_attack("seqmia"), signals=(signal,)).with_settings({"epochs": 20})
    run = replace(run, attacks={"one": attack})
    examples = {c: TrainingExamples({signal.name: cube(10 * c)}, is_member, c) for c in (0, 1)}
    each = _fit_attacks(run, FitContext(no_federation), examples, {0: 0, 1: 1})
    for client in (0, 1):
        scores = each.attacks["one"].scores({signal.name: cube(99)}, client)
        assert auc_interval(scores.numpy(), is_member.numpy()).value > 0.95
    first = {0: examples[0]}
    shared = _fit_attacks(run, FitContext(no_federation), first, {0: 0, 1: 0})
    wrong = shared.attacks["one"].scores({signal.name: cube(99)}, 1)
    assert auc_interval(wrong.numpy(), is_member.numpy()).value < 0.05


def no_federation(run: Setup, purpose: str, begun: object) -> list[StoredRound]:
    raise AssertionError("examples are given")


@pytest.mark.slow
def test_the_shadow_federation_has_the_same_coalition(tmp_path: Path) -> None:
    defense = {"name": "cofedmid", "clients": [0, 1], "options": {"m_max": 5, "start": 2}}
    study = learning_study(defense=defense, audit={"targets": [0, 3], "fair": 30})
    run = build_setup(study, 1, None)
    shadow = shadow_of(run)
    assert shadow.defenses == run.defenses
    assert shadow.study.audit.targets == (0, 3)
    record = run_study(study, tmp_path)
    assert {f.target for f in record.findings if f.attack == "seqmia"} >= {0, 3}
    # Held-out samples and classes of its members are drawn independently.
    sample_ids = [
        set(federation.assignment.clients[0].ids.tolist()) for federation in (run, shadow)
    ]
    assert not sample_ids[0] & sample_ids[1]


def test_the_known_client_has_the_defense_of_the_audited_client() -> None:
    defense = {**NOISE, "clients": [0, 1]}
    run = build_setup(learning_study(shadow=KNOWN, defense=defense), 1, None)
    assert known_members_of(run).client == 1
    other = build_setup(learning_study(shadow={**KNOWN, "client": 3}, defense=defense), 1, None)
    (extension,) = other.extensions
    assert "client 3, which has another defense" in extension.untested()
    with pytest.raises(BadInput, match="trains no shadow federation"):
        learning_study(shadow={**KNOWN, "defense": "none"})


def test_studies_of_older_versions_keep_their_undefended_shadows() -> None:
    study = learning_study(defense=NOISE, shadow={"fair": 60})
    values = study.model_dump(mode="json")
    del values["shadow"]["defense"]
    older = study_from(resolve_older_settings(values))
    assert older.shadow is not None
    assert older.shadow.defense == "none"
    sections = [settings_of(version)["shadow"] for version in (older, study)]
    assert [
        set(section) - set(values["shadow"]) for section in sections if isinstance(section, dict)
    ] == [
        set(),
        {"defense"},
    ]
    plain = learning_study(shadow={"fair": 60})
    assert "defense" not in cast(dict[str, object], settings_of(plain)["shadow"])


def test_learned_attacks_run_if_named_or_with_a_shadow_table() -> None:
    unnamed = small_study(partition={"samples_per_client": 120})
    run = build_setup(unnamed, 1, None)
    assert run.extension(ExampleSource) is None
    assert "add [shadow], or list the attack by name" in run.refused["seqmia"]
    assert Capability.AUXILIARY_DATA not in run.view.offers
    resolved = build_setup(
        unnamed.model_copy(update={"shadow": learning_study(shadow={}).shadow}), 1, None
    )
    assert "seqmia" in resolved.attacks
    assert resolved.extension(Shadow) is not None
    assert Capability.AUXILIARY_DATA in resolved.view.offers


def test_an_attack_that_needs_more_clients_leaves_the_others(tmp_path: Path) -> None:
    study = learning_study(
        partition={"clients": 2, "samples_per_client": 120},
        attacks={"stacked": {}, "loss-series": {}},
    )
    record = run_study(study, tmp_path / "out")
    states = {row.name: (row.status, row.note) for row in record.attacks}
    assert states["loss-series"][0] == "run"
    assert states["stacked"][0] != "run"
    assert "needs at least 2 other clients" in states["stacked"][1]


def test_a_shadow_table_without_learned_attack_trains_nothing() -> None:
    run = build_setup(learning_study(attacks={"loss-series": {}}, shadow={}), 1, None)
    assert run.extension(ExampleSource) is None


def test_an_older_study_keeps_its_identity() -> None:
    settings = settings_of(small_study())
    assert "shadow" not in settings
    audit = settings["audit"]
    assert isinstance(audit, dict)
    assert "merge" not in audit
    assert run_key(small_study(), 1) == run_key(small_study(shadow={}), 1)


def test_too_little_data_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"a shadow federation needs .*partition\.samples_per_client"
    ):
        run_study(learning_study(partition={"samples_per_client": 300}), tmp_path)
    assert not (tmp_path / "seed-1").exists()


def test_scores_of_learned_attacks_are_reproduced(learned: Carried, tmp_path: Path) -> None:
    later = reattack(learned.folder, ["seqmia"], tmp_path / "later")
    assert areas(later, "seqmia") == areas(learned.record, "seqmia") != []


def test_learned_attacks_raise_for_recordings_without_shadow(tmp_path: Path) -> None:
    kept_study = small_study(
        partition={"samples_per_client": 120}, audit={"keep": "full"}, attacks={"loss-series": {}}
    )
    run_study(kept_study, tmp_path / "run")
    with pytest.raises(BadInput, match=r"lacks the shadow .* or add \[shadow\]"):
        reattack(tmp_path / "run", ["seqmia"], tmp_path / "again")


def test_variants_share_an_undefended_shadow_from_the_pool(tmp_path: Path) -> None:
    pool, lines = tmp_path / "pool", list[str]()
    run_study(learning_study(), tmp_path / "plain", pool=pool, log=lines.append)
    assert not any("already trained and measured" in line for line in lines)
    before = {path: path.stat().st_mtime_ns for path in pool.rglob("round-*.safetensors")}
    noisy = learning_study(defense=NOISE, shadow={"defense": "none"})
    run_study(noisy, tmp_path / "noise", pool=pool, log=lines.append)
    assert sum("already trained and measured" in line for line in lines) == 1
    assert len(list(pool.iterdir())) == 3
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


@pytest.mark.slow
def test_a_pool_rejects_shadows_of_other_settings(learned: Carried, tmp_path: Path) -> None:
    changed, lines = learning_study(training={"lr": 0.05}), list[str]()
    alone = run_study(changed, tmp_path / "alone")
    pool = tmp_path / "pool"
    run_study(learning_study(), tmp_path / "a", pool=pool)
    shared = run_study(changed, tmp_path / "b", pool=pool, log=lines.append)
    assert not any("already trained and measured" in line for line in lines)
    assert shared.content_hash == alone.content_hash
    ours = shutil.copytree(learned.folder, tmp_path / "ours")
    (mine,), (theirs,) = (
        list((folder / "shadow").iterdir()) for folder in (ours, tmp_path / "alone")
    )
    name = Path("measured") / "round-000002.safetensors"
    (mine / name).write_bytes((theirs / name).read_bytes())
    with pytest.raises(Damaged, match="to another run"):
        run_study(learning_study(), ours)


class Stop(Exception):
    """Raised in the middle of a run, as if it had been killed there."""


@pytest.mark.parametrize("after", [3, 6])
def test_a_study_stopped_in_its_run_or_its_shadow_resumes(
    after: int, learned: Carried, tmp_path: Path
) -> None:
    seen = list[int]()

    def progress(phase: str, done: int, total: int) -> None:
        if done and phase.endswith("training rounds"):
            seen.append(done)
            if len(seen) == after:
                raise Stop

    with pytest.raises(Stop):
        run_study(learning_study(), tmp_path / "broken", progress=progress)
    after = -1
    record = run_study(learning_study(), tmp_path / "broken", progress=progress)
    assert record.content_hash == learned.record.content_hash
    # Four rounds each of the run and of its shadow; the one that was interrupted comes again.
    assert len(seen) == 8 + 1


def test_a_known_split_is_measured_in_the_run_itself(tmp_path: Path) -> None:
    study = learning_study(shadow=KNOWN)
    run = build_setup(study, 1, None)
    known_members = known_members_of(run)
    assert known_members.client == 3
    assert not set(known_members.samples.ids.tolist()) & set(
        run.assignment.audit.samples.ids.tolist()
    )
    record = run_study(study, tmp_path / "run")
    assert not (tmp_path / "run" / "shadow").exists()
    tensors, _ = read_tensors(tmp_path / "run/seed-1/known/measured/round-000002.safetensors")
    assert tensors["signal/loss"].shape == (4, 60)
    result = reattack(tmp_path / "run", ["seqmia"], tmp_path / "again")
    assert areas(record, "seqmia") == areas(result, "seqmia") != []


def test_samples_held_out_by_a_defense_are_not_known_members() -> None:
    defense = {"name": "compensation", "options": {"validation": 0.5, "start": 2}}
    run = build_setup(learning_study(shadow={**KNOWN, "known": 20}, defense=defense), 1, None)
    known_members = known_members_of(run)
    trained_ids = training_samples(run.assignment.clients, run.holdout)[3].ids
    assert len(trained_ids) < len(run.assignment.clients[3])
    trained = known_members.samples.ids[known_members.is_member]
    assert set(trained.tolist()) <= set(trained_ids.tolist())


def test_the_known_split_is_part_of_the_run_key() -> None:
    keys = [
        run_key(learning_study(shadow=shadow_settings), 1)
        for shadow_settings in (None, KNOWN, {**KNOWN, "known": 40})
    ]
    assert len(set(keys)) == 3


def test_a_known_split_of_an_audited_client_is_refused() -> None:
    with pytest.raises(BadInput, match=r"shadow\.client is 0, .* one of \[1, 2, 3\]"):
        build_setup(learning_study(shadow={**KNOWN, "client": 0}), 1, None)
    with pytest.raises(BadInput, match=r"shadow\.client is 4, but clients are numbered 0 to 3"):
        learning_study(shadow={**KNOWN, "client": 4})


@pytest.mark.parametrize("view", ["sum", "globals", "final"])
def test_learned_attacks_run_or_raise_under_weaker_views(view: str, tmp_path: Path) -> None:
    study = learning_study(audit={"view": view}, attacks={"seqmia": {"epochs": 2}})
    if view == "final":
        with pytest.raises(NotVisible, match="needs several rounds"):
            run_study(study, tmp_path)
        return
    assert areas(run_study(study, tmp_path), "seqmia")


MERGED = {"merge": (0, 2)}


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    folder = tmp_path_factory.mktemp("merged")
    study = small_study(audit=MERGED, attacks={"avg-cosine": {}, "loss-series": {}})
    return Carried(run_study(study, folder), folder)


def test_data_of_all_merged_clients_are_members(
    merged: Carried,
) -> None:
    run = build_setup(small_study(audit=MERGED), 1, None)
    owner = run.assignment.audit.owner
    origin = origin_of(run, 0)
    assert set(owner[origin == Origin.MEMBER].tolist()) == {0, 2}
    assert set(owner[origin == Origin.OTHER_CLIENT].tolist()) == {1, 3}
    # A bound on independent inclusion takes the target's own fair draw only.
    truth = target_truth(run, 0)
    assert set(truth.owners[truth.fair].tolist()) == {-1, 0, 1, 3}
    outside = build_setup(small_study(audit={**MERGED, "targets": (1,)}), 1, None)
    theirs = outside.assignment.audit.owner[origin_of(outside, 1) == Origin.MEMBER]
    assert set(theirs.tolist()) == {1}
    record = merged.record
    assert record.view.name == "merged"
    assert "attacks clients 0, 2 through the weighted mean" in record.view.description
    (row,) = [
        f for f in record.findings
        if (f.attack, f.contrast, f.metric) == ("avg-cosine", "mixed", "auc")
    ]  # fmt: skip
    assert row.n_members == int((origin == Origin.MEMBER).sum())


def test_a_merged_coalition_is_measured_by_its_weighted_mean(merged: Carried) -> None:
    tensors, _ = read_tensors(merged.folder / "seed-1/measured/round-000002.safetensors")
    assert tensors["clients"].tolist() == [0, 1, 3]
    assert tensors["stands_for"].tolist() == [[0, 0], [2, 0]]


def test_the_shadow_is_attacked_with_the_same_merged_clients(tmp_path: Path) -> None:
    study = learning_study(audit=MERGED)
    shadow = shadow_of(build_setup(study, 1, None))
    members = shadow.assignment.audit.owner[origin_of(shadow, 0) == Origin.MEMBER]
    assert set(members.tolist()) == {0, 2}
    assert areas(run_study(study, tmp_path), "seqmia")


@pytest.mark.parametrize(
    ("audit", "sentence"),
    [
        ({"merge": (1,)}, "at least two different clients"),
        ({"merge": (1, 1)}, "at least two different clients"),
        ({"merge": (0, 9)}, r"names \[9\], but clients are numbered 0 to 3"),
        ({"merge": (0, 1), "targets": (0, 1)}, "attacked as one client; give only one of them"),
        (
            {"merge": (0, 1), "view": "sum"},
            r"client's upload, .* hidden in the view 'sum'",
        ),
    ],
)
def test_invalid_merges_are_refused(audit: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_setup(small_study(audit=audit), 1, None)


def test_the_record_describes_learned_attacks(learned: Carried) -> None:
    record = learned.record
    assert not any("learn from a federation" in line for line in record.untested)
    assert "auxiliary_data" in record.view.sees
    rows = {row.name: row for row in record.attacks}
    assert rows["seqmia"].status == "run"
    assert rows["seqmia"].over_rounds == "learned"
    assert json.loads((learned.folder / "study.json").read_text())["shadow"] is None
