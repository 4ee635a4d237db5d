"""The scheduler of a pod, which ``--scheduler-cls eaglegate.vllm.Scheduler`` names."""

from __future__ import annotations

import logging
import os
from typing import Any

from vllm.config import VllmConfig

from eaglegate.engine.vllm_backend.scheduler import DepthSchedulerBase, server_scheduler
from eaglegate.engine.vllm_contract import POD_RECORD
from eaglegate.features.pod.engine.settings import AUTO, PodSettings

log = logging.getLogger("vllm.eaglegate")
ALONE = (
    "eaglegate: vLLM has not loaded the plug-in eaglegate, so no draft is inspected, no gauge is "
    "shown, and steps at depth 0 still run the draft: add eaglegate to VLLM_PLUGINS"
)
UNPLANNED = (
    "eaglegate: depths are not planned: a table of depths by batch size decides, the draft always "
    "makes K tokens, or data-parallel ranks must draft alike"
)


def make_scheduler(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> DepthSchedulerBase:
    settings = PodSettings.read(vllm_config.additional_config)
    scheduler = server_scheduler(vllm_config, *args, **kwargs)
    if POD_RECORD not in os.environ:
        log.warning(ALONE)
    if settings.depth != AUTO:
        scheduler.ceiling = min(int(settings.depth), scheduler.draft_depth)
    elif scheduler.num_spec_tokens and scheduler.set_planning(AUTO) != AUTO:
        log.warning(UNPLANNED)
    return scheduler
