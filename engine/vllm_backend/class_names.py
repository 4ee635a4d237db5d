"""Names of the classes that vLLM loads in processes of its own."""

from eaglegate.engine.vllm_contract import POD_SCHEDULER

SCHEDULER = "eaglegate.engine.vllm_backend.scheduler.scheduler"
OWN_SCHEDULERS = (SCHEDULER, POD_SCHEDULER)
WORKER = "eaglegate.engine.DepthWorker"
"""The name that operators give a worker as well (docs/workers.md)."""
