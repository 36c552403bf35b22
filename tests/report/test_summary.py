"""The summary document of each kind of record."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from fedaudit.api.audit import Run
from fedaudit.core.errors import BadInput
from fedaudit.formatting import wording
from fedaudit.formatting.grid import as_one_line
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outputs import policy_section
from fedaudit.gate.policy import DEFAULT_POLICY, policy_from
from fedaudit.live.attack import attack_recording
from fedaudit.results.read import read_record
from fedaudit.results.record import Record, write_record
from fedaudit.results.text import escape_markdown
from fedaudit.summary.page import (
    MARKDOWN_MARK,
    PackFacts,
    SummarySection,
    summary_html,
    summary_markdown,
    summary_of,
)
from fedaudit.summary.statement import Statement
from results.archives import unpacked
from tests.gate.parts import auc, bound, control, record_of, tpr
from tests.live.federation import recorder, rounds
from tests.programs import exit_code
from tests.report.clustered import hostile_clusters
from tests.report.games import hostile_games, played
from tests.report.records import hostile, record
from tests.report.seen import words as visible
from tests.report.test_browser import BROWSER, is_harmless
from tests.report.test_print import CAN_READ_PDF, cells_of, n_pages, pdf_of, text_of
from tests.study.studies import SMALL

POLICY = """
name = "hospital"
[membership]
auc = 0.6
contrasts = ["unseen"]
[controls]
required = ["permuted members"]
"""
TITLES = (
    "What was asked",
    "Which model",
    "The answer",
    "What the policy says",
    "Checks of the audit itself (controls)",
    "What was not tested",
    "How to verify this page",
)

# One record of each kind, with what its page must say.
KINDS = {
    "cofedmid-location30/cofedmid-location30-cofedmid-half": (
        "training data of clients 0 and 9",
        "larger values:\n\n- An attack ranks a member above a non-member in at most",
        "10 clients with 143 to 168 samples each (5 training runs)",
        "**STRONG LEAK** · **Client 0, defended: clear leakage",
        "Client 9, undefended: strong leak",
        "| 0.859 | A strong leak. 95% interval 0.845–0.871. Attack: Sequence model.",
        "cofedmid (clients = [0, 1, 2, 3, 4], m_max = 15",
        "200 of 200 checks by 2 controls passed",
    ),
    "canaries-mnist/canaries-mnist-count-100": (
        "whether a given canary sample was in the training data of client 0?",
        "epsilon at least 1.192",
        "One canary sample, epsilon at least | 1.192 | The proven 10.9 is not refuted",
        "At most 1.192 could be shown",
        "Ordinary samples, which leak less",
    ),
    "client-dp-mnist/client-dp-mnist-canaries-20": (
        "How much can the model reveal of the whole contribution of one client?",
        "One client's whole contribution, epsilon at least | 1.435 | If the mechanism is Gaussian",
        "The claimed 2.572 (without canary clients, as deployed, 2.855) is not refuted",
    ),
    "secure-sum-mnist/secure-sum-mnist-clients-20-noise-1": (
        "How well does the sum of one round hide the update of one client?",
        "One client's update in one round's sum, epsilon at least | 0.767 | If the noise is normal",
        "the server sees only the sum of the clients' uploads, under secure aggregation",
    ),
    "unlearning-location30/unlearning-location30-ascent-far": (
        "After samples were deleted from the model: does it still reveal them?",
        "These figures are for the model before deletion; verdict after deletion: not forgotten.**",
        "not forgotten | Relative likelihood, AUC before 0.846 (",
    ),
    "sia-location30-defenses/sia-location30-defenses-alpha-1-dp-sgd": (
        "Can the adversary find out which client a training sample is from?",
        "29.1% | Above guessing (10.0%). 95% interval 27.8–30.4%.",
        "Whether a sample was in any client's data: only whose it was.",
    ),
    "ifca-mir-letters-leak/ifca-mir-letters-leak-continued": (
        "Riskiest model | 66.3% | A clear leak. 95% interval 64.7–67.8%",
        "11.8 of 20 clients (0.3 by chance) use a model riskier than they accept",
    ),
    "people-kjv/people-kjv": (
        "whether a given person's data were in the training data of client 0?",
        "| 0.958 | A strong leak. 95% interval 0.911–0.975",
        "people as members",
    ),
    "ami-digits/ami-digits": (
        "A server that plants a neuron in the model",
        "71.0% | Bitrand",
        "95% interval 59.6–80.7%. Guessing 50%.",
        "Security games have no controls; a proven bound serves as a check if there is one.",
        "Servers that send the model unchanged",
    ),
    "attacker-mnist/attacker-mnist-mislabel": (
        "trains on the audited samples with wrong labels",
        "This audit is too small to say",
    ),
    "fedmia-mnist-redraw/null": (
        "These figures say nothing about leakage",
        "This page prints no figure",
    ),
}


@cache
def stored_record(name: str) -> Record:
    return read_record(unpacked() / f"{name}.json")


def outcome(record: Record, text: str = POLICY) -> SummarySection:
    policy = policy_from(text)
    return policy_section(
        record, evaluate_policy(record, policy), policy, Path("policy.toml"), text
    )


def plain(document: str) -> str:
    """Markdown without its escapes."""
    return re.sub(r"\\([\\`*_\[\]|~+=.)-])", r"\1", document)


def section(record: Record, title: str, policy: SummarySection | None = None) -> SummarySection:
    return next(part for part in summary_of(record, policy).sections if part.title == title)


@pytest.mark.parametrize("name", KINDS)
def test_summaries_of_each_record_kind_have_expected_contents(name: str) -> None:
    record = stored_record(name)
    document = plain(summary_markdown(record))
    for text in KINDS[name]:
        assert text in document
    assert record.content_hash in document
    assert [part.title for part in summary_of(record).sections] == list(TITLES)


@pytest.mark.parametrize("name", KINDS)
def test_html_and_markdown_summaries_have_the_same_text(name: str) -> None:
    record = stored_record(name)
    page = " ".join(as_one_line(visible(summary_html(record))).split())
    page = page.replace("&#39;", "'").replace("&#34;", '"').replace("&lt;", "<")
    page = page.replace("&gt;", ">").replace("&amp;", "&")
    for part in summary_of(record).sections:
        cells = [cell for row in (part.table.rows if part.table else ()) for cell in row]
        facts = [text for row in part.facts for text in row]
        for text in (
            part.lead,
            *part.paragraphs,
            *part.points,
            *part.items,
            *part.remarks,
            *cells,
            *facts,
        ):
            assert " ".join(text.split()) in page


def test_the_summary_shows_the_strongest_estimate() -> None:
    record = record_of(auc(0.70, 0.80), auc(0.55, 0.65, attack="loss-series"))
    row = section(record, "The answer").table
    assert row is not None
    assert row.rows[0][:2] == ("Strongest attack, AUC", "0.750")
    assert (
        "0.700–0.800. Attack: FedMIA, gradients. Non-members: samples that no client trained"
        in row.rows[0][2]
    )


def test_the_words_for_sizes_are_defined_for_each_metric() -> None:
    (text,) = section(record_of(auc(0.70, 0.80)), "The answer").remarks
    assert "AUC: weak from 0.55, clear from 0.6, strong from 0.7." in text
    assert "TPR" not in text
    (text,) = section(record_of(auc(0.70, 0.80), tpr(20)), "The answer").remarks
    assert "TPR at 1% FPR: weak from 2%, clear from 5%, strong from 10%." in text
    assert "Other measures" not in text
    (text,) = section(played(), "The answer").remarks
    assert "AUC" not in text
    assert "Other measures: weak from 5%, clear from 15%, strong from 30% of the largest" in text


def test_terms_that_records_leave_unexplained_are_explained() -> None:
    document = summary_markdown(
        stored_record("cofedmid-location30/cofedmid-location30-cofedmid-half")
    )
    assert "no better than guessing if samples are called members at random." in document
    assert "Mixed" in dict(wording.glossary_entries("AUC v. mixed"))


def test_a_failed_control_withdraws_estimates_and_policy_results() -> None:
    failed = [control("permuted members", passed=False), control("untrained model")]
    record = record_of(auc(0.48, 0.52), controls=failed)
    answer = section(record, "The answer")
    assert answer.badge == "control failed"
    assert answer.table is None
    document = summary_markdown(record, outcome(record))
    assert "0.520" not in document
    assert "0.480" not in document
    assert "withdrawn" in document
    assert "✓ kept" not in document
    assert "**FAILED**" in document
    assert "| ✗ failed | 0 of 1 |" in document


def test_a_failed_control_of_one_attack_withdraws_only_its_estimates() -> None:
    failed = [
        control("permuted members", passed=False, attack="fedmia-2"),
        control("untrained model"),
    ]
    record = record_of(auc(0.80, 0.90), auc(0.70, 0.80, attack="loss-series"), controls=failed)
    answer = section(record, "The answer")
    assert answer.table is not None
    assert "Loss over rounds" in answer.table.rows[0][2]
    assert "0.850" not in summary_markdown(record)


@pytest.mark.parametrize(
    ("figure", "badge", "rule"),
    [
        (auc(0.48, 0.52), "PASS", "✓ kept"),
        (auc(0.70, 0.80), "FAIL", "✗ broken"),
        (auc(0.55, 0.65), "INCONCLUSIVE", "? inconclusive"),
    ],
    ids=["pass", "fail", "inconclusive"],
)
def test_a_policy_shows_its_outcome_with_measured_and_allowed_values(
    figure: object, badge: str, rule: str
) -> None:
    record = record_of(figure)  # type: ignore[arg-type]
    judged = outcome(record)
    part = section(record, "What the policy says", judged)
    assert part.badge == badge
    assert part.table is not None
    numbers = (figure.value, figure.low, figure.high)  # type: ignore[attr-defined]
    value, low, high = map(wording.format_number, numbers)
    expected = (rule, "AUC against unseen samples", "0.600", f"{value} ({low}–{high})")
    assert part.table.rows[0][:4] == expected
    assert "“hospital”" in part.lead
    assert dict(judged.facts)["Digest of its settings"][:64] in summary_markdown(record, judged)


def test_a_lower_bound_below_its_ceiling_proves_nothing() -> None:
    record = record_of(auc(0.48, 0.52), bound(1.2))
    document = summary_markdown(record, outcome(record, DEFAULT_POLICY))
    assert "– not refuted" in document
    assert "which does not show that it is kept" in document


def test_kept_controls_and_rules_with_the_same_reason_are_joined() -> None:
    record = stored_record("cofedmid-location30/cofedmid-location30-cofedmid-half")
    # Sample sizes are computed for each figure, and those of one attack are enough.
    kept = [each for each in record.estimates if each.attack in ("", "loss-series")]
    record = record.model_copy(update={"estimates": kept})
    part = section(record, "What the policy says", outcome(record, DEFAULT_POLICY))
    assert part.items == (
        "Not judged: TPR at 0.1% FPR v. unseen and TPR at 0.1% FPR v. other clients' samples: more "
        "audited samples are needed.",
    )
    (met,) = [text for text in part.remarks if text.startswith("Also met")]
    assert met.startswith("Also met: controls permuted members and untrained model; ")


def test_rules_without_a_figure_are_counted_as_not_judged() -> None:
    record = record_of(auc(0.48, 0.52))
    asking = POLICY.replace('["unseen"]', '["unseen", "other_client"]')
    part = section(record, "What the policy says", outcome(record, asking))
    assert part.paragraphs == (
        "Of 6 rules: 1 inconclusive; 5 kept; 1 of the 6 not judged, because the audit has no "
        "figure for them.",
    )
    assert part.table is not None
    assert part.table.rows[0] == (
        "– not judged (inconclusive)",
        "AUC against other clients' samples",
        "0.600",
        "–",
        "1 figure missing: the result file has no such figure",
    )


def test_rates_without_policy_rule_are_listed_as_not_judged() -> None:
    record = record_of(auc(0.48, 0.52), tpr(20))
    items = section(record, "What the policy says", outcome(record)).items
    assert "Not judged: TPR at low FPR (no tpr in [membership])." in items
    asking = POLICY.replace("auc = 0.6", 'auc = 0.6\ntpr = { "0.01" = 0.05 }')
    items_of_demand = section(record, "What the policy says", outcome(record, asking)).items
    assert not any("low FPR" in item for item in items_of_demand)


@pytest.mark.parametrize("owner", ["", "data protection office"])
def test_a_policy_is_shown_with_its_owner_file_and_digest(owner: str) -> None:
    record = record_of(auc(0.48, 0.52))
    judged = outcome(record, f'owner = "{owner}"\n{POLICY}' if owner else POLICY)
    facts = dict(section(record, "What the policy says", judged).facts)
    assert facts["Policy set by"] == (owner or "not stated in the policy’s file")
    assert facts["File of the policy"].startswith("policy.toml (SHA-256 ")
    assert (facts == dict(outcome(record).facts)) is (not owner), "owner and digest"


def test_unmeasured_rounds_and_missing_controls_are_listed_as_untested() -> None:
    summary = summary_of(stored_record("cofedmid-location30/cofedmid-location30-cofedmid-half"))
    controls, untested = summary.sections[4:6]
    assert "Uploads in 20 of 30 rounds, which were not measured." in untested.items
    assert controls.lead.endswith("not run: blind classifier and planted leak.")


def test_a_summary_without_policy_is_labelled() -> None:
    items = section(record_of(auc(0.48, 0.52)), "What the policy says")
    assert items.lead == "No policy was applied."
    assert not items.badge


def test_attacks_that_were_refused_and_parts_not_measured_are_listed() -> None:
    record = stored_record("fedmia-mnist-redraw/null")
    untested = section(record, "What was not tested")
    first, *others = record.untested
    assert first.startswith("Other adversaries than this one:")
    assert untested.items[:2] == (
        "No adversary that sees only the released model was tested.",
        "Adversaries other than the one in “What was asked”.",
    )
    assert set(others) <= set(untested.items)
    assert any("(seqmia) was refused" in remark for remark in untested.remarks)


def test_a_summary_of_a_recording_lists_unknown_settings(tmp_path: Path) -> None:
    with recorder(tmp_path / "live") as live:
        for live_round in rounds():
            live.round(live_round.number, sent=live_round.sent, uploads=live_round.uploads)
    document = summary_markdown(
        attack_recording(tmp_path / "live", (), tmp_path / "out", figures=SMALL["figures"])
    )
    assert "not known: the clients of a recorded federation may use any" in document
    assert "4 of 4 rounds measured" in document
    assert "`fedaudit attack RECORDING`" in document
    assert "fedaudit run" not in document


def test_the_validity_date_is_printed_or_raises() -> None:
    record = record_of(auc(0.48, 0.52))
    assert summary_of(record).valid_until.endswith("No date was set.")
    assert summary_of(record, valid_until="2027-06-30").valid_until.startswith("2027-06-30, or the")
    with pytest.raises(BadInput, match=r"'soon', which is not a date; write it as year-month-day"):
        summary_of(record, valid_until="soon")
    with pytest.raises(BadInput, match="give a later date"):
        summary_of(record, valid_until="2020-01-01")


def test_the_summary_has_signature_lines() -> None:
    for document in (summary_markdown(played()), summary_html(played())):
        for text in ("Prepared by", "data-protection officer", "Approved by", "Released model"):
            assert text in document


def terms_of(record: Record) -> set[str]:
    """Terms that a summary explains, each in the first section that uses it."""
    terms = [term for part in summary_of(record).sections for term, _ in part.terms]
    assert len(terms) == len(set(terms))
    return set(terms)


def test_only_terms_that_are_used_are_explained() -> None:
    assert [term for term, _ in wording.glossary_entries("the AUC of an attack")] == [
        "Attack",
        "AUC",
    ]
    assert [term for term, _ in wording.glossary_entries("canaries, rounded")] == ["Canary"]
    games = terms_of(played())
    assert {"Neuron", "Mechanism"} <= games
    assert "Unlearning" not in games
    assert not {"Neuron", "Mechanism"} & terms_of(record_of(auc(0.48, 0.52)))


HOSTILE_NAME = (
    "a|b`c`*d*_e_<script>x</script>\n# head\n::error::x\x1b[2J\u202e[l](http://e.x) @me www.e.x"
)


def named(text: str) -> Record:
    base = record_of(auc(0.70, 0.80, attack=text), auc(0.4, 0.5))
    attacks = [row.model_copy(update={"source": text, "signals": [text]}) for row in base.attacks]
    config = {
        "about": text,
        "data": {"name": text},
        "model": {"name": text, "options": {text: text}},
    }
    return base.model_copy(
        update={"name": text, "config": config, "untested": [text], "attacks": attacks}
    )


def rows_of(document: str) -> list[str]:
    return [line for line in document.split("\n") if line.startswith("|")]


@pytest.mark.parametrize(
    "make",
    [hostile, hostile_clusters, hostile_games, lambda: named(HOSTILE_NAME)],
    ids=["study", "clusters", "games", "markup"],
)
def test_hostile_names_are_escaped_in_both_forms(make: Callable[[], Record]) -> None:
    record = make()
    page, document = summary_html(record), summary_markdown(record)
    assert "<script" not in page
    assert "<img" not in page
    assert not re.search(r"<a\b", page)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "hacked" not in re.sub(r'content: "[^"]*"', "", style)
    outside = re.sub(r"</?sub>|<!-- fedaudit summary -->|--print-policy > ", "", document)
    assert not re.search(r"[<>]|://|(?<!&)#(?!#* )", outside.replace("\n#", "\n"))
    assert not re.search(r"(?<!\\)[*_`]d[*_`]|(?<!\\)\]\(", document)
    assert "\x1b" not in document + page
    assert "\u202e" not in document + page
    assert all(char.isprintable() or char == "\n" for char in document)
    assert not re.search(r"(?m)^\s*::", document)


@pytest.mark.parametrize(
    "make", [hostile, lambda: named(HOSTILE_NAME), *(lambda n=n: stored_record(n) for n in KINDS)]
)
def test_tables_in_markdown_have_as_many_cells_in_every_row(make: Callable[[], Record]) -> None:
    record = make()
    blocks = summary_markdown(record, outcome(record_of(auc(0.4, 0.5)))).split("\n\n")
    tables = [block.strip().split("\n") for block in blocks if block.startswith("|")]
    assert len(tables) >= 3
    for head, rule, *rows in tables:
        width = len(re.findall(r"(?<!\\)\|", head))
        assert set(rule) <= set("|- ")
        assert rows
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in (rule, *rows)} == {width}


def test_escaping_does_not_change_ordinary_text() -> None:
    assert escape_markdown("AUC 0.5 (95% interval 0.4–0.6), client 0's") == (
        "AUC 0.5 (95% interval 0.4–0.6), client 0's"
    )
    assert escape_markdown("a|b") == "a\\|b"
    assert escape_markdown("one\ntwo") == "one two"


def test_commands_in_markdown_can_be_copied() -> None:
    """A code span shows entities and backslashes literally."""
    document = summary_markdown(record_of(auc(0.48, 0.52)))
    assert "`fedaudit gate --print-policy > policy.toml`" in document
    assert not [span for span in re.findall(r"`([^`\n]+)`", document) if re.search(r"[&\\]", span)]


def test_the_html_summary_loads_no_resources_or_scripts() -> None:
    page = summary_html(record(details=False))
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def stored(folder: Path) -> Path:
    write_record(record_of(auc(0.70, 0.80)), folder / "record.json")
    (folder / "policy.toml").write_text(POLICY)
    return folder


def test_summary_writes_html_or_prints_markdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(tmp_path)
    assert exit_code("summary", folder) == 0
    assert capsys.readouterr().out == f"summary: {folder / 'summary.html'}\n"
    assert "No policy was applied" in (folder / "summary.html").read_text()
    policy = ("--policy", folder / "policy.toml")
    assert exit_code("summary", folder, "--format", "markdown", *policy) == 0, "though it fails"
    assert capsys.readouterr().out.startswith(MARKDOWN_MARK)
    out = folder / "page.md"
    for _ in range(2):
        assert exit_code("summary", folder / "record.json", "--out", out) == 0
    assert out.read_text().startswith(MARKDOWN_MARK)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--out", "page.pdf"), "give a name that ends in .html"),
        (("--out", "notes.md"), "notes.md exists and is not a summary"),
        (("--out", "record.json", "--format", "markdown"), "give a name that ends in .md"),
        (("--out", "no/page.html"), "no is not a folder"),
        (("--valid-until", "soon"), "which is not a date"),
        (("--policy", "record.json"), "is the record of a run and not a policy"),
        (("--format", "pdf"), "Choose from"),
    ],
)
def test_unwritable_summaries_raise_in_one_sentence(
    options: tuple[str, ...],
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(stored(tmp_path))
    Path("notes.md").write_text("mine")
    assert exit_code("summary", ".", *options) == 2
    assert hint in capsys.readouterr().err
    assert Path("notes.md").read_text() == "mine"


def test_a_summary_of_another_file_raises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("summary", stored(tmp_path) / "policy.toml") == 2
    assert "is a policy and not the record of a run" in capsys.readouterr().err


def test_a_pack_contains_the_summary_with_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(tmp_path)
    pack = folder / "pack"
    assert exit_code("pack", folder, "--policy", folder / "policy.toml", "--out", pack) == 0
    page = (pack / "summary.html").read_text()
    assert "✗ broken" in page
    assert exit_code("verify", pack) == 0
    assert exit_code("summary", pack, "--out", folder / "again.html") == 0
    assert (folder / "again.html").read_text() == page
    assert exit_code("summary", pack) == 2, "it would change the pack"
    assert exit_code("verify", pack) == 0
    (pack / "summary.html").write_text(page.replace("broken", "kept"))
    assert exit_code("verify", pack) == 1


def test_run_methods_return_and_save_the_summary(tmp_path: Path) -> None:
    run = Run(stored(tmp_path))
    assert run.summary() == summary_markdown(run.record)
    assert run.save_summary().read_text() == summary_html(run.record)
    assert run.save_summary(tmp_path / "page.md").read_text() == run.summary()
    policy = tmp_path / "policy.toml"
    assert run.summary(policy) == summary_markdown(run.record, outcome(run.record))
    page = run.save_summary(policy=str(policy), valid_until="2027-06-30").read_text()
    assert page == summary_html(run.record, outcome(run.record), "2027-06-30")
    with pytest.raises(BadInput, match="not a date"):
        run.summary(valid_until="soon")


STATEMENT = Statement(
    role="provider of the model and data holder",
    purpose="Triage of chest radiographs in the emergency departments of four hospitals",
)
PRINTED = [*KINDS, "hostile", "hostile_games"]


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on the PATH")
@pytest.mark.parametrize("name", PRINTED)
def test_the_summary_prints_on_at_most_two_pages(name: str, tmp_path: Path) -> None:
    others = {"hostile": hostile, "hostile_games": hostile_games}
    record = others[name]() if name in others else stored_record(name)
    policy = outcome(record, DEFAULT_POLICY) if name in KINDS and "sia" not in name else None
    left_out = "The pack leaves out groups of fewer than 10 samples (default 10)."
    pack = PackFacts(left_out, f"{'m' * 60}.safetensors (SHA-256 {'0' * 64})")
    page = summary_html(record, policy, "2027-06-30", STATEMENT, pack)
    assert 1 <= n_pages(pdf_of(page, tmp_path)) <= 2
    assert is_harmless(page)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(not CAN_READ_PDF, reason="there is no Chromium or no pdftotext on the PATH")
@pytest.mark.parametrize("name", ["cofedmid-location30/cofedmid-location30-cofedmid-half", "games"])
def test_the_text_of_every_cell_is_printed(name: str, tmp_path: Path) -> None:
    record = played() if name == "games" else stored_record(name)
    page = summary_html(record, outcome(record, DEFAULT_POLICY) if name != "games" else None)
    printed = text_of(pdf_of(page, tmp_path))
    cells_shown = cells_of(page)
    assert len(cells_shown) > 20
    assert [part for part in cells_shown if part not in printed] == []
