"""Packs that name the released file, and that compare a release with the last one."""

import json
import shutil
from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.exports.evidence import read_evidence
from fedaudit.exports.formats import Options, write_export
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.policy import policy_from
from fedaudit.pack.manifest import Manifest
from fedaudit.pack.models import released_file
from fedaudit.pack.packing import PackInputs, compute_files, write_pack
from fedaudit.pack.verifying import verify
from fedaudit.results.read import read_record
from fedaudit.results.record import record_json
from tests.exports.test_exports import sha256
from tests.live.federation import POLICY, ROUNDS
from tests.pack.test_models import models_after, one_weight_changed, recorded_pack, saved
from tests.pack.test_pack import resealed, rewritten
from tests.programs import exit_code

BASELINE_POLICY = f"{POLICY}\n[baseline]\nrelevant = 1.0\n"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the record of a recording, its final model, and a policy."""
    folder = tmp_path_factory.mktemp("releases")
    recorded_pack(folder)
    saved(folder, models_after()[ROUNDS])
    (folder / "policy.toml").write_text(BASELINE_POLICY)
    record, policy = folder / "record" / "record.json", folder / "policy.toml"
    baseline = read_record(record)
    model_file = released_file(baseline, folder / "model.safetensors")
    write_pack(record, policy, folder / "release", baseline=baseline, model_file=model_file)
    return folder


@pytest.fixture
def pack(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source / "release", tmp_path / "pack"))


def manifest_of(pack: Path) -> Manifest:
    return Manifest.model_validate_json((pack / "manifest.json").read_text())


def problems(pack: Path) -> str:
    found = verify(pack).problems
    assert found
    return "\n".join(found)


def recompute(pack: Path, **model_file: object) -> None:
    """Compute all files again, as a forger with fedaudit would, and seal the pack."""
    manifest = manifest_of(pack)
    assert manifest.model_file is not None
    named = manifest.model_file.model_copy(update=model_file)
    text = (pack / "policy.toml").read_text()
    inputs = PackInputs(
        read_record(pack / "record.json"),
        policy_from(text),
        text,
        manifest.smallest_group,
        baseline=read_record(pack / "baseline.json"),
        model_file=named,
    )
    computed = compute_files(inputs)
    for name, content in computed.texts.items():
        (pack / name).write_text(content)
    rewritten(pack, model_file=named, baseline_outcome=computed.verdict.baseline_outcome)
    resealed(pack)


def test_a_pack_states_the_file_of_the_released_model(source: Path, pack: Path) -> None:
    model, named = source / "model.safetensors", manifest_of(pack).model_file
    assert named is not None
    assert (named.name, named.bytes) == ("model.safetensors", model.stat().st_size)
    assert named.sha256 == sha256(model)
    assert named.tensors_digest == manifest_of(pack).model
    summary = (pack / "summary.html").read_text()
    assert named.sha256 in summary
    assert "model.safetensors" in summary


def test_a_pack_has_the_last_release_and_the_outcome_of_the_comparison(pack: Path) -> None:
    verification, manifest = verify(pack), manifest_of(pack)
    assert verification.problems == []
    packed = json.loads((pack / "baseline.json").read_text())
    assert manifest.baseline == packed["content_hash"]
    assert "exposed" not in packed
    verdict = json.loads((pack / "verdict.json").read_text())
    compared = [check for check in verdict["checks"] if check["section"] == "baseline"]
    assert {check["outcome"] for check in compared} == {"pass"}
    assert manifest.baseline_outcome is Outcome.PASS
    assert verdict["baseline_outcome"] == "pass"
    assert f"(digest {manifest.baseline}): PASS" in (pack / "summary.html").read_text()
    (question,) = [text for text in verification.unchecked if text.startswith("whether baseline")]
    assert manifest.baseline in question


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline_outcome": "fail"}, "another baseline outcome"),
        ({"baseline": "0" * 64}, "another baseline than"),
        ({"smallest_group_default": 3}, "another smallest group default"),
    ],
)
def test_forged_fields_of_the_manifest_are_found(
    changes: dict[str, object], message: str, pack: Path
) -> None:
    rewritten(pack, **changes)
    assert message in problems(pack)


def test_a_forged_outcome_of_the_comparison_is_found_in_the_verdict(pack: Path) -> None:
    path = pack / "verdict.json"
    path.write_text(
        path.read_text().replace('"baseline_outcome":"pass"', '"baseline_outcome":"fail"')
    )
    resealed(pack)
    assert "verdict.json does not follow from record, policy, last release" in problems(pack)


def test_a_last_release_that_seems_to_leak_more_contradicts_its_curves(pack: Path) -> None:
    """With a larger AUC of the last release, an increase would pass."""
    baseline = read_record(pack / "baseline.json")
    raised = [
        row.model_copy(update={"value": 0.99, "high": 1.0})
        if row.metric == "auc" and row.value is not None and not row.group and not row.within
        else row
        for row in baseline.estimates
    ]
    forged = baseline.model_copy(update={"estimates": raised})
    (pack / "baseline.json").write_text(record_json(forged))
    recompute(pack)
    assert "baseline.json: the AUC of" in problems(pack)


def test_single_samples_of_the_last_release_are_found(source: Path, pack: Path) -> None:
    shutil.copyfile(source / "record" / "record.json", pack / "baseline.json")
    recompute(pack)
    assert "baseline.json shows samples or groups that must be suppressed" in problems(pack)


def test_a_changed_file_name_is_found_or_named(
    source: Path, pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = manifest_of(pack)
    assert manifest.model_file is not None
    renamed = manifest.model_file.model_copy(update={"name": "other.safetensors"})
    rewritten(pack, model_file=renamed)
    assert "summary.html does not follow" in problems(pack)
    recompute(pack)
    # A forger who computes all files again is found only with the model.
    model = source / "model.safetensors"
    assert exit_code("verify", pack, "--model", model) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "not checked: the name of the released file: the pack names 'other.safetensors'" in (
        printed
    )
    assert exit_code("verify", pack, "--digest", manifest.digest) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "model.npz"])
def test_the_named_file_is_told_from_a_copy_with_other_bytes(
    name: str, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(tmp_path, models_after()[ROUNDS], name)
    assert exit_code("verify", pack, "--model", model) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"verified: {name} is the model after the last round" in printed
    is_same = name == "model.safetensors"
    assert (f"verified: {name} is the released file that the pack names" in printed) == is_same
    assert (f"{name} has other bytes" in printed) == (not is_same)
    assert "as the packer states" not in printed


def test_the_file_of_another_model_is_found_in_the_manifest(pack: Path) -> None:
    recompute(pack, tensors_digest="0" * 64)
    assert "names the file of a model that is no final model" in problems(pack)


def test_only_the_final_model_can_be_named(source: Path, tmp_path: Path) -> None:
    record, policy = source / "record" / "record.json", source / "policy.toml"
    earlier = saved(tmp_path, models_after()[1], "earlier.safetensors")
    other = saved(tmp_path, one_weight_changed(models_after()[ROUNDS]), "other.safetensors")
    for model in (earlier, other):
        with pytest.raises(BadInput, match="is not packed as the released model"):
            released_file(read_record(record), model)
        words = ("pack", record, "--policy", policy, "--out", tmp_path / "new", "--model", model)
        assert exit_code(*words) == 2
    assert not (tmp_path / "new").exists()


def test_the_command_writes_the_same_pack(source: Path, pack: Path, tmp_path: Path) -> None:
    record, policy = source / "record" / "record.json", source / "policy.toml"
    out = ("--baseline", record, "--model", source / "model.safetensors", "--out", tmp_path / "new")
    assert exit_code("pack", record, "--policy", policy, *out) == 0
    for path in pack.iterdir():
        assert (tmp_path / "new" / path.name).read_bytes() == path.read_bytes()


def test_an_exported_crate_contains_the_whole_pack(
    source: Path, pack: Path, tmp_path: Path
) -> None:
    evidence = read_evidence(pack, source / "model.safetensors")
    options = Options(agent="Ada", organisation="TRE 72")
    write_export(evidence, "ro-crate", tmp_path / "crate", options)
    (tmp_path / "crate" / "ro-crate-metadata.json").unlink()
    assert verify(tmp_path / "crate").problems == []
    assert evidence.verdict.baseline_outcome is Outcome.PASS


def test_a_summary_of_a_pack_repeats_its_facts(source: Path, pack: Path, tmp_path: Path) -> None:
    assert exit_code("summary", pack, "--out", tmp_path / "summary.html") == 0
    assert (tmp_path / "summary.html").read_text() == (pack / "summary.html").read_text()


def test_a_smaller_group_is_stated_next_to_the_default(source: Path, tmp_path: Path) -> None:
    record, policy = source / "record" / "record.json", source / "policy.toml"
    manifest = write_pack(record, policy, tmp_path / "pack", smallest_group=5)
    assert (manifest.smallest_group, manifest.smallest_group_default) == (5, 10)
    summary = (tmp_path / "pack" / "summary.html").read_text()
    assert "leaves out groups of fewer than 5 samples (default 10)" in summary
    # Without a model and a last release, nothing is claimed about them.
    assert "Released model (name and SHA-256 of its file):" in summary
    assert manifest.model_file is None
    assert manifest.baseline_outcome is None
