import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.results.estimate import TEST_ACCURACY
from fedaudit.results.read import read_record
from fedaudit.results.record import Record, write_record
from fedaudit.results.text import (
    MAX_TEXT_LENGTH,
    clean_text,
    is_plain,
    is_plain_json,
    iterate_texts,
    plain_json,
)
from tests.report.records import record
from tests.study.compare_records import make_record

SMALL = record(strengths=(1.0,), defenses=(("none", 1.0),), details=False)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "record.json"
    path.write_text(text, encoding="utf-8")
    return path


def altered(tmp_path: Path, **changes: object) -> Path:
    return written(tmp_path, json.dumps({**SMALL.model_dump(), **changes}))


def with_figures(tmp_path: Path, *figures: dict[str, object]) -> Path:
    return altered(tmp_path, estimates=list(figures))


def test_a_written_record_is_read_back_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(SMALL, path)
    assert read_record(path) == SMALL


@pytest.mark.parametrize("side", ["n_members", "n_nonmembers"])
@pytest.mark.parametrize("metric", ["auc", "tpr@0.01", "balanced_accuracy"])
def test_estimates_with_an_empty_side_are_refused(side: str, metric: str, tmp_path: Path) -> None:
    figure: dict[str, object] = {"attack": "a", "metric": metric, "seed": 1, "target": 0}
    figure |= {"value": 0.5, "low": 0.4, "high": 0.6, "method": "DeLong 95%", "contrast": "unseen"}
    figure |= {"n_members": 9, "n_nonmembers": 9, side: 0}
    with pytest.raises(Damaged, match="it needs at least one of each"):
        read_record(with_figures(tmp_path, figure))
    no_values = {"value": None, "low": None, "high": None}
    assert read_record(with_figures(tmp_path, figure | no_values)).findings


def test_a_group_with_an_empty_side_is_refused(tmp_path: Path) -> None:
    row: dict[str, object] = {
        "metric": "auc",
        "attack": "a",
        "contrast": "mixed",
        "by": "class",
        "group": "1",
    }
    row |= {"target": 0, "seed": 1, "value": 0.5, "low": 0.4, "high": 0.6}
    row |= {"n_members": 0, "n_nonmembers": 9}
    with pytest.raises(Damaged, match="0 members and 9 non-members"):
        read_record(with_figures(tmp_path, row))


@pytest.mark.parametrize(
    ("topic", "metric"),
    [("source", "source_success"), ("clusters", "risk"), ("utility", TEST_ACCURACY)],
)
def test_estimates_that_cannot_be_refused_need_a_value(
    topic: str, metric: str, tmp_path: Path
) -> None:
    figure: dict[str, object] = {"topic": topic, "metric": metric, "contrast": "", "value": None}
    with pytest.raises(Damaged, match=f"{metric} of topic {topic} has no value"):
        read_record(with_figures(tmp_path, figure))


TEXTS = st.text(max_size=20) | st.sampled_from(["\u202e", "\x1b[2J", "a\nb", '"', "\\", "é"])
DOCUMENTS = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@given(DOCUMENTS, st.booleans())
def test_a_plain_document_has_only_plain_texts(document: object, ascii_only: bool) -> None:
    if is_plain_json(json.dumps(document, ensure_ascii=ascii_only)):
        assert all(is_plain(text) for text in iterate_texts(document))


def test_plain_records_are_recognised_by_one_check() -> None:
    assert is_plain_json(SMALL.model_dump_json())


def test_formal_epsilons_need_no_samples(tmp_path: Path) -> None:
    proven = {"metric": "formal_epsilon", "value": 2.0}
    bound = {"attack": "a", "metric": "epsilon", "value": 0.0, "low": 0.0, "n_members": 4}
    assert len(read_record(with_figures(tmp_path, proven, bound)).findings) == 2


def test_a_missing_file_or_a_folder_raises_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing\.json does not exist"):
        read_record(tmp_path / "nothing.json")
    with pytest.raises(BadInput, match="is a folder"):
        read_record(tmp_path)


