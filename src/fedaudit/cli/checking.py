"""The command that checks code instead of a run: check-dp."""

import sys
from typing import Annotated

from cyclopts import Parameter

from fedaudit.cli.application import app, log
from fedaudit.core.errors import BadInput
from fedaudit.core.progress import LONG


@app.command(name="check-dp")
def check_dp(
    filter: str,
    /,
    *,
    sensitivity: float,
    sigma: float,
    adjacency: str = "remove",
    noise: str = "gaussian",
    kind: str = "",
    shape_from: str = "",
    stateful: Annotated[bool, Parameter(negative=())] = False,
    elsewhere: tuple[str, ...] = (),
    calls: int = 64,
    seed: int = 0,
    seconds: float = 600,
) -> None:
    """Check that a privacy filter does what is declared of it: clipping, noise, memory.

    The filter is imported and called some hundreds of times, in a process of its own: name your
    own code, or code that you would run. What it prints is not shown. Exit code 0: sound,
    1: broken, 3: could not be checked; 2 is a refusal, such as a filter that fails or ends its
    process.

    Parameters
    ----------
    filter
        module:object, found here or where Python looks: a function from update to update, a step
        (from a batch to an update), a Flower mod, an NVFlare filter, a defense of fedaudit, or a
        class or function without arguments that makes one.
    sensitivity
        The farthest that one contribution moves the output without its noise, in Euclidean length;
        with Laplace noise in the sum of absolute values.
    sigma
        Noise multiplier: standard deviation over sensitivity; 0: noise is added elsewhere.
    adjacency
        What one contribution is: remove (there or not) or replace (any other, twice as far).
    noise
        Its distribution: gaussian or laplace.
    kind
        function, step, defense, flower-mod or nvflare-filter; found from the filter if left out.
    shape_from
        module:object that is, or makes, an example of an update (a network, or arrays) or of a
        step's batch.
    stateful
        Earlier rounds may change a release, as in adaptive clipping.
    elsewhere
        Name of something that is sent beside the arrays and made private elsewhere; may be
        repeated.
    calls
        How many draws of noise are looked at, at least 16.
    seed
        Of all that the check draws.
    seconds
        Time after which the check is stopped and refused; 0: no limit.
    """
    from fedaudit.filters.claim import EXIT_CODES
    from fedaudit.filters.isolated import check_in_child

    if not 0 <= seconds <= LONG:
        raise BadInput(f"--seconds is from 0 (no limit) to {LONG}, got {seconds:g}")
    audit = check_in_child(
        filter,
        {
            "sensitivity": sensitivity,
            "sigma": sigma,
            "adjacency": adjacency,
            "noise": noise,
            "kind": kind,
            "shape_from": shape_from or None,
            "stateful": stateful,
            "elsewhere": elsewhere,
            "calls": calls,
            "seed": seed,
        },
        seconds=seconds,
    )
    log(*audit.text.split("\n"))
    sys.exit(EXIT_CODES[audit.verdict])
