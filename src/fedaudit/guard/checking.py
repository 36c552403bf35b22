"""Check of a guard's policy before a job: what the guard will measure, send and withhold.

The check sends a guard two test uploads: one with a planted leak, and one without a leak.
"""

import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedaudit.core.devices import device_named
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.progress import format_duration
from fedaudit.core.seeds import seeded
from fedaudit.core.task_catalogue import task_named
from fedaudit.core.tasks import OutputKind
from fedaudit.core.values import Architecture, Model, Params, Samples
from fedaudit.datasets.dataset import prepare_samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.guard.guard import LIMITS
from fedaudit.guard.policy import ATTACKS
from fedaudit.guard.site import Site, SitePolicy, read_site
from fedaudit.live.decisions import DECISIONS_FILE, Decision
from fedaudit.live.network import network_of
from fedaudit.results.text import clean_text

_WARNING = "warning: "
_CONDITIONS = {
    "upper": "the upper confidence limit ({percent:.6g} %) of each attack's AUC is at most "
    "{limit:g}; a measured AUC of about {smallest:.3f} or more is too high",
    "estimate": "each attack's AUC is at most {limit:g}",
    "lower": "no attack's lower confidence limit ({percent:.6g} %) of the AUC is above {limit:g}; "
    "a measured AUC of about {smallest:.3f} or more is too high",
}
"""Condition under which an upload is sent, by the policy's setting ``decide_by``."""
_ROUNDS = 20
_TRAINING = LocalTraining(epochs=5, batch_size=16, lr=3e-3, optimizer="adam")
"""Training between two checks of the loss and of the elapsed time."""
_MEMORISED = 0.1
"""Training ends when the members' loss falls below this fraction of its initial value."""
_NOISE = 1e-3
"""Standard deviation of the noise in the upload without a leak, relative to the parameters."""
_BATCH = 256
_SEED_PURPOSE = "test of a guard"


class Statement(NamedTuple):
    """Line of the result of a check.

    Attributes:
        topic: Topic of the line, such as "sent".
        text: The statement.
    """

    topic: str
    text: str

    @property
    def is_warning(self) -> bool:
        """True if the policy does not do what it seems to do, or allows more than it should."""
        return self.topic == "warning"


class ExampleUpload(NamedTuple):
    """Upload with which a guard is tested.

    Attributes:
        received: Parameters and buffers that a client received.
        upload: Parameters and buffers that the client would send.
        loss: Mean loss of the members after training, as a fraction of the initial loss.
    """

    received: Params
    upload: Params
    loss: float = 1.0


def check_site_policy(path: Path | str, *, seconds: float = 60) -> Iterator[Statement]:
    """Test a policy with real guards, and yield statements on what its guard will do in a job.

    A guard is opened in a temporary folder next to its records, as in a job. It checks an upload
    without a leak. A second guard checks an upload with a planted leak, from a network that
    memorised the audited samples with permuted targets. The temporary folder is deleted at the end.

    Args:
        path: File of the policy; see :class:`fedaudit.guard.site.SitePolicy`.
        seconds: Time limit of the training for the planted leak; 0 plants no leak.

    Raises:
        BadInput: The guard refuses the policy, or one of its files.
        Damaged: A file of the policy cannot be read.
    """
    site = read_site(path)
    audit = site.read_audit()
    members = int((audit.owner >= 0).sum())
    n_held_out = len(audit) - members
    with _temporary_folder(site.records) as folder:
        lines: list[str] = []
        noise = upload_of_noise(site, audit)
        with site.guard(folder / "check", audit, log=lines.append) as guard:
            start = time.monotonic()
            guard.check(1, sent=noise.received, upload=noise.upload)
            duration = time.monotonic() - start
        decision = guard.decisions[-1]
        if decision.is_error:
            raise BadInput(
                f"with the policy {path}, the guard would withhold every upload: {decision.reason}"
            )
        yield Statement("audit", f"{members} members, {n_held_out} held-out samples")
        yield from _attacks(site.policy, decision)
        yield from _outcomes(site.policy, members, n_held_out)
        yield Statement(
            "log",
            f"{site.records / 'RUN' / DECISIONS_FILE}, where RUN is the job's identifier in "
            "NVFlare, and run-NUMBER in Flower",
        )
        # The first line of a guard's log is "FOLDER: " and the cost of a round.
        yield Statement("cost", lines[0].partition(": ")[2])
        yield Statement("time", f"checking one upload took {format_duration(duration)}")
        yield from _without_leak(decision)
        if seconds:
            yield from _planted(site, audit, folder, seconds)
        else:
            yield Statement("planted leak", "not tested, because --seconds is 0")
    yield Statement("not covered", LIMITS)
    warnings = [line.removeprefix(_WARNING) for line in lines if line.startswith(_WARNING)]
    yield from (Statement("warning", text) for text in (*warnings, *_warnings(Path(path), site)))


