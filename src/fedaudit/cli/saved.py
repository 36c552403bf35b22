"""Options of ``fedaudit attack`` for saved models and for tables of signals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from cyclopts import Parameter

from fedaudit.cli.application import log, split_at_commas
from fedaudit.core.errors import BadInput
from fedaudit.core.importing import code_named_in, look_up

if TYPE_CHECKING:
    from torch import nn


@Parameter(name="*")
@dataclass(frozen=True)
class SavedOptions:
    """Options for saved models or tables of signals, from which a recording is written first.

    Attributes:
        checkpoints: Folder of saved global and client models, from which the recording is written.
        network: The network as module:object, in this folder or on Python's path: a torch module,
            or a function or class that returns one. It is imported, so name only code that you
            trust.
        samples: File of audited samples, from Split.save or save_audit; repeat it for each client
            that has its own file.
        rounds: Number of trained rounds, if it does not follow from the file names.
        first: Number of the first round in file names.
        global_files: Pattern of the global models, such as 'round-{round}/global.pt'.
        client_files: Pattern of the clients' models, such as 'round-{round}/client-{client}.pt'.
        saved: Which global model a round's file contains: the one after the round, or the one that
            clients were sent.
        initial: File of the model before the first round.
        clients: Audited client for each client's name in files, such as site-1=0,site-2=1.
        gaps: Treatment of a round if the model before it is not saved: "missing" leaves the round
            out, "join" measures the change over missing rounds as one round (only for the view
            globals).
        signals: CSV table of signals, or folder of such tables, one for each site, from which the
            recording is written; may be repeated.
        references: CSV table of reference models, for RMIA and LiRA with --signals.
        fair: Declare that for each sample of --signals, it was drawn with probability 1/2 whether
            its client trains on it.
        sizes: Number of training samples of each client, such as site-1=1200,site-2=800.
        view: The adversary's view; by default, the view that uses most of the saved models.
        every: Interval between measured rounds of --checkpoints, in rounds.
    """

    checkpoints: Path | None = None
    network: str = ""
    samples: Annotated[tuple[Path, ...], Parameter(negative=())] = ()
    rounds: int = 0
    first: Literal[0, 1] = 1
    global_files: str = ""
    client_files: str = ""
    saved: Literal["after", "sent"] = "after"
    initial: Path | None = None
    clients: str = ""
    gaps: Literal["missing", "join"] = "missing"
    signals: Annotated[tuple[Path, ...], Parameter(negative=())] = ()
    references: Path | None = None
    fair: Annotated[bool, Parameter(negative=())] = False
    sizes: str = ""
    view: str = ""
    every: int = 1


NO_SAVED_OPTIONS = SavedOptions()

_SIGNALS_OPTIONS = ("signals", "references", "fair")
_COMMON_OPTIONS = ("sizes", "view")


def write_recording_from_files(
    recording: Path, options: SavedOptions, attacks: Sequence[str], device: str
) -> None:
    """Write a recording from saved models or tables of signals, if the options name any.

    Raises:
        BadInput: An option is set that does not apply, or a required option is missing.
    """
    defaults = vars(NO_SAVED_OPTIONS)
    changed = [name for name, value in vars(options).items() if value != defaults[name]]
    signals_options = [name for name in changed if name in _SIGNALS_OPTIONS]
    common_options = [name for name in changed if name in _COMMON_OPTIONS]
    model_options = [name for name in changed if name not in (*signals_options, *common_options)]
    if options.checkpoints is not None:
        _raise_if_options_inapplicable(signals_options, "--signals, and not to --checkpoints")
        _record_checkpoints(recording, options.checkpoints, options, attacks, device)
    elif options.signals:
        _raise_if_options_inapplicable(model_options, "--checkpoints, and not to --signals")
        _record_signals(recording, options, attacks)
    else:
        _raise_if_options_inapplicable(signals_options, "--signals FILE")
        _raise_if_options_inapplicable(common_options, "--checkpoints FOLDER or --signals FILE")
        _raise_if_options_inapplicable(model_options, "--checkpoints FOLDER")


def _raise_if_options_inapplicable(names: Sequence[str], applies_to: str) -> None:
    if names:
        raise BadInput(
            f"--{names[0].replace('_', '-')} applies to {applies_to}; leave it out, or give the "
            "option that it applies to"
        )


def _attacks_to_record(attacks: Sequence[str]) -> Sequence[str]:
    """Return the attacks whose signals are recorded; empty for all possible ones.

    For attacks of the default set, the result is empty, so that all attacks of the set can be run
    later without a new recording.
    """
    from fedaudit.attacks import ATTACK_SETS, DEFAULT_SET

    return () if {*attacks} <= {*ATTACK_SETS[DEFAULT_SET]} else attacks


def _record_checkpoints(
    recording: Path, folder: Path, options: SavedOptions, attacks: Sequence[str], device: str
) -> None:
    if not options.network:
        raise BadInput("--checkpoints needs the network; add --network module:object")
    if not options.samples:
        raise BadInput("--checkpoints needs audited samples; add --samples FILE for each client")
    from fedaudit.live.audited import join_audits
    from fedaudit.live.checkpoints.record import from_checkpoints

    clients, sizes = _pairs("clients", options.clients), _sizes(options)
    with code_named_in(options.network, trusted=True, folder=Path.cwd()):
        network: object = look_up(
            "model",
            options.network,
            {},
            expected="a torch.nn.Module, or a function that returns one",
            is_valid=callable,
        )
    from_checkpoints(
        folder,
        cast("Callable[[], nn.Module]", network),
        join_audits(options.samples),
        out=recording,
        rounds=options.rounds,
        first=options.first,
        global_files=options.global_files,
        client_files=options.client_files,
        saved=options.saved,
        initial=options.initial,
        clients=clients,
        sizes=sizes,
        gaps=options.gaps,
        view=options.view,
        every=options.every,
        attacks=_attacks_to_record(attacks),
        device=device,
        log=log,
    )


def _record_signals(recording: Path, options: SavedOptions, attacks: Sequence[str]) -> None:
    from fedaudit.live.tables.record import from_signals

    from_signals(
        [table for path in options.signals for table in _tables_at(path)],
        out=recording,
        fair=options.fair,
        sizes=_sizes(options),
        references=options.references,
        attacks=_attacks_to_record(attacks),
        view=options.view or "uploads",
        log=log,
    )


def _tables_at(path: Path) -> list[Path]:
    """Return a path of a table, or the paths of all tables in a folder."""
    if not path.is_dir():
        return [path]
    tables = sorted(path.glob("*.csv"))
    if not tables:
        raise BadInput(f"--signals {path} is a folder without .csv files; give tables of signals")
    return tables


def _sizes(options: SavedOptions) -> dict[str, int] | None:
    sizes = {}
    for client, size in _pairs("sizes", options.sizes).items():
        if not size.isdecimal() or not 0 < int(size) <= 10**9:
            raise BadInput(
                f"--sizes gives {size[:40]!r} samples to client {client[:80]!r}; give whole "
                "numbers above 0"
            )
        sizes[client] = int(size)
    return sizes or None


def _pairs(option: str, text: str) -> dict[str, str]:
    """Parse pairs NAME=VALUE between commas. A pair that contains a comma is in double quotes."""
    pairs = dict[str, str]()
    for entry in split_at_commas(option, text):
        name, _, value = (text.strip() for text in entry.rpartition("="))
        if not (name and value) or name in pairs:
            raise BadInput(
                f"--{option} has {entry[:80]!r}; give each client once as NAME=VALUE, with commas "
                "between them"
            )
        pairs[name] = value
    return pairs
