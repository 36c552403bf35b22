"""Spelling of catalogue names in settings."""

import pytest

from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.plan.sections import Study
from fedaudit.plan.values import study_from


@pytest.mark.parametrize(
    ("typed", "stored_names"),
    [
        ({"attacks": {"FedMIA_2": {}}}, {"attacks": {"fedmia-2": {}}}),
        ({"defense": {"name": "dp_sgd"}}, {"defense": {"name": "dp-sgd"}}),
        ({"model": {"name": "Wide_ResNet"}}, {"model": {"name": "wide-resnet"}}),
        ({"algorithm": {"name": "FedAvg"}}, {"algorithm": {"name": "fedavg"}}),
        ({"partition": {"scheme": "IID"}}, {"partition": {"scheme": "iid"}}),
        ({"audit": {"draw": "fedmia-paper"}}, {"audit": {"draw": "fedmia_paper"}}),
        ({"audit": {"view": "Uploads"}}, {"audit": {"view": "uploads"}}),
        ({"risk": {"measure": "train_mia"}}, {"risk": {"measure": "train-mia"}}),
        ({"shadow": {"mode": "known_split"}}, {"shadow": {"mode": "known-split"}}),
        (
            {"figures": {"metrics": ["average-precision"]}},
            {"figures": {"metrics": ["average_precision"]}},
        ),
    ],
)
def test_names_are_stored_in_one_spelling(
    typed: dict[str, object], stored_names: dict[str, object]
) -> None:
    assert study_from({"name": "x", **typed}) == study_from({"name": "x", **stored_names})


def test_custom_names_are_not_changed() -> None:
    study: Study = study_from({"name": "x", "attacks": {"My_Module:Fedmia_2": {}}})
    assert list(study.attacks) == ["My_Module:Fedmia_2"]


def test_duplicate_attacks_raise() -> None:
    with pytest.raises(BadInput, match="'fedmia-2' and 'fedmia_2' are the same attack"):
        study_from({"name": "x", "attacks": {"fedmia-2": {}, "fedmia_2": {}}})


def test_a_refusal_of_a_whole_table_prints_no_table() -> None:
    with pytest.raises(BadInput, match=r"give at least 1$"):
        study_from({"name": "x", "audit": {"fair": 0}})


def test_a_misspelt_name_is_refused_with_only_the_nearest_name() -> None:
    message = str(unknown_name("attack", "fedmia2", ["fedmia-1", "fedmia-2", *map(str, range(50))]))
    assert message == (
        "there is no attack named 'fedmia2'; did you mean 'fedmia-2'? `fedaudit list attacks` "
        "lists all 52"
    )
    message = str(unknown_name("place", "x", ["a", "b"]))
    assert message == "there is no place named 'x'; known: a, b"
