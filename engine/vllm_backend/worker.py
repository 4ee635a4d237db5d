"""The class that vLLM adds to its workers (``worker_extension_cls``).

Importing it patches vLLM in the worker's process: with the files of ``patches/``, then with those
of plug-ins (``plugin_table.py``).
"""

from __future__ import annotations

import os
from functools import partial

from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker

from eaglegate.engine.vllm_backend.child_process import exit_with_parent
from eaglegate.engine.vllm_backend.draft_reload import DraftReloader
from eaglegate.engine.vllm_backend.execution import STAGES, ExecutionReporter, time_stage
from eaglegate.engine.vllm_backend.patches import Place, load_patches
from eaglegate.engine.vllm_backend.plugin_table import load_plugins
from eaglegate.engine.vllm_contract import LEFT_OUT
from eaglegate.engine.vllm_parts import find_broken_promises
from eaglegate.engine.wrapping import wrap

CONDITIONS = {
    Place.FIRST_RUNNER: True,
    Place.SECOND_RUNNER: HAS_TRITON,
    Place.CPU: current_platform.is_cpu(),
}


class DepthWorker(DraftReloader, ExecutionReporter):
    """Base that vLLM adds to its worker. Importing this module applies the patches."""


exit_with_parent()
for worker in (Worker, CPUWorker):
    for method in STAGES.keys() & vars(worker).keys():
        wrap(worker, method, partial(time_stage, STAGES[method]))
left_out = {*find_broken_promises(), *os.environ.get(LEFT_OUT, "").split(",")}
for module in load_patches({place for place, holds in CONDITIONS.items() if holds}, left_out):
    module.patch(wrap)
for plugin in load_plugins("worker_plugin"):
    if plugin.PROMISE not in left_out:
        plugin.patch(wrap, DepthWorker)
