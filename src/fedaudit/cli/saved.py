"""Options of ``fedaudit attack`` for a folder of checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from cyclopts import Parameter

from fedaudit.cli.application import log
from fedaudit.core.errors import BadInput
from fedaudit.core.importing import code_named_in, look_up

if TYPE_CHECKING:
    from torch import nn


@Parameter(name="*")
@dataclass(frozen=True)
class CheckpointOptions:
    """Checkpoints that are recorded before they are attacked.

    Attributes:
        checkpoints: Folder of saved models of rounds and clients; the recording is written first.
        network: The network as module:object, in this folder or on Python's path: a module, or a
            function or class that returns one. It is imported, so name only code that you trust.
        samples: File of audited samples, one for each client (Split.save); may be repeated.
        rounds: Rounds that were trained, if names of files do not say.
        global_files: Pattern of the global models, such as 'round-{round}/global.pt'.
        client_files: Pattern of the clients' models, such as 'round-{round}/client-{client}.pt'.
        saved: Whether a global model is that after its round, or the one that clients were sent.
        initial: File of the model before the first round.
        view: The adversary's view; by default the one that shows most of what is saved.
    """

    checkpoints: Path | None = None
    network: str = ""
    samples: Annotated[tuple[Path, ...], Parameter(negative=())] = ()
    rounds: int = 0
    global_files: str = ""
    client_files: str = ""
    saved: Literal["after", "sent"] = "after"
    initial: Path | None = None
    view: str = ""


NO_CHECKPOINTS = CheckpointOptions()


def record_checkpoints(recording: Path, options: CheckpointOptions, device: str) -> None:
    """Record a folder of checkpoints if one is named; raise for options without one."""
    folder = options.checkpoints
    if folder is None:
        defaults = vars(NO_CHECKPOINTS)
        changed = [name for name, value in vars(options).items() if value != defaults[name]]
        if changed:
            raise BadInput(
                f"--{changed[0].replace('_', '-')} applies to --checkpoints FOLDER; give both, or "
                "leave it out"
            )
        return
    if not options.network or not options.samples:
        missing = "network" if not options.network else "samples"
        raise BadInput(
            f"--checkpoints needs --{missing}: the network as module:object, and a file of audited "
            "samples for each client"
        )
    from fedaudit.live.audited import join_audits
    from fedaudit.live.checkpoints.record import from_checkpoints

    with code_named_in(options.network, trusted=True, folder=Path.cwd()):
        network: object = look_up(
            "model",
            options.network,
            {},
            expected="a torch.nn.Module, or a function that returns one",
            fits=callable,
        )
    from_checkpoints(
        folder,
        cast("Callable[[], nn.Module]", network),
        join_audits(options.samples),
        out=recording,
        rounds=options.rounds,
        global_files=options.global_files,
        client_files=options.client_files,
        saved=options.saved,
        initial=options.initial,
        view=options.view,
        device=device,
        log=log,
    )
