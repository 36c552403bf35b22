"""Markdown page of the claims."""

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import ndiff

from docs.claims.comparing import leak_of, leaks, over_runs
from docs.claims.data import ROOT, Paper, Regime, papers, regimes, variant_of
from docs.claims.figures import FigureName, has_older_levels, rows
from docs.claims.judging import (
    UNDECIDED,
    VERDICTS,
    ClaimResult,
    RegimeResult,
    deciding_part,
    judge_paper,
    needed_regimes,
    tested_in,
)
from docs.claims.ledger import price_words
from docs.claims.names import attack_words
from docs.claims.routes import (
    before_correction,
    cheapest,
    decided_in,
    hours_spent,
    share_of_error,
    what_decides,
)
from docs.claims.titles import title_of
from docs.claims.words import regimes_words, short_words, with_limits

PAGE = ROOT / "docs" / "claims.md"

_OUT_OF_REACH = 50
"""Times the existing runs."""
_MOST_SHOWN = 12
"""Largest number of differing lines, and the length of each."""
_LONGEST = 160

MEANINGS = (
    (
        "confirmed",
        "The difference lies beyond the margin, by a one-sided test of 5 %, in at least two "
        "regimes that count, and no regime decides otherwise. One regime is enough for claims "
        "about one component or one form of a method, or about one data set.",
    ),
    (
        "no difference",
        "The difference lies within the margin, by two one-sided tests of 5 %, in at least two "
        "regimes (or one).",
    ),
    (
        "contradicted",
        "The 95 % interval lies entirely on the other side of the margin in at least two regimes "
        "(or one), and the claim holds in none.",
    ),
    (
        "not found at this scale",
        "The claim would be contradicted, but our regimes are smaller than the paper's.",
    ),
    ("depends on the regime", "The claim holds in one regime and fails in another."),
    ("open", "None of the above. The last column states the cheapest way to decide the claim."),
    ("not run", "The last column states the missing runs."),
)
LEAKS = (
    (
        "membership",
        "an attack on training without a defense, chosen in advance, has an AUC of 0.7 or more "
        "(lower limit 0.65)",
    ),
    (
        "source inference",
        "an attack on training without a defense identifies the client ten points more often than "
        "label distributions explain",
    ),
    (
        "clustered learning",
        "the risk of a model (balanced accuracy of membership inference; guessing: 0.5) is 0.6 or "
        "more",
    ),
    (
        "active membership inference",
        "the server is right in 70 % of [games](games.md) without noise on the samples",
    ),
)
INTRODUCTION = """# Claims of the papers

Look up which claims of papers about membership and source inference hold in our results. A claim
compares two figures, such as the AUCs of two attacks, with a *margin*: the smallest difference that
counts. A *regime* is a data set, a network and the training settings with which we tested claims.
`python docs/claims.py` computes all verdicts from the claims (`claims/*.toml`) and the results
(`results/`), and generates this page. A test checks that the page is up to date.

{verdicts}

A regime counts if it has two seeds or more. A claim about an attack or a defense also needs a
regime that *leaks*. The condition depends on the topic of the claim:

{leaks}

The [leak ladder](ladder.md) shows when federations begin to leak.

## Read a row

Each paper has a table of verdicts, with one figure of a regime that supports the verdict, the
values for which the claim holds, and the cost of deciding open claims. The table of details
has all regimes. Its figures start with the metric and the values for which the claim holds. Then
each regime has a line with its verdict, the two figures, and their difference with its 95 %
interval.

If a claim has several comparisons, the line shows the one that decides the verdict, or that is
furthest from holding, and counts all. An open line also states the smallest margin that its
difference lies *within*, by two one-sided tests of 5 %. This decides nothing, because that margin
was not stated before the runs.

The pages of [results](#regimes) have all figures. Unless stated, AUC and TPR are against both other
clients' and held-out samples. A mean of several attacks covers the attacks whose AUC differs from
chance level without a defense ([rule](figures.md#averages-over-attacks)).

Each difference has two intervals:

- *These runs* is about the models that we trained. AUCs are paired by sample within a run (DeLong,
  or exact limits if the attack orders almost all pairs of a member and a non-member correctly).
  Test accuracies of models that were trained again are paired by test sample. Other figures are
  paired by seed, or their separate limits are combined.
- *Further runs* is about the mean over all possible seeds. It is Student's t interval and needs
  five seeds. Rates and counts close to 0 have no such interval.

Figures and differences cover the same runs. A difference *over common samples* is not the
difference of the two figures. It leaves out samples whose role (member, other client's or held-out
sample) differs between the two runs: CoFedMID holds out members for validation, and a coalition's
average has the members of several clients.

A decided claim is marked *these runs only* if the second interval gives another verdict. Intervals
of games hold only for the target samples that were used. If each game has a separate target, they
also hold for other samples.

For each kind of interval, the main claims of a paper, its minor claims (those for which one regime
is enough) and our own questions each share an error of 5 % (Holm's correction). A paper with all
three can thus have a wrong decision with a probability of up to 15 %. The interval of a single
comparison is not corrected, and it has two sides: a one-sided test at the same error corresponds to
an interval of 90 %. Without a margin, and for rates and asymmetric limits, tests have two sides.
The p-value of a verdict (p) is the probability of figures that support it at least as clearly, if
it is wrong. [Decision 15](decisions/0015-two-regimes-and-one-error.md) describes the rules, and how
often they err.

The cost of deciding an open claim is an estimate. It assumes that the figures stay the same, and
that intervals shrink with the square root of the number of runs or samples. It includes the
correction. If a claim has several comparisons, refuting one can be cheaper than confirming all.

To repeat the runs of a row and compare every figure with the results, run
`python docs/claims.py --again CLAIM --data-dir D`. `--again ami-weights` takes half a minute on one
core and needs no data. `--again fedmia-fig5-rounds` takes a minute and a half (Location-30).
`--again all` repeats every row and can be interrupted. [Regimes](#regimes) lists the hours.

## Verdicts by paper
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
    every = [result for _, claims in judged_papers for result in claims]
    groups = {
        f"[{paper.name}](#{paper.name.lower()})": [r for r in claims if not r.claim.ours]
        for paper, claims in judged_papers
    }
    groups |= {"our own questions": [r for r in every if r.claim.ours], "all": every}
    for name, results in groups.items():
        counts = Counter(result.verdict for result in results)
        lines.append(_row([name, str(len(results)), *(str(counts[v]) for v in VERDICTS)]))
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
        f"{readings[TARGETS_PLAYED]} claims, the intervals hold only for the target samples that "
        "were used."
    )


OPEN_FURTHER = "open for further runs"
TOO_FEW_SEEDS = "too few seeds"
TARGETS_PLAYED = "other target samples may differ"


def reading_of(result: ClaimResult) -> str:
    """Return why a verdict applies to these runs only; empty if it holds for further runs."""
    further = result.further
    if further is not None and further.verdict == result.verdict:
        return ""
    if further is not None and len(further.counted) >= needed_regimes(result.claim):
        return OPEN_FURTHER
    is_of_games = any(regimes()[name].kind == "games" for name in result.claim.regimes)
    return TARGETS_PLAYED if is_of_games else TOO_FEW_SEEDS


def _prices(judged_papers: Sequence[tuple[Paper, Sequence[ClaimResult]]]) -> str:
    claims = [
        (result, share_of_error(all_, result.claim))
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
        f"lie almost on the margin. {len(claims) - len(times)} claims need another regime, or a "
        "confidence interval that our results do not contain."
    )


def difference(committed: str, generated: str) -> str:
    """Return the first lines in which a page differs from claims and results; empty if none."""
    if committed == generated:
        return ""
    lines = [
        line for line in ndiff(committed.splitlines(), generated.splitlines()) if line[0] in "-+"
    ]
    first_lines = [_cut(line) for line in lines[:_MOST_SHOWN]]
    hidden = len(lines) - len(first_lines)
    return "\n".join(
        [
            f"{len(lines)} lines of the page (-) differ from what claims and results give (+):",
            *first_lines,
            *([f"and {hidden} more"] if hidden else []),
            "Restore a result that was removed or changed by mistake; otherwise run "
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
        "membership": "AUC of {}",
        "sources": "success rate of {} minus that of the label baseline",
        "clusters": "largest risk of a model",
        "games": "success rate without noise",
    }[regime.kind]
    figure = figure.format(attack_words(regime.leak)) if regime.leak else figure
    contrast = " (chosen as an example without a leak)" if regime.contrast else ""
    limits = with_limits(leak._replace(further=None))
    return f"**{'yes' if leaks(name) else 'no'}**{contrast}: {figure} {limits}"


# The claims.


def _section(paper: Paper, claims: Sequence[ClaimResult]) -> str:
    lines = [f"## {paper.name}", "", f"*{paper.title}*", ""]
    notes = [f"- {term}" for term in paper.terms]
    if sizes := paper.scale.words(paper.scale):
        notes.append(f"- The paper's scale: {sizes}.")
    lines += [*notes, ""] if notes else []
    of_paper, ours = ([r for r in claims if r.claim.ours is is_ours] for is_ours in (False, True))
    lines += _verdict_rows("claim of the paper", of_paper, claims)
    if ours:
        lines += ["", *_verdict_rows("our own question", ours, claims)]
    lines += ["", f"### Details of {paper.name}", ""]
    lines += _claim_rows("claim of the paper", of_paper, claims)
    if ours:
        lines += ["", *_claim_rows("our own question", ours, claims)]
    return "\n".join(lines)


def _verdict_rows(
    head: str, shown: Sequence[ClaimResult], claims: Sequence[ClaimResult]
) -> list[str]:
    """Return the table of verdicts, with one figure and the cost of deciding each claim."""
    heads = [head, "verdict", "our figure; needed", "cost of deciding"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for result in shown:
        claim = result.claim
        cells = [
            f"[{claim.short or claim.says}](#{claim.id})",
            result.verdict,
            short_figure(result),
            price_words(result, share_of_error(claims, claim)),
        ]
        lines.append(_row([cell or "–" for cell in cells]))
    return lines


def short_figure(result: ClaimResult) -> str:
    """Return the deciding figure of a regime that supports the verdict, or else of the first."""
    verdict = "contradicted" if result.verdict == "not found at this scale" else result.verdict
    counted = result.counted or list(result.held)
    agreeing = [regime for regime in counted if regime.verdict == verdict]
    parts = [deciding_part(regime) for regime in [*agreeing, *counted]]
    return next((short_words(part) for part in parts if part is not None), "")


def _claim_rows(
    head: str, shown: Sequence[ClaimResult], claims: Sequence[ClaimResult]
) -> list[str]:
    """Return the table of some claims of a paper."""
    heads = [head, "verdict", "our figures", "what would decide it"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for result in shown:
        claim = result.claim
        scale = claim.scale.words(claim.scale) if claim.scale else ""
        cells = [
            _claim_cell(result),
            verdict_cell(result, tested_in(claims, claim)),
            figures_cell(result),
            what_decides(result, share_of_error(claims, claim), scale),
        ]
        lines.append(_row([cell or "–" for cell in cells]))
    return lines


_OLDER_LEVELS = (
    "The results are of an earlier version: their level of label distributions may be too high, "
    "and the success beyond it too low."
)


def _claim_cell(result: ClaimResult) -> str:
    claim = result.claim
    older = _OLDER_LEVELS if _rests_on_older_levels(result) else ""
    return _lines(
        f"<a id='{claim.id}'></a>**{claim.says}**",
        f"{claim.where}: {claim.theirs}",
        *(f"*{note}*" for note in (claim.note, older) if note),
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


def verdict_cell(result: ClaimResult, tested: int) -> str:
    """Return the verdict, where it was decided, and whether it holds for further runs."""
    reading = ""
    if result.verdict not in UNDECIDED:
        reading = reading_of(result)
        reading = f"*these runs only*: {reading}" if reading else "*further runs too*"
    return _lines(
        f"**{result.verdict}**", decided_in(result), before_correction(result, tested), reading
    )


def figures_cell(result: ClaimResult) -> str:
    """Return a line for each regime that counts, and the names of the others.

    If no regime counts, all that were run have a line.
    """
    decided = [regime for regime in result.held if deciding_part(regime) is not None]
    lines = result.counted or decided
    if not lines:
        return ""
    others = [regime for regime in result.held if regime not in lines]
    omitted = [f"`{regime.regime}` ({_why_omitted(regime)})" for regime in others]
    return _lines(*regimes_words(lines), f"Not counted: {', '.join(omitted)}" if omitted else "")


def _why_omitted(result: RegimeResult) -> str:
    if result.wanting == "leak":
        return "unknown leak" if leak_of(result.regime) is None else "no leak"
    if result.wanting == "seeds":
        return "one seed"
    if deciding_part(result) is not None:
        return "incomplete"
    lacking = [part.lacking for part in result.parts if " has no " in part.lacking]
    return lacking[0].partition(" has ")[2] if lacking else "not run"


def _lines(*texts: str) -> str:
    return "<br>".join(filter(None, texts))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([_row(head), _row(["---"] * len(head)), *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
