"""Markdown page of the claims."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import ndiff

from docs.claims.comparing import BY_STUDENT, Figure, counts, leak_of, leaks, over_runs
from docs.claims.data import ROOT, Paper, Regime, Term, papers, regimes, variant_of
from docs.claims.figures import FigureName, has_older_levels, rows
from docs.claims.judging import (
    UNDECIDED,
    VERDICTS,
    ClaimResult,
    PartResult,
    RegimeResult,
    Verdict,
    judge_paper,
    needed_regimes,
    scale_words,
)
from docs.claims.routes import cheapest, hours_spent, share_of_error, why
from docs.claims.titles import title_of

PAGE = ROOT / "docs" / "claims.md"

_OUT_OF_REACH = 50
"""Times the existing runs."""
_MOST_SHOWN = 12
"""Largest number of differing lines, and the length of each."""
_LONGEST = 160

MEANINGS = (
    (
        "confirmed",
        "The 95 % interval of the difference lies on the claimed side of the margin in at least "
        "two regimes that count (in one for ablations), and no regime decides otherwise.",
    ),
    ("no difference", "The interval lies within the margin in as many regimes."),
    (
        "contradicted",
        "The interval lies on the opposite side in as many regimes, and the claim holds in none.",
    ),
    (
        "not found at this scale",
        "The claim would be contradicted, but our regimes are smaller than the paper's. The scales "
        "are stated.",
    ),
    ("depends on the regime", "The claim holds in one regime and fails in another."),
    ("open", "None of the above. The cheapest way to decide the claim is stated."),
    ("not run", "The reason is stated."),
)
LEAKS = (
    (
        "membership",
        "an undefended attack, chosen in advance, has an AUC of 0.7 or more (lower limit 0.65)",
    ),
    (
        "source inference",
        "an undefended attack names the owner ten points more often than label distributions "
        "explain",
    ),
    (
        "clustered learning",
        "the risk of a model (balanced accuracy of membership inference; guessing: 0.5) is 0.6 or "
        "more",
    ),
    (
        "active membership inference",
        "the server is right in 70 % of games without randomisation",
    ),
)
INTRODUCTION = """# Claims of the papers

Look up which claims of papers about membership and source inference hold in our records. A claim
compares two figures, such as the AUCs of two attacks, with a *margin*: the smallest difference that
counts. A *regime* is a data set, a network and the training settings with which we tested claims.
`python docs/claims.py` computes all verdicts from the claims (`claims/*.toml`) and the records
(`results/`), and generates this page. A test checks that the page is up to date.

{verdicts}

A regime counts if it has two seeds or more. A claim about an attack or a defense also needs a
regime that *leaks*. The condition depends on the topic of the claim:

{leaks}

