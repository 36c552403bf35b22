"""Ceilings on sources, on clustered federations and on security games."""

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.verdict import Check, Verdict
from fedaudit.results.record import Record
from fedaudit.results.runs import LABELS
from tests.gate.parts import control, needed_by, verdict, worst_of
from tests.report.clustered import clustered
from tests.report.games import HONEST, NONE, REFUTED, played, point
from tests.report.records import record, source, with_sources

SOURCES = '[sources]\nabove_label_distributions = {}\n[controls]\nrequired = ["untrained model"]\n'


def judged(record_given: Record, tables: str) -> Verdict:
    return verdict(record_given, f'name = "tests"\n{tables}')


def ceiling(verdict_given: Verdict) -> Check:
    (check,) = [check for check in verdict_given.checks if check.ceiling is not None]
    return check


def about_owners(*seeds: int, right: int = 60, mixes: float = 0.3) -> Record:
    runs = [source("sia", seed=seed, right=right + seed, mixes=mixes) for seed in seeds]
    controlled = [control("untrained model", attack="sia", seed=seed) for seed in seeds]
    return with_sources(*runs, seeds=seeds).model_copy(update={"controls": controlled})


def test_the_excess_over_labels_is_compared_with_the_ceiling() -> None:
    audit = about_owners(1)
    (excess,) = audit.where(topic="source", against=LABELS, seed=1)
    assert None not in (excess.low, excess.high)
    low, high = excess.low or 0.0, excess.high or 0.0
    assert judged(audit, SOURCES.format(high)).outcome is Outcome.PASS
    assert judged(audit, SOURCES.format(high - 1e-4)).outcome is Outcome.INCONCLUSIVE
    assert judged(audit, SOURCES.format(low)).outcome is Outcome.INCONCLUSIVE
    assert judged(audit, SOURCES.format(low - 1e-4)).outcome is Outcome.FAIL


def test_older_label_levels_never_make_a_gate_pass() -> None:
    current = about_owners(1, 2)
    older = [
        estimate.model_copy(update={"method": estimate.method.replace(" and Zou", "")})
        for estimate in current.estimates
    ]
    before = current.model_copy(update={"estimates": older})
    for seeds in ("each", "these runs"):
        policy = SOURCES.replace("{}", f'{{}}\nseeds = "{seeds}"')
        inside = [
            estimate
            for estimate in before.where(topic="source")
            if (estimate.seed is not None) == (seeds == "each")
        ]
        largest_limit = max(estimate.high or 1.0 for estimate in inside if not estimate.against)
        least = min(estimate.low or 0.0 for estimate in inside if estimate.against == LABELS)
        between = policy.format(largest_limit - 1e-3)
        assert judged(current, between).outcome is Outcome.PASS
        check = ceiling(judged(before, between))
        assert check.outcome is Outcome.INCONCLUSIVE
        assert "may be too high" in worst_of(check).reason
        assert judged(before, policy.format(largest_limit)).outcome is Outcome.PASS
        assert judged(before, policy.format(least - 1e-3)).outcome is Outcome.FAIL


def test_the_worst_seed_of_a_source_attack_decides() -> None:
    several = about_owners(1, 2, 3)
    check = ceiling(judged(several, SOURCES.format(0.5)))
    assert check.figures == 3
    assert worst_of(check).what == "Smallest loss (sia) in seed 3"
    means = SOURCES.format(0.5).replace("0.5", '0.5\nseeds = "mean"')
    assert ceiling(judged(several, means)).figures == 1


def test_the_reported_sample_size_decides_a_source_attack() -> None:
    audit = about_owners(1)
    (excess,) = audit.where(topic="source", against=LABELS, seed=1)
    top = excess.number + 0.01
    required = needed_by(ceiling(judged(audit, SOURCES.format(top))))
    assert required.then is Outcome.PASS
    assert required.count > 0


def test_missing_source_results_are_inconclusive() -> None:
    none = record(details=False)
    assert judged(none, SOURCES.format(0.5)).outcome is Outcome.INCONCLUSIVE
    rules = SOURCES.format(0.5).replace("0.5", '0.5\nattacks = ["sia-mean"]')
    assert judged(about_owners(1), rules).outcome is Outcome.INCONCLUSIVE


def test_topics_without_policy_rule_are_listed() -> None:
    audit = about_owners(1).model_copy(update={"clusters": [clustered(clients=10, minority=2)]})
    verdict_given = judged(audit, "[clusters]\nrisk = 1.0")
    assert verdict_given.unjudged == [
        "which client a sample belongs to (the policy has no rule: no [sources])"
    ]
    assert verdict_given.outcome is Outcome.PASS


