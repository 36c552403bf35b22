"""The JUnit output of the gate."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.outputs import junit_xml
from fedaudit.gate.policy import DEFAULT_POLICY, policy_from
from fedaudit.gate.verdict import FigureCheck, Verdict, ceiling_check
from fedaudit.results.record import Record
from tests.gate.parts import auc, bound, control, policy, record_of
from tests.report.games import hostile_games
from tests.report.records import hostile

TEXT = """
name = "tests"
[membership]
auc = 0.6
epsilon = 2.0
contrasts = ["unseen", "other_client"]
"""


def mixed() -> Record:
    """A record with a check of each outcome."""
    good, bad = auc(0.48, 0.52), auc(0.7, 0.8, contrast="other_client")
    return record_of(good, bad, bound(0.3), controls=[control("blind classifier", False)])


def verdict(record: Record) -> Verdict:
    text = TEXT + '[controls]\nrequired = ["blind classifier"]'
    without_attacks = record.model_copy(update={"attacks": []})
    return evaluate_policy(without_attacks, policy(text))


def test_junit_counts_match_its_test_cases() -> None:
    root = ElementTree.fromstring(junit_xml(evaluate_policy(record_of(auc(0.48, 0.52)), policy())))
    assert root.attrib | {"name": ""} == {
        "name": "",
        "tests": "9",
        "failures": "0",
        "errors": "0",
        # The attack uses no weights.
        "skipped": "1",
        "time": "0",
    }
    suite = ElementTree.fromstring(junit_xml(verdict(mixed()))).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases)
    for kind, number in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        matching_cases = [case for case in cases if case.find(kind) is not None]
        assert int(suite.attrib[number]) == len(matching_cases)


def test_ceilings_that_were_not_judged_are_skipped_cases_with_a_reason() -> None:
    """Every ceiling of the example policy has a case, also those that cannot be judged."""
    found = evaluate_policy(record_of(auc(0.48, 0.52)), policy_from(DEFAULT_POLICY))
    root = ElementTree.fromstring(junit_xml(found))
    skipped = {
        case.attrib["name"]: reason.attrib["message"]
        for case in root.iter("testcase")
        if (reason := case.find("skipped")) is not None
    }
    assert skipped["Success in [games]"] == "not judged: this record has no security games"
    assert skipped["What the weights of the model reveal"] == (
        "not judged: all attacks that ran use only its predictions"
    )
    assert len(skipped) == len([*found.unjudged, *found.inapplicable])
    assert all(reason.startswith("not judged: ") for reason in skipped.values())


def test_a_reason_in_parentheses_is_the_message_of_a_skipped_case() -> None:
    found = verdict(mixed()).model_copy(
        update={"unjudged": ["who it was (the policy: no rule)", "a: b (c)", "nothing"]}
    )
    cases = ElementTree.fromstring(junit_xml(found)).iter("testcase")
    texts = {
        case.attrib["name"]: reason.attrib["message"]
        for case in cases
        if (reason := case.find("skipped")) is not None and "judged" in case.attrib["classname"]
    }
    assert texts == {
        "Who it was": "not judged: the policy: no rule",
        "A": "not judged: b (c)",
        "Nothing": "not judged: nothing",
    }


def test_junit_maps_inconclusive_to_error_and_bounds_to_skipped() -> None:
    text = junit_xml(verdict(mixed()))
    root = ElementTree.fromstring(text)
    errors = [
        case.attrib["name"] for case in root.iter("testcase") if case.find("error") is not None
    ]
    skipped = [c.attrib["name"] for c in root.iter("testcase") if c.find("skipped") is not None]
    # The failed control makes the figure above the ceiling unbelievable.
    assert errors == [
        "AUC against other clients' samples at most 0.600",
        "Control: blind classifier",
    ]
    assert skipped == ["Lower bound on epsilon at most 2.000"]


def test_a_gate_without_a_passed_check_is_not_green() -> None:
    only = evaluate_policy(record_of(bound(0.1)), policy('name = "x"\n[membership]\nepsilon = 2.0'))
    root = ElementTree.fromstring(junit_xml(only))
    assert only.outcome is Outcome.INCONCLUSIVE
    assert root.attrib["errors"] == "1"
    assert len(list(root.iter("testcase"))) == int(root.attrib["tests"])


def test_another_program_reads_the_file(tmp_path: Path) -> None:
    junitparser = pytest.importorskip("junitparser")
    path = tmp_path / "gate.xml"
    path.write_text(junit_xml(verdict(mixed())), encoding="utf-8")
    (suite,) = junitparser.JUnitXml.fromfile(str(path))
    kinds = [type(result).__name__ for case in suite for result in case.result]
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (7, 0, 2, 1)
    assert sorted(kinds) == ["Error", "Error", "Skipped"]
    assert {p.name: p.value for p in suite.properties()}["outcome"] == "inconclusive"
    assert next(iter(suite)).classname == "fedaudit.gate.membership.of-tests"


@pytest.mark.slow
def test_hostile_names_are_escaped() -> None:
    tables = (
        "[membership]\nauc = 0.6\ngroup_auc = 0.6\n[sources]\nabove_label_distributions = 0.1\n"
    )
    hostile_policy = policy(f'name = "tests"\n{tables}[games]\nsuccess = 0.6')
    for record in (hostile(), hostile_games()):
        text = junit_xml(evaluate_policy(record, hostile_policy))
        assert "<script" not in text
        assert "<img" not in text
        root = ElementTree.fromstring(text)
        element_names = {"testsuites", "testsuite", "properties", "property", "testcase", "failure"}
        element_names |= {"error", "skipped", "system-out"}
        assert {element.tag for element in root.iter()} <= element_names


def test_junit_escapes_markup_and_forbidden_characters() -> None:
    bad = "a\x00b\x1bc\ud800d\ufffee]]>&amp;<!--\"' <!DOCTYPE x [<!ENTITY y 'z'>]>&y;"
    hostile_check = FigureCheck(
        what=bad, value=0.7, low=0.7, high=0.8, outcome=Outcome.FAIL, reason=bad
    )
    check = ceiling_check("membership", bad, "auc", 0.6, [hostile_check])
    verdict_given = evaluate_policy(record_of(auc(0.7, 0.8)), policy())
    text = junit_xml(
        verdict_given.model_copy(update={"checks": [check], "reason": bad, "record": bad})
    )
    root = ElementTree.fromstring(text)
    failure = next(root.iter("failure"))
    assert failure.text is not None
    assert failure.text.startswith("a\ufffdb\ufffdc\ufffdd\ufffde]]>&amp;<!--\"' <!DOCTYPE")
    text.encode("utf-8")
