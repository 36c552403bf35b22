"""Set-ups of studies and records, and measured bounds next to them."""

import json
from pathlib import Path

import pytest

import fedaudit as fa
from fedaudit.core.errors import BadInput
from fedaudit.evaluation.guarantees import formal_epsilons
from fedaudit.plan.sections import Study
from fedaudit.plan.values import study_from
from fedaudit.privacy_budget.studies import measured_bounds, setup_of_record, setup_of_study
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record
from fedaudit.study.build import build_setup as run_of
from tests.report.records import record

SIZES = {0: 300, 1: 200, 2: 250}


def study(*defenses: dict[str, object], **tables: object) -> Study:
    values: dict[str, object] = {
        "name": "small",
        "data": {"name": "digits"},
        "partition": {"clients": 3},
        "training": {"rounds": 4, "epochs": 2, "batch_size": 20},
        "attacks": {"blackbox-loss": {}},
    }
    if defenses:
        first, *chain = defenses
        values["defense"] = {**first, "chain": chain}
    return study_from(values | tables)


CLIENT_DP: dict[str, object] = {
    "name": "client-dp",
    "options": {"clip": 1.0, "noise_multiplier": 2.0},
}
DP_SGD: dict[str, object] = {"name": "dp-sgd", "options": {"clip": 1.0, "noise_multiplier": 1.0}}


def test_client_dp_counts_every_upload() -> None:
    result = fa.budget(setup_of_study(study(CLIENT_DP), SIZES) | {"delta": 1e-5})
    assert result.setup.adjacency == "zero-out"
    assert result.unit == "client"
    by_hand = {"rounds": 4, "protects": "client", "clip": 1.0, "noise_multiplier": 2.0}
    direct = fa.budget({"clients": 3, "delta": 1e-5, "phase": [by_hand]})
    assert result.epsilon == pytest.approx(direct.epsilon)


def test_people_at_several_clients_and_dp_sgd() -> None:
    people = {"unit": "person", "clients_per_person": 2}
    assert setup_of_study(study(CLIENT_DP, audit=people), SIZES)["person_clients"] == 2
    with pytest.raises(BadInput, match="does not state how many samples"):
        setup_of_study(study(DP_SGD, audit=people), SIZES)


def test_the_audited_clients_decide_the_rate_of_dp_sgd() -> None:
    values = setup_of_study(study(DP_SGD), SIZES)
    assert (values["samples"], values["most_samples"]) == (300, 300)
    both = setup_of_study(study(DP_SGD, audit={"targets": [0, 1]}), SIZES)
    assert (both["samples"], both["most_samples"]) == (200, 300)


def test_later_steps_on_an_upload_do_not_count() -> None:
    chain = study(CLIENT_DP, {"name": "quantization"})
    assert setup_of_study(chain, SIZES) == setup_of_study(study(CLIENT_DP), SIZES)


@pytest.mark.parametrize("defense", [CLIENT_DP, DP_SGD])
def test_the_budget_is_slightly_below_the_renyi_claim(
    defense: dict[str, object], tmp_path: Path
) -> None:
    run = run_of(study(defense), 1, None)
    claimed = formal_epsilons([run])[0].value
    result = fa.budget(setup_of_study(run.study, run.assignment.sizes))
    assert claimed is not None
    assert 0.8 * claimed < result.epsilon < claimed
    path = tmp_path / "study.toml"
    options = "\n".join(f"{name} = {value}" for name, value in _options(defense).items())
    path.write_text(
        'name = "small"\ndata.name = "digits"\npartition.clients = 3\n'
        "attacks.blackbox-loss = {}\n[training]\nrounds = 4\nepochs = 2\nbatch_size = 20\n"
        f'[defense]\nname = "{defense["name"]}"\n[defense.options]\n{options}\n'
    )
    assert fa.budget(path).epsilon == result.epsilon


def _options(defense: dict[str, object]) -> dict[str, object]:
    options = defense["options"]
    assert isinstance(options, dict)
    return options


