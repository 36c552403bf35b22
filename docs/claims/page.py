"""The page of claims as Markdown."""

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import ndiff

from docs.claims.comparing import BY_STUDENT, Found, counts, leak_of, leaks, over_runs
from docs.claims.data import ROOT, Paper, Regime, Term, papers, regimes, variant_of
from docs.claims.figures import Asked, has_older_levels, rows
from docs.claims.judging import (
    UNDECIDED,
    VERDICTS,
    Decided,
    Held,
    Judged,
    Verdict,
    decided,
    needed_regimes,
    scale_words,
)
from docs.claims.routes import cheapest, hours_spent, share_of_error, why
from docs.claims.titles import title_of

PAGE = ROOT / "docs" / "claims.md"

_OUT_OF_REACH = 50
"""Times the runs that there are."""
_MOST_SHOWN = 12
"""Lines that differ; and how long each may be."""
_LONGEST = 160

INTRODUCTION = """# The papers' claims

Read here what five papers say about membership and source inference in federated learning, and what
the records of this project say about each sentence. `python docs/claims.py` makes this page,
verdicts included, from the claims (`claims/*.toml`) and the records of runs (`results/`); a test
compares it with them.

- **confirmed**: the 95% interval of the difference lies on the claimed side of the claim's margin
  in at least two regimes that count (one for ablations), and no regime decides otherwise.
- **no difference**: it lies within the margin, on either side, in as many.
- **contradicted**: it lies on the other side in as many, and the claim holds in no regime.
- **not found at this scale**: the same, in regimes that are smaller than the paper's. Their scale
  is next to the verdict.
- **depends on the regime**: the claim holds in one regime and does not in another.
- **open**: none of these, with the cheapest way to settle it.
- **not run**: with the reason.

A *regime* is data, network and training. It counts if it was run with two seeds or more. Claims
about attacks and defenses are judged only in one that *leaks*: where an undefended attack, named
beforehand, has an AUC of 0.7 or more (lower limit 0.65); for source inference, where it names the
owner ten points more often than the label distribution allows; for clustered learning, where a
model's real risk is 60 % or more; for active membership inference, where the server is right in
70 % of games if nothing is randomised. The [leak ladder](ladder.md) shows from where on a
federation leaks, and which attack sees it first.

A mean of several attacks is over those that count: attacks that are above chance in the regime's
undefended record, by the figure that is averaged. An attack whose AUC is below .5 there beyond
chance counts too, and is read as 1 - AUC in every record of the regime. Where none counts there is
no mean. [What the figures mean](figures.md#averages-over-attacks) has the rule and its reasons.

Every verdict is about the models that were trained. Each difference has two intervals:

- *these runs*: what the trained models leak. Differences of AUCs are paired by sample within a run
  (DeLong, or exact limits where few pairs are misordered), others by seed or by separate limits.
- *further runs*: what another seed would give, by Student's t over seeds, from five seeds on.
  Rates and counts so close to 0 that these limits would lie below it have none.

A decided claim is marked **these runs only** where the second reading does not decide it alike. The
limits of games are for the targets that were played. They are for further targets too where each
game has a target of its own. Next to a single comparison is what its own interval says; all tested
claims of a paper share an error of 5 % (Holm) within each reading.
[Two regimes and one error](decisions/0015-two-regimes-and-one-error.md) has the rules, and how
often they err.

The price of an open claim assumes that every figure stays what it is and that limits shrink with
the root of what they rest on. It includes the correction. A conjunction falls by one of its parts,
so that showing it not to hold can be cheaper than confirming it.

`python docs/claims.py --again CLAIM --data-dir D` runs again what a row rests on, and compares
every figure with the records: `--again ami-weights` takes half a minute of one core and needs no
data, `--again fedmia-fig5-rounds` (Location-30) a minute and a half. `--again all` runs every row
again, past failures and from where it was stopped; [regimes](#regimes) has the hours.
"""


def page() -> str:
    """The whole page."""
    found = [(paper, decided(paper)) for paper in papers()]
    parts = [INTRODUCTION.rstrip(), _tally(found), _readings(found), _prices(found)]
    parts += [_section(paper, claims) for paper, claims in found]
    parts.append(_regimes_table())
    return "\n\n".join(parts) + "\n"


def _tally(found: Sequence[tuple[Paper, Sequence[Decided]]]) -> str:
    lines = [_row(["paper", "claims", *VERDICTS]), _row(["---"] * (2 + len(VERDICTS)))]
    total = Counter[Verdict]()
    for paper, claims in found:
        counts = Counter(one.verdict for one in claims)
        total += counts
        link = f"[{paper.name}](#{paper.name.lower()})"
        lines.append(_row([link, str(len(claims)), *(str(counts[v]) for v in VERDICTS)]))
    lines.append(_row(["all", str(total.total()), *(str(total[v]) for v in VERDICTS)]))
    return "\n".join(lines)


