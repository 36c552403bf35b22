"""Measure how much a federated-learning run leaks about its training data.

:func:`audit` trains and audits a :class:`Federation`, or plays :class:`Games`. :func:`run_study`
runs a study file. Both return a :class:`Run`. :func:`record` records a custom training loop,
:func:`evaluate` computes metrics from an attack's scores, :func:`check_dp` checks a privacy filter,
and :func:`budget` computes epsilon over all rounds.

The classes that define an audit are in the modules ``attacks``, ``defenses``, ``algorithms``,
``datasets``, ``partitions``, ``models``, ``tasks`` and ``views``. Further modules are ``metrics``,
``plots`` and ``errors``. At a lower level, :func:`simulate` yields rounds, :func:`seen_from`
removes from a round what an adversary does not see, and :func:`measure` computes signals.

Every name is imported when it is first used, so ``import fedaudit`` loads neither torch nor
pydantic.
"""

from typing import TYPE_CHECKING

from fedaudit.core.lazy import lazy_names

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from fedaudit import algorithms as algorithms
    from fedaudit import attacks as attacks
    from fedaudit import datasets as datasets
    from fedaudit import defenses as defenses
    from fedaudit import errors as errors
    from fedaudit import metrics as metrics
    from fedaudit import models as models
    from fedaudit import partitions as partitions
    from fedaudit import plots as plots
    from fedaudit import tasks as tasks
    from fedaudit import views as views
    from fedaudit.api.audit import Run as Run
    from fedaudit.api.audit import audit as audit
    from fedaudit.api.comparing import ComparedRuns as ComparedRuns
    from fedaudit.api.comparing import compare as compare
    from fedaudit.api.federation import AuditOptions as AuditOptions
    from fedaudit.api.federation import Federation as Federation
    from fedaudit.api.games import Games as Games
    from fedaudit.api.grid import Grid as Grid
    from fedaudit.api.grid import GridRuns as GridRuns
    from fedaudit.api.paper_table import table as table
    from fedaudit.api.target_names import read_study as read_study
    from fedaudit.core.metric_names import Origin as Origin
    from fedaudit.core.naming import named as named
    from fedaudit.core.values import Samples as Samples
    from fedaudit.filters.check import check_dp as check_dp
    from fedaudit.fl.simulate import simulate as simulate
    from fedaudit.guard.guard import Guard as Guard
    from fedaudit.live.attack import attack_recording as attack_recording
    from fedaudit.live.audited import audit_samples as audit_samples
    from fedaudit.live.audited import fair_split as fair_split
    from fedaudit.live.audited import join_audits as join_audits
    from fedaudit.live.audited import save_audit as save_audit
    from fedaudit.live.checkpoints.record import from_checkpoints as from_checkpoints
    from fedaudit.live.models import CanaryClients as CanaryClients
    from fedaudit.live.models import unlearning as unlearning
    from fedaudit.live.record import record as record
    from fedaudit.live.splitting import split_dataset as split_dataset
    from fedaudit.live.tables.export import signal_table as signal_table
    from fedaudit.live.tables.record import from_signals as from_signals
    from fedaudit.metrics.catalogue import evaluate as evaluate
    from fedaudit.observe.views import seen_from as seen_from
    from fedaudit.plan import games as _games
    from fedaudit.plan import optional as _optional
    from fedaudit.plan import sections as _sections
    from fedaudit.plan.values import study_from as study_from
    from fedaudit.privacy_budget.budget import budget as budget
    from fedaudit.signals.measure import measure as measure
    from fedaudit.study.running.planning import StudyPlan as StudyPlan
    from fedaudit.study.running.planning import plan_study as plan_study
    from fedaudit.study.running.reattack import reattack as reattack
    from fedaudit.study.running.run import run_study as run_study

    Detector = _games.DetectorSection
    Game = _games.GameSection
    Neuron = _games.NeuronSection
    Rounds = _games.RoundsSection
    Attacker = _optional.AttackerSection
    Canaries = _optional.CanariesSection
    LabelInference = _optional.LabelInferenceSection
    References = _optional.ReferencesSection
    SecureSum = _optional.SecureSumSection
    Shadow = _optional.ShadowSection
    Unlearning = _optional.UnlearningSection
    Audit = _sections.AuditSection
    Figures = _sections.FiguresSection
    Risk = _sections.RiskSection
    Shift = _sections.ShiftSection
    Training = _sections.TrainingSection
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, "__version__")
