"""Claims and ladder pages match the records; `make docs` checks the other pages."""

import gc
import re
import runpy
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from docs.claims import again, comparing, data, figures, judging, page, routes
from docs.claims.judging import ClaimResult
from docs.claims.titles import config_of, scale_of
from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import clopper_pearson
from fedaudit.results.record import Environment, games_hash
from results import archives
from results.archives import HERE, SUFFIX, committed_record, unpacked
from tests.report.records import record

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def no_collections() -> Iterator[None]:
    """Disable garbage collection, since each collection would look at all records."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
def test_the_ladder_page_and_its_data_match_the_records() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "ladder.py"))
    for path, text in script["generated"]().items():
        # matplotlib decides the contents of pictures; only their existence is checked.
        same = path.is_file() if path == script["PICTURE"] else path.read_text("utf-8") == text
        assert same, "run `python docs/ladder.py`"


@pytest.mark.slow
def test_the_claims_page_matches_claims_and_records() -> None:
    written = page.PAGE.read_text(encoding="utf-8")
    assert written == page.page(), "run `python docs/claims.py`"


@pytest.fixture(scope="module")
def all_decided() -> list[ClaimResult]:
    return [claim_result for paper in data.papers() for claim_result in judging.judge_paper(paper)]


@pytest.mark.slow
def test_verdicts_about_attacks_use_leaking_regimes_only(
    all_decided: list[ClaimResult],
) -> None:
    for claim_result in all_decided:
        counted = [regime_result for regime_result in claim_result.held if regime_result.counts]
        if claim_result.verdict not in ("open", "not run"):
            assert len(counted) >= (2 if claim_result.claim.tier == 1 else 1), claim_result.claim.id
            assert not claim_result.claim.leaks or all(comparing.leaks(h.regime) for h in counted)


@pytest.mark.slow
def test_open_and_missing_claims_state_what_is_needed(
    all_decided: list[ClaimResult],
) -> None:
    for claim_result in all_decided:
        reason = routes.what_decides(claim_result, judging.ERROR)
        assert bool(reason) == (
            claim_result.verdict in ("open", "not run", "not found at this scale")
        ), claim_result.claim.id


@pytest.mark.slow
def test_regimes_below_the_scale_of_a_paper_do_not_contradict_it(
    all_decided: list[ClaimResult],
) -> None:
    scales = {claim.id: paper.scale for paper in data.papers() for claim in paper.claim}
    for claim_result in all_decided:
        theirs = (
            claim_result.claim.scale
            if claim_result.claim.scale is not None
            else scales[claim_result.claim.id]
        )
        smaller = [scale_of(name).smaller_than(theirs) for name in judging.against_in(claim_result)]
        assert claim_result.verdict != "contradicted" or not all(smaller), claim_result.claim.id
        if claim_result.verdict == "not found at this scale":
            assert all(smaller), claim_result.claim.id


@pytest.mark.slow
def test_differences_follow_from_their_figures_unless_samples_are_held_out(
    all_decided: list[ClaimResult],
) -> None:
    common = [
        part
        for result in all_decided
        for regime_result in result.held
        for part in regime_result.parts
        if part.is_over_common_samples
    ]
    assert common
    for part in common:
        regime = data.regimes()[part.regime]
        variants = [data.variant_of(regime, term) for term in (part.test.one, part.other)]
        defenses = {config_of(regime.study, name)["defense"]["name"] for name in variants}
        assert part.test.figure == "auc"
        assert defenses & {"cofedmid", "compensation"}, (part.regime, variants)


@pytest.mark.slow
def test_at_most_a_fifth_of_the_claims_was_not_run(all_decided: list[ClaimResult]) -> None:
    missing = [claim_result for claim_result in all_decided if claim_result.verdict == "not run"]
    assert 5 * len(missing) <= len(all_decided)


def test_claims_about_label_excess_mark_older_records() -> None:
    with_excess = {
        claim.id
        for paper in data.papers()
        for claim in paper.claim
        for test in claim.tests
        if "excess" in (test.figure, test.one.figure, *(other.figure for other in test.others))
    }
    noted = {
        re.findall("<a id='([^']+)'", line)[0]
        for line in (ROOT / "docs" / "claims.md").read_text(encoding="utf-8").splitlines()
        if "an earlier version: their level of label distributions may be too high" in line
    }
    assert "sia-class-mixes" in noted
    assert noted <= with_excess


@pytest.mark.slow
def test_group_limits_are_labelled_delong_only_if_they_are() -> None:
    for path in sorted(data.RECORDS.glob("*/*.json")):
        for estimate in committed_record(path).groups:
            if estimate.metric == "auc" and estimate.value is not None and estimate.low is not None:
                pairs = min(estimate.n_members, estimate.n_nonmembers)
                exact = clopper_pearson(pairs * estimate.value, pairs)
                is_exact = (
                    abs(estimate.low - exact.low) < 1e-9
                    and abs((estimate.high or 0) - exact.high) < 1e-9
                )
                assert is_exact == estimate.method.startswith("exact on pairs"), path.name


def test_readme_numbers_match_the_records() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = " ".join(readme.split())
    shares = []
    for variant in ("redraw", ""):
        rows = figures.rows("fedmia-tiny-alexnet", variant)
        assert rows is not None
        by_seed = rows[figures.FigureName("tpr@0.001", "fedmia-2", "mixed", 0)]
        shares.append(100 * by_seed[None][None].value)
    drawn_anew, aligned = shares
    assert f"finds {drawn_anew:.0f} % of the members at 0.1 % FPR" in text
    assert f"with fixed non-members, it finds {aligned:.0f} %" in text
    assert f"[{sum(len(paper.claim) for paper in data.papers())} claims](docs/claims.md)" in text
    counts = {row[0]: row[1:] for row in table_rows((ROOT / "docs/claims.md").read_text())}
    papers = [row for row in table_rows(readme) if f"[{row[0]}](#{row[0].lower()})" in counts]
    assert len(papers) == 5
    for name, _, *stated in papers:
        claims, confirmed, _, missed, _, _, undecided, _ = counts[f"[{name}](#{name.lower()})"]
        assert stated == [claims, confirmed, missed, undecided]


def table_rows(page: str) -> list[list[str]]:
    """Return the cells of each row of Markdown tables."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[again.Unit]:
    """Collect the records that would be regenerated."""
    collected: list[again.Unit] = []

    def keep(units: Sequence[again.Unit]) -> int:
        collected.extend(units)
        return 0

    monkeypatch.setattr(again, "run_units", keep)
    return collected


