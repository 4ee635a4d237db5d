"""The plug-in that vLLM loads in each of its processes (group ``vllm.general_plugins``).

Without the pod's scheduler nothing is changed: the wrapped functions call the original ones. The
other groups of vLLM are not used, because vLLM logs their members also where nobody asks for them.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eaglegate.engine.vllm_contract import POD_RECORD, POD_SCHEDULER
from eaglegate.engine.wrapping import wrap
from eaglegate.features.pod.engine.record import PodRecord
from eaglegate.features.pod.engine.settings import PodSettings

MARK = "_eaglegate"
NAME = "eaglegate"
"""Name of the plug-in, in VLLM_PLUGINS."""


def install() -> None:
    """Wrap the functions of vLLM's front end. vLLM may call this several times in a process."""
    from vllm import plugins
    from vllm.engine.arg_utils import EngineArgs

    if not hasattr(EngineArgs.create_engine_config, MARK):
        wrap(EngineArgs, "create_engine_config", create_engine_config)
        wrap(plugins, "load_endpoint_plugins", load_endpoint_plugins)
        setattr(EngineArgs.create_engine_config, MARK, True)


def create_engine_config(
    original: Callable[..., Any], arguments: Any, *args: Any, **kwargs: Any
) -> Any:
    """Make vLLM's configuration of a pod. Ends the process with a sentence if the draft does not
    fit, or a setting is wrong."""
    if arguments.scheduler_cls != POD_SCHEDULER:
        return original(arguments, *args, **kwargs)
    if is_first := POD_RECORD not in os.environ:
        record, path = PodRecord.create()
        os.environ[POD_RECORD] = path  # before anything of vllm_backend is imported
        atexit.register(_remove, path, os.getpid())
    else:
        record = PodRecord(os.environ[POD_RECORD])
    from eaglegate.features.pod.engine.start import log, prepare, publish_gauges, refuse
    from eaglegate.server.errors import ConfigError

    log.disabled = not is_first  # each API server makes the configuration once more
    try:
        settings = PodSettings.read(arguments.additional_config)
        prepare(arguments, settings)
        config = original(arguments, *args, **kwargs)
        refuse(config, settings)
    except (ValueError, ConfigError) as error:
        raise SystemExit(f"eaglegate: {error}") from error
    publish_gauges(record, settings)
    return config


def load_endpoint_plugins(original: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Add the pod's route if VLLM_PLUGINS names it."""
    from vllm import envs

    endpoints = list(original(*args, **kwargs))
    if POD_RECORD in os.environ and NAME in (envs.VLLM_PLUGINS or ()):
        from eaglegate.features.pod.engine.routes import PodRoutes

        endpoints.append(PodRoutes())
    return endpoints


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:  # not in a process that was forked
        Path(path).unlink(missing_ok=True)