def test_a_file_over_the_size_limit_is_not_parsed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="larger than"):
        read_record(written(tmp_path, "{" * 200), max_bytes=100)


@pytest.mark.parametrize("text", ["", "{", '{"format": "fedaudit-record"', "[1, 2,]"])
def test_a_truncated_file_is_reported_as_damaged(tmp_path: Path, text: str) -> None:
    with pytest.raises(Damaged, match="not a complete JSON document"):
        read_record(written(tmp_path, text))


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"format": "other"}'])
def test_other_json_is_refused_as_a_record(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput, match="is not a fedaudit record"):
        read_record(written(tmp_path, text))


@pytest.mark.parametrize("version", [2, 4, "3", None, True, 3.0])
def test_another_version_raises_with_advice(tmp_path: Path, version: object) -> None:
    with pytest.raises(BadInput, match=r"of version .*use the fedaudit that wrote it"):
        read_record(altered(tmp_path, version=version))


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    text = SMALL.model_dump_json().replace('"seeds"', '"name":"twice","seeds"', 1)
    with pytest.raises(Damaged, match="'name' occurs twice"):
        read_record(written(tmp_path, text))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "9" * 5000])
def test_impossible_numbers_are_refused(tmp_path: Path, number: str) -> None:
    text = SMALL.model_dump_json().replace("312.4", number, 1)
    with pytest.raises(Damaged, match="not a complete JSON document"):
        read_record(written(tmp_path, text))


@pytest.mark.parametrize("depth", [40, 500_000])
def test_nesting_deeper_than_any_study_is_refused(tmp_path: Path, depth: int) -> None:
    text = SMALL.model_dump_json().replace(
        '"config":{', '"config":{"deep":' + "[" * depth + "]" * depth + ",", 1
    )
    with pytest.raises(Damaged, match="nested"):
        read_record(written(tmp_path, text))


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(b'{"format": "\xff\xfe"}')
    with pytest.raises(Damaged, match="not UTF-8 text"):
        read_record(path)


def test_an_invalid_field_raises_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(Damaged) as caught:
        read_record(altered(tmp_path, seeds="one", extra=1))
    message = str(caught.value)
    assert "at 'seeds': input should be a valid list (and 1 more error)" in message
    assert "\n" not in message


WHOLE: dict[str, object] = record(strengths=(1.0,), defenses=(("none", 1.0),)).model_dump(
    mode="json"
)


