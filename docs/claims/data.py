"""Claims and regimes of `claims/*.toml`."""

import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fedaudit.core.errors import BadInput
from results.archives import unpacked

ROOT = Path(__file__).parents[2]
CLAIMS, RECORDS = ROOT / "claims", unpacked()
Stated = TypeVar("Stated")


class Part(BaseModel):
    """Table of a claims file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Scale(Part):
    """Sizes by which a regime is compared with a paper; None if not applicable."""

    clients: int | None = None
    # Samples of each client.
    samples: int | None = None
    rounds: int | None = None
    # Samples of all clients in total.
    total_samples: int | None = None
    # In games, noisy copies of the target on which the server trains.
    copies: int | None = None
    # In games, other samples on which the server trains.
    others: int | None = None
    # Accuracy of the undefended model, in [0, 1]; shown, not compared.
    test_accuracy: float | None = None

    def smaller_than(self, other: "Scale") -> bool:
        """Return whether a size that both scales have is smaller than in the other scale."""
        both = [(getattr(self, name), getattr(other, name)) for name in SIZES]
        return any(mine < theirs for mine, theirs in both if None not in (mine, theirs))

    def words(self, other: "Scale") -> str:
        """Describe the sizes that both scales have: "10 clients x 300 samples, 24 rounds"."""
        has = {name for name in SIZES if None not in (getattr(self, name), getattr(other, name))}
        parts = []
        if "clients" in has or "samples" in has:
            each = f" x {self.samples:,} samples" if "samples" in has else ""
            parts.append(f"{self.clients} clients{each}")
        others = ("rounds", "total_samples", "copies", "others")
        parts += [f"{getattr(self, name):,} {SIZES[name]}" for name in others if name in has]
        if self.test_accuracy is not None:
            parts.append(f"test accuracy {100 * self.test_accuracy:.3g} %")
        return ", ".join(parts)


SIZES = {
    "clients": "clients",
    "samples": "samples",
    "rounds": "rounds",
    "total_samples": "training samples",
    "copies": "copies of the target",
    "others": "other samples",
}


class Regime(Part):
    """Data set, network and training in which claims are tested."""

    # Folder of records.
    study: str
    # Title for the table; :mod:`docs.claims.titles` fills in the names in braces.
    title: str
    # Topic of the regime, which determines when it leaks.
    kind: Literal["membership", "sources", "clusters", "games"] = "membership"
    # Undefended attack, chosen before the runs, that decides whether the regime leaks.
    leak: str = ""
    # Non-members for this attack.
    against: Literal["mixed", "unseen", "other_client"] = "mixed"
    # Undefended variant; empty for the study itself.
    base: str = ""
    # Planned hours for all records of the study; None if an earlier regime of the same study states
    # them.
    hours: float | None = None
    # Whether the regime serves as an example without a leak.
    contrast: bool = False
    # Names of variants in this study, by their names in the claims.
    called: dict[str, str] = {}


class Term(Part):
    """Side of a comparison: a figure of a variant, or a number."""

    # Folder of records; the regime's study if empty.
    study: str = ""
    # Variant of the study; None for the base; for hypervolumes, a defense.
    variant: str | None = None
    # Attack; for games, the label of a point or an indicator of the detector.
    attack: str = ""
    # Attacks whose mean is used, instead of a single one.
    attacks: list[str] = []
    # Audited client; the first of the study by default.
    target: int | None = None
    # Group of clients for clustered learning; for a detector, the server.
    group: str = "everybody"
    # Figure; that of the test if empty.
    figure: str = ""
    # Number instead of a figure.
    value: float | None = None
    # Description of the variant, if it differs from that in `claims/words.toml`.
    words: str = ""


class Test(Part):
    """Comparison: the difference of two terms, compared with a margin."""

    # Figure of a record, as in :class:`docs.claims.figures.FigureName`.
    figure: str = "auc"
    # Contrast of membership figures.
    contrast: str = "mixed"
    # Term that the claim is about.
    one: Term
    # Terms with which ``one`` is compared, separately.
    others: list[Term]
    # Claimed position of ``one`` relative to the others.
    direction: Literal["above", "below", "near"] = "above"
    # Smallest claimed difference; for "near", the largest.
    margin: float = 0.0


class Claim(Part):
    """Claim of a paper and its tests."""

    # Name for links and commands.
    id: str
    # The claim, paraphrased.
    says: str
    # A shorter form of the claim for the table of verdicts, if needed.
    short: str = ""
    # Table, figure or section of the paper.
    where: str
    # Figures of the paper, with the names of their metrics.
    theirs: str
    regimes: list[str] = []
    # Comparisons that must all hold.
    tests: list[Test] = []
    # Whether the claim needs a regime that leaks: claims about attacks or defenses, not about
    # accuracy, cost or convergence.
    leaks: bool = True
    # 1 if the claim needs two regimes, 2 if it needs one: claims about one component or one form of
    # a method, or about one data set.
    tier: Literal[1, 2] = 1
    # Whether fedaudit asks the question, instead of the paper.
    ours: bool = False
    # Reason why the claim has no test.
    not_run: str = ""
    note: str = ""
    # Scale of the paper for this claim; empty if the claim does not depend on scale, None if it has
    # the scale of the main tables.
    scale: Scale | None = None


class Paper(Part):
    """Claims of one paper, and the scale of its main tables."""

    name: str
    title: str
    # Terms of the paper that its claims use.
    terms: list[str] = []
    scale: Scale = Scale()
    claim: list[Claim]


def read_toml(path: Path, kind: type[Stated]) -> Stated:
    """Read a file of claims or regimes.

    Raises:
        BadInput: The file is not TOML, or has an unknown key, a missing key or a wrong type.
    """
    try:
        return TypeAdapter(kind).validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path.name}: {place}: {first['msg']}; mend it there") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path.name} is no TOML: {error}") from None


@cache
def regimes() -> dict[str, Regime]:
    return read_toml(CLAIMS / "regimes.toml", dict[str, Regime])


@cache
def papers() -> list[Paper]:
    """Return all papers in the order of their file names.

    Raises:
        BadInput: Two claims have the same name.
    """
    all_papers = [
        read_toml(path, Paper)
        for path in sorted(CLAIMS.glob("*.toml"))
        if path.name not in ("regimes.toml", "words.toml")
    ]
    ids = Counter(claim.id for paper in all_papers for claim in paper.claim)
    twice = [name for name, times in ids.items() if times > 1]
    if twice:
        raise BadInput(f"two claims are called {twice[0]!r}; rename one of them")
    return all_papers


def named(study: str, variant: str) -> str:
    return f"{study}-{variant}" if variant else study


def variant_of(regime: Regime, term: Term) -> str:
    """Return the name that a term's variant has in the regime's study."""
    name = regime.base if term.variant is None else term.variant
    return name if term.study else regime.called.get(name, name)


def is_of_games(study: str) -> bool:
    return any(regime.study == study and regime.kind == "games" for regime in regimes().values())