def _attacks(policy: SitePolicy, first: Decision) -> Iterator[Statement]:
    """List the attacks that are run; ``first`` is the decision on the first upload of a run."""
    at_once = [estimate.attack for estimate in first.figures]
    later = [name for name in policy.attacks if name not in at_once]
    omitted = [name for name in ATTACKS if name not in policy.attacks]
    yield Statement(
        "attacks",
        ", ".join(at_once)
        + f"; after the first upload was sent, also {', '.join(later)}" * bool(later)
        + f"; not in this policy: the default attacks {', '.join(omitted)}" * bool(omitted),
    )


def _outcomes(policy: SitePolicy, members: int, held_out: int) -> Iterator[Statement]:
    condition = _CONDITIONS[policy.decide_by].format(
        percent=100 * policy.level,
        limit=policy.limit,
        smallest=policy.smallest_withheld_auc(members, held_out),
    )
    yield Statement("sent", f"an upload is sent if {condition}")
    if policy.filter:
        yield Statement(
            "filtered",
            f"an upload above the limit is changed by {policy.filter} and measured again; it is "
            "sent if it is then within the limit",
        )
    withheld = "an upload that is above the limit, or cannot be measured"
    if policy.most_uploads is not None:
        withheld += (
            f"; in each run, all uploads after the first {policy.most_uploads} that are measured "
            "(an upload to which the filter is applied counts twice)"
        )
    yield Statement("withheld", withheld)
    yield Statement("metrics", "sent, and not measured" if policy.metrics else "not sent")


def _without_leak(decision: Decision) -> Iterator[Statement]:
    yield Statement("upload of noise", _outcome(decision))
    if decision.outcome != "sent":
        yield Statement(
            "warning",
            "an upload that cannot leak is above the limit: audit more samples, or check whether "
            "members and held-out samples come from different sources",
        )


def _planted(site: Site, audit: AuditSet, folder: Path, seconds: float) -> Iterator[Statement]:
    audit = with_permuted_targets(audit, site.policy.task)
    try:
        leak = upload_of_memorised_members(site, audit, seconds=seconds)
    except FedauditError as error:
        yield Statement("planted leak", "not tested")
        yield Statement("warning", f"no leak could be planted: {clean_text(str(error))}")
        return
    decision = _decision_on_leak(site, audit, folder, leak)
    figures = decision.unfiltered or decision.figures
    found_attacks = [
        f"{figure.attack} (AUC {figure.value:.3f})" for figure in figures if figure.low > 0.5
    ]
    missed = [figure.attack for figure in figures if figure.low <= 0.5]
    result_text = (
        f"; a network memorised the members until their loss was {leak.loss:.0%} of the first"
    )
    result_text += f"; found by {', '.join(found_attacks)}" * bool(found_attacks)
    result_text += f"; not found by {', '.join(missed)}" * bool(missed)
    yield Statement("planted leak", f"{_outcome(decision)}{result_text}")
    if decision.is_error:
        yield Statement(
            "warning",
            "the upload with a planted leak was withheld because of an error, and not because an "
            "attack found the leak",
        )
    elif not found_attacks:
        yield Statement(
            "warning",
            "no attack found the planted leak, so the guard may miss leaks; add attacks, or raise "
            "the time limit if the members' loss fell only a little",
        )


def _decision_on_leak(site: Site, audit: AuditSet, folder: Path, leak: ExampleUpload) -> Decision:
    """Return the decision of a new guard on the upload with the planted leak."""
    with site.guard(folder / "planted", audit, log=lambda line: None) as guard:
        # Attacks that compare rounds need an earlier upload, which takes one measurement of
        # most_uploads. The leak may take two: before and after the filter.
        if site.policy.most_uploads is None or site.policy.most_uploads > 2:
            noise = upload_of_noise(site, audit)
            guard.check(1, sent=noise.received, upload=noise.upload)
        guard.check(2, sent=leak.received, upload=leak.upload)
        return guard.decisions[-1]


def _outcome(decision: Decision) -> str:
    return str(decision).partition(": ")[2]


def _warnings(path: Path, site: Site) -> Iterator[str]:
    files = [path.absolute(), *site.files]
    # A user who can write to a folder can replace its files.
    folders = [file.parent for file in files] + [site.records] * site.records.exists()
    for writable in filter(_is_writable_by_others, dict.fromkeys([*files, *folders])):
        yield (
            f"other users can write to {writable}, so they can change what the guard sends or "
            "logs; allow only its owner to write to it"
        )
    if site.policy.metrics:
        yield (
            "metrics of a job are sent without a check and can contain any number; set metrics = "
            "false unless you review each job's code"
        )


