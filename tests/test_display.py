"""Results in notebooks and as short texts."""

import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedaudit as fa
from fedaudit.api.audit import Scores
from fedaudit.api.comparing import ComparedRuns
from fedaudit.core.values import Samples
from fedaudit.datasets.catalog import load
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import DEFAULT_POLICY, policy_from
from fedaudit.live.audited import Split
from fedaudit.live.decisions import AttackAuc, Decision
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.results.record import Record
from tests.live.federation import recorder, rounds
from tests.report.games import played
from tests.report.records import HOSTILE, hostile, record
from tests.study.compare_records import make_record

SECRET = 0.8675309
"""A feature of every sample, which no text may contain."""


FORBIDDEN = {"script", "iframe", "img", "link", "a", "object", "form", "input", "meta", "base"}


class Elements(HTMLParser):
    """Names of the elements and attributes of a page, and all its styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.styles = set[str](), set[str](), ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.styles += "".join(value or "" for name, value in attrs if name == "style")

    def handle_data(self, data: str) -> None:
        self.styles += data if self.cdata_elem == "style" else ""


def clip(update: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    length = torch.stack([value.square().sum() for value in update.values()]).sum().sqrt()
    return {name: value / length.clamp(min=1.0) for name, value in update.items()}


def split() -> Split:
    data = {name: (torch.full((60, 2), SECRET), torch.arange(60) % 2) for name in ("a", HOSTILE)}
    for features, _ in data.values():
        features[:, 1] = torch.randn(60)
    return fa.fair_split(data, audited=20)


def budget() -> object:
    phase = {"rounds": 100, "protects": "client", "clip": 1.0, "noise_multiplier": 10.0}
    setup = {"clients": 5000, "delta": 1e-5, "target": 5.0, "phase": [phase]}
    return fa.budget(setup)


def decision() -> Decision:
    figure = AttackAuc(attack="loss-series", value=0.7, low=0.6, high=0.8)
    return Decision(round=3, outcome="withheld", limit=0.65, decide_by="upper", figures=(figure,))


@cache
def audited() -> Record:
    return record(details=False)


@cache
def comparison() -> ComparedRuns:
    records = [
        make_record(name, {"fedmia-2": {1: {0: auc}}}, {1: 0.8}) for name, auc in NAMES.items()
    ]
    return fa.compare(*records)


def federation() -> fa.Federation:
    samples = fa.Samples(torch.full((40, 2), SECRET), torch.arange(40) % 2)
    algorithm = fa.algorithms.FedAvg(rounds=3, epochs=2)
    noise = fa.defenses.GradientNoise(sigma=0.1)
    return fa.Federation(samples, clients=2, algorithm=algorithm, defenses=[noise])


def measured_round() -> MeasuredRound:
    return MeasuredRound(1, (0, 1), torch.zeros(2), {"loss": torch.full((2, 9), SECRET)})


NAMES = {"first": 0.7, "second": 0.6}
RESULTS: dict[str, Callable[[], object]] = {
    "record": audited,
    "hostile record": hostile,
    "games": played,
    "estimate": lambda: audited().where(metric="auc")[0],
    "rate": lambda: audited().where(metric="tpr@0.01")[0],
    "accuracy": lambda: audited().where(topic="utility")[0],
    "comparison": comparison,
    "comparison without records": lambda: comparison().comparison,
    "sound filter": lambda: fa.check_dp(clip, sensitivity=1.0, sigma=0.0),
    "broken filter": lambda: fa.check_dp(lambda update: update, sensitivity=1.0, sigma=1.0),
    "budget": budget,
    "decision": decision,
    "policy": lambda: evaluate_policy(hostile(), policy_from(DEFAULT_POLICY)),
    "metric": lambda: fa.evaluate([3, 1, 2, 0], [True, True, False, False])[0],
    "federation": federation,
    "data set": lambda: load("digits"),
    "split": split,
    "audit set": lambda: split().audit,
    "measured round": measured_round,
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_shown_in_a_notebook_without_scripts_or_requests(name: str) -> None:
    page = RESULTS[name]()._repr_html_()  # type: ignore[attr-defined]
    assert page.strip().startswith('<div class="fedaudit-result">')
    parsed = Elements(page)
    assert not parsed.tags & FORBIDDEN
    assert not any(name.startswith("on") or name in ("href", "src") for name in parsed.attributes)
    assert re.findall(r"url\(|@import|expression", parsed.styles) == []
    assert str(SECRET) not in page
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert len(text.split()) >= 6, "a person reads something"
    assert page.count("<div") == page.count("</div>")


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_prints_in_two_lines_without_samples(name: str) -> None:
    text = repr(RESULTS[name]())
    assert len(text.splitlines()) <= 2
    assert len(text) < 400
    assert "object at 0x" not in text
    assert str(SECRET) not in text
    assert text.isprintable() or "\n" in text


def test_a_list_of_estimates_prints_in_one_line_each() -> None:
    estimates = audited().estimates[:100]
    assert len(repr(estimates)) < 150 * len(estimates)
    assert repr(estimates[0]).startswith("<Estimate ")


def test_the_text_of_a_record_states_the_verdict_and_the_next_call() -> None:
    first = audited()
    what, verdict = repr(first).splitlines()
    assert "audited samples" in what
    assert "next: print(), frame()" in what
    assert verdict.split(":")[0].isupper()
    assert str(first).splitlines()[0].startswith(verdict.split(":")[0])


def test_a_record_that_cannot_be_rendered_still_has_a_text() -> None:
    assert "Record" in repr(Record.model_construct(name="x"))


def test_styles_apply_only_within_a_result() -> None:
    page = audited()._repr_html_()
    style = page[page.index("<style>") + 7 : page.index("</style>")]
    depth, start, outer = 0, 0, []
    for position, char in enumerate(style):
        if char == "{":
            outer += [style[start:position]] * (depth == 0)
            depth += 1
        elif char == "}":
            depth, start = depth - 1, position + 1
    assert depth == 0
    inside_media = re.findall(r"@media \(prefers[^{]*\{\s*([^{]*)", style)
    selectors = [text for text in outer if not text.strip().startswith("@media")] + inside_media
    assert len(selectors) >= 3
    assert all(".fedaudit-result" in selector for selector in selectors), selectors
    assert not re.search(r"@media[^{]*-width", style), "widths are those of the cell"


def test_scores_print_only_their_numbers() -> None:
    scores = Scores(np.arange(5), np.full(5, SECRET), np.array([fa.Origin.MEMBER] * 2 + [1, 1, 1]))
    assert repr(scores) == "<Scores of 5 samples, of which 2 are members>"


def test_data_print_sizes() -> None:
    samples = Samples(torch.full((5, 2), SECRET), torch.zeros(5, dtype=torch.int64))
    assert repr(samples).startswith("Samples(features=<Tensor (5, 2)>, ")
    assert repr(load("digits")).startswith("Dataset(name='digits', train=<Samples of 1438>, ")


def test_a_round_and_its_recorder_are_shown_while_it_trains(tmp_path: Path) -> None:
    with recorder(tmp_path / "live", keep="signals") as recording:
        assert "0 rounds, 0 measured" in repr(recording)
        for live in list(rounds())[:2]:
            recording.round(live.number, sent=live.sent, uploads=live.uploads)
        page, text = recording._repr_html_(), repr(recording)
    assert "2 rounds" in text
    assert "2 measured; next: fedaudit.attack_recording(" in text
    assert "2 rounds recorded" in page


def test_a_guard_lists_its_decisions(tmp_path: Path) -> None:
    data = {0: (torch.randn(800, 2), torch.arange(800) % 2)}
    audit = fa.fair_split(data, audited=300).audit
    net = nn.Linear(2, 2)
    with fa.Guard(tmp_path, net, audit, limit=0.8, log=lambda line: None) as guard:
        assert "no upload checked" in repr(guard)
        assert "Call check()" in guard._repr_html_()
        guard.check(1, sent=net, upload=net)
    assert re.fullmatch(r"<Guard with limit 0.8: 1 (sent|withheld)>", repr(guard))
    assert "1 upload checked" in guard._repr_html_()
