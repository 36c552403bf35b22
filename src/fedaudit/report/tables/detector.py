"""Signs of a planted neuron that a client can look for: table and sentences."""

from collections.abc import Mapping

from fedaudit.report.grid import EMPTY, Cell, Grid, Heading, columns_of, named, shortened
from fedaudit.report.words import count, interval, listed, number, percent, plural
from fedaudit.results.detector import (
    DETECTED,
    FALSE_ALARMS,
    OTHERS_AUC,
    OWN_AUC,
    SIGN_AUC,
    Detection,
)
from fedaudit.results.estimate import Estimate

SERVERS = {
    "planted": "As published",
    "disguised": "Lengths and zeros hidden",
    "one-row": "One row changed",
}

SIGNS = {
    "lone-units": ("Lone units", "share that fires for at most one own record"),
    "one-stands-out": ("One record stands out", "its lead at a unit"),
    "dead-units": ("Dead units", "share that fires for no own record"),
    "norm-ratio": ("Length of weights", "against the layer’s median"),
    "bias-ratio": ("Size of biases", "against the layer’s median"),
    "odd-row": ("Odd distribution", "a unit’s weights against its layer’s others"),
    "twins": ("Twins", "largest cosine of two units"),
    "zero-weights": ("Zeros", "share of weights that are exactly 0"),
    "moved-weights": ("Changed distribution", "a layer’s weights against the round before"),
    "moved-row": ("One unit moved most", "against the layer’s median"),
    "rewritten-row": ("Rewritten unit", "its move against its own length"),
}

_FOUND = 0.95
_MOST_SERVERS, _MOST_NAMED = 6, 4


def detector_table(found: Detection) -> Grid:
    """A row for each sign: how well it tells models of each kind of server from honest ones."""
    servers = _servers(found)
    rows = []
    signs = found.signs
    for sign in dict.fromkeys(sign for _, sign in signs):
        cells = [cell for server in servers for cell in _cells(signs.get((server, sign)))]
        some = next(of for (_, name), of in signs.items() if name == sign)[FALSE_ALARMS]
        taken = Cell(_of(some), interval(some.low, some.high, "accuracy"))
        rows.append((named(*SIGNS.get(sign, (shortened(sign), ""))), *cells, taken))
    numeric = [name for _ in servers for name in ("AUC", "Found")] + ["False alarms"]
    return Grid(
        f"Signs of a planted neuron, over {plural(found.runs, 'federation')}",
        columns_of("Sign", *numeric, numeric=tuple(numeric)),
        tuple(rows),
        headings=(
            Heading("", 1),
            *(Heading(_server(server), 2, _right(found, server)) for server in servers),
            Heading("", 1),
        ),
        remark="AUC: how often a planted model looks more suspicious than an honest one, with a "
        "95% "
        "interval over federations. Own and others’: targets that the client has and has not. "
        "Found: at a threshold that 5% of the honest models of other federations exceed, in "
        f"{plural(found.judged, 'federation')}; Clopper-Pearson, 95%. Below a heading: the "
        "server’s "
        f"success in games. Models: {shortened(found.federation, 200)}; "
        f"{count(found.honest)} honest models, {count(found.planted)} of each server, looked at "
        f"with {count(found.own)} records of the client’s own.",
    )


def detector_words(found: Detection) -> list[str]:
    """For each kind of server, by which signs nearly every model of it is found."""
    sentences = []
    for server in _servers(found):
        rows = {sign: of[SIGN_AUC] for (name, sign), of in found.signs.items() if name == server}
        good = [sign for sign, one in rows.items() if (_least(one) or 0.0) >= _FOUND]
        names = [SIGNS.get(sign, (shortened(sign), ""))[0].lower() for sign in good]
        more = len(names) - _MOST_NAMED
        shown = names if more <= 1 else [*names[:_MOST_NAMED], f"{more} more"]
        said = (
            f"{len(good)} of {plural(len(rows), 'sign')} tell nearly every planted model from "
            f"honest ones (AUC of {number(_FOUND)} or more): {listed(shown)}."
            if good
            else f"none of {plural(len(rows), 'sign')} tells nearly every planted model from "
            "honest ones."
        )
        sentences.append(f"{_server(server)}: {said}")
    return sentences


def _cells(found: Mapping[str, Estimate] | None) -> tuple[Cell, Cell]:
    if found is None:
        return EMPTY, EMPTY
    area, own, others, caught = (found[name] for name in (SIGN_AUC, OWN_AUC, OTHERS_AUC, DETECTED))
    apart = f"own {number(own.value or 0.0)}\nothers’ {number(others.value or 0.0)}"
    limits = interval(area.low, area.high, "figure")
    low_high = interval(caught.low, caught.high, "accuracy")
    return (
        Cell(number(area.value or 0.0), f"{limits}\n{apart}" if limits else apart),
        Cell(percent(caught.value or 0.0), f"{low_high}\n{_of(caught)}"),
    )


def _of(rate: Estimate) -> str:
    total = rate.n_members + rate.n_nonmembers
    return f"{round((rate.value or 0.0) * total)} of {total}"


def _least(area: Estimate) -> float | None:
    """The lower limit; the figure itself where no draw of runs changes it."""
    return area.value if area.low is None else area.low


def _servers(found: Detection) -> list[str]:
    return list(dict.fromkeys(server for server, _ in found.signs))[:_MOST_SERVERS]


def _server(name: str) -> str:
    return SERVERS.get(name, shortened(name))


def _right(found: Detection, server: str) -> str:
    right = found.success(server)
    return "" if right is None else f"right in {percent(right)}"