def _readings(found: Sequence[tuple[Paper, Sequence[Decided]]]) -> str:
    """How many decided claims hold for further runs too, and why others do not."""
    claims = [one for _, claims in found for one in claims if one.verdict not in UNDECIDED]
    said = Counter(reading_of(one) for one in claims)
    return (
        f"Of the {len(claims)} decided claims {said['']} are decided alike for further runs. "
        f"{said[OPEN_FURTHER]} are open there; for {said[TOO_FEW_SEEDS]} too few regimes have five "
        f"seeds, and for {said[TARGETS_PLAYED]} the limits are for the targets that were played."
    )


OPEN_FURTHER = "open for further ones"
TOO_FEW_SEEDS = "too few seeds for further ones"
TARGETS_PLAYED = "for the targets played"


def reading_of(one: Decided) -> str:
    """Why a decided claim is one about these runs only; empty if it holds for further ones too."""
    further = one.further
    if further is not None and further.verdict == one.verdict:
        return ""
    if further is not None and len(further.counted) >= needed_regimes(one.claim):
        return OPEN_FURTHER
    is_of_games = any(regimes()[name].kind == "games" for name in one.claim.regimes)
    return TARGETS_PLAYED if is_of_games else TOO_FEW_SEEDS


def _prices(found: Sequence[tuple[Paper, Sequence[Decided]]]) -> str:
    """How many open claims more runs would settle, and for how much."""
    claims = [
        (one, share_of_error(all_)) for _, all_ in found for one in all_ if one.verdict == "open"
    ]
    routes = [cheapest(one, share) for one, share in claims]
    times = [route.times for route in routes if route is not None]
    few, more, most = (sum(of <= limit for of in times) for limit in (3, 10, _OUT_OF_REACH))
    return (
        f"Of the {len(claims)} open claims {few} would be settled by at most 3 times the runs, or "
        f"samples, that there are, {more} by at most 10 times and {most} by at most "
        f"{_OUT_OF_REACH} times. {len(times) - most} would take more: their figures lie almost on "
        f"the margin. {len(claims) - len(times)} need another regime, or limits that no record has."
    )


def difference(kept: str, made: str) -> str:
    """The first rows in which a page is not what claims and records give; empty where it is."""
    if kept == made:
        return ""
    lines = [one for one in ndiff(kept.splitlines(), made.splitlines()) if one[0] in "-+"]
    shown = [_cut(one) for one in lines[:_MOST_SHOWN]]
    more = len(lines) - len(shown)
    return "\n".join(
        [
            f"{len(lines)} lines of the page (-) are not what claims and records give (+):",
            *shown,
            *([f"and {more} more"] if more else []),
            "A record that was removed or changed by mistake belongs back; else run "
            "python docs/claims.py, which writes the page anew.",
        ]
    )


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


# The regimes.


def _regimes_table() -> str:
    head = [
        "regime",
        "what",
        "leaks?",
        "accuracy: training / test",
        "seeds",
        "hours: planned / spent",
    ]
    lines = ["## Regimes", "", _row(head), _row(["---"] * len(head))]
    told: set[str] = set()
    planned, spent = 0.0, 0.0
    for name, regime in regimes().items():
        is_there = rows(regime.study, regime.base) is not None
        link = f"[`{name}`](results/{regime.study}.md)" if is_there else f"`{name}`"
        hours = "with the above"
        if regime.study not in told:
            told.add(regime.study)
            took = hours_spent(regime.study)
            planned, spent = planned + (regime.hours or 0.0), spent + took
            hours = (
                f"{regime.hours or 0:.1f} / {took:.1f}" if is_there else f"{regime.hours:.1f} / –"
            )
        lines.append(_row([link, title_of(name), *_regime_cells(name, regime), hours]))
    lines.append(_row(["all", "", "", "", "", f"{planned:.0f} / {spent:.0f}"]))
    return "\n".join(lines)


def _regime_cells(name: str, regime: Regime) -> list[str]:
    known = rows(regime.study, regime.base)
    if known is None:
        return ["not run", "–", "–"]
    accuracies = [known.get(Asked(figure)) for figure in ("train_accuracy", "test_accuracy")]
    both = " / ".join(f"{100 * over_runs(one).value:.0f}%" for one in accuracies if one)
    seeds = len([seed for seed in accuracies[1] or () if seed is not None])
    return [_leak_words(name, regime), both or "–", str(seeds or "–")]


def _leak_words(name: str, regime: Regime) -> str:
    found = leak_of(name)
    if found is None:
        return "not known"
    figure = {
        "membership": f"{regime.leak} AUC",
        "sources": f"{regime.leak} over the label distribution",
        "clusters": "real risk of the riskiest model",
        "games": "right without randomisation",
    }[regime.kind]
    contrast = ", for contrast" if regime.contrast else ""
    return f"**{'yes' if leaks(name) else 'no'}**{contrast}: {figure} {_shown(found)}"


# The claims.


