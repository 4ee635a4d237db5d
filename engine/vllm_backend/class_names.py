"""Names of the classes that vLLM loads in processes of its own."""

SCHEDULER = "eaglegate.engine.vllm_backend.scheduler.scheduler"
WORKER = "eaglegate.engine.DepthWorker"
"""The name that operators give a worker as well (docs/workers.md)."""
