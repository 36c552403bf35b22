"""Evidence packs: writing, verifying and signing."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import Lock, write_atomically
from fedaudit.pack import packing
from fedaudit.pack.manifest import Manifest, digest_of, manifest_text
from fedaudit.pack.packing import write_pack
from fedaudit.pack.verifying import verify
from fedaudit.results.record import Record, write_record
from tests.digests import write_with_digest
from tests.estimates import replace_estimates
from tests.gate.parts import auc, bound, record_of
from tests.programs import exit_code
from tests.report.games import played, point
from tests.report.records import hostile, record

POLICY = """
name = "tests"
[membership]
auc = 0.6
epsilon = 2.0
contrasts = ["unseen"]
[games]
success = 0.7
contradicted = false
"""

Change = Callable[[Path], object]


def packed(record: Record, folder: Path) -> Path:
    """Write the pack of a record next to the record and its policy."""
    write_record(record, folder / "record.json")
    (folder / "policy.toml").write_text(POLICY)
    write_pack(folder / "record.json", folder / "policy.toml", folder / "pack")
    return folder / "pack"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of a study that must not be changed."""
    folder = tmp_path_factory.mktemp("original")
    full = record(strengths=(0.1,), seeds=(1,), defenses=(("none", 1.0),))
    passing = record_of(auc(0.48, 0.52), bound(0.1)).model_copy(
        update={"exposed": full.exposed, "clients": full.clients}
    )
    return packed(replace_estimates(passing, full.groups[:3]), folder)


@pytest.fixture
def pack(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "pack")
    return tmp_path / "pack"


def manifest(pack: Path) -> Manifest:
    return Manifest.model_validate_json((pack / "manifest.json").read_text())


def rewritten(pack: Path, **changes: object) -> None:
    """Rewrite a manifest consistently, as a knowledgeable forger would."""
    changed = Manifest.model_validate({**manifest(pack).model_dump(), **changes})
    changed = changed.model_copy(update={"digest": digest_of(changed)})
    (pack / "manifest.json").write_text(manifest_text(changed))


def resealed(pack: Path) -> None:
    """Recompute the hashes of the manifest, as a forger would after changing a file."""
    files = [
        entry.model_copy(update={"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
        for entry in manifest(pack).files
        for data in [(pack / entry.name).read_bytes()]
    ]
    rewritten(pack, files=files)


def wrong(pack: Path, digest: str = "") -> str:
    problems = verify(pack, digest=digest).problems
    assert problems
    return "\n".join(problems)


def test_a_pack_verifies_and_matches_its_manifest(original: Path) -> None:
    verification = verify(original, digest=manifest(original).digest)
    assert verification.problems == []
    assert len(verification.checked) == 4
    assert {path.name for path in original.iterdir()} == {
        "clauses.json",
        "gate.xml",
        "manifest.json",
        "policy.toml",
        "record.json",
        "report.html",
        "study.toml",
        "summary.html",
        "verdict.json",
    }
    for entry in manifest(original).files:
        assert hashlib.sha256((original / entry.name).read_bytes()).hexdigest() == entry.sha256


@pytest.mark.parametrize("name", ["pack.zip", "pack.tar.gz", "PACK.HTML", "pack.json"])
def test_a_file_name_as_pack_folder_raises(name: str, original: Path, tmp_path: Path) -> None:
    run = original.parent
    message = r"a pack is a folder, but .* is the name of a file; .*, such as pack, and compress"
    with pytest.raises(BadInput, match=rf"(?i:{message})"):
        write_pack(run / "record.json", run / "policy.toml", tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_folder_may_have_dots_in_its_name(original: Path, tmp_path: Path) -> None:
    run = original.parent
    write_pack(run / "record.json", run / "policy.toml", tmp_path / "v1.2")
    assert (tmp_path / "v1.2" / "manifest.json").is_file()


def test_a_pack_lists_no_samples_and_lists_untested_topics(original: Path) -> None:
    packed = json.loads((original / "record.json").read_text())
    assert not packed.keys() & {"exposed", "histograms"}
    assert manifest(original).suppressed["exposed"] > 0
    assert manifest(original).untested


def test_packing_is_deterministic(original: Path, tmp_path: Path) -> None:
    source = original.parent
    write_pack(source / "record.json", source / "policy.toml", tmp_path / "again")
    for path in original.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_verify_reports_the_file_of_any_changed_byte(pack: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(path.name for path in pack.iterdir())))
    content = (pack / name).read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    mask = data.draw(st.integers(1, 255))
    (pack / name).write_bytes(
        content[:place] + bytes([content[place] ^ mask]) + content[place + 1 :]
    )
    try:
        assert name in wrong(pack)
    finally:
        (pack / name).write_bytes(content)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["record.json", "report.html", "manifest.json"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), ""),
        (lambda path: path.write_bytes(path.read_bytes() + b"\n"), ""),
        (lambda path: path.write_bytes(b""), ""),
        (lambda path: (path.unlink(), path.mkdir()), "is not a regular file"),
        (pipe, "is not a regular file"),
        (
            lambda path: (
                path.rename(path.parent.parent / path.name),
                path.symlink_to(path.parent.parent / path.name),
            ),
            "is a link",
        ),
    ],
    ids=["missing", "cut", "longer", "empty", "folder", "pipe", "link"],
)
def test_verify_reports_missing_or_replaced_files(
    pack: Path, name: str, change: Change, message: str
) -> None:
    change(pack / name)
    assert f"{name} {message}" in wrong(pack)


