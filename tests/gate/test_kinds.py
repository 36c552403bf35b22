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


def said(given: Record, tables: str) -> Verdict:
    return verdict(given, f'name = "tests"\n{tables}')


def ceiling(given: Verdict) -> Check:
    (check,) = [check for check in given.checks if check.ceiling is not None]
    return check


def about_owners(*seeds: int, right: int = 60, mixes: float = 0.3) -> Record:
    found = [source("sia", seed=seed, right=right + seed, mixes=mixes) for seed in seeds]
    controlled = [control("untrained model", attack="sia", seed=seed) for seed in seeds]
    return with_sources(*found, seeds=seeds).model_copy(update={"controls": controlled})


def test_the_excess_over_labels_is_compared_with_the_ceiling() -> None:
    one = about_owners(1)
    (excess,) = one.where(topic="source", against=LABELS, seed=1)
    assert None not in (excess.low, excess.high)
    low, high = excess.low or 0.0, excess.high or 0.0
    assert said(one, SOURCES.format(high)).outcome is Outcome.PASS
    assert said(one, SOURCES.format(high - 1e-4)).outcome is Outcome.INCONCLUSIVE
    assert said(one, SOURCES.format(low)).outcome is Outcome.INCONCLUSIVE
    assert said(one, SOURCES.format(low - 1e-4)).outcome is Outcome.FAIL


def test_older_label_levels_never_make_a_gate_pass() -> None:
    now = about_owners(1, 2)
    older = [
        one.model_copy(update={"method": one.method.replace(" and Zou", "")})
        for one in now.estimates
    ]
    before = now.model_copy(update={"estimates": older})
    for seeds in ("each", "these runs"):
        policy = SOURCES.replace("{}", f'{{}}\nseeds = "{seeds}"')
        inside = [
            one
            for one in before.where(topic="source")
            if (one.seed is not None) == (seeds == "each")
        ]
        whole = max(one.high or 1.0 for one in inside if not one.against)
        least = min(one.low or 0.0 for one in inside if one.against == LABELS)
        between = policy.format(whole - 1e-3)
        assert said(now, between).outcome is Outcome.PASS
        held = ceiling(said(before, between))
        assert held.outcome is Outcome.INCONCLUSIVE
        assert "may be too high" in worst_of(held).reason
        assert said(before, policy.format(whole)).outcome is Outcome.PASS
        assert said(before, policy.format(least - 1e-3)).outcome is Outcome.FAIL


def test_the_worst_seed_of_a_source_attack_decides() -> None:
    several = about_owners(1, 2, 3)
    check = ceiling(said(several, SOURCES.format(0.5)))
    assert check.figures == 3
    assert worst_of(check).what == "sia in seed 3"
    means = SOURCES.format(0.5).replace("0.5", '0.5\nseeds = "mean"')
    assert ceiling(said(several, means)).figures == 1


def test_the_reported_sample_size_decides_a_source_attack() -> None:
    one = about_owners(1)
    (excess,) = one.where(topic="source", against=LABELS, seed=1)
    top = excess.number + 0.01
    more = needed_by(ceiling(said(one, SOURCES.format(top))))
    assert more.then is Outcome.PASS
    assert more.count > 0


def test_missing_source_results_are_inconclusive() -> None:
    none = record(details=False)
    assert said(none, SOURCES.format(0.5)).outcome is Outcome.INCONCLUSIVE
    named = SOURCES.format(0.5).replace("0.5", '0.5\nattacks = ["sia-mean"]')
    assert said(about_owners(1), named).outcome is Outcome.INCONCLUSIVE


def test_topics_without_policy_rule_are_listed() -> None:
    both = about_owners(1).model_copy(update={"clusters": [clustered(clients=10, minority=2)]})
    told = said(both, "[clusters]\nrisk = 1.0")
    assert told.unjudged == ["which client a sample belongs to (no [sources] in the policy)"]
    assert told.outcome is Outcome.PASS


