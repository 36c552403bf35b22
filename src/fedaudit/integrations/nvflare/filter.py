"""Recording filter for NVFlare's server, and a wrapper with which check-dp checks filters."""

import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.job_config.defs import FilterType, JobTargetType

from fedaudit.core.errors import BadInput
from fedaudit.filters.claim import Arrays as Update
from fedaudit.filters.claim import Claim
from fedaudit.integrations.common import training_metrics, warn
from fedaudit.integrations.nvflare.collector import (
    Arrays,
    NvflareRoundCollector,
    RecorderFactory,
    Upload,
    create_recorder,
    factory_name,
)
from fedaudit.live.clients import ClientRef
from fedaudit.results.text import log_line

if TYPE_CHECKING:
    from nvflare.job_config.api import FedJob, JobCtx


def round_of(task: Shareable) -> int:
    """Return the round of a task, counted from 1; NVFlare counts from 0."""
    number = task.get_header(AppConstants.CURRENT_ROUND)
    if not isinstance(number, int) or number < 0:
        raise BadInput(
            f"the round of a task is {number!r}; a recorder needs tasks with the header "
            f"{AppConstants.CURRENT_ROUND!r}, like those of FedAvg"
        )
    return number + 1


def error_in(result: Shareable) -> str:
    """Return the error code of a result; empty without an error."""
    code = result.get_return_code()
    return "" if code in (None, ReturnCode.OK) else str(code)


def model_in(task: Shareable) -> Arrays:
    """Return the model that a site is sent."""
    dxo = _dxo(task)
    if dxo.data_kind != DataKind.WEIGHTS:
        raise BadInput(f"it is {_kind(dxo)}; a recorder needs the whole model ({_WHOLE})")
    return _arrays(dxo)


def upload_in(result: Shareable) -> Upload:
    """Return the upload of a site: a model or a difference."""
    dxo = _dxo(result)
    if dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
        raise BadInput(f"it is {_kind(dxo)}; a recorder reads {_WHOLE} and {_DIFFERENCE}")
    is_difference = dxo.data_kind == DataKind.WEIGHT_DIFF
    return Upload(_arrays(dxo), is_difference, _weight(dxo), _reported(dxo))


_MAX_WEIGHT = 1e300
"""Largest weight; larger whole numbers may be beyond the range of floats."""

_WHOLE, _DIFFERENCE = DataKind.WEIGHTS.value, DataKind.WEIGHT_DIFF.value


def _dxo(content: Shareable) -> DXO:
    try:
        return from_shareable(content)
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"it has no DXO ({error})") from error


def _arrays(dxo: DXO) -> Arrays:
    processed = dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM)
    if processed:
        raise BadInput(
            f"its arrays are {processed}; a recorder reads plain arrays, so add it after the "
            "server's filter that restores them"
        )
    if not isinstance(dxo.data, dict) or not dxo.data:
        raise BadInput(f"it is {_kind(dxo)} without arrays")
    return dxo.data


def _weight(dxo: DXO) -> float:
    weight = dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    # NVFlare counts an invalid weight as 1.
    return float(weight) if is_number and 0 < weight <= _MAX_WEIGHT else 1.0


def _reported(dxo: DXO) -> dict[str, float]:
    metrics = dxo.get_meta_prop(MetaKey.INITIAL_METRICS)
    # By NVFlare's convention, metrics sent with weights are those of the received model on
    # validation data, unless their names contain "train".
    return training_metrics(metrics, bare=False) if isinstance(metrics, Mapping) else {}


def _kind(dxo: DXO) -> str:
    return f"data of the kind {getattr(dxo.data_kind, 'value', dxo.data_kind)}"


