"""Statements that several files of one pack repeat."""

import hashlib
import html
import json
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedaudit.formatting.fixed import fixed_texts
from fedaudit.pack.manifest import Manifest
from fedaudit.pack.packing import write_pack
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.study.running.run import run_study
from tests.programs import exit_code
from tests.study.studies import Carried, quick_study

POLICY = """
# A comment changes the file, but not the settings.
name = "tests"
[membership]
auc = 0.6
contrasts = ["unseen", "other_client"]
tpr = { "0.01" = 0.5 }
[sources]
above_label_distributions = 0.9
[controls]
required = ["planted leak"]
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    folder = tmp_path_factory.mktemp("agreement")
    study = quick_study(attacks={"blackbox-loss": {}, "sia": {}})
    record = run_study(study, folder / "run")
    (folder / "policy.toml").write_text(POLICY)
    write_pack(folder / "run" / "record.json", folder / "policy.toml", folder / "pack")
    return Carried(record, folder / "pack")


def manifest_of(pack: Path) -> Manifest:
    return Manifest.model_validate_json((pack / "manifest.json").read_text())


def text_of(page: Path) -> str:
    """Return the text of an HTML page without tags, with single spaces."""
    body = page.read_text().split("<main", 1)[1]
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", body)).split())


def test_the_digests_of_the_policy_are_those_of_its_file_and_settings(packed: Carried) -> None:
    pack, manifest = packed.folder, manifest_of(packed.folder)
    sha256 = hashlib.sha256((pack / "policy.toml").read_bytes()).hexdigest()
    assert {file.name: file.sha256 for file in manifest.files}["policy.toml"] == sha256
    summary = text_of(pack / "summary.html")
    assert f"policy.toml (SHA-256 {sha256})" in summary
    settings_digest = json.loads((pack / "verdict.json").read_text())["policy_hash"]
    assert settings_digest == manifest.policy_hash != sha256
    assert f"{settings_digest} (policy_hash in the manifest)" in summary


def test_the_summary_names_digests_by_what_they_cover(packed: Carried) -> None:
    pack, manifest = packed.folder, manifest_of(packed.folder)
    summary = text_of(pack / "summary.html")
    assert f"{manifest.content_hash} (field content_hash of record.json)" in summary
    assert f"Digest of the final model {manifest.model} (SHA-256 over its stored numbers" in summary
    # No other file can contain the digest, so the summary states where it is.
    files = {path.name for path in pack.iterdir() if manifest.digest in path.read_text()}
    assert files == {"manifest.json"}
    assert "DIGEST is the digest that fedaudit pack printed" in summary
    assert "Evidence pack (digest that fedaudit pack printed):" in summary
    assert exit_code("verify", pack, "--digest", manifest.digest) == 0


def test_summary_and_junit_count_the_outcomes_of_the_verdict(packed: Carried) -> None:
    checks = json.loads((packed.folder / "verdict.json").read_text())["checks"]
    counts = Counter(check["outcome"] for check in checks)
    assert counts["inconclusive"] > 1
    summary = text_of(packed.folder / "summary.html")
    match = re.search(r"Of (\d+) rules: ([^.]*)\.", summary)
    assert match is not None
    assert int(match[1]) == len(checks)
    words = fixed_texts("policy")["rules"]
    stated = [
        f"{counts[outcome]} {words[outcome]['count']}" for outcome in words if counts[outcome]
    ]
    assert match[2].split("; ")[: len(stated)] == stated
    assert f"of the {len(checks)} not judged" in match[2]
    suite = ElementTree.parse(packed.folder / "gate.xml").getroot()
    assert int(suite.attrib["errors"]) == counts["inconclusive"]
    assert int(suite.attrib["failures"]) == counts["fail"]
    verdict = json.loads((packed.folder / "verdict.json").read_text())
    not_judged = [*verdict["unjudged"], *verdict["inapplicable"]]
    assert int(suite.attrib["skipped"]) == counts["not refuted"] + len(not_judged)


def test_every_file_lists_the_same_as_not_tested(packed: Carried) -> None:
    untested = manifest_of(packed.folder).untested
    assert {*packed.record.untested} < {*untested}
    pages = [text_of(packed.folder / name) for name in ("report.html", "summary.html")]
    lists = [page.split("What was not tested", 1)[1] for page in pages]
    for text in lists:
        position = 0
        for sentence in untested:
            # The summary rewords the ends of sentences, such as names of settings.
            position = text.find(sentence[:24], position)
            assert position >= 0, sentence


def confusion_counts(record: Record) -> list[int]:
    return [count for source in record.sources for row in source.confusion for count in row]


def test_a_pack_has_no_confusion_matrix_with_small_counts(packed: Carried) -> None:
    """A hidden cell would follow from the number of samples of its client."""
    assert any(0 < count < 10 for count in confusion_counts(packed.record))
    assert confusion_counts(read_record(packed.folder / "record.json")) == []
    assert manifest_of(packed.folder).suppressed["sources"] == len(packed.record.sources)
    run = packed.folder.parent / "run"
    assert exit_code("verify", packed.folder, "--recording", run) == 0
