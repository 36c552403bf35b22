"""Claims and regimes, as `claims/*.toml` state them."""

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
    """A table of a claims file: no unknown key."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Scale(Part):
    """Sizes by which a regime is compared with a paper; None where there is none.

    Attributes:
        clients: Of the federation.
        samples: Of each client.
        rounds: Of training.
        records: Of all clients together.
        copies: Of games: noisy copies of the target that the server trains on.
        others: Of games: other records that it trains on.
        test_accuracy: Of the undefended model, in [0, 1]; named, and not compared.
    """

    clients: int | None = None
    samples: int | None = None
    rounds: int | None = None
    records: int | None = None
    copies: int | None = None
    others: int | None = None
    test_accuracy: float | None = None

    def smaller_than(self, other: "Scale") -> bool:
        """Whether a size is below the other's, of those that both have."""
        both = [(getattr(self, name), getattr(other, name)) for name in SIZES]
        return any(mine < theirs for mine, theirs in both if None not in (mine, theirs))

    def words(self, other: "Scale") -> str:
        """Return the sizes that both have, such as "10 clients x 300 samples, 24 rounds"."""
        has = {name for name in SIZES if None not in (getattr(self, name), getattr(other, name))}
        parts = []
        if "clients" in has or "samples" in has:
            each = f" x {self.samples:,} samples" if "samples" in has else ""
            parts.append(f"{self.clients} clients{each}")
        rest = ("rounds", "records", "copies", "others")
        parts += [f"{getattr(self, name):,} {SIZES[name]}" for name in rest if name in has]
        if self.test_accuracy is not None:
            parts.append(f"test accuracy {100 * self.test_accuracy:.3g} %")
        return ", ".join(parts)


SIZES = {
    "clients": "clients",
    "samples": "samples",
    "rounds": "rounds",
    "records": "training records",
    "copies": "copies of the target",
    "others": "other records",
}


class Regime(Part):
    """Where claims are tested.

    Attributes:
        study: Folder of records.
        title: Data, network and sizes, for the table; sizes stand in braces, by the names of
            settings or by those of :mod:`docs.claims.titles`, which fills them in.
        kind: What an adversary asks: decides what it means that the regime leaks.
        leak: The undefended attack, named beforehand, by which it is judged whether it leaks.
        against: Non-members among whom it has to find members; "unseen" where the one model that is
            seen is of all clients' samples.
        base: Variant that is the regime undefended; empty for the study itself.
        hours: Planned for all records that claims ask of the study, before they were made; None
            for a regime of a study whose hours stand with an earlier one.
        contrast: Whether it is there to show what is found where hardly anything leaks.
        called: Other names of variants: as claims have them, and as this study does.
    """

    study: str
    title: str
    kind: Literal["membership", "sources", "clusters", "games"] = "membership"
    leak: str = ""
    against: Literal["mixed", "unseen", "other_client"] = "mixed"
    base: str = ""
    hours: float | None = None
    contrast: bool = False
    called: dict[str, str] = {}


class Term(Part):
    """One side of a comparison: a figure of a variant, or a number.

    Attributes:
        study: Folder of records, where that is not the regime's.
        variant: Of the regime's study; None for its base; of hypervolumes a defense.
        attack: Whose figure it is, where it is an attack's; of games a point's label, or a sign
            of the detector.
        attacks: Instead, several whose mean it is.
        target: Audited client; the first of the study's if left out.
        group: Of clients, for figures of clustered learning; the server that a detector met.
        figure: The figure, where it is another than the test's.
        value: A number instead of a figure.
    """

    study: str = ""
    variant: str | None = None
    attack: str = ""
    attacks: list[str] = []
    target: int | None = None
    group: str = "everybody"
    figure: str = ""
    value: float | None = None


class Test(Part):
    """One comparison: one less other, held against a margin.

    Attributes:
        figure: A figure of a record; :mod:`docs.claims.figures` has all of them.
        contrast: Of figures about membership.
        one: The figure that the claim is about.
        others: What it is held against, each by itself.
        direction: Where the claim says that one lies.
        margin: How far, in the figure's own unit; for "near", how far apart at most.
    """

    figure: str = "auc"
    contrast: str = "mixed"
    one: Term
    others: list[Term]
    direction: Literal["above", "below", "near"] = "above"
    margin: float = 0.0


class Claim(Part):
    """What a paper says, and the test of it.

    Attributes:
        id: For links and commands.
        says: In our words.
        where: Table, figure or section.
        theirs: The paper's own figures.
        regimes: Where it is tested, by name.
        tests: All of which must hold.
        leaks: Whether it is about attacks or defenses against them, and can only be judged where
            there is something to leak; not so of accuracy, cost, convergence.
        tier: 1 for what needs two regimes, 2 for what one settles: ablations, and sentences about
            one data set or one form of a method.
        not_run: Why there is no test of it.
        note: What to bear in mind.
        scale: The paper's scale for this claim, where it is another than that of the paper's main
            tables; an empty one where the sentence does not depend on a scale.
    """

    id: str
    says: str
    where: str
    theirs: str
    regimes: list[str] = []
    tests: list[Test] = []
    leaks: bool = True
    tier: Literal[1, 2] = 1
    not_run: str = ""
    note: str = ""
    scale: Scale | None = None


class Paper(Part):
    """The claims of one paper.

    Attributes:
        name: For the page.
        title: The paper's own.
        scale: Of its main tables.
        claim: Its claims.
    """

    name: str
    title: str
    scale: Scale = Scale()
    claim: list[Claim]


def read_toml(path: Path, of: type[Stated]) -> Stated:
    """What a file of claims or regimes states.

    Raises:
        BadInput: It is no TOML, or has an unknown or a missing key, or a value of another kind.
    """
    try:
        return TypeAdapter(of).validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path.name}: {place}: {first['msg']}; mend it there") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path.name} is no TOML: {error}") from None


@cache
def regimes() -> dict[str, Regime]:
    """All regimes by name."""
    return read_toml(CLAIMS / "regimes.toml", dict[str, Regime])


@cache
def papers() -> list[Paper]:
    """All papers in the order of their files' names, with their claims.

    Raises:
        BadInput: Two claims have the same name.
    """
    found = [
        read_toml(path, Paper)
        for path in sorted(CLAIMS.glob("*.toml"))
        if path.name != "regimes.toml"
    ]
    ids = Counter(claim.id for paper in found for claim in paper.claim)
    twice = [name for name, times in ids.items() if times > 1]
    if twice:
        raise BadInput(f"two claims are called {twice[0]!r}; give each a name of its own")
    return found


def named(study: str, variant: str) -> str:
    """What a variant of a study is called, as its folder and its record are."""
    return f"{study}-{variant}" if variant else study


def variant_of(regime: Regime, term: Term) -> str:
    """The variant that a side of a comparison is of, as the regime's study calls it."""
    name = regime.base if term.variant is None else term.variant
    return name if term.study else regime.called.get(name, name)


def is_of_games(study: str) -> bool:
    """Whether a folder's record is of security games."""
    return any(one.study == study and one.kind == "games" for one in regimes().values())