class RecordingFilter(Filter):
    """Filter that records results and the models that sites were sent.

    Use ``recipe.add_server_input_filter(RecordingFilter(record, "runs/mine"), tasks=["train"])``,
    where ``record`` is a module-level function that takes a folder and returns a recorder of
    :func:`fedaudit.record`. Uploads are recorded as they arrive at the filter: add it after filters
    that decrypt and before filters that add noise.

    A job contains only the arguments of a filter, from which the server's process creates the
    filter. The recorder is created in that process when the run starts. If this fails, the run
    stops.
    """

    def __init__(
        self,
        recorder: RecorderFactory | str,
        folder: Path | str,
        sites: Mapping[str, ClientRef] | None = None,
        task: str = "train",
        reads_metrics: bool = True,
    ) -> None:
        """Store the arguments; the recorder is created when the run starts.

        Args:
            recorder: Function that creates the recorder for a folder, in a module that the server
                can import, or its name as ``module:function``.
            folder: Folder of the recording on the server.
            sites: Maps names of sites to clients. By default, a site is the client of the same name
                or, if audited clients have numbers, the client with the number at the end of the
                site's name.
            task: Name of the task in which sites train.
            reads_metrics: Whether training metrics of sites are compared with the recorder's
                values. Pass False if filters of sites add noise or clip.

        Raises:
            BadInput: The function cannot be found by name.
        """
        super().__init__()
        # NVFlare reads the arguments from attributes with the same names.
        self.recorder, self.folder = factory_name(recorder), str(Path(folder).absolute())
        self.sites = None if sites is None else dict(sites)
        self.task, self.reads_metrics = task, reads_metrics
        self._collector: NvflareRoundCollector | None = None
        self._lock: threading.RLock | None = None

    def get_job_target_type(self) -> str:
        """Return the server, the only target of this filter."""
        return str(JobTargetType.SERVER)

    def add_to_fed_job(self, job: "FedJob", ctx: "JobCtx", **kwargs: object) -> None:
        """Add the filter to a job.

        The job does not contain fedaudit's source, which must be installed on the server.

        Raises:
            BadInput: The filter is added as another kind of filter, or for other tasks.
        """
        tasks = kwargs.get("tasks") or [self.task]
        if kwargs.get("filter_type") != FilterType.TASK_RESULT:
            raise BadInput("a RecordingFilter is added with add_server_input_filter")
        if not isinstance(tasks, list) or not {self.task, "*"} & set(tasks):
            raise BadInput(
                f"a RecordingFilter of the task {self.task!r} is added for the tasks {tasks}; add "
                f"it for tasks=[{self.task!r}]"
            )
        job.set_app_packages([*job.job.app_packages, "fedaudit"])
        super().add_to_fed_job(job, ctx, **{**kwargs, "tasks": tasks})

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Record a site's result, and return it unchanged."""
        if fl_ctx.get_prop(FLContextKey.TASK_NAME) == self.task:
            self._do(fl_ctx, lambda collector: _add_result(collector, shareable, fl_ctx))
        return shareable

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start and end the recording; record models that sites are sent, and global models."""
        if event_type == EventType.START_RUN:
            self._start(fl_ctx)
        elif event_type == EventType.AFTER_TASK_DATA_FILTER:
            if fl_ctx.get_prop(FLContextKey.TASK_NAME) == self.task:
                self._do(fl_ctx, lambda collector: _add_task(collector, fl_ctx))
        elif event_type == AppEventType.AFTER_SHAREABLE_TO_LEARNABLE:
            self._do(fl_ctx, lambda collector: _end_round(collector, fl_ctx))
        elif event_type == EventType.ABOUT_TO_END_RUN:
            self._do(fl_ctx, self._end)

    def _start(self, fl_ctx: FLContext) -> None:
        self._lock = threading.RLock()
        try:
            self._collector = NvflareRoundCollector(
                create_recorder(self.recorder, Path(self.folder)),
                self.sites,
                reads_metrics=self.reads_metrics,
            )
        # Stop the run at any error: training has not begun, and the user wants a recording.
        except Exception as error:
            text = log_line(f"fedaudit: the run cannot be recorded: {error}")
            self.system_panic(text, fl_ctx)

    def _end(self, collector: NvflareRoundCollector) -> None:
        self._collector = None
        if not collector.has_begun:
            warn(
                f"no site was sent a task {self.task!r}, so nothing is recorded; set task= to the "
                "name of the training task",
                stacklevel=2,
            )
        collector.end()

    def _do(self, fl_ctx: FLContext, action: Callable[[NvflareRoundCollector], None]) -> None:
        """Run an action under a lock, since NVFlare handles each site in its own thread."""
        collector, lock = self._collector, self._lock
        if collector is None or lock is None:
            return
        failure: Exception | None = None
        # Write warnings to NVFlare's log, where operators of a server look for them.
        with lock, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                action(collector)
            # Catch any error: an audit must not stop the training that it observes.
            except Exception as error:
                failure = error
        for warning in caught:
            self.log_warning(fl_ctx, log_line(str(warning.message)))
        if failure is not None and collector.strict:
            self.system_panic(log_line(f"fedaudit: {failure}"), fl_ctx)
        elif failure is not None:
            self.log_error(fl_ctx, log_line(f"fedaudit: {failure}"))


def _add_task(collector: NvflareRoundCollector, fl_ctx: FLContext) -> None:
    task: Shareable = fl_ctx.get_prop(FLContextKey.TASK_DATA)
    site = str(fl_ctx.get_peer_context().get_identity_name())
    task_id = str(fl_ctx.get_prop(FLContextKey.TASK_ID))
    model, fault = None, ""
    index = round_of(task)
    try:
        model = model_in(task)
    # Catch any error, to report it with the name of the site.
    except Exception as error:
        fault = f"the model sent to {site} cannot be read: {error}"
    collector.add_task(index, task_id, site, model, fault=fault)


def _add_result(collector: NvflareRoundCollector, result: Shareable, fl_ctx: FLContext) -> None:
    task_id, upload, fault = str(fl_ctx.get_prop(FLContextKey.TASK_ID)), None, ""
    if error_code := error_in(result):
        collector.add_error(task_id, error_code)
        return
    try:
        upload = upload_in(result) if collector.reads_uploads else None
    # Catch any error: the site has replied, and the error is reported with its name.
    except Exception as error:
        fault = str(error)
    collector.add_result(task_id, upload, fault=fault)


def _end_round(collector: NvflareRoundCollector, fl_ctx: FLContext) -> None:
    model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
    weights = model.get(ModelLearnableKey.WEIGHTS) if isinstance(model, dict) else None
    collector.close(weights or None)


class _FilterFunction:
    """Function that passes an update through a site's result filter."""

    def __init__(self, filter: Filter) -> None:
        self._filter = filter

    def __call__(self, update: Update) -> tuple[Update, dict[str, object]]:
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
        result = DXO(DataKind.WEIGHT_DIFF, data=dict(update), meta=dict(meta))
        filtered = from_shareable(self._filter.process(result.to_shareable(), FLContext()))
        if not isinstance(filtered.data, dict):
            raise BadInput("the filter returns no weights")
        arrays = {name: np.asarray(value) for name, value in filtered.data.items()}
        return arrays, {str(name): value for name, value in (filtered.meta or {}).items()}


def as_update_function(filter: object, claim: Claim) -> object:
    """Return a site's result filter as a function of updates, for check-dp; ignore the claim."""
    return _FilterFunction(cast(Filter, filter))
