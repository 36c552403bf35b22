"""The adversary of a study: what it sees, when it looks, and which attacks that allows."""

from fedaudit.attacks.base import Attack
from fedaudit.attacks.catalog import attack_named, attack_set
from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.core.tasks import Reading, task_named
from fedaudit.core.values import Sees, Setting
from fedaudit.fl.algorithms.base import Algorithm, ChoosesModels
from fedaudit.observe.round import Logits
from fedaudit.observe.views import (
    View,
    as_one,
    of_outputs,
    of_several_models,
    view_named,
    with_own_data,
)
from fedaudit.study.settings.sections import Study
from fedaudit.study.setup.defenses import defenses_of, noisy_tail
from fedaudit.study.setup.examples import shadow_section


def view_of(study: Study) -> View:
    """The adversary's view, and whether it has data of its own to learn from.

    Raises:
        BadInput: No such view, or audit.merge names clients that are not there.
    """
    view = view_named(study.audit.view)
    strangers = [c for c in study.audit.merge if c >= study.partition.clients]
    if strangers:
        raise BadInput(
            f"audit.merge names {strangers}, but clients are numbered 0 to "
            f"{study.partition.clients - 1}"
        )
    if study.audit.merge:
        view = as_one(view, study.audit.merge)
    return view if shadow_section(study) is None else with_own_data(view)


def as_sent(view: View, algorithm: Algorithm) -> View:
    """A view less what the algorithm's clients do not send.

    Raises:
        NotVisible: Nothing.
    """
    if algorithm.upload_kind is Logits:
        return of_outputs(view)
    return of_several_models(view) if isinstance(algorithm, ChoosesModels) else view


def attacks_of(study: Study, view: View) -> tuple[dict[str, Attack], dict[str, str]]:
    """Named attacks must be possible; of the study's set of attacks, the possible ones are taken.

    Returns:
        The attacks, and for each other one what is missing.

    Raises:
        BadInput: No such attack, setting or set.
        NotVisible: The study names an attack that needs more than the view offers.
    """
    if study.attacks:
        named = {
            name: attack_named(name).with_settings(_noise_tail(study, name) | given)
            for name, given in study.attacks.items()
        }
        for name, attack in named.items():
            _refuse_impossible(name, attack, study, view)
        return named, {}
    possible, refused = {}, {}
    for name, attack in attack_set(study.attack_set).items():
        try:
            _refuse_impossible(name, attack, study, view)
            possible[name] = attack
        except NotVisible as error:
            refused[name] = str(error)
    return possible, refused


def _noise_tail(study: Study, name: str) -> dict[str, Setting]:
    """Side information on a defense's noise for an attack that uses it, where a study gives none.

    Raises:
        BadInput: The audited clients' noise lies in tails of several sizes.
    """
    if "tail" not in attack_named(name).settings():
        return {}
    defenses = defenses_of(study)
    audited = {*study.audit.targets, *study.audit.merge}
    tails = [noisy_tail(defenses.get(client)) for client in audited]
    found = {tail for tail in tails if tail is not None}
    if len(found) > 1:
        raise BadInput(
            f"the audited clients add noise to the shares {sorted(found)} of their parameters, and "
            f"the attack {name!r} is told of one; set attacks.{name}.tail, or audit them one by one"
        )
    return {"tail": found.pop()} if found else {}


def _refuse_impossible(name: str, attack: Attack, study: Study, view: View) -> None:
    view.refuse_unless_offered(attack.needs, f"the attack {name!r}")
    task = task_named(study.task.name, study.task.options)
    if attack.reads & ~task.readings:
        wanted = "probabilities of " + " and ".join(
            "classes" if one is Reading.POSTERIOR else "tokens" for one in attack.reads
        )
        raise NotVisible(
            f"the attack {name!r} needs {wanted}, which the task {task.name!r} does not have"
        )
    if attack.infers_source and study.audit.merge:
        raise NotVisible(
            f"the attack {name!r} tells single clients apart, and audit.merge attacks "
            f"{list(study.audit.merge)} as one; leave audit.merge out"
        )
    if attack.infers_source and study.figures.nobody_is_a_member:
        raise NotVisible(
            f"the attack {name!r} asks whose a sample is, which has no answer where "
            "figures.nobody_is_a_member calls samples of nobody members"
        )


def measured_rounds(study: Study, view: View) -> tuple[int, ...]:
    """The rounds in which the adversary looks.

    Raises:
        BadInput: Measured rounds are further apart than there are rounds.
    """
    last = study.training.rounds
    if Sees.ROUNDS not in view.offers:
        return (last,)
    step = study.measured_every
    if step > last:
        raise BadInput(
            f"audit.every is {step}, but there are only {last} rounds, so that nothing would be "
            f"measured; give at most {last}, or 0 for a tenth of the rounds"
        )
    return tuple(range(step, last + 1, step))