def test_verify_reports_files_not_in_the_manifest(pack: Path) -> None:
    (pack / "samples.npz").write_bytes(b"x")
    (pack / "more").mkdir()
    (pack / ".hidden").write_bytes(b"x")
    problems = wrong(pack)
    for name in ("samples.npz", "more", ".hidden"):
        assert f"{name} is not in the manifest" in problems


@pytest.mark.parametrize(
    "name", ["../record.json", "/etc/passwd", "a/b", "..", "x\\y", "", "\x1b[2J", "record.json\n"]
)
def test_verify_never_opens_files_outside_the_pack(
    pack: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [entry.model_dump() for entry in manifest(pack).files]
    rewritten(pack, files=[*files[1:], {**files[0], "name": name}])
    opened: list[str] = []
    plain_open = Path.open

    def recording_open(path: Path, *words: object, **options: object) -> object:
        opened.append(str(path.resolve()))
        return plain_open(path, *words, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", recording_open)
    assert "which is not a plain file name" in wrong(pack)
    assert all(Path(path).parent == pack.resolve() for path in opened)


def test_verify_reports_missing_duplicate_and_unknown_manifest_entries(pack: Path) -> None:
    files = manifest(pack).files
    rewritten(pack, files=files[1:])
    assert f"does not name {files[0].name}" in wrong(pack)
    rewritten(pack, files=[*files, files[0]])
    assert "twice" in wrong(pack)
    rewritten(pack, files=[*files, files[0].model_copy(update={"name": "other.txt"})])
    assert "names other.txt, which no pack has" in wrong(pack)


def test_verify_detects_a_changed_policy_with_valid_hashes(pack: Path) -> None:
    text = (pack / "policy.toml").read_text()
    (pack / "policy.toml").write_text(text.replace("auc = 0.6", "auc = 0.49"))
    resealed(pack)
    problems = wrong(pack)
    assert "verdict.json is not the verdict of the policy on the record" in problems
    assert "manifest.json has another outcome than record and policy" in problems


def test_verify_detects_a_changed_estimate_with_valid_hashes(pack: Path) -> None:
    packed = json.loads((pack / "record.json").read_text())
    first = packed["estimates"][0]
    first.get("figures", [first])[0]["high"] = 0.51
    write_with_digest(packed, pack / "record.json")
    resealed(pack)
    assert "verdict.json does not follow from record and policy" in wrong(pack)


@pytest.mark.parametrize("name", ["report.html", "gate.xml", "study.toml", "verdict.json"])
def test_verify_detects_changed_derived_files_with_valid_hashes(pack: Path, name: str) -> None:
    path = pack / name
    path.write_text(path.read_text(encoding="utf-8") + " ", encoding="utf-8")
    resealed(pack)
    assert f"{name} does not follow from record and policy" in wrong(pack)


def test_verify_detects_restored_samples_with_valid_hashes(pack: Path) -> None:
    packed = json.loads((pack / "record.json").read_text())
    untouched = json.loads((pack.parent / "pack" / "record.json").read_text())
    packed["exposed"] = [e.model_dump() for e in record(strengths=(1.0,)).exposed[:1]]
    assert "exposed" not in untouched
    write_with_digest(packed, pack / "record.json")
    resealed(pack)
    assert "record.json shows samples or groups" in wrong(pack)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("commit", "0000000"),
        ("seeds", [7]),
        ("content_hash", "ff" * 32),
        ("versions", {}),
        ("settings_hash", "0" * 64),
        ("untested", []),
        ("outcome", "fail"),
        ("policy_hash", "0" * 64),
    ],
)
def test_manifest_fields_must_match_the_record(pack: Path, field: str, value: object) -> None:
    rewritten(pack, **{field: value})
    assert f"another {field.replace('_', ' ')}" in wrong(pack)