def _section(paper: Paper, claims: Sequence[Decided]) -> str:
    lines = [f"## {paper.name}", "", f"*{paper.title}*", ""]
    head = ["verdict", "the paper says", "its figures", "here"]
    lines += [_row(head), _row(["---"] * len(head))]
    share, tested = share_of_error(claims), sum(one.p_value is not None for one in claims)
    for one in claims:
        note = f"<br>*{one.claim.note}*" if one.claim.note else ""
        verdict = "<br>".join(filter(None, _verdict_cell(one, paper, share, tested)))
        older = f"<br>*{_OLDER_LEVELS}*" if _rests_on_older_levels(one) else ""
        says = f"<a id='{one.claim.id}'></a>{one.claim.says}{note}{older}"
        theirs = f"{one.claim.where}: {one.claim.theirs}"
        here = "<br>".join(_here(held) for held in one.held) or "–"
        lines.append(_row([verdict, says, theirs, here]))
    return "\n".join(lines)


_OLDER_LEVELS = (
    "The records are of an earlier version, whose level of label distributions may be too high, "
    "and what is beyond it too low."
)


def _rests_on_older_levels(one: Decided) -> bool:
    """Whether a comparison is of what is beyond label distributions in records of earlier ones."""
    return any(
        has_older_levels(term.study or regimes()[part.regime].study, variant)
        for held in one.held
        for part in held.parts
        for term in (part.test.one, part.other)
        if term.value is None and (term.figure or part.test.figure) == "excess"
        for variant in [variant_of(regimes()[part.regime], term)]
    )


def _verdict_cell(one: Decided, paper: Paper, share: float, tested: int) -> Iterator[str]:
    yield f"**{one.verdict}**"
    yield why(one, share, tested, scale_words(one, paper.scale))
    if one.verdict not in UNDECIDED:
        reading = reading_of(one)
        yield f"*these runs only*: {reading}" if reading else "*further runs too*"


def _here(held: Held) -> str:
    """A line a test: all that it was held against, the hardest first."""
    if all(part.verdict == "not run" for part in held.parts):
        return f"`{held.regime}`: not run"
    leaking = held.wanting != "leak"
    groups: dict[int, list[Judged]] = {}
    for part in held.parts:
        groups.setdefault(id(part.test), []).append(part)
    where = f"`{held.regime}`"
    if not leaking:
        unknown = leak_of(held.regime) is None
        where += " (whether it leaks is not known)" if unknown else " (nothing leaks)"
    elif held.wanting == "seeds":
        where += " (one seed, does not count)"
    lines = [_line(group, leaking) for group in groups.values()]
    return f"{where}: {'<br>'.join(lines) if leaking else '; '.join(lines)}"


def _line(group: Sequence[Judged], leaking: bool) -> str:
    first = group[0]
    there = [part for part in group if part.gap is not None]
    if not there or first.one is None:
        return "not run"
    hardest, *rest = sorted(there, key=_ease)
    head = f"{_side(first, first.test.one)} ".lstrip()
    if hardest.other.value is not None:
        return f"{head}{_both(first.one)}{_mark(hardest, leaking)}"
    assert hardest.gap is not None
    others = [
        f"{_side(p, p.other)} {_plain(p.held_against)}{_mark(p, leaking)}".lstrip() for p in rest
    ]
    more = f"; {'; '.join(others)}" if others else ""
    against = f"{_side(hardest, hardest.other)} {_plain(hardest.held_against)}".lstrip()
    return (
        f"{head}{_plain(first.one)}; {against}: {_both(hardest.gap)}{_mark(hardest, leaking)}{more}"
    )


def _ease(part: Judged) -> float:
    """How far a difference lies on the claimed side."""
    assert part.gap is not None
    if part.test.direction == "near":
        return -abs(part.gap.value)
    return -part.gap.value if part.test.direction == "below" else part.gap.value


def _mark(part: Judged, leaking: bool) -> str:
    return f", {part.verdict}" if leaking else ""


def _side(part: Judged, term: Term) -> str:
    several = ""
    if term.attacks:
        count = len(counts(regimes()[part.regime], part.test, term))
        of = "" if count == len(term.attacks) else f" of {len(term.attacks)}"
        several = f"mean of {count}{of} attacks"
    # Labels of games are settings, which may be long.
    attack = term.attack.replace(",", ", ").replace("_", " ") + (":" if "=" in term.attack else "")
    named_by = [attack, several, term.variant or "", term.figure, term.group]
    words = [word for word in named_by if word and word != "everybody"]
    return " ".join(words) if term.value is None else ""


def _both(found: Found) -> str:
    """A figure with both of its intervals."""
    said = _shown(found)
    if found.further is None or found.method == BY_STUDENT:
        return said
    low, high = (_number(limit) for limit in found.further)
    if (found.low, found.high) == found.further:
        return said
    return f"{said[:-1]}; further runs {low} to {high})" if found.low is not None else said


def _plain(found: Found | None) -> str:
    return "" if found is None else _number(found.value)


def _shown(found: Found) -> str:
    if found.low is None or found.high is None:
        return _number(found.value)
    return f"{_number(found.value)} ({_number(found.low)} to {_number(found.high)})"


def _number(value: float) -> str:
    digits = 3 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