def test_all_final_models_of_all_runs_are_judged() -> None:
    runs = [clustered(seed=seed, clients=40, minority=10) for seed in (1, 2)]
    audit = record(details=False, seeds=(1, 2)).model_copy(update={"clusters": runs})
    last = [model for run in runs for model in run.rounds[-1].models if model.clients]
    largest_limit = max(model.high or 0 for model in last)
    assert judged(audit, f"[clusters]\nrisk = {largest_limit!r}").outcome is Outcome.PASS
    above = max(model.low or 0 for model in last) - 1e-6
    assert judged(audit, f"[clusters]\nrisk = {above!r}").outcome is Outcome.FAIL
    between = judged(audit, f"[clusters]\nrisk = {largest_limit - 1e-6!r}")
    assert between.outcome is Outcome.INCONCLUSIVE
    assert "is unknown, since the result file lacks" in needed_by(ceiling(between)).text


def test_unknown_model_risks_are_inconclusive() -> None:
    run = clustered(clients=10, minority=2)
    unknown = {"risk": None, "low": None, "high": None}
    models = [model.model_copy(update=unknown) for model in run.rounds[-1].models]
    last = run.rounds[-1].model_copy(update={"models": models})
    blind = run.model_copy(update={"rounds": [*run.rounds[:-1], last]})
    for clusters, seeds in (([blind], (1,)), ([], (1,)), ([run], (1, 2))):
        audit = record(details=False, seeds=seeds).model_copy(update={"clusters": clusters})
        assert judged(audit, "[clusters]\nrisk = 1.0").outcome is Outcome.INCONCLUSIVE


def test_games_are_compared_with_the_success_ceiling() -> None:
    high = played(point(right=60)).games[0].success.high
    assert judged(played(point(right=60)), f"[games]\nsuccess = {high!r}").outcome is Outcome.PASS
    assert judged(played(NONE), "[games]\nsuccess = 0.6").outcome is Outcome.FAIL
    between = judged(played(point(right=60)), "[games]\nsuccess = 0.62")
    assert between.outcome is Outcome.INCONCLUSIVE
    required = needed_by(ceiling(between))
    assert (required.then, required.what) == (Outcome.PASS, "games")


def test_the_worst_point_of_the_requested_mechanisms_decides() -> None:
    several = played(NONE, HONEST)
    assert judged(several, "[games]\nsuccess = 0.7").outcome is Outcome.FAIL
    rules = '[games]\nsuccess = 0.7\nmechanisms = ["bitwise-rr"]'
    assert judged(several, rules).outcome is Outcome.PASS
    missing = '[games]\nsuccess = 0.7\nmechanisms = ["bitwise-rr", "laplace"]'
    assert judged(several, missing).outcome is Outcome.INCONCLUSIVE


def test_an_infinite_actual_epsilon_exceeds_every_ceiling() -> None:
    text = "[games]\ncontradicted = false\nactual_epsilon = {}"
    exact = 6.999999999999034
    assert judged(played(HONEST), text.format(exact)).outcome is Outcome.PASS
    assert judged(played(HONEST), text.format(6.9)).outcome is Outcome.FAIL
    assert judged(played(NONE), text.format(1e12)).outcome is Outcome.FAIL


def test_a_refuted_claim_fails_only_after_correction() -> None:
    text = "[games]\nsuccess = 1.0"
    verdict_given = judged(played(REFUTED), text)
    assert verdict_given.outcome is Outcome.FAIL
    assert "claims 1, and the games refute it" in verdict_given.reason
    assert judged(played(REFUTED), f"{text}\ncontradicted = false").outcome is Outcome.PASS
    barely = point("ome", REFUTED.empirical_epsilon - 0.02, None, right=95)
    assert barely.refuted
    assert judged(played(barely), text).outcome is Outcome.FAIL
    # With twenty other tests, the correction makes it insignificant.
    many = [point("ome", 9.0, None, right=50, label=f"{place}") for place in range(20)]
    assert judged(played(barely, *many), text).outcome is Outcome.INCONCLUSIVE


def test_epsilon_bounds_from_games_never_pass() -> None:
    text = "[games]\ncontradicted = false\nepsilon = {}"
    assert judged(played(NONE), text.format(0.5)).outcome is Outcome.FAIL
    silent = judged(played(NONE), text.format(20.0))
    assert silent.outcome is Outcome.INCONCLUSIVE
    alone = worst_of(ceiling(silent))
    among = worst_of(ceiling(judged(played(NONE, NONE, NONE), text.format(20.0))))
    assert alone.low is not None
    assert among.low is not None
    assert among.low < alone.low


def test_a_policy_without_a_ceiling_for_games_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no ceiling for games; add a table \[games\] to it"):
        judged(played(NONE), "[membership]\nauc = 0.6")