The [leak ladder](ladder.md) shows when federations begin to leak. A mean of several attacks covers
the attacks whose AUC differs from chance level without a defense
([rule](figures.md#averages-over-attacks)).

Each difference has two intervals:

- *These runs* is about the models that we trained. AUCs are paired by sample within a run (DeLong,
  or exact limits if few pairs are misordered). Other figures are paired by seed, or their separate
  limits are combined.
- *Further runs* is about the mean over all possible seeds. It is Student's t interval and needs
  five seeds. Rates and counts close to 0 have no such interval.

Figures and differences cover the same runs. A difference *over common samples* is not the
difference of the two figures. It leaves out samples whose role (member, other client's or held-out
sample) differs between the two runs: CoFedMID holds out members for validation, and a coalition's
average has the members of several clients.

A decided claim is marked **these runs only** if the second interval gives another verdict. Limits
of games are about the played targets. If each game has a separate target, they are also about
further targets.

For each kind of interval, all tested claims of a paper share an error of 5 % (Holm). The interval
of a single comparison is not corrected. [Decision
15](decisions/0015-two-regimes-and-one-error.md) describes the rules, and how often they err.

The cost of deciding an open claim is an estimate. It assumes that the figures stay the same, and
that intervals shrink with the square root of the number of runs or samples. It includes the
correction. If a claim has several parts, refuting one part can be cheaper than confirming all.

To repeat the runs of a row and compare every figure with the records, run
`python docs/claims.py --again CLAIM --data-dir D`. `--again ami-weights` takes half a minute on one
core and needs no data. `--again fedmia-fig5-rounds` takes a minute and a half (Location-30).
`--again all` repeats every row and can be interrupted. [Regimes](#regimes) lists the hours.
"""


def page() -> str:
    judged_papers = [(paper, judge_paper(paper)) for paper in papers()]
    parts = [
        INTRODUCTION.rstrip().format(
            verdicts=_table(["verdict", "condition"], MEANINGS),
            leaks=_table(["topic of the claim", "the regime leaks if"], LEAKS),
        ),
        _tally(judged_papers),
        _readings(judged_papers),
        _prices(judged_papers),
    ]
    parts += [_section(paper, claims) for paper, claims in judged_papers]
    parts.append(_regimes_table())
    return "\n\n".join(parts) + "\n"


def _tally(judged_papers: Sequence[tuple[Paper, Sequence[ClaimResult]]]) -> str:
    lines = [_row(["paper", "claims", *VERDICTS]), _row(["---"] * (2 + len(VERDICTS)))]
    total = Counter[Verdict]()
    for paper, claims in judged_papers:
        counts = Counter(result.verdict for result in claims)
        total += counts
        link = f"[{paper.name}](#{paper.name.lower()})"
        lines.append(_row([link, str(len(claims)), *(str(counts[v]) for v in VERDICTS)]))
    lines.append(_row(["all", str(total.total()), *(str(total[v]) for v in VERDICTS)]))
    return "\n".join(lines)


def _readings(judged_papers: Sequence[tuple[Paper, Sequence[ClaimResult]]]) -> str:
    claims = [
        result
        for _, claims in judged_papers
        for result in claims
        if result.verdict not in UNDECIDED
    ]
    readings = Counter(reading_of(result) for result in claims)
    return (
        f"Of the {len(claims)} decided claims, {readings['']} have the same verdict for further "
        f"runs, and {readings[OPEN_FURTHER]} are open for further runs. For "
        f"{readings[TOO_FEW_SEEDS]} claims, too few regimes have five seeds. For "
        f"{readings[TARGETS_PLAYED]} claims, the limits are only about the played targets."
    )


OPEN_FURTHER = "open for further runs"
TOO_FEW_SEEDS = "too few seeds for further runs"
TARGETS_PLAYED = "for the played targets"


def reading_of(result: ClaimResult) -> str:
    """Return why a decided claim is about these runs only; empty if it holds for further runs."""
    further = result.further
    if further is not None and further.verdict == result.verdict:
        return ""
    if further is not None and len(further.counted) >= needed_regimes(result.claim):
        return OPEN_FURTHER
    is_of_games = any(regimes()[name].kind == "games" for name in result.claim.regimes)
    return TARGETS_PLAYED if is_of_games else TOO_FEW_SEEDS


def _prices(judged_papers: Sequence[tuple[Paper, Sequence[ClaimResult]]]) -> str:
    claims = [
        (result, share_of_error(all_))
        for _, all_ in judged_papers
        for result in all_
        if result.verdict == "open"
    ]
    routes = [cheapest(result, share) for result, share in claims]
    times = [route.times for route in routes if route is not None]
    few, some, many = (sum(factor <= limit for factor in times) for limit in (3, 10, _OUT_OF_REACH))
    return (
        f"Of the {len(claims)} open claims, {few} could be decided with at most 3 times the "
        f"existing runs or samples, {some} with at most 10 times, and {many} with at most "
        f"{_OUT_OF_REACH} times. {len(times) - many} claims would need more, because their figures "
        f"lie almost on the margin. {len(claims) - len(times)} claims need another regime, or "
        "limits that no record has."
    )


def difference(committed: str, generated: str) -> str:
    """Return the first lines in which a page differs from claims and records; empty if none."""
    if committed == generated:
        return ""
    lines = [
        line for line in ndiff(committed.splitlines(), generated.splitlines()) if line[0] in "-+"
    ]
    first_lines = [_cut(line) for line in lines[:_MOST_SHOWN]]
    hidden = len(lines) - len(first_lines)
    return "\n".join(
        [
            f"{len(lines)} lines of the page (-) differ from what claims and records give (+):",
            *first_lines,
            *([f"and {hidden} more"] if hidden else []),
            "Restore a record that was removed or changed by mistake; otherwise run "
            "python docs/claims.py, which writes the page.",
        ]
    )


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


# The regimes.


def _regimes_table() -> str:
    head = [
        "regime",
        "description",
        "leaks?",
        "accuracy: training / test",
        "seeds",
        "hours: planned / spent",
    ]
    lines = ["## Regimes", "", _row(head), _row(["---"] * len(head))]
    listed: set[str] = set()
    planned, spent = 0.0, 0.0
    for name, regime in regimes().items():
        is_there = rows(regime.study, regime.base) is not None
        link = f"[`{name}`](results/{regime.study}.md)" if is_there else f"`{name}`"
        hours = "see above"
        if regime.study not in listed:
            listed.add(regime.study)
            took = hours_spent(regime.study)
            planned, spent = planned + (regime.hours or 0.0), spent + took
            hours = (
                f"{regime.hours or 0:.1f} / {took:.1f}" if is_there else f"{regime.hours:.1f} / –"
            )
        lines.append(_row([link, title_of(name), *_regime_cells(name, regime), hours]))
    lines.append(_row(["all", "", "", "", "", f"{planned:.0f} / {spent:.0f}"]))
    return "\n".join(lines)


def _regime_cells(name: str, regime: Regime) -> list[str]:
    figures = rows(regime.study, regime.base)
    if figures is None:
        return ["not run", "–", "–"]
    accuracies = [figures.get(FigureName(figure)) for figure in ("train_accuracy", "test_accuracy")]
    both = " / ".join(
        f"{100 * over_runs(accuracy).value:.0f}%" for accuracy in accuracies if accuracy
    )
    seeds = len([seed for seed in accuracies[1] or () if seed is not None])
    return [_leak_words(name, regime), both or "–", str(seeds or "–")]


def _leak_words(name: str, regime: Regime) -> str:
    leak = leak_of(name)
    if leak is None:
        return "not known"
    figure = {
        "membership": f"{regime.leak} AUC",
        "sources": f"{regime.leak} above label distributions",
        "clusters": "largest risk of a model",
        "games": "success rate without randomisation",
    }[regime.kind]
    contrast = ", for contrast" if regime.contrast else ""
    return f"**{'yes' if leaks(name) else 'no'}**{contrast}: {figure} {_shown(leak)}"


# The claims.


def _section(paper: Paper, claims: Sequence[ClaimResult]) -> str:
    lines = [f"## {paper.name}", "", f"*{paper.title}*", ""]
    head = ["verdict", "claim of the paper", "figures of the paper", "figures here"]
    lines += [_row(head), _row(["---"] * len(head))]
    share, tested = share_of_error(claims), sum(result.p_value is not None for result in claims)
    for result in claims:
        note = f"<br>*{result.claim.note}*" if result.claim.note else ""
        verdict = "<br>".join(filter(None, _verdict_cell(result, paper, share, tested)))
        older = f"<br>*{_OLDER_LEVELS}*" if _rests_on_older_levels(result) else ""
        says = f"<a id='{result.claim.id}'></a>{result.claim.says}{note}{older}"
        theirs = f"{result.claim.where}: {result.claim.theirs}"
        cell = "<br>".join(_here(regime_result) for regime_result in result.held) or "–"
        lines.append(_row([verdict, says, theirs, cell]))
    return "\n".join(lines)


_OLDER_LEVELS = (
    "The records are of an earlier version: their level of label distributions may be too high, "
    "and the success beyond it too low."
)


def _rests_on_older_levels(result: ClaimResult) -> bool:
    return any(
        has_older_levels(term.study or regimes()[part.regime].study, variant)
        for regime_result in result.held
        for part in regime_result.parts
        for term in (part.test.one, part.other)
        if term.value is None and (term.figure or part.test.figure) == "excess"
        for variant in [variant_of(regimes()[part.regime], term)]
    )


def _verdict_cell(result: ClaimResult, paper: Paper, share: float, tested: int) -> Iterator[str]:
    yield f"**{result.verdict}**"
    yield why(result, share, tested, scale_words(result, paper.scale))
    if result.verdict not in UNDECIDED:
        reading = reading_of(result)
        yield f"*these runs only*: {reading}" if reading else "*further runs too*"


def _here(regime_result: RegimeResult) -> str:
    """Return a line for each test, with the hardest comparison first."""
    if all(part.verdict == "not run" for part in regime_result.parts):
        return f"`{regime_result.regime}`: not run"
    leaking = regime_result.wanting != "leak"
    groups: dict[int, list[PartResult]] = {}
    for part in regime_result.parts:
        groups.setdefault(id(part.test), []).append(part)
    where = f"`{regime_result.regime}`"
    if not leaking:
        unknown = leak_of(regime_result.regime) is None
        where += " (unknown whether it leaks)" if unknown else " (no leak)"
    elif regime_result.wanting == "seeds":
        where += " (one seed, does not count)"
    lines = [_line(group, leaking) for group in groups.values()]
    return f"{where}: {'<br>'.join(lines) if leaking else '; '.join(lines)}"


def _line(group: Sequence[PartResult], leaking: bool) -> str:
    first = group[0]
    compared = [part for part in group if part.gap is not None]
    if not compared or first.one is None:
        return "not run"
    hardest, *others_parts = sorted(compared, key=_ease)
    head = f"{_side(first, first.test.one)} ".lstrip()
    if hardest.other.value is not None:
        return f"{head}{_both(first.one)}{_mark(hardest, leaking)}"
    assert hardest.gap is not None
    others = [
        f"{_side(p, p.other)} {_plain(p.reference)}{_mark(p, leaking)}".lstrip()
        for p in others_parts
    ]
    further = f"; {'; '.join(others)}" if others else ""
    against = f"{_side(hardest, hardest.other)} {_plain(hardest.reference)}".lstrip()
    common = "over common samples " if hardest.is_over_common_samples else ""
    gap = f"{common}{_both(hardest.gap)}{_mark(hardest, leaking)}"
    return f"{head}{_plain(first.one)}; {against}: {gap}{further}"


def _ease(part: PartResult) -> float:
    """Return how far a difference lies on the claimed side."""
    assert part.gap is not None
    if part.test.direction == "near":
        return -abs(part.gap.value)
    return -part.gap.value if part.test.direction == "below" else part.gap.value


def _mark(part: PartResult, leaking: bool) -> str:
    return f", {part.verdict}" if leaking else ""


def _side(part: PartResult, term: Term) -> str:
    several = ""
    if term.attacks:
        count = len(counts(regimes()[part.regime], part.test, term))
        total = "" if count == len(term.attacks) else f" of {len(term.attacks)}"
        several = f"mean of {count}{total} attacks"
    # Labels of games are settings, which may be long.
    attack = term.attack.replace(",", ", ").replace("_", " ") + (":" if "=" in term.attack else "")
    named_by = [attack, several, term.variant or "", term.figure, term.group]
    words = [word for word in named_by if word and word != "everybody"]
    return " ".join(words) if term.value is None else ""


def _both(figure: Figure) -> str:
    text = _shown(figure)
    if figure.further is None or figure.method == BY_STUDENT:
        return text
    low, high = (_number(limit) for limit in figure.further)
    if (figure.low, figure.high) == figure.further:
        return text
    return f"{text[:-1]}; further runs {low} to {high})" if figure.low is not None else text


def _plain(figure: Figure | None) -> str:
    return "" if figure is None else _number(figure.value)


def _shown(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return _number(figure.value)
    return f"{_number(figure.value)} ({_number(figure.low)} to {_number(figure.high)})"


def _number(value: float) -> str:
    digits = 3 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([_row(head), _row(["---"] * len(head)), *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
