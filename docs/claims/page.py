"""The page of claims as Markdown."""

from collections import Counter
from collections.abc import Sequence
from difflib import ndiff

from docs.claims.comparing import Found, leak_of, leaks, over_runs
from docs.claims.data import RECORDS, ROOT, Paper, Regime, Term, papers, regimes
from docs.claims.figures import SECONDS, Asked, rows
from docs.claims.judging import (
    VERDICTS,
    Decided,
    Held,
    Judged,
    Verdict,
    decided,
    times_asked_for,
)

PAGE = ROOT / "docs" / "claims.md"

_OUT_OF_REACH = 50
"""Times the runs that there are."""
_MOST_SHOWN = 12
"""Lines that differ; and how long each may be."""
_LONGEST = 160

INTRODUCTION = """# The papers' claims

What five papers say about membership and source inference in federated learning, and what comes
out here, claim by claim. `python docs/claims.py` makes this page, verdicts and all, from the claims
(`claims/*.toml`) and the records of runs (`records/`); a test holds it to them.

- **confirmed**: the 95% interval of the difference lies on the claimed side of the claim's margin
  in every regime that counts.
- **no difference**: it lies within the margin, on either side.
- **contradicted**: it lies on the other side, and what the claim says holds in no regime.
- **open**: none of these. What would settle it stands beside it.
- **not run**: and why.

A *regime* is data, network and training. Claims about attacks and defenses are judged only in one
that *leaks*: where an undefended attack, named beforehand, has an AUC of 0.7 or more (lower limit
0.65); for source inference, where it names the owner ten points more often than the label
distribution allows; for clustered learning, where a model's real risk is 60 % or more; for active
membership inference, where the server is right in 70 % of games if nothing is randomised. A paper's
main tables need two such regimes; ablations, and sentences about one data set, need one. From where
on a federation leaks, and which attack sees it first, stands on the [leak ladder](ladder.md).

Differences of AUCs are paired by sample within a run (DeLong), others by seed or by their separate
limits; over seeds the interval is that of these runs. Beside a single comparison stands what its
own interval says; all tested claims of a paper share an error of 5 % (Holm).
[Two regimes and one error](decisions/0015-two-regimes-and-one-error.md) has the rules, and how
often they err.

`python docs/claims.py --again CLAIM --data-dir D` carries out what a row rests on, and compares
every figure with the records: `--again ami-weights` takes half a minute of one core and needs no
data, `--again fedmia-fig5-rounds` (Location-30) a minute and a half. `--again all` makes every row
again, past failures and from where it was stopped; its hours stand with the [regimes](#regimes).
"""


def page() -> str:
    """The whole page."""
    found = [(paper, decided(paper)) for paper in papers()]
    parts = [INTRODUCTION.rstrip(), _tally(found), _out_of_reach(found)]
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


def _out_of_reach(found: Sequence[tuple[Paper, Sequence[Decided]]]) -> str:
    """How many open claims more runs will hardly settle."""
    claims = [one for _, claims in found for one in claims if one.verdict == "open"]
    many = sum(times_asked_for(one) > _OUT_OF_REACH for one in claims)
    return (
        f"Of the {len(claims)} open claims {many} would take more than {_OUT_OF_REACH} times the "
        "runs, or samples, that there are: their figures lie all but on the margin."
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


def hours_spent(study: str) -> float:
    """What all records of a study took, in hours."""
    paths = (RECORDS / study).glob(f"{study}*.json")
    variants = [path.stem.removeprefix(study).removeprefix("-") for path in paths]
    known = [rows(study, variant) or {} for variant in variants]
    return sum(of[SECONDS][None][None].value for of in known if SECONDS in of) / 3600


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
        lines.append(_row([link, regime.title, *_regime_cells(name, regime), hours]))
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
    for one in claims:
        note = f"<br>*{one.claim.note}*" if one.claim.note else ""
        verdict = f"**{one.verdict}**" + (f"<br>{one.why}" if one.why else "")
        says = f"<a id='{one.claim.id}'></a>{one.claim.says}{note}"
        theirs = f"{one.claim.where}: {one.claim.theirs}"
        here = "<br>".join(_here(held) for held in one.held) or "–"
        lines.append(_row([verdict, says, theirs, here]))
    return "\n".join(lines)


def _here(held: Held) -> str:
    """A line a test: all that it was held against, the hardest first."""
    if all(part.verdict == "not run" for part in held.parts):
        return f"`{held.regime}`: not run"
    leaking = held.counts or held.verdict == "not run"
    groups: dict[int, list[Judged]] = {}
    for part in held.parts:
        groups.setdefault(id(part.test), []).append(part)
    unknown = leak_of(held.regime) is None
    why = " (whether it leaks is not known)" if unknown else " (nothing leaks)"
    where = f"`{held.regime}`" + ("" if leaking else why)
    lines = [_line(group, leaking) for group in groups.values()]
    return f"{where}: {'<br>'.join(lines) if leaking else '; '.join(lines)}"


def _line(group: Sequence[Judged], leaking: bool) -> str:
    first = group[0]
    there = [part for part in group if part.gap is not None]
    if not there or first.one is None:
        return "not run"
    hardest, *rest = sorted(there, key=_ease)
    head = f"{_side(first.test.one)} ".lstrip()
    if hardest.other.value is not None:
        return f"{head}{_shown(first.one)}{_mark(hardest, leaking)}"
    assert hardest.gap is not None
    others = [
        f"{_side(p.other)} {_plain(p.held_against)}{_mark(p, leaking)}".lstrip() for p in rest
    ]
    more = f"; {'; '.join(others)}" if others else ""
    against = f"{_side(hardest.other)} {_plain(hardest.held_against)}".lstrip()
    return (
        f"{head}{_plain(first.one)}; {against}: "
        f"{_shown(hardest.gap)}{_mark(hardest, leaking)}{more}"
    )


def _ease(part: Judged) -> float:
    """How far a difference lies on the claimed side."""
    assert part.gap is not None
    if part.test.direction == "near":
        return -abs(part.gap.value)
    return -part.gap.value if part.test.direction == "below" else part.gap.value


def _mark(part: Judged, leaking: bool) -> str:
    return f", {part.verdict}" if leaking else ""


def _side(term: Term) -> str:
    several = f"mean of {len(term.attacks)} attacks" if term.attacks else ""
    # Labels of games are settings, which may be long.
    attack = term.attack.replace(",", ", ").replace("_", " ") + (":" if "=" in term.attack else "")
    named_by = [attack, several, term.variant or "", term.figure, term.group]
    words = [word for word in named_by if word and word != "everybody"]
    return " ".join(words) if term.value is None else ""


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
