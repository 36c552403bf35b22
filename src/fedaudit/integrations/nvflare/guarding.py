"""Guard of an NVFlare site: a filter that withholds results that leak."""

import atexit
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import Literal, NamedTuple, TypeAlias, get_args

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey, FilterSource
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.app_constant import AppConstants

from fedaudit.core.errors import BadInput
from fedaudit.guard.arrays import copy_arrays
from fedaudit.guard.guard import Guard
from fedaudit.guard.site import read_site_policy, site_guard
from fedaudit.integrations.common import numbers_in
from fedaudit.integrations.nvflare.filter import error_in, model_in, round_of, upload_in
from fedaudit.live.weights import Array
from fedaudit.results.text import log_line

Withheld: TypeAlias = Literal["error", "empty"]
"""Reply instead of a withheld result; see :class:`GuardFilter`."""

_RECEIVED = "fedaudit.guard.received"
"""Property of the context with the round and the model of a task."""


class _Run(NamedTuple):
    """Run of a job at a site."""

    site: str
    policy: str
    job: str


_guards: dict[_Run, Guard] = {}
"""Open guards of this process. The two filters of a site share one."""
_opening = Lock()
_HEADERS = (AppConstants.START_ROUND, AppConstants.CURRENT_ROUND, AppConstants.NUM_ROUNDS)
_CODES = {value for name, value in vars(ReturnCode).items() if name.isupper()}