def _is_writable_by_others(path: Path) -> bool:
    mode = path.stat().st_mode
    # In a folder with the sticky bit, users can delete only their own files.
    return bool(mode & (stat.S_IWGRP | stat.S_IWOTH)) and not mode & stat.S_ISVTX


@contextmanager
def _temporary_folder(records: Path) -> Iterator[Path]:
    """Create a temporary folder next to the guard's records, and delete it at the end."""
    parent = next(folder for folder in (records, *records.parents) if folder.exists())
    if not parent.is_dir():
        raise BadInput(
            f"{parent} is not a folder; set folder in the policy to the path of a folder"
        )
    try:
        temporary = tempfile.TemporaryDirectory(prefix=".check-", dir=parent)
    except OSError as error:
        raise BadInput(
            f"{records} cannot be written ({error}); run the check as the user that runs the site, "
            "and give this user write access"
        ) from error
    with temporary as folder:
        yield Path(folder)


def with_permuted_targets(audit: AuditSet, task: str) -> AuditSet:
    """Return the audit set with randomly permuted targets.

    Features then do not predict targets, so a network can fit the members only by memorising them.
    Sequences of tokens are not changed, since their targets are their own next tokens.
    """
    if OutputKind.TOKENS in task_named(task, {}).output_kinds:
        return audit
    order = torch.randperm(len(audit), generator=seeded(1, _SEED_PURPOSE, "targets"))
    samples = audit.samples
    permuted = samples.replace(targets=samples.targets[order], labels=samples.labels[order])
    return replace(audit, samples=permuted)


def upload_of_noise(site: Site, audit: AuditSet) -> ExampleUpload:
    """Return an upload without a leak: an untrained network with noise on its parameters."""
    architecture, _ = _architecture_and_members(site, audit)
    received, draw = architecture.initial(1), seeded(1, _SEED_PURPOSE, "noise")

    def with_noise(values: Tensor) -> Tensor:
        # The standard deviation of a layer of zeros, such as new biases, is 0.
        scale = _NOISE * max(float(values.std(correction=0)), _NOISE)
        return values + scale * torch.randn(values.shape, generator=draw).to(values)

    params = {name: with_noise(values) for name, values in received.params.items()}
    return ExampleUpload(_state(received), {**params, **received.buffers})


def upload_of_memorised_members(site: Site, audit: AuditSet, *, seconds: float) -> ExampleUpload:
    """Return an upload with a leak: the site's network, trained until it memorised the members.

    Args:
        site: The site.
        audit: Audit set, from :func:`with_permuted_targets`.
        seconds: Time after which training ends, even if the members are not memorised yet.

    Raises:
        BadInput: The network cannot be trained on the members.
    """
    architecture, members = _architecture_and_members(site, audit)
    training = _TRAINING
    # Avoid a last batch with a single sample, on which batch normalisation fails.
    while len(members) % training.batch_size == 1:
        training = replace(training, batch_size=training.batch_size + 1)
    rounds = simulate(
        FedAvg(architecture, training),
        {0: members},
        rounds=_ROUNDS,
        seed=1,
        device=device_named(site.policy.device),
    )
    end, result = time.monotonic() + seconds, None
    for round in rounds:
        received, trained = round.observed[0].base, round.observed[0].local
        assert received is not None
        assert trained is not None
        if result is None:
            first_loss = _mean_loss(received, members)
            result = ExampleUpload(_state(received), {})
        fraction = _mean_loss(trained, members) / max(first_loss, 1e-30)
        result = result._replace(upload=_state(trained), loss=fraction)
        if fraction < _MEMORISED or time.monotonic() > end:
            break
    assert result is not None
    return result


def _architecture_and_members(site: Site, audit: AuditSet) -> tuple[Architecture, Samples]:
    task = task_named(site.policy.task, {})
    audit = replace(audit, samples=prepare_samples(audit.samples, task))
    net = network_of(site.model(), audit, task, site.policy.not_uploaded)
    return net.architecture, audit.samples.take(torch.from_numpy(audit.owner >= 0))


def _state(model: Model) -> Params:
    return {**model.params, **model.buffers}


def _mean_loss(model: Model, samples: Samples) -> float:
    task, module, total = model.architecture.task, model.module(), 0.0
    with torch.no_grad():
        for start in range(0, len(samples), _BATCH):
            batch = samples.take(slice(start, start + _BATCH))
            losses = task.losses(task.outputs(module, batch.features), batch.targets)
            total += float(losses.double().sum())
    return total / len(samples)
