"""Settings of defenses in studies."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import ClientId
from fedaudit.defenses import DEFENSES
from fedaudit.defenses.noise import GradientNoise
from fedaudit.defenses.quantize import GradientQuantization
from fedaudit.defenses.sampling import DataSampling
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import Defense, TrainingContext
from fedaudit.observe.round import Upload
from fedaudit.plan.file import read_studies
from fedaudit.plan.identity import run_key, settings_of
from fedaudit.study.build import build_setup
from fedaudit.study.running.run import run_study
from tests.study.studies import small_study

NOISE = {"name": "gradient-noise", "options": {"sigma": 0.1}}
FEW_BITS = {"name": "quantization", "options": {"bits": 4}}
FAIR_ALONE = {"sources": 0}
HALF = {"name": "data-sampling", "options": {"share": 0.5}}


def defenses(**defense: object) -> Mapping[ClientId, Defense]:
    return build_setup(small_study(defense=defense), 1, None).defenses


@dataclass(frozen=True)
class Together(Defense):
    """Knows who else uses it."""

    coalition: tuple[ClientId, ...]
    strength: float = 1.0

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        return upload


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(DEFENSES, "together", Together)
    return "together"


def test_several_defenses_form_a_chain_in_order() -> None:
    assert defenses(**NOISE, clients=[1]) == {1: GradientNoise(0.1)}
    by_client = defenses(**NOISE, clients=[1], chain=[FEW_BITS, HALF])
    assert by_client == {1: Chain((GradientNoise(0.1), GradientQuantization(4), DataSampling(0.5)))}


def test_a_chain_may_start_with_no_defense() -> None:
    assert defenses(chain=[NOISE], clients=[2]) == {2: GradientNoise(0.1)}
    assert defenses(chain=[{"name": "none"}]) == {}


def test_a_variant_without_the_defense_may_keep_its_options() -> None:
    assert defenses(name="none", options={"sigma": 0.1}) == {}


def test_coalition_defenses_receive_their_group(together: str) -> None:
    by_client = defenses(
        name=together,
        clients=[3, 1],
        also=[{"name": together, "clients": [0], "options": {"strength": 2.0}}],
    )
    assert by_client == {1: Together((1, 3)), 3: Together((1, 3)), 0: Together((0,), 2.0)}
    everybody = defenses(name="none", chain=[{"name": together}])
    assert everybody[2] == Together((0, 1, 2, 3))


def test_the_coalition_is_no_setting_of_a_study(together: str) -> None:
    with pytest.raises(BadInput, match=r"options.coalition.*the clients of the defense"):
        defenses(name=together, options={"coalition": 1})


def test_each_client_has_its_own_defense_instance() -> None:
    by_client = defenses(**NOISE, chain=[FEW_BITS])
    first, second = by_client[0], by_client[1]
    assert isinstance(first, Chain)
    assert isinstance(second, Chain)
    assert first == second
    assert all(a is not b for a, b in zip(first.parts, second.parts, strict=True))


def test_a_defense_without_clients_covers_all_remaining_clients() -> None:
    by_client = defenses(**NOISE, also=[{**FEW_BITS, "clients": [0, 2]}])
    assert {
        client for client, defense in by_client.items() if isinstance(defense, GradientNoise)
    } == {1, 3}
    assert {
        client for client, defense in by_client.items() if defense == GradientQuantization(4)
    } == {0, 2}


@pytest.mark.parametrize(
    ("defense", "message"),
    [
        ({**NOISE, "clients": [0, 9]}, r"names \[9\], but clients are numbered 0 to 3"),
        ({"also": [{**NOISE, "clients": [4]}]}, r"names \[4\]"),
        (
            {**NOISE, "clients": [0], "also": [{**HALF, "clients": [0]}]},
            r"\[0\] are in two",
        ),
        ({**NOISE, "chain": [{"name": "quantisation"}]}, "did you mean 'quantization'"),
        ({**NOISE, "chain": [{"name": "quantization"}]}, "'quantization' needs bits"),
        ({**NOISE, "chain": [{**HALF, "clients": [1]}]}, "no setting in the study.*'defense.chain"),
        ({"also": [NOISE]}, "defense.also.0.clients"),
        ({**NOISE, "clients": []}, "no client uses the defense 'gradient-noise'"),
        ({**NOISE, "also": [{**HALF, "clients": [0, 1, 2, 3]}]}, "no client uses"),
    ],
)
def test_contradictory_groups_of_defenses_are_refused(
    defense: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        defenses(**defense)


def test_two_defenses_that_draw_batches_raise() -> None:
    with pytest.raises(Unsupported, match="DataSampling and DataSampling both replace the way"):
        defenses(**HALF, chain=[HALF])


@pytest.mark.parametrize(
    ("defense", "label"),
    [
        ({}, "none"),
        (NOISE, "gradient-noise"),
        ({**NOISE, "chain": [FEW_BITS]}, "gradient-noise + quantization"),
        ({"chain": [HALF]}, "data-sampling"),
        ({**NOISE, "also": [{**NOISE, "clients": [0]}]}, "gradient-noise"),
        ({**NOISE, "also": [{**HALF, "clients": [0]}]}, "gradient-noise, data-sampling"),
    ],
)
def test_the_defense_label_lists_all_parts(defense: dict[str, object], label: str) -> None:
    assert small_study(defense=defense).defense.label == label


def test_studies_without_chain_keep_their_run_key() -> None:
    assert (
        run_key(small_study(audit=FAIR_ALONE), 1)
        == "9ec79c61d8081f41f0236e20861ba552f870deab93b6fe4f544ce9ccd985bfc4"
    )
    noisy = small_study(defense=NOISE, audit=FAIR_ALONE)
    assert run_key(noisy, 1).startswith("4373ce64291e052509222f24")
    assert settings_of(noisy)["defense"] == {**NOISE, "clients": None}


@pytest.mark.parametrize("settings", [{"chain": [FEW_BITS]}, {"also": [{**HALF, "clients": [0]}]}])
def test_chains_and_groups_change_the_run_key(settings: dict[str, object]) -> None:
    assert run_key(small_study(defense={**NOISE, **settings}), 1) != run_key(
        small_study(defense=NOISE), 1
    )


def test_chains_are_written_as_tables_in_study_files(
    tmp_path: Path,
) -> None:
    path = tmp_path / "study.toml"
    path.write_text("""
        name = "chained"
        partition = { clients = 4 }
        training = { rounds = 2 }
        audit = { fair = 90 }
        figures = { permutations = 20, blind_classifier = false }
        attacks = { blackbox-loss = {} }
        [defense]
        name = "gradient-noise"
        options = { sigma = 0.01 }
        [[defense.chain]]
        name = "quantization"
        options = { bits = 8 }
        [[defense.also]]
        name = "data-sampling"
        clients = [3]
        options = { share = 0.5 }
        """)
    record = run_study(read_studies(path)[0], tmp_path / "out")
    label = "gradient-noise + quantization, data-sampling"
    assert {figure.defense for figure in record.findings} == {label}
    assert {estimate.defense for estimate in record.where(topic="utility")} == {label}
