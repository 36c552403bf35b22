"""The catalogue of measures of risk: the classic attack, and what the attacks' catalogue offers."""

from fedaudit.attacks.catalog import ATTACKS, attack_named
from fedaudit.errors import Refusal, Unsupported, unknown_name
from fedaudit.importing import is_own
from fedaudit.risk.base import Measure
from fedaudit.risk.by_attack import ByAttack, why_unfit
from fedaudit.risk.posteriors import TrainMia

MEASURES: dict[str, Measure] = {"train-mia": TrainMia()} | {
    name: ByAttack(attack) for name, attack in ATTACKS.items() if not why_unfit(attack)
}


def measure_named(name: str) -> Measure:
    """The measure of that name.

    Raises:
        BadInput: There is neither a measure nor an attack of that name.
        Unsupported: It is an attack that cannot measure the risk of a model; it says why.
    """
    if name in MEASURES:
        return MEASURES[name]
    try:
        attack = attack_named(name)
    except Refusal:
        if is_own(name):
            raise
        raise unknown_name("measure of risk", name, MEASURES) from None
    why = why_unfit(attack)
    if why:
        raise Unsupported(
            f"the attack {name!r} cannot measure the risk of a model: it {why}; "
            f"measures: {', '.join(sorted(MEASURES))}"
        )
    return ByAttack(attack)