def test_all_final_models_of_all_runs_are_judged() -> None:
    runs = [clustered(seed=seed, clients=40, minority=10) for seed in (1, 2)]
    both = record(details=False, seeds=(1, 2)).model_copy(update={"clusters": runs})
    last = [model for run in runs for model in run.rounds[-1].models if model.clients]
    most = max(model.high or 0 for model in last)
    assert said(both, f"[clusters]\nrisk = {most!r}").outcome is Outcome.PASS
    above = max(model.low or 0 for model in last) - 1e-6
    assert said(both, f"[clusters]\nrisk = {above!r}").outcome is Outcome.FAIL
    between = said(both, f"[clusters]\nrisk = {most - 1e-6!r}")
    assert between.outcome is Outcome.INCONCLUSIVE
    assert "is unknown, since the record does not state" in needed_by(ceiling(between)).text


def test_unknown_model_risks_are_inconclusive() -> None:
    run = clustered(clients=10, minority=2)
    unknown = {"risk": None, "low": None, "high": None}
    models = [model.model_copy(update=unknown) for model in run.rounds[-1].models]
    last = run.rounds[-1].model_copy(update={"models": models})
    blind = run.model_copy(update={"rounds": [*run.rounds[:-1], last]})
    for clusters, seeds in (([blind], (1,)), ([], (1,)), ([run], (1, 2))):
        given = record(details=False, seeds=seeds).model_copy(update={"clusters": clusters})
        assert said(given, "[clusters]\nrisk = 1.0").outcome is Outcome.INCONCLUSIVE


def test_games_are_compared_with_the_success_ceiling() -> None:
    high = played(point(right=60)).games[0].success.high
    assert said(played(point(right=60)), f"[games]\nsuccess = {high!r}").outcome is Outcome.PASS
    assert said(played(NONE), "[games]\nsuccess = 0.6").outcome is Outcome.FAIL
    between = said(played(point(right=60)), "[games]\nsuccess = 0.62")
    assert between.outcome is Outcome.INCONCLUSIVE
    more = needed_by(ceiling(between))
    assert (more.then, more.what) == (Outcome.PASS, "games")


def test_the_worst_point_of_the_requested_mechanisms_decides() -> None:
    several = played(NONE, HONEST)
    assert said(several, "[games]\nsuccess = 0.7").outcome is Outcome.FAIL
    named = '[games]\nsuccess = 0.7\nmechanisms = ["bitwise-rr"]'
    assert said(several, named).outcome is Outcome.PASS
    missing = '[games]\nsuccess = 0.7\nmechanisms = ["bitwise-rr", "laplace"]'
    assert said(several, missing).outcome is Outcome.INCONCLUSIVE


def test_an_infinite_actual_epsilon_exceeds_every_ceiling() -> None:
    text = "[games]\ncontradicted = false\nactual_epsilon = {}"
    exact = 6.999999999999034
    assert said(played(HONEST), text.format(exact)).outcome is Outcome.PASS
    assert said(played(HONEST), text.format(6.9)).outcome is Outcome.FAIL
    assert said(played(NONE), text.format(1e12)).outcome is Outcome.FAIL


def test_a_refuted_claim_fails_only_after_correction() -> None:
    text = "[games]\nsuccess = 1.0"
    told = said(played(REFUTED), text)
    assert told.outcome is Outcome.FAIL
    assert "claims 1, and the games refute it" in told.reason
    assert said(played(REFUTED), f"{text}\ncontradicted = false").outcome is Outcome.PASS
    barely = point("ome", REFUTED.empirical_epsilon - 0.02, None, right=95)
    assert barely.refuted
    assert said(played(barely), text).outcome is Outcome.FAIL
    # With twenty other tests, the correction makes it insignificant.
    many = [point("ome", 9.0, None, right=50, label=f"{place}") for place in range(20)]
    assert said(played(barely, *many), text).outcome is Outcome.INCONCLUSIVE


def test_epsilon_bounds_from_games_never_pass() -> None:
    text = "[games]\ncontradicted = false\nepsilon = {}"
    assert said(played(NONE), text.format(0.5)).outcome is Outcome.FAIL
    silent = said(played(NONE), text.format(20.0))
    assert silent.outcome is Outcome.INCONCLUSIVE
    alone = worst_of(ceiling(silent))
    among = worst_of(ceiling(said(played(NONE, NONE, NONE), text.format(20.0))))
    assert alone.low is not None
    assert among.low is not None
    assert among.low < alone.low


def test_a_policy_without_a_ceiling_for_games_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no ceiling for a record of games; give it \[games\]"):
        said(played(NONE), "[membership]\nauc = 0.6")