def test_only_the_digest_detects_a_replaced_pack(pack: Path, tmp_path: Path) -> None:
    digest = manifest(pack).digest
    (tmp_path / "other").mkdir()
    other = packed(record_of(auc(0.48, 0.51), bound(0.1)), tmp_path / "other")
    assert verify(other).problems == []
    assert "does not have the given digest" in wrong(other, digest)
    with pytest.raises(BadInput, match="64 digits"):
        verify(pack, digest="abc")


def test_an_invalid_manifest_is_reported_without_a_crash(pack: Path) -> None:
    path = pack / "manifest.json"
    for text in ("{}", "[]", "null", "{", "[" * 10_000, '{"format": "fedaudit-pack"}', "\ud7ff"):
        path.write_text(text, encoding="utf-8")
        assert "manifest.json " in wrong(pack)
    path.write_bytes(b"\xff" * 100)
    assert "manifest.json cannot be read" in wrong(pack)
    path.write_bytes(b" " * 2_000_000)
    assert "manifest.json " in wrong(pack)


def test_packing_recomputes_the_content_hash_of_games(tmp_path: Path) -> None:
    true = played(point(right=55))
    games = true.model_copy(update={"content_hash": "ab" * 32})
    with pytest.raises(Damaged, match="does not match its digest"):
        packed(games, tmp_path)
    pack = packed(true, tmp_path)
    assert verify(pack).problems == []
    document = json.loads((pack / "record.json").read_text())
    document["points"][0]["batch"] += 1
    write_with_digest(document, pack / "record.json")
    resealed(pack)
    assert "record.json does not match its digest" in wrong(pack)