NOT_COMPOSED = {
    "has no mechanism for its audited clients \\(no defense\\)": study(),
    "only client-dp and dp-sgd are accounted for": study(
        {"name": "gradient-noise", "options": {"sigma": 0.1}}
    ),
    "combines client-dp with dp-sgd": study(CLIENT_DP, DP_SGD),
    "combines dp-sgd with mixup": study(DP_SGD, {"name": "mixup"}),
    "steps of dp-sgd are counted for fedavg, .* uses fedsgd": study(
        DP_SGD, algorithm={"name": "fedsgd"}
    ),
    "control variates .scaffold.* client-dp neither": study(
        CLIENT_DP, algorithm={"name": "scaffold"}
    ),
    "does not grow with rounds": study(
        {"name": "ldp-laplace", "options": {"epsilon": 2, "clip": 1}}
    ),
}


@pytest.mark.parametrize("reason", NOT_COMPOSED)
def test_studies_without_a_composed_mechanism(reason: str) -> None:
    with pytest.raises(BadInput, match=reason) as caught:
        setup_of_study(NOT_COMPOSED[reason], SIZES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"clip": "inf", "noise_multiplier": 0.0}, {"clip": 1.0, "noise_multiplier": 0.0}],
)
def test_settings_of_a_defense_that_adds_no_noise(options: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="this is no mechanism"):
        fa.budget(setup_of_study(study({"name": "client-dp", "options": options}), SIZES))


def with_bounds(*bounds: tuple[str, float], **changes: object) -> Record:
    figures = [
        Estimate(attack="blackbox-loss", metric=metric, value=value, method="one run 95%, delta 0")
        for metric, value in bounds
    ]
    return record(details=False).model_copy(update={"estimates": figures, **changes})


def test_the_largest_bound_of_each_kind_is_measured() -> None:
    result = measured_bounds(
        with_bounds(("epsilon", 0.3), ("epsilon", 0.5), ("client_epsilon", 2.0))
    )
    assert [(bound.unit, bound.metric, bound.value) for bound in result] == [
        ("client", "client_epsilon", 2.0),
        ("sample", "epsilon", 0.5),
    ]


def written(path: Path, document: Record) -> Path:
    path.write_text(document.model_dump_json(), encoding="utf-8")
    return path


def test_a_record_states_its_set_up_and_its_bounds(tmp_path: Path) -> None:
    config = study(CLIENT_DP).model_dump(mode="json", exclude_defaults=True)
    path = written(tmp_path / "record.json", with_bounds(("epsilon", 0.51999), config=config))
    result = fa.budget(path)
    assert result.epsilon == fa.budget(setup_of_study(study(CLIENT_DP), SIZES)).epsilon
    assert "Measured for one sample: epsilon at least 0.519 (epsilon; one run" in str(result)
    assert json.loads(result.to_json())["measured"][0]["value"] == 0.51999


def test_a_bound_above_the_epsilon_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "record.json", with_bounds(("client_epsilon", 9.0)))
    phase = {"rounds": 4, "protects": "client", "clip": 1.0, "noise_multiplier": 9.0}
    values = {"clients": 100, "delta": 1e-5, "phase": [phase]}
    text = str(fa.budget(values, record=path))
    assert "client_epsilon is above the epsilon of this set-up" in text
    assert "is above the epsilon" not in str(fa.budget(values))


def test_a_recording_does_not_state_its_training(tmp_path: Path) -> None:
    config: dict[str, object] = {"name": "live", "recording": {}}
    path = written(tmp_path / "record.json", with_bounds(config=config))
    with pytest.raises(BadInput, match="does not state how its clients trained"):
        fa.budget(path)


def test_a_record_of_dp_sgd_has_the_sizes_of_its_clients() -> None:
    config = study(DP_SGD).model_dump(mode="json", exclude_defaults=True)
    values = setup_of_record(with_bounds(config=config))
    assert values["samples"] == record(details=False).clients[0].samples
