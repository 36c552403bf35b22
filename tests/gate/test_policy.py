"""Reading policies: defaults and errors."""

from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import (
    DEFAULT_POLICY,
    Policy,
    example_with_settings_of,
    policy_from,
    read_policy,
)
from tests.gate.parts import auc, policy, record_of
from tests.programs import exit_code


def test_the_printed_policy_can_be_read() -> None:
    policy = policy_from(DEFAULT_POLICY)
    assert policy.membership is not None
    assert policy.membership.tpr == {"0.01": 0.05, "0.001": 0.02}
    assert policy.games is not None
    assert policy.controls.otherwise == "inconclusive"


def test_commented_lines_of_the_printed_policy_are_settings() -> None:
    lines = [line.removeprefix("# ") for line in DEFAULT_POLICY.splitlines()[1:]]
    policy = policy_from("\n".join(lines))
    assert policy.sources is not None
    assert policy.clusters is not None
    assert policy.membership is not None
    assert None not in policy.membership.model_dump().values()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[membership]\nauc = 0.6", "name"),
        ('name = "x"\n[membership]\nauk = 0.6', "did you mean 'membership.auc'"),
        ('name = "x"\n[membershp]', "did you mean 'membership'"),
        ('name = "x"\n[membership]\nauc = 1.2', "less than or equal to 1, got 1.2"),
        ('name = "x"\n[membership]\nauc = nan', "finite"),
        ('name = "x"\n[membership]\nauc = true', "a valid number"),
        ('name = "x"\n[membership]\nauc = "0.6"', "a valid number"),
        ('name = "x"\n[membership]\ntpr = {"0.01" = true}', "a valid number"),
        ('name = "x"\n[membership]\nformal_epsilon = true', "a valid number"),
        ('name = "x"\n[sources]\nabove_label_distributions = true', "a valid number"),
        ('name = "x"\n[games]\nsuccess = false', "a valid number"),
        ('name = "x"\n[membership]\ntpr = {"1%" = 0.1}', "is written like 0.01, not '1%'"),
        ('name = "x"\n[membership]\ntpr = {"0.0" = 0.1}', "give a number in"),
        ('name = "x"\n[membership]\ntpr = {"0.01" = 0.1, ".01" = 0.2}', "is given twice"),
        ('name = "x"\n[membership]\ncontrasts = []', "at least one"),
        ('name = "x"\n[membership]\ncontrasts = ["mixed", "mixed"]', "'mixed' is named twice"),
        ('name = "x"\n[membership]\ntargets = [1, 0, 1]', "'1' is named twice"),
        ('name = "x"\n[membership]\nattacks = ["a", "a"]', "'a' is named twice"),
        ('name = "x"\n[evidence]\nviews = ["sum", "sum"]', "'sum' is named twice"),
        (
            'name = "x"\n[controls]\nrequired = ["planted leak", "planted leak"]',
            "'planted leak' is named twice",
        ),
        ('name = "x"\n[membership]\ncontrasts = ["unsen"]', "'unseen', 'other_client' or 'mixed'"),
        ('name = "x"\n[controls]\notherwise = "pass"', "'inconclusive' or 'fail'"),
        ('name = "x"\n[controls]\nrequired = ["vibes"]', "permuted members"),
        ('name = "x"\n[evidence]\nleast_seeds = -1', "greater than or equal to 0"),
        ('name = "\\u001b[2J"', "letters, digits"),
        ('name = "x', "is not valid TOML"),
        ("a." * 40 + "b = 1", "more than 32 levels of tables"),
    ],
)
def test_policy_errors_state_the_allowed_values(text: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        policy_from(text, source="policy.toml")
    assert message in str(refused.value)
    assert "policy.toml" in str(refused.value)


def test_only_a_short_regular_file_is_read(tmp_path: Path) -> None:
    large = tmp_path / "large.toml"
    large.write_text("#" * 2_000_000)
    for path, message in (
        (tmp_path, "regular file"),
        (large, "short file"),
        (tmp_path / "n", "does not exist"),
    ):
        with pytest.raises(BadInput, match=message):
            read_policy(path)
    (tmp_path / "bad").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="not valid TOML"):
        read_policy(tmp_path / "bad")


def test_policies_have_equal_digests_exactly_if_they_are_equal() -> None:
    same = policy_from('name = "x"\n[membership]\nauc = 0.60 # as before')
    assert same.digest() == policy_from('name="x"\nmembership.auc = 0.6').digest()
    assert same.digest() != policy_from('name="x"\nmembership.auc = 0.61').digest()
    assert Policy(name="x").digest() != Policy(name="y").digest()


def test_only_policies_with_the_settings_of_an_example_are_called_an_example() -> None:
    example = policy_from(DEFAULT_POLICY)
    assert example_with_settings_of(example) == "fedaudit gate --print-policy"
    renamed = example.model_copy(update={"name": "hospital", "owner": "data protection office"})
    assert renamed.digest() != example.digest()
    assert example_with_settings_of(renamed) == "fedaudit gate --print-policy"
    changed = policy_from(DEFAULT_POLICY.replace("auc = 0.6", "auc = 0.61", 1))
    assert example_with_settings_of(changed) == ""


def test_the_policy_of_init_is_an_example(tmp_path: Path) -> None:
    assert exit_code("init", str(tmp_path), "--ci", "none") == 0
    assert example_with_settings_of(read_policy(tmp_path / "policy.toml")) == "fedaudit init"


def test_a_verdict_states_the_owner_and_the_origin_of_its_policy() -> None:
    record, example = record_of(auc(0.48, 0.52)), policy_from(DEFAULT_POLICY)
    verdict = evaluate_policy(record, example.model_copy(update={"owner": "the board"}))
    assert verdict.policy_owner == "the board"
    assert verdict.policy_example == "fedaudit gate --print-policy"
    assert evaluate_policy(record, policy()).policy_example == ""
