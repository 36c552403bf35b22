"""Extensions of a run, which optional tables of the study configure.

Extensions are imported only if the study needs them.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedaudit.attacks.base import Attack
    from fedaudit.plan.parts import Extension
    from fedaudit.plan.sections import Study


def extensions_of(study: "Study", attacks: "Mapping[str, Attack]") -> "Iterator[type[Extension]]":
    """Yield the extensions that a study needs, in the order in which they change a run."""
    if study.attacker is not None:
        from fedaudit.extensions.attacker import Attacker

        yield Attacker
    if study.canaries is not None:
        from fedaudit.extensions.canaries import Canaries

        yield Canaries
    if study.audit.draw == "canaries":
        from fedaudit.extensions.canary_samples import CanarySamples

        yield CanarySamples
    if study.secure_sum is not None:
        from fedaudit.extensions.secure_sum import SecureSum

        yield SecureSum
    if study.label_inference is not None:
        from fedaudit.extensions.label_inference import LabelInference

        yield LabelInference
    if study.shadow is not None or any(attacks[name].learns for name in study.attacks):
        from fedaudit.extensions.examples import ExampleSource

        yield ExampleSource
    if study.references is not None or any(a.needs_references for a in attacks.values()):
        from fedaudit.extensions.references import References

        yield References
    if study.unlearning is not None:
        from fedaudit.extensions.unlearning import Unlearning

        yield Unlearning
