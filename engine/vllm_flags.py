"""Names of vLLM's engine flags, for reading a command line before vLLM is imported.

Importing vLLM takes seconds. With this table a flag that does not exist is refused at once. vLLM's
own parser reads the flags that do. The table belongs to vLLM ``VERSION``; a test compares it with
the installed vLLM.
"""

from __future__ import annotations


def _split(names: str) -> tuple[str, ...]:
    return tuple(names.split())


VERSION = "0.32.0"
GROUPS = (
    "ModelConfig",
    "LoadConfig",
    "AttentionConfig",
    "MambaConfig",
    "StructuredOutputsConfig",
    "ParallelConfig",
    "CacheConfig",
    "OffloadConfig",
    "MultiModalConfig",
    "LoRAConfig",
    "LoggingConfig",
    "ObservabilityConfig",
    "SchedulerConfig",
    "CompilationConfig",
    "KernelConfig",
    "VllmConfig",
)
SWITCHES = _split("""
aggregate-engine-logging allow-deprecated-quantization async-scheduling cudagraph-metrics
data-parallel-external-lb data-parallel-hybrid-lb data-parallel-multi-port-external-lb
dcp-q-replicate disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce
disable-hybrid-kv-cache-manager disable-log-stats disable-nccl-for-dp-synchronization
disable-sliding-window enable-batch-sharded-sampling enable-chunked-prefill
enable-cumem-allocator enable-dbo enable-elastic-ep enable-ep-weight-filter enable-eplb
enable-expert-parallel enable-fault-tolerance enable-flashinfer-autotune enable-hc-sp
enable-layerwise-nvtx-tracing enable-log-requests enable-logging-iteration-details enable-lora
enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint enable-mfu-metrics
enable-mixed-moe-lora-format enable-mm-embeds enable-moe-shared-loras enable-nccl-comm-suspend
enable-prefix-caching enable-prompt-embeds enable-return-routed-experts enable-shm-tensor-arena
enable-sleep-mode enable-tower-connector-lora enable-trace-replay enforce-eager
fail-on-environ-validation fully-sharded-loras interleave-mm-strings jit-monitor-verbose
kv-cache-metrics kv-sharing-fast-prefill language-model-only
long-prefill-token-threshold-adaptive mm-device-do-normalize mm-encoder-only numa-bind
ray-workers-use-nsight return-sampling-mask scheduler-reserve-full-isl skip-mm-profiling
skip-tokenizer-init sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay
trust-remote-code use-fp64-gumbel use-replayssm use-tqdm-on-load
""")
"""Flags without a value; each has a ``--no-`` form, which may have no effect."""
VALUES = _split("""
additional-config all2all-backend allowed-local-media-path attention-backend attention-config
aux-output-config block-size code-revision compilation-config config-format convert
cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-gb
custom-histogram-buckets data-parallel-address data-parallel-backend data-parallel-rank
data-parallel-rpc-port data-parallel-size data-parallel-size-local data-parallel-start-rank
dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend
dcp-kv-cache-interleave-size decode-context-parallel-size default-mm-loras device-ids
device-memory-utilization diffusion-config distributed-executor-backend
distributed-timeout-seconds download-dir dp-sync-interval dtype ec-manager-config
ec-transfer-config elastic-ep-max-dp-size engram-config eplb-config expert-placement-strategy
fault-tolerance-config gdn-prefill-backend generation-config gpu-memory-utilization
hf-config-path hf-overrides io-processor-plugin ir-op-priority jit-monitor-mode
kda-decode-backend kda-prefill-backend kernel-config kv-cache-dtype kv-cache-memory-bytes
kv-cache-metrics-sample kv-events-config kv-offloading-backend kv-offloading-size
kv-transfer-config limit-mm-per-prompt linear-backend load-format log-config-file
logging-config logprobs-mode long-prefill-token-threshold lora-dtype mamba-backend
mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds
mamba-ssm-cache-dtype mamba-ssu-algorithm master-addr master-port max-cpu-loras
max-cudagraph-capture-size max-logprobs max-lora-cls-labels max-lora-rank max-loras
max-model-len max-num-active-seqs max-num-batched-tokens max-num-queued-reqs
max-num-queued-tokens max-num-scheduled-tokens max-num-seqs max-parallel-loading-workers
media-io-kwargs mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-tp-mode
mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type
mm-processor-device mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc model
model-class-overrides model-impl model-loader-extra-config moe-backend nnodes node-rank
num-gpu-blocks-override offload-backend offload-group-size offload-num-in-group
offload-prefetch-step optimization-level otlp-traces-endpoint override-generation-config
per-request-spec-decode-metrics performance-mode pipeline-parallel-size pooler-config
prefill-context-parallel-size prefill-schedule-interval prefix-cache-retention-interval
prefix-caching-hash-algo prefix-match-unit profiler-config pt-load-map-location quantization
quantization-config reasoning-config reasoning-parser reasoning-parser-plugin
renderer-num-workers replayssm-buffer-len revision runner safetensors-load-strategy
safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduler-cls scheduling-policy
seed show-hidden-metrics-for-version shutdown-timeout sparse-indexer-topk-backend spec-method
spec-model spec-tokens speculative-config stream-interval structured-outputs-config
tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision ubatch-size
video-pruning-method video-pruning-rate watermark watermark-config weight-transfer-config
worker-cls worker-extension-cls
""")
LISTS = _split("""
allowed-media-domains collect-detailed-traces cpu-offload-params cudagraph-capture-sizes
ignore-patterns kv-cache-dtype-skip-layers logits-processors lora-target-modules numa-bind-cpus
numa-bind-nodes offload-params served-model-name sleep-preserve-parameter-names
""")
"""Flags with one or more values."""
OPTIONAL = _split("""
hf-token
""")
"""Flags whose value may be left out."""
SHORT = {
    "-q": "quantization",
    "-pp": "pipeline-parallel-size",
    "-n": "nnodes",
    "-r": "node-rank",
    "-tp": "tensor-parallel-size",
    "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-dp": "data-parallel-size",
    "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank",
    "-dpl": "data-parallel-size-local",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-dpb": "data-parallel-backend",
    "-dph": "data-parallel-hybrid-lb",
    "-dpe": "data-parallel-external-lb",
    "-dpm": "data-parallel-multi-port-external-lb",
    "-ep": "enable-expert-parallel",
    "-sc": "speculative-config",
    "-dc": "diffusion-config",
    "-cc": "compilation-config",
    "-ac": "attention-config",
}
NAMES = (*SWITCHES, *VALUES, *LISTS, *OPTIONAL)
NARGS = {**dict.fromkeys(LISTS, "+"), **dict.fromkeys(OPTIONAL, "?")}
"""Number of values of each flag that does not take exactly one, in argparse's terms."""
