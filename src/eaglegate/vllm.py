"""eaglegate inside ``vllm serve``: ``--scheduler-cls eaglegate.vllm.Scheduler`` (docs/pod.md)."""

from typing import Any


def load() -> None:
    """Entry point of the group ``vllm.general_plugins``. Changes nothing without the scheduler."""
    try:
        from eaglegate.features.pod.engine.general import install
    except ModuleNotFoundError:  # the folder can be removed
        return
    install()


def __getattr__(name: str) -> Any:
    if name != "Scheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from eaglegate.features.pod.engine.scheduler import make_scheduler

    return make_scheduler