def changed(tmp_path: Path, place: str, value: object) -> Path:
    """The whole record with one value replaced, by its dotted place."""
    document = json.loads(json.dumps(WHOLE))
    *path, last = (int(part) if part.isdigit() else part for part in place.split("."))
    inner = document
    for part in path:
        inner = inner[part]
    inner[last] = value
    return written(tmp_path, json.dumps(document))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("estimates.0.figures.0.value", 1e308, r"1e\+308 is not in \[0, 1\]"),
        ("estimates.0.figures.0.value", -0.1, r"-0.1 is not in \[0, 1\]"),
        ("estimates.0.figures.0.low", 0.99, "not in order"),
        ("estimates.0.figures.0.high", 0.01, "not in order"),
        ("estimates.0.figures.0.metric", "tpr@0.02", ""),
        ("estimates.0.figures.1.value", 1.5, r"not in \[0, 1\]"),
        ("estimates.3.value", -1.0, r"not in \[0, 1e\+15\]"),
        ("estimates.0.n_members", -5, "greater than or equal to 0"),
        ("estimates.0.target", -(10**14), "greater than or equal to 0"),
        ("estimates.0.figures.0.realised_fpr", 2, "less than or equal to 1"),
        ("estimates.0.tests.0.significant", "yes", "valid boolean"),
        ("histograms.0.edges", [], "at least 2 items"),
        ("histograms.0.edges", [0, 1], "not of the same length"),
        ("histograms.0.edges.0", 1e200, "less than or equal to"),
        ("histograms.0.edges.0", 7.9, "edges must ascend"),
        ("histograms.0.member.0", -1, "greater than or equal to 0"),
        ("curves.0.fpr", [], "at least 1 item"),
        ("curves.0.tpr", [0.5], "not of the same length"),
        ("curves.0.tpr.0", -0.5, "greater than or equal to 0"),
        ("trajectories.0.mean", [], "not of the same length"),
        ("estimates.4.value", 1.1, r"1.1 is not in \[0, 1\]"),
        ("estimates.4.high", 0.0, "not in order"),
        ("exposed.0.above_nonmembers", 7, "less than or equal to 1"),
        ("controls.0.value", -3, "greater than or equal to 0"),
        ("controls.0.low", 0.9, "not in order"),
        ("accuracies.0.rounds", [1], "not of the same length"),
        ("clients.0.samples", -5, "greater than or equal to 0"),
        ("clients.0.audited", 10**30, "too large for a record"),
        ("clients.0.client", True, "valid integer"),
        ("environment.seconds", -1e300, "greater than or equal to 0"),
        ("seeds.0", -1, "greater than or equal to 0"),
        ("name", "turned \u202e round", "bidirectional control"),
        ("name", "\x1b[2J", "control characters"),
        ("untested.0", "nothing\x00", "control characters"),
        ("view.description", "a\u2067b", "bidirectional control"),
        ("config.name", "\ud800", "control characters"),
        ("config.\u202e", 1, "bidirectional control"),
        ("estimates.0.figures.0.note", "long " * MAX_TEXT_LENGTH, "of over 10,000 characters"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value[:25] else "",
)
def test_impossible_figures_are_refused_in_one_sentence(
    place: str, value: object, message: str, tmp_path: Path
) -> None:
    path = changed(tmp_path, place, value)
    if not message:
        assert read_record(path)
        return
    with pytest.raises(Damaged, match=message) as refused:
        read_record(path)
    sentence = str(refused.value)
    assert sentence.endswith("use the original record") or "complete JSON" in sentence
    assert "\n" not in sentence
    assert is_plain(sentence)
    assert len(sentence) < 400 + len(str(path))


def test_figures_of_other_kinds_may_be_negative_or_large(tmp_path: Path) -> None:
    for number in (-3.5, 1e12):
        document = {**WHOLE, "estimates": [{"metric": "advantage", "value": number}]}
        path = written(tmp_path, json.dumps(document))
        assert read_record(path).findings[0].value == number


def test_forbidden_characters_are_replaced_and_plain_text_is_unchanged() -> None:
    assert clean_text("Grüße, 東京 🙂\n\tשלום") == "Grüße, 東京 🙂\n\tשלום"
    assert clean_text("a\u202eb\x1bc\ud800") == "a\ufffdb\ufffdc\ufffd"
    assert len(clean_text("x" * 2 * MAX_TEXT_LENGTH)) == MAX_TEXT_LENGTH
    value = {"a\x00": ["\u2066", 1, None, {"b": ("\x07",)}]}
    assert plain_json(value) == {"a\ufffd": ["\ufffd", 1, None, {"b": ["\ufffd"]}]}


def test_every_record_of_the_tests_is_one_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for example in (record(seeds=(1, 2), over_seeds=True), Record.model_validate(WHOLE)):
        write_record(example, path)
        assert read_record(path) == example


def test_a_record_of_thousands_of_metrics_is_refused(tmp_path: Path) -> None:
    example = make_record("a", {"fedmia-1": {1: {0: 0.7}}}, {1: 0.8})
    figure = next(figure for figure in example.findings if figure.attack)
    for count in (1000, 1001):
        many = [figure.model_copy(update={"metric": f"tpr@0.{i:05}1"}) for i in range(count)]
        write_record(example.model_copy(update={"estimates": many}), tmp_path / "record.json")
        if count > 1000:
            with pytest.raises(Damaged, match=r"1,001 different metrics, but .* at most 1,000"):
                read_record(tmp_path / "record.json")
        else:
            assert len(read_record(tmp_path / "record.json").findings) == count
