"""The command that checks code instead of a run: check-dp."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fedaudit.cli.application import app, log
from fedaudit.core.errors import BadInput


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
) -> None:
    """Check that a privacy filter does what is declared of it: clipping, noise, memory.

    The filter is imported and called some hundreds of times: name your own code, or code that
    you would run. Exit code 0: sound, 1: broken, 3: could not be checked; 2 is a refusal, such as a
    filter that fails.

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
    """
    from fedaudit.core.importing import code_named_in
    from fedaudit.filters.check import check_dp as checked
    from fedaudit.filters.claim import EXIT_CODES

    # Whoever types the name wants that code to run.
    with code_named_in("the command line", trusted=True, folder=Path.cwd()):
        try:
            audit = checked(
                filter,
                sensitivity=sensitivity,
                sigma=sigma,
                adjacency=adjacency,
                noise=noise,
                kind=kind,
                shape_from=shape_from or None,
                stateful=stateful,
                elsewhere=elsewhere,
                calls=calls,
                seed=seed,
            )
        except SystemExit as error:
            # Of the filter's code, wherever it is run: it is no verdict.
            raise BadInput(
                f"{filter!r} ended the program (SystemExit: {error}); mend it, and try it by itself"
            ) from error
    log(str(audit))
    sys.exit(EXIT_CODES[audit.verdict])