@pytest.mark.slow
def test_a_claim_is_reproduced_by_the_commands_of_its_records(
    units: list[again.Unit], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert again.again("fedmia-redraw-tpr", data_dir="D", out=tmp_path) == 0
    assert "6 records of 3 studies" in capsys.readouterr().out
    commands = {unit.name: " ".join(unit.command) for unit in units}
    base, redrawn = commands["fedmia-tiny-cnn"], commands["fedmia-tiny-cnn-redraw"]
    assert base.startswith("run ")
    assert base.endswith(
        f"--pool {tmp_path / 'pool'} --out {tmp_path / 'fedmia-tiny-cnn'} --data-dir D"
    )
    assert redrawn.startswith(
        f"attack {tmp_path / 'fedmia-tiny-cnn'} --figures.evaluation=redraw --out"
    )
    with pytest.raises(
        BadInput, match="no claim is called 'ami-weigts'; did you mean 'ami-weights'"
    ):
        again.again("ami-weigts", data_dir="", out=tmp_path)


@pytest.mark.slow
def test_commands_that_reproduce_all_claims_have_unique_names(
    units: list[again.Unit], tmp_path: Path
) -> None:
    again.again("all", data_dir="D", out=tmp_path)
    assert len({unit.name for unit in units}) == len(units) > 150
    for unit in units:
        assert unit.committed.is_file(), unit.name
    adult = next(" ".join(unit.command) for unit in units if unit.name == "ifca-mir-adult")
    assert "--risk.training=continued --risk.sizes=capped" in adult


@pytest.mark.parametrize(
    ("commit", "message"),
    [
        ("", "no known commit.*uncommitted changes"),
        ("0123456789abcdef+", "uncommitted changes"),
        ("0123456789abcdef", "not in this history"),
    ],
)
def test_records_without_a_reproducible_commit_are_rejected(
    commit: str, message: str, tmp_path: Path
) -> None:
    keep = runpy.run_path(str(ROOT / "results" / "keep.py"))["raise_if_without_commit"]
    head = subprocess.run(
        ["git", "rev-parse", "--short=16", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if head.returncode:
        pytest.skip("not a checkout of a repository")
    keep(Environment(commit=head.stdout.strip()), tmp_path)
    with pytest.raises(BadInput, match=message):
        keep(Environment(commit=commit), tmp_path)


def test_records_of_games_have_their_own_content_hash() -> None:
    played = [path for path in unpacked().glob("ami-*/*.json") if path.stem == path.parent.name]
    games = [record for record in map(committed_record, played) if record.kind == "games"]
    assert len(games) == 10
    assert all(record.content_hash == games_hash(record) for record in games)


def test_studies_count_records_with_unknown_commits() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "results.py"))
    records = [
        record().model_copy(update={"environment": Environment(commit=commit)})
        for commit in ("", "0123456789abcdef+", "0123456789abcdef")
    ]
    study = script["Study"]("name", "command", "", dict(zip("abc", records, strict=True)))
    note = script["_unknown_commits"](study)
    assert "1 of them state no commit" in note
    assert "1 were created with uncommitted changes" in note


def test_every_archive_has_a_command() -> None:
    commands = tomllib.loads((ROOT / "results" / "made.toml").read_text(encoding="utf-8"))
    assert {path.name.removesuffix(SUFFIX) for path in HERE.glob(f"*{SUFFIX}")} == commands.keys()


def test_archives_are_deterministic_and_restore_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "HERE", tmp_path)
    records = {"b.json": b"{}", "a.json": b'{"name": "\xc3\xa9"}'}
    first = archives.archive(records, "study").read_bytes()
    assert archives.archive(dict(sorted(records.items())), "study").read_bytes() == first
    archives.unpack(tmp_path / "out")
    restored = {path.name: path.read_bytes() for path in (tmp_path / "out" / "study").iterdir()}
    assert restored == records
