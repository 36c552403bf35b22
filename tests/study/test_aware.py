"""Attacks that know the class assignment, in complete studies."""

from pathlib import Path

import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.values import Setting
from fedaudit.evaluation.analysis import trainable_by_round
from fedaudit.observe.measurements import Measurements
from fedaudit.observe.usage import read_usage
from fedaudit.plan.identity import run_key
from fedaudit.study.build import build_setup, resolve
from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study, small_study

GUIDED = {"name": "class-guided", "clients": (0, 1), "options": {"m_max": 6, "m_min": 2}}


def nothing_measured(rounds: tuple[int, ...]) -> Measurements:
    """Measurements of four clients, for who was there in which round."""
    bases = torch.zeros((len(rounds), 4), dtype=torch.int64)
    return Measurements(torch.zeros(len(rounds), 4, 1), rounds, (0, 1, 2, 3), bases)


def test_side_information_lists_the_trained_samples(tmp_path: Path) -> None:
    study = quick_study(defense=GUIDED, attacks={"loss-series-aware": {}}, audit={"every": 1})
    run = build_setup(study, 1, None)
    run_study(study, tmp_path)
    mine = run.assignment.clients[0]
    trainable = trainable_by_round(run, 0, nothing_measured((1, 2, 3, 4)), mine.labels)
    usage = torch.stack([trainable[index] for index in (1, 2, 3, 4)]).sum(0)
    assert 0 < int(usage.sum()) < 4 * len(mine)
    # Two epochs a round; the run's own count of how often each sample was in a step.
    counted = read_usage(tmp_path / "seed-1", run_key(run.study, 1))
    assert counted is not None
    times_used = dict(zip(counted.ids[0].tolist(), counted.used[0].tolist(), strict=True))
    assert [times_used.get(sample_id, 0) for sample_id in mine.ids.tolist()] == (2 * usage).tolist()


def test_a_client_without_the_defense_may_have_trained_on_any_sample() -> None:
    run = build_setup(small_study(defense=GUIDED), 1, None)
    trainable = trainable_by_round(run, 2, nothing_measured((1, 2)), torch.arange(10))
    assert all(bool(used.all()) for used in trainable.values())


def test_any_merged_client_may_have_trained_on_a_sample() -> None:
    run = build_setup(small_study(defense=GUIDED, audit={"merge": (0, 1)}), 1, None)
    alone = build_setup(small_study(defense=GUIDED), 1, None)
    m, labels = nothing_measured((4,)), torch.arange(10)
    together = trainable_by_round(run, 0, m, labels)[4]
    parts = [trainable_by_round(alone, client, m, labels)[4] for client in (0, 1)]
    assert torch.equal(together, parts[0] | parts[1])
    assert [int(part.sum()) for part in parts] == [2, 2]


def test_an_absent_merged_client_has_trained_on_no_sample() -> None:
    run = build_setup(small_study(defense=GUIDED, audit={"merge": [0, 1]}), 1, None)
    bases = torch.zeros((1, 3), dtype=torch.int64)
    without_client = Measurements(torch.zeros(1, 3, 1), (1,), (0, 2, 3), bases)
    trainable = trainable_by_round(run, 0, without_client, torch.arange(10))
    # Six of ten classes are one client's in the first round.
    assert int(trainable[1].sum()) == 6


def test_the_aware_attack_runs_by_default_only_with_side_information(tmp_path: Path) -> None:
    plain = build_setup(small_study(), 1, None)
    assert "fedmia-2-aware" not in {**plain.attacks, **plain.refused}
    assert "loss-series-aware" in build_setup(small_study(defense=GUIDED), 1, None).attacks
    # Named, it runs without: a table over defenses has no gap, and it is the plain attack.
    study = quick_study(attacks={"loss-series-aware": {}, "loss-series": {}})
    record = run_study(study, tmp_path)
    estimate = {
        name: [f.value for f in record.findings if f.attack == name and f.metric == "auc"]
        for name in ("loss-series", "loss-series-aware")
    }
    assert estimate["loss-series"] == estimate["loss-series-aware"]


def test_a_record_states_whether_an_adaptive_adversary_was_tested(tmp_path: Path) -> None:
    def adapting(name: str, attack: str) -> list[str]:
        defense = GUIDED if name == "class-guided" else {"name": name, "options": {"sigma": 0.1}}
        study = quick_study(defense=defense, attacks={attack: {}})
        record = run_study(study, tmp_path / f"{name}-{attack}")
        return [line for line in record.untested if "adapts" in line]

    never = ["An adversary that knows of the defense and adapts to it."]
    others = ["An adversary that adapts to the defense in other ways than the attacks here."]
    assert adapting("class-guided", "loss-series") == never
    assert adapting("class-guided", "loss-series-aware") == others
    # There are no classes to know of.
    assert adapting("gradient-noise", "loss-series-aware") == never


def told_tails(**changes: object) -> dict[str, Setting]:
    """Where each attack looks for the noise of client 0, or of 0 and 2."""
    names = ("fedmia-2-centred-tail", "avg-cosine-without-tail", "avg-cosine")
    study = quick_study(**{"attacks": {name: {} for name in names}, **changes})
    attacks = resolve(study).attacks
    return {n: a.settings()["tail"] for n, a in attacks.items() if "tail" in a.settings()}


def noise(ratio: float, *clients: int) -> dict[str, object]:
    return {"name": "neutral-noise", "clients": clients, "options": {"ratio": ratio}}


def test_an_attack_with_a_tail_gets_the_noise_of_the_study() -> None:
    everywhere = {"fedmia-2-centred-tail": 0.07, "avg-cosine-without-tail": 0.07}
    assert told_tails(defense=noise(0.07, 0, 1)) == everywhere
    part = {name: value for name, value in noise(0.07).items() if name != "clients"}
    first = {"name": "sparsification", "options": {"ratio": 0.2}}
    chained = {**first, "clients": [0, 1], "chain": [part]}
    assert told_tails(defense=chained) == everywhere
    with_own_tail = {"fedmia-2-centred-tail": {"tail": 0.5}}
    assert told_tails(defense=noise(0.07, 0, 1), attacks=with_own_tail) == {
        "fedmia-2-centred-tail": 0.5
    }
    without = {"fedmia-2-centred-tail": 0.2, "avg-cosine-without-tail": 0.2}
    assert told_tails() == told_tails(defense=noise(0.07, 2, 3)) == without


def test_two_audited_clients_with_noise_in_different_places_are_refused() -> None:
    two = {**noise(0.07, 0, 1), "also": [noise(0.3, 2, 3)]}
    with pytest.raises(BadInput, match=r"\[0.07, 0.3\].*takes one fraction; set attacks"):
        told_tails(defense=two, audit={"targets": [0, 2]})