def test_packing_requires_an_empty_folder(original: Path, tmp_path: Path) -> None:
    source = original.parent
    (tmp_path / "mine").write_text("x")
    with pytest.raises(BadInput, match="is not empty"):
        write_pack(source / "record.json", source / "policy.toml", tmp_path)
    with pytest.raises(BadInput, match="is not empty"):
        write_pack(source / "record.json", source / "policy.toml", tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "x"


def test_packing_can_be_repeated_after_a_full_disk(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (original.parent / "record.json", original.parent / "policy.toml", tmp_path / "pack")
    remaining_writes = [3]

    def full(path: Path, text: str) -> None:
        remaining_writes[0] -= 1
        if not remaining_writes[0]:
            raise BadInput(f"{path} could not be written; free some space, then start again")
        write_atomically(path, text)

    monkeypatch.setattr(packing, "write_atomically", full)
    with pytest.raises(BadInput, match="start again"):
        write_pack(*files)
    assert list(files[2].iterdir()) == []
    write_pack(*files)
    assert verify(files[2]).problems == []


def test_packing_can_be_repeated_after_being_killed(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (original.parent / "record.json", original.parent / "policy.toml", tmp_path / "pack")
    moved, usual = [0], Path.replace

    def killed(path: Path, target: Path) -> Path:
        if path.parent.name == packing.UNFINISHED and not path.name.endswith(".partial"):
            moved[0] += 1
            if moved[0] == 4:
                raise KeyboardInterrupt
        return usual(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_pack(*files)
    monkeypatch.undo()
    assert len({path.name for path in files[2].iterdir()} & packing.FILES) == 3
    (files[2] / "lock").touch()
    with pytest.raises(BadInput, match="is not a pack"):
        verify(files[2])
    write_pack(*files)
    assert verify(files[2]).problems == []
    assert {path.name for path in files[2].iterdir()} == {*packing.FILES, "manifest.json"}


def test_concurrent_packing_into_one_folder_lets_one_process_succeed(
    original: Path, tmp_path: Path
) -> None:
    files = (original.parent / "record.json", original.parent / "policy.toml", tmp_path / "pack")
    other = tmp_path / "other.toml"
    other.write_text(POLICY.replace('"tests"', '"others"'))

    def done(policy: Path) -> str:
        with suppress(BadInput):
            return write_pack(files[0], policy, files[2]).policy
        return ""

    with ThreadPoolExecutor(2) as pool:
        (policy_name,) = filter(None, pool.map(done, [files[1], other]))
    assert verify(files[2]).problems == []
    assert manifest(files[2]).policy == policy_name


def test_packing_into_a_locked_folder_raises(original: Path, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    with closing(Lock(pack)) as lock:
        assert lock.acquire()
        with pytest.raises(BadInput, match="another process writes a pack to"):
            write_pack(original.parent / "record.json", original.parent / "policy.toml", pack)


@pytest.mark.parametrize("beside", ["mine.txt", "manifest.json"])
def test_an_unfinished_pack_next_to_other_files_is_not_replaced(
    beside: str, original: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "pack"
    (pack / packing.UNFINISHED).mkdir(parents=True)
    (pack / beside).write_text("mine")
    with pytest.raises(BadInput, match="is not empty"):
        write_pack(original.parent / "record.json", original.parent / "policy.toml", pack)
    assert (pack / beside).read_text() == "mine"


def test_suppression_that_changes_the_verdict_raises(tmp_path: Path) -> None:
    write_record(record_of(auc(0.48, 0.52, n_members=9)), tmp_path / "record.json")
    text = 'name = "x"\n[membership]\nauc = 0.6\ncontrasts = ["unseen"]'
    (tmp_path / "policy.toml").write_text(text)
    files = (tmp_path / "record.json", tmp_path / "policy.toml", tmp_path / "pack")
    with pytest.raises(BadInput, match="would be inconclusive instead of pass"):
        write_pack(*files)
    assert not files[2].exists()
    write_pack(*files, smallest_group=9)
    assert verify(files[2]).problems == []


def test_packing_escapes_markup_in_a_record(tmp_path: Path) -> None:
    bad = hostile()
    plain = bad.model_copy(update={"config": {"name": "<script>"}, "view": record().view})
    safe = json.loads(plain.model_dump_json().replace("\\u2028", "").replace("\\u202e", ""))
    (tmp_path / "record.json").write_text(
        json.dumps(safe).replace("\\u2028", "").replace("\\u202e", "")
    )
    (tmp_path / "policy.toml").write_text(POLICY)
    write_pack(tmp_path / "record.json", tmp_path / "policy.toml", tmp_path / "pack")
    assert verify(tmp_path / "pack").problems == []
    assert "<script>document" not in (tmp_path / "pack" / "gate.xml").read_text()


def test_exit_codes_of_pack_and_verify(
    original: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, out = original.parent, tmp_path / "pack"
    words = ("pack", source / "record.json", "--policy", source / "policy.toml", "--out", out)
    assert exit_code(*words) == 0
    digest = capsys.readouterr().out.split()[-1]
    assert exit_code("verify", out, "--digest", digest) == 0
    printed = capsys.readouterr().out
    assert "the pack is sound" in printed
    assert "verdict of its policy: " in printed
    monkeypatch.setenv("COLUMNS", "40")
    assert exit_code("verify", out) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40
    (out / "record.json").write_text("{}")
    assert exit_code("verify", out) == 1
    printed = capsys.readouterr().out
    assert "wrong: record.json has 2 bytes" in printed
    assert "the pack is not sound" in printed
    assert exit_code(*words) == 2
    assert exit_code("verify", tmp_path / "gone") == 2
    assert exit_code("verify", out, "--digest", "x") == 2
    assert exit_code(*words, "--smallest-group", "-1") == 2


def keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Generate a private and a public key with openssl."""
    private, public = folder / f"{name}.pem", folder / f"{name}-public.pem"
    make = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(private)]
    subprocess.run(make, check=True, capture_output=True)
    show = ["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)]
    subprocess.run(show, check=True, capture_output=True)
    return private, public


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")


@needs_openssl
def test_verify_accepts_only_the_signature_of_the_given_key(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = original.parent, tmp_path / "pack"
    (mine, public), (other, others) = keys(tmp_path, "mine"), keys(tmp_path, "other")
    words = ("pack", source / "record.json", "--policy", source / "policy.toml")
    assert exit_code(*words, "--out", out, "--sign", mine) == 0
    assert exit_code("verify", out, "--signer", public) == 0
    assert "verified: the manifest is signed by the key of" in capsys.readouterr().out
    check = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public), "-rawin"]
    files = ["-in", str(out / "manifest.json"), "-sigfile", str(out / "manifest.sig")]
    subprocess.run([*check, *files], check=True, capture_output=True)
    # Without a key, a signature is mentioned but not checked.
    assert exit_code("verify", out) == 0
    assert "not checked: manifest.sig" in capsys.readouterr().out
    # Rebuilt from the same record, and signed with another key.
    assert exit_code(*words, "--out", tmp_path / "again", "--sign", other) == 0
    assert exit_code("verify", tmp_path / "again", "--signer", others) == 0
    assert exit_code("verify", tmp_path / "again", "--signer", public) == 1
    assert "manifest.sig is not that key's signature" in capsys.readouterr().out
    # The old signature on a manifest that was changed and has its own digest.
    rewritten(out, commit="0000000")
    assert "manifest.sig is not that key's signature" in "\n".join(
        verify(out, signer=public).problems
    )
    assert exit_code("verify", original, "--signer", public) == 1
    assert "manifest.sig is missing: the pack is not signed by that key" in capsys.readouterr().out


@needs_openssl
def test_unusable_keys_and_signatures_are_refused(
    original: Path, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = keys(tmp_path, "mine")
    rsa, locked, text = tmp_path / "rsa.pem", tmp_path / "locked.pem", tmp_path / "text.pem"
    make = ["openssl", "genpkey", "-algorithm", "rsa", "-out", str(rsa)]
    subprocess.run(make, check=True, capture_output=True)
    lock = ["openssl", "pkey", "-in", str(private), "-aes256", "-passout", "pass:x", "-out"]
    subprocess.run([*lock, str(locked)], check=True, capture_output=True)
    text.write_text("no key")
    source = original.parent
    words = ("pack", source / "record.json", "--policy", source / "policy.toml", "--out")
    for key in (rsa, locked, text, public, tmp_path / "gone.pem"):
        assert exit_code(*words, tmp_path / "out", "--sign", key) == 2, key
        assert capsys.readouterr().err.count("\n") == 1
        assert not (tmp_path / "out").exists()
    for key in (rsa, text, private, tmp_path / "gone.pem"):
        assert exit_code("verify", pack, "--signer", key) == 2, key
    (pack / "manifest.sig").write_bytes(b"x" * 65)
    assert "manifest.sig is larger than 64 bytes" in verify(pack, signer=public).problems[0]
    (pack / "manifest.sig").unlink()
    (pack / "manifest.sig").symlink_to("manifest.json")
    assert "manifest.sig is a link" in verify(pack, signer=public).problems[0]


def test_signatures_without_their_package_are_refused(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedaudit.core.importing.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'fedaudit\[sign\]'"):
        verify(pack, signer=tmp_path / "key.pem")


def test_verify_rejects_a_foreign_report_of_any_stated_version(
    pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pack / "report.html").write_text("<script>alert(1)</script>")
    resealed(pack)
    assert exit_code("verify", pack) == 1
    rewritten(pack, made_with={**manifest(pack).made_with, "fedaudit": "0.0.9"})
    assert exit_code("verify", pack) == 4
    stdout = capsys.readouterr().out
    assert (
        "not checked: report.html: the manifest states that other versions made the pack" in stdout
    )
    assert "fedaudit 0.0.9" in stdout
    assert "the pack is sound" not in stdout
    assert exit_code("verify", pack, "--other-version") == 0
    assert "not checked: report.html" in capsys.readouterr().out


def test_a_pack_of_another_version_is_checked_as_far_as_possible(pack: Path) -> None:
    rewritten(pack, made_with={**manifest(pack).made_with, "fedaudit": "0.0.9"})
    assert exit_code("verify", pack) == 4
    assert exit_code("verify", pack, "--other-version") == 0
    rewritten(pack, commit="0000000")
    assert exit_code("verify", pack, "--other-version") == 1


def test_suppressed_counts_must_match_the_record(pack: Path) -> None:
    counts = manifest(pack).suppressed
    rewritten(pack, suppressed={**counts, "findings": 3})
    assert "states that 3 findings were suppressed, but record.json implies 0" in wrong(pack)
    rewritten(pack, suppressed={})
    assert "lists the wrong categories of suppressed entries" in wrong(pack)


def test_verify_detects_suppressed_counts_that_contradict_the_record(tmp_path: Path) -> None:
    full = record(strengths=(0.1,), seeds=(1,), defenses=(("none", 1.0),))
    few = full.clients[0].model_copy(update={"class_counts": [991, 9]})
    pack = packed(full.model_copy(update={"clients": [few]}), tmp_path)
    assert verify(pack).problems == []
    rewritten(pack, suppressed=dict.fromkeys(manifest(pack).suppressed, 0))
    problems = wrong(pack)
    assert "0 histograms were suppressed, but record.json implies at least 1" in problems
    assert "0 clients were suppressed, but record.json implies at least 1" in problems


def test_verify_lists_unverifiable_suppressed_counts_as_unchecked(pack: Path) -> None:
    counts = manifest(pack).suppressed
    rewritten(pack, suppressed={**counts, "exposed": 0, "usage": 99})
    verification = verify(pack)
    assert verification.problems == []
    listed = ", ".join(sorted(counts.keys() - {"findings"}))
    text = f"the numbers of suppressed {listed} in manifest.json"
    assert any(text in note for note in verification.unchecked)


def test_verify_lists_the_environment_as_unchecked(pack: Path) -> None:
    packed = json.loads((pack / "record.json").read_text())
    packed["environment"] |= {"commit": "beef", "device": "a cluster", "started": "1999"}
    write_with_digest(packed, pack / "record.json")
    resealed(pack)
    rewritten(pack, commit="beef", device="a cluster")
    message = "\n".join(verify(pack).unchecked)
    assert "(commit beef; device a cluster; started 1999; versions fedaudit" in message


def test_verify_rejects_suppression_of_large_groups(tmp_path: Path) -> None:
    gone = {"value": None, "low": None, "high": None}
    hidden = auc(0.8, 0.9, **gone, note="suppressed: fewer than 10 samples on a side")
    problems = wrong(packed(record_of(hidden, bound(0.1)), tmp_path))
    assert "marks figures as suppressed that have at least 10 members and non-members" in problems


def test_verify_detects_settings_that_recorders_never_write(tmp_path: Path) -> None:
    settings = {"name": "x", "recording": {"name": "x"}, "figures": {}}
    watched = record_of(auc(0.48, 0.52), bound(0.1), watched=True, config=settings)
    assert verify(packed(watched, tmp_path)).problems == []
    extended = {**settings, "data": {"name": "a bank"}, "recording": {"name": "x", "epochs": 3}}
    write_record(watched.model_copy(update={"config": extended}), tmp_path / "record.json")
    write_pack(tmp_path / "record.json", tmp_path / "policy.toml", tmp_path / "other")
    assert "settings that no recorder writes: data, recording.epochs" in wrong(tmp_path / "other")


def test_verify_raises_for_a_folder_without_manifest(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(BadInput, match=r"is not a pack: it has no manifest\.json"):
        verify(tmp_path)


def test_verify_detects_a_changed_clause_map(pack: Path) -> None:
    path = pack / "clauses.json"
    text = path.read_text(encoding="utf-8")
    assert "AUC at most 0.520" in text
    path.write_text(text.replace("AUC at most 0.520", "AUC at most 0.502"), encoding="utf-8")
    resealed(pack)
    assert "clauses.json does not follow from record and policy" in wrong(pack)
    path.unlink()
    assert "clauses.json is missing" in wrong(pack)
