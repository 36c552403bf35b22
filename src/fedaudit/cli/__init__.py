"""The command line. Commands import large modules when they run, so that help appears quickly."""

from fedaudit.cli.accounting import budget
from fedaudit.cli.application import app, main
from fedaudit.cli.automating import check, init
from fedaudit.cli.guarding import check_guard
from fedaudit.cli.planning import check_part, plan
from fedaudit.cli.releasing import check_dp, export, gate, pack, signals, verify
from fedaudit.cli.running import attack, demo, run_command
from fedaudit.cli.scoring import benchmark, score
from fedaudit.cli.showing import compare, explain, list_command, report, summary
from fedaudit.cli.watching import index, watch

__all__ = [
    "app",
    "attack",
    "benchmark",
    "budget",
    "check",
    "check_dp",
    "check_guard",
    "check_part",
    "compare",
    "demo",
    "explain",
    "export",
    "gate",
    "index",
    "init",
    "list_command",
    "main",
    "pack",
    "plan",
    "report",
    "run_command",
    "score",
    "signals",
    "summary",
    "verify",
    "watch",
]
