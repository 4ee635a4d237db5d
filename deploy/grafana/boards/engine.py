"""The engine, its queue, its losses and its machine."""

from __future__ import annotations

from panels import (
    NEEDS_GPU,
    NEEDS_LOSS,
    Dashboard,
    Panel,
    Query,
    over,
)

ENGINE = Dashboard(
    "eaglegate-engine",
    "eaglegate: engine",
    "What vLLM and the machine do.",
    {
        "State": (
            Panel(
                "Engine up",
                "none",
                (Query("eaglegate_engine_up", "{{engine}}"),),
                kind="number",
                width=4,
            ),
            Panel(
                "Starts",
                "none",
                (Query("eaglegate_engine_starts_total", "{{engine}}"),),
                kind="number",
                width=4,
            ),
            Panel(
                "Last start took",
                "s",
                (Query("eaglegate_engine_start_seconds", "{{engine}}"),),
                kind="number",
                width=4,
            ),
            Panel(
                "Speculation",
                "none",
                (Query("eaglegate_engine_info", "{{engine}}: {{method}}, K = {{depth}}"),),
                kind="number",
                width=12,
            ),
            Panel(
                "Engines lost",
                "short",
                (
                    Query(
                        "sum by (cause) "
                        "(increase(eaglegate_engine_losses_total[$__rate_interval]))",
                        "{{cause}}",
                    ),
                ),
                "Died, hung or not started again.",
                NEEDS_LOSS,
                width=12,
            ),
            Panel(
                "Requests that met a loss",
                "short",
                (
                    Query(
                        "sum by (outcome) "
                        "(increase(eaglegate_interrupted_requests_total[$__rate_interval]))",
                        "{{outcome}}",
                    ),
                ),
                "Continued, begun again or failed.",
                NEEDS_LOSS,
                width=12,
            ),
        ),
        "Scheduler": (
            Panel(
                "Requests in the engine",
                "short",
                (
                    Query("sum(vllm:num_requests_running)", "running"),
                    Query("sum(vllm:num_requests_waiting)", "waiting"),
                ),
            ),
            Panel("KV cache in use", "percentunit", (Query("max(vllm:kv_cache_usage_perc)"),)),
            Panel(
                "Prefix cache hits",
                "percentunit",
                (
                    Query(
                        over(
                            "sum(rate(vllm:prefix_cache_hits_total[$__rate_interval]))",
                            "sum(rate(vllm:prefix_cache_queries_total[$__rate_interval]))",
                        )
                    ),
                ),
                "Of the prompt tokens looked up.",
            ),
            Panel(
                "Wait in the engine",
                "s",
                (
                    Query(
                        "histogram_quantile(0.95, sum by (le) (rate("
                        "vllm:request_queue_time_seconds_bucket[$__rate_interval])))",
                        "p95",
                    ),
                ),
            ),
            Panel(
                "Prefill",
                "s",
                (
                    Query(
                        "histogram_quantile(0.95, sum by (le) (rate("
                        "vllm:request_prefill_time_seconds_bucket[$__rate_interval])))",
                        "p95",
                    ),
                ),
            ),
            Panel(
                "Preemptions",
                "short",
                (Query("sum(rate(vllm:num_preemptions_total[$__rate_interval]))"),),
            ),
        ),
        "Machine": (
            Panel(
                "Gateway process",
                "short",
                (
                    Query(
                        'rate(process_cpu_seconds_total{job="eaglegate"}[$__rate_interval])',
                        "CPU cores",
                    ),
                ),
                "The process that serves HTTP; the engine's are its children.",
            ),
            Panel(
                "Gateway memory",
                "bytes",
                (Query('process_resident_memory_bytes{job="eaglegate"}', "resident"),),
            ),
            Panel(
                "GPU memory",
                "percentunit",
                (
                    Query(
                        "eaglegate_gpu_memory_used_bytes / eaglegate_gpu_memory_total_bytes",
                        "GPU {{gpu}}",
                    ),
                ),
                "",
                NEEDS_GPU,
            ),
            Panel(
                "GPU load",
                "percentunit",
                (Query("eaglegate_gpu_utilization_ratio", "GPU {{gpu}}"),),
                "",
                NEEDS_GPU,
            ),
            Panel(
                "GPU power",
                "watt",
                (Query("eaglegate_gpu_power_watts", "GPU {{gpu}}"),),
                "",
                NEEDS_GPU,
            ),
        ),
    },
)
