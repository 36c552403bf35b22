"""Guard from a policy file of the data holder, which a job or server cannot change."""

import re
from collections.abc import Callable
from functools import wraps
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, NamedTuple, cast

from pydantic import Field
from torch import nn

from fedaudit.core.errors import BadInput
from fedaudit.core.files import raise_if_not_regular
from fedaudit.core.importing import convert_exits_to_errors
from fedaudit.core.progress import print_to_stderr
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.guard.arrays import Filter
from fedaudit.guard.guard import Guard
from fedaudit.guard.policy import GuardPolicy
from fedaudit.live.audited import join_audits
from fedaudit.plan.values import read_toml, settings_from

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]{0,199}")
Code = Annotated[str, Field(max_length=1000, pattern=r"^[^:]+\.py:[A-Za-z_][A-Za-z0-9_]*$")]
RelativePath = Annotated[str, Field(min_length=1, max_length=1000)]


class SitePolicy(GuardPolicy):
    """Policy of a data holder, with its audit set, network and filter.

    Paths are relative to the folder of the policy file. Functions are given by the path of a Python
    file and not by a module name, since a job could replace a module.

    Attributes:
        folder: Folder of the guard's records; each run has a subfolder.
        audit: File of the client's audited samples, written by ``Split.save``.
        model: Function that returns the network, as ``file.py:function``.
        filter: Function that is applied to updates above the limit, as ``file.py:function``. By
            default, these updates are withheld.
        task: Name of the client's task.
        not_uploaded: Name patterns of parameters that the client does not upload, as in
            ``fedaudit.record``.
        workers: Number of threads that compute gradients; 1 on a GPU.
        device: Device on which models are run, such as "cuda".
        client: Name of the client, as passed to ``fedaudit.fair_split``; reports show it.
        prepare: Whether a second process measures the received model while the client trains; see
            ``Guard.prepare``.
        metrics: Whether a job's metrics may be sent; the guard does not check them.
    """

    folder: RelativePath
    audit: RelativePath
    model: Code
    filter: Code | None = None
    task: Annotated[str, Field(max_length=100)] = "classification"
    not_uploaded: Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field()] = ()
    workers: Annotated[int, Field(ge=1, le=256, strict=True)] = 1
    device: Annotated[str, Field(max_length=20)] = "cpu"
    client: Annotated[str, Field(max_length=200)] = ""
    prepare: Annotated[bool, Field(strict=True)] = True
    metrics: Annotated[bool, Field(strict=True)] = False


def read_site_policy(path: Path | str) -> SitePolicy:
    """Read the policy of a data holder.

    Args:
        path: TOML file.

    Raises:
        BadInput: The file does not exist, is not TOML, or has an invalid setting.
    """
    values = read_toml(Path(path), "the guard's policy")
    return settings_from(values, SitePolicy, source=str(path))


class Site(NamedTuple):
    """Policy of a data holder, and the folder to which its paths are relative."""

    policy: SitePolicy
    root: Path

    @property
    def records(self) -> Path:
        """Folder that contains a subfolder for each run."""
        return self.root / self.policy.folder

    @property
    def files(self) -> list[Path]:
        """Files of code and of the audit set."""
        code = [self.policy.model] + ([self.policy.filter] if self.policy.filter else [])
        return [self.root / name.rpartition(":")[0] for name in code] + [
            self.root / self.policy.audit
        ]

    def read_audit(self) -> AuditSet:
        """Read the client's audit set.

        Raises:
            BadInput: The file does not exist, or is not written by ``Split.save``.
            Damaged: The file cannot be read.
        """
        return join_audits([self.root / self.policy.audit])

    def model(self) -> Callable[[], nn.Module]:
        """Load the function that builds the network.

        Raises:
            BadInput: The file of the function cannot be loaded.
        """
        return cast("Callable[[], nn.Module]", _function(self.root, self.policy.model))

    def guard(self, folder: Path, samples: AuditSet, *, log: Callable[[str], None]) -> Guard:
        """Open a guard with this policy.

        Args:
            folder: Folder of the guard.
            samples: Audit set.
            log: Function that receives a line for each decision.

        Raises:
            BadInput: A setting or the audit set is invalid, or the folder is in use.
            Damaged: The folder cannot be read.
        """
        policy = self.policy
        filter = _function(self.root, policy.filter) if policy.filter else None
        return Guard(
            folder,
            self.model(),
            samples,
            limit=policy.limit,
            filter=cast("Filter | None", filter),
            decide_by=policy.decide_by,
            attacks=policy.attacks,
            confidence=policy.confidence,
            smallest_audit=policy.smallest_audit,
            most_uploads=policy.most_uploads,
            task=policy.task,
            not_uploaded=policy.not_uploaded,
            workers=policy.workers,
            device=policy.device,
            client=policy.client,
            log=log,
        )


def read_site(path: Path | str) -> Site:
    """Read the policy of a data holder, with the folder to which its paths are relative.

    Raises:
        BadInput: See :func:`read_site_policy`.
    """
    return Site(read_site_policy(path), Path(path).absolute().parent)


def site_guard(
    path: Path | str, run: str, *, log: Callable[[str], None] = print_to_stderr
) -> Guard:
    """Open the guard of a data holder for one run.

    Args:
        path: File of the policy; see :class:`SitePolicy`.
        run: Name of the run, such as a job's identifier; the subfolder has this name.
        log: Function that receives a line for each decision.

    Raises:
        BadInput: The policy or the run's name is invalid, or a file of the policy cannot be used.
        Damaged: A file cannot be read.
    """
    site = read_site(path)
    if not _RUN.fullmatch(run):
        raise BadInput(
            f"the run's name {run[:80]!r} cannot be the name of a folder; use only letters, digits "
            "and . _ = , + -"
        )
    return site.guard(site.records / run, site.read_audit(), log=log)


def _function(root: Path, code: str) -> Callable[..., object]:
    """Load a function from a Python file of the data holder."""
    file, _, name = code.rpartition(":")
    path = root / file
    try:
        raise_if_not_regular(path)
        spec = spec_from_file_location(f"fedaudit_site_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        with convert_exits_to_errors():
            spec.loader.exec_module(module)
        function: object = getattr(module, name)
    # The data holder's code may raise any exception.
    except Exception as error:
        raise BadInput(
            f"the guard's policy names {code!r}, which cannot be loaded "
            f"({type(error).__name__}: {error}); correct the file"
        ) from error
    if not callable(function):
        raise BadInput(
            f"the guard's policy names {code!r}, which is not a function; name a function"
        )
    # Return a torch module itself, since other code recognises it by its class.
    return function if isinstance(function, nn.Module) else _without_exits(function)


def _without_exits(function: Callable[..., object]) -> Callable[..., object]:
    """Return the function with exits converted to errors, since an exit would end the job."""

    @wraps(function)
    def checked(*arguments: object) -> object:
        with convert_exits_to_errors():
            return function(*arguments)

    return checked