class GuardFilter(Filter):
    """Filter of a site that sends only results that pass the checks of a guard.

    A site's administrator lists the filter twice in the site's ``local/privacy.json``: among
    ``task_data_filters``, where it stores the model that the site is sent, and among
    ``task_result_filters``, where it checks the result. The guard follows the site's policy file.
    From a job it reads only models and the number of the round.

    Results of every task are checked. A result that has no model, or cannot be measured, is
    withheld. A result that is sent has its arrays, the number of training steps and, if the policy
    allows them, metrics. All other fields are dropped. Filters of the job act after the guard.
    """

    def __init__(self, policy: str, withheld: Withheld = "empty") -> None:
        """Store the arguments; a guard is opened with the first model of a job.

        Args:
            policy: Path of the site's policy file; see :class:`fedaudit.guard.site.SitePolicy`. In
                the path, "{site}" is replaced by the site's name, for a simulation of several
                sites.
            withheld: Reply instead of a withheld result: an "empty" model, without which FedAvg and
                ScatterAndGather average, or an "error" (EMPTY_RESULT), which ends their job if
                fewer sites than required remain.

        Raises:
            BadInput: ``withheld`` has another value.
        """
        super().__init__()
        if withheld not in get_args(Withheld):
            raise BadInput(f"withheld is {withheld!r}; give 'empty' or 'error'")
        self.policy, self.withheld = policy, withheld
        self._runs = set[_Run]()

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Store the model of a task, or return the checked content of a result."""
        chain = self.get_prop(FilterContextKey.CHAIN_TYPE)
        if chain == FilterChainType.TASK_DATA_CHAIN:
            self._require_result_filter(fl_ctx)
            self._store_task(shareable, fl_ctx)
            return shareable
        try:
            checked = self._checked(shareable, fl_ctx)
        # Withhold a result at any error: a result that cannot be checked must not be sent.
        except Exception as error:
            reason = str(error) if isinstance(error, BadInput) else type(error).__name__
            self.log_error(fl_ctx, log_line(f"fedaudit: a result is withheld: {reason}"))
            checked = None
        return self._withheld_reply(shareable) if checked is None else checked

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Close the guard at the end of a run, if a job lists the filter."""
        if event_type == EventType.END_RUN:
            self._close()

    def _require_result_filter(self, fl_ctx: FLContext) -> None:
        """Raise if the site lists the filter only for tasks, so that results would leave unchecked.

        NVFlare ignores unknown keys of ``privacy.json``, such as "task_result_filter". With this
        error it does not pass the task on, so that there is no result.
        """
        if self.get_prop(FilterContextKey.SOURCE) != FilterSource.SITE:
            return
        scope = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT)
        filters = getattr(scope, "task_result_filters", {}).get(FilterKey.OUT, ())
        if not any(isinstance(f, GuardFilter) and f.policy == self.policy for f in filters):
            reason = (
                "privacy.json lists GuardFilter in task_data_filters, but not with the same policy "
                'and the direction "out" in task_result_filters of the same scope; add it there'
            )
            self.log_error(fl_ctx, f"fedaudit: a task is refused: {reason}")
            raise BadInput(reason)

    def _store_task(self, task: Shareable, fl_ctx: FLContext) -> None:
        """Store a copy of the model that the site is sent, and start to measure it."""
        fl_ctx.set_prop(_RECEIVED, None, private=True, sticky=False)
        # Without a model, the result is withheld unless it has only metrics.
        with suppress(Exception):
            number, model = round_of(task), copy_arrays(model_in(task), "the model sent")
            fl_ctx.set_prop(_RECEIVED, (number, model), private=True, sticky=False)
            if read_site_policy(self._path(fl_ctx)).prepare:
                self._guard(fl_ctx).prepare(sent=model)

    def _checked(self, result: Shareable, fl_ctx: FLContext) -> Shareable | None:
        """Return the content to send; None if the result is withheld."""
        if error := error_in(result):
            return make_reply(error if error in _CODES else ReturnCode.EXECUTION_EXCEPTION)
        dxo, allows_metrics = from_shareable(result), read_site_policy(self._path(fl_ctx)).metrics
        if allows_metrics and dxo.data_kind == DataKind.METRICS:
            return _shareable(DXO(DataKind.METRICS, data=numbers_in(dxo.data)), result)
        received = fl_ctx.get_prop(_RECEIVED)
        if received is None:
            raise BadInput(
                "the model of its task is unknown; also list the filter in task_data_filters"
            )
        number, model = received
        upload = upload_in(result)
        arrays: Mapping[str, Array] = upload.arrays
        checked = self._guard(fl_ctx).check(
            number, sent=model, upload=arrays, is_update=upload.difference
        )
        if checked is None:
            return None
        meta: dict[str, object] = {MetaKey.NUM_STEPS_CURRENT_ROUND: upload.weight}
        reported = dxo.get_meta_prop(MetaKey.INITIAL_METRICS)
        if allows_metrics and reported is not None:
            meta[MetaKey.INITIAL_METRICS] = numbers_in(reported)
        return _shareable(DXO(dxo.data_kind, data=checked, meta=meta), result)

    def _guard(self, fl_ctx: FLContext) -> Guard:
        path = self._path(fl_ctx)
        run = _Run(str(fl_ctx.get_identity_name()), path, str(fl_ctx.get_job_id()))
        with _opening:
            if run not in _guards:
                _guards[run] = site_guard(
                    path, run.job, log=lambda line: self.log_info(fl_ctx, f"fedaudit: {line}")
                )
            if run not in self._runs:
                # Filters of a site are not notified of the end of a job, whose process then exits.
                atexit.register(self._close)
                self._runs.add(run)
            return _guards[run]

    def _path(self, fl_ctx: FLContext) -> str:
        return self.policy.replace("{site}", str(fl_ctx.get_identity_name()))

    def _close(self) -> None:
        atexit.unregister(self._close)
        with _opening:
            runs, self._runs = self._runs, set()
            guards = [_guards.pop(run) for run in runs if run in _guards]
        for guard in guards:
            with suppress(Exception):
                guard.close()

    def _withheld_reply(self, result: Shareable) -> Shareable:
        """Return the reply that is sent instead of a withheld result."""
        if self.withheld == "error":
            return make_reply(ReturnCode.EMPTY_RESULT)
        return _shareable(DXO(DataKind.WEIGHTS, data={}), result)


def _shareable(dxo: DXO, result: Shareable) -> Shareable:
    """Return a result with new content, and with the round numbers of the original."""
    reply: Shareable = dxo.to_shareable()
    for name in _HEADERS:
        value = result.get_header(name)
        if isinstance(value, int):
            reply.set_header(name, value)
    return reply
