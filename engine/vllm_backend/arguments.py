"""vLLM's own command line, reused: every engine flag of ``vllm serve`` works unchanged.

``add_engine_arguments`` adds all of vLLM's engine flags (``AsyncEngineArgs``), the positional
``model_tag`` and ``--config`` (a YAML file of flags). The flags of vLLM's HTTP front end
(``--host``, ``--port``, ``--api-key``, ``--tool-call-parser``, ``--chat-template``, ...) are
settings of the server. ``--served-model-name`` and ``--reasoning-parser`` are engine flags in vLLM
and therefore added here.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

from vllm.config import ModelConfig, StructuredOutputsConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from eaglegate.engine.gpus import list_gpus, select_gpus
from eaglegate.engine.speculation.drafts.inspection.checkpoint import looks_like_hub_id
from eaglegate.engine.speculation.drafts.inspection.recurrent import RECURRENT_ON_CPU
from eaglegate.engine.speculation.drafts.naming import name_speculation
from eaglegate.engine.vllm_backend import prepare_cpu, prepare_offline
from eaglegate.engine.vllm_backend.class_names import OWN_SCHEDULERS, SCHEDULER, WORKER
from eaglegate.engine.vllm_backend.engine_plugin import list_engine_plugins
from eaglegate.engine.vllm_backend.graphs import choose_depths, choose_sizes, declare_depths
from eaglegate.engine.vllm_contract import read_draft_depth
from eaglegate.engine.vllm_parts import Promise, find_broken_promises

GIB = 1024**3
PROCESSOR = "image_processor_type"
QWEN_IMAGES = "Qwen2VLImageProcessor"
"""Image processor of Qwen 2.5-VL, 3-VL and 3.5; its ``size`` counts pixels, not edges."""
MIN_PIXELS = 56 * 56
MAX_PIXELS = 2560 * 28 * 28
"""Two million pixels, a full screen: 2,560 tokens of Qwen 2.5-VL. Larger images are reduced."""
IMAGE_CACHE_GIB = 1
"""Size of vLLM's cache of image features; the gateway and its engine process have one each."""
HUB_S = 3.0
"""Seconds to wait for the hub's answer to a request for config.json."""
Configure: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""Changes the fields of AsyncEngineArgs, as a feature does with a part in the engine."""
TABLE = "num_speculative_tokens_per_batch_size"
AUTO = "auto"
"""Value of ``--depth`` with which the planner chooses the depth of every step."""
DEMO = Path(__file__).parent.parent / "demo"
DEMO_DEPTH = 3
DEMO_METHOD = "eagle3"
DEMO_SPECULATION: dict[str, Any] = {
    "method": DEMO_METHOD,
    "model": str(DEMO / "eagle3_1"),
    "num_speculative_tokens": DEMO_DEPTH,
}
DEMO_DEFAULTS: dict[str, Any] = {
    "model": str(DEMO / "target"),
    "served_model_name": ["demo"],
    "reasoning_parser": "qwen3",
    "structured_outputs_config": StructuredOutputsConfig(
        backend="xgrammar", disable_any_whitespace=True
    ),
}
"""Defaults of the demo. Its model is so small that it fills JSON with whitespace up to the limit if
the grammar allows any."""
CPU_DEFAULTS: dict[str, Any] = {"enforce_eager": True, "kv_cache_memory_bytes": 4 * GIB}
"""Defaults on a CPU, which start in seconds and leave memory for other programs."""
DEMO_CPU_DEFAULTS: dict[str, Any] = CPU_DEFAULTS | {"kv_cache_memory_bytes": GIB}
DEMO_GPU_KV_BYTES = 2 * GIB
DEMO_GPU_OTHER_BYTES = 2 * GIB
"""Memory of a GPU for the demo's weights, activations, graphs and CUDA's context."""
FREE_SHARE = 0.8
"""Largest share of a GPU's free memory that the demo takes."""


def make_engine_config(arguments: AsyncEngineArgs) -> VllmConfig:
    """Make vLLM's configuration. Raises ValueError if it would be wrong."""
    config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
    limit_pixels(config.model_config)
    refuse_config(config)
    return config


def refuse_config(config: VllmConfig) -> None:
    """Raise ValueError for drafts with a recurrent target on a CPU, and if a plug-in refuses."""
    model = config.model_config
    is_recurrent = model.is_hybrid or model.is_attention_free
    if is_recurrent and config.speculative_config is not None and current_platform.is_cpu():
        raise ValueError(RECURRENT_ON_CPU)
    for plugin in list_engine_plugins():
        plugin.refuse(config)


def limit_pixels(model: ModelConfig) -> None:
    """Limit the pixels of an image for processors of Qwen's kind, whose own limit is 12.8 million:
    15,000 tokens and 70 MB of features. The user's own limit stays. Processors of other kinds have
    an image of a fixed size, or tiles of a limited number."""
    settings = getattr(model, "hf_image_processor_config", None) or {}
    if model.multimodal_config is None or QWEN_IMAGES not in str(settings.get(PROCESSOR)):
        return
    own = model.multimodal_config.mm_processor_kwargs or {}
    if own.keys() & {"size", "min_pixels", "max_pixels", "images_kwargs"}:
        return
    size = settings.get("size") or {}
    smallest = size.get("shortest_edge") or settings.get("min_pixels") or MIN_PIXELS
    largest = size.get("longest_edge") or settings.get("max_pixels") or MAX_PIXELS
    limited = {"shortest_edge": smallest, "longest_edge": min(largest, MAX_PIXELS)}
    model.multimodal_config.mm_processor_kwargs = own | {"size": limited}


class EngineParser(FlexibleArgumentParser):  # type: ignore[misc]
    """Parser of vLLM's spellings: underscores, ``--flag.key value``, ``-O3``. Its error about an
    unknown flag suggests the closest one."""

    def error(self, message: str) -> None:
        words = message.split() if message.startswith("unrecognized") else ()
        matches = sorted(
            match
            for word in words
            if word.startswith("--")
            for match in get_close_matches(word.partition("=")[0], self._option_string_actions, 1)
        )
        super().error(f"{message}; did you mean {' or '.join(matches)}?" if matches else message)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add vLLM's engine flags to an ``EngineParser``.

    Flags the user leaves out are absent from the namespace, so that ``make_engine_arguments`` can
    distinguish a default from a choice.
    """
    parser.add_argument(
        "model_tag", nargs="?", default=None, help="model to serve (default: the built-in demo)"
    )
    parser.add_argument("--config", help="YAML file with the same options")
    gateway_actions = set(parser._actions)
    AsyncEngineArgs.add_cli_args(parser)
    _remove_flag(parser, "--log-level")  # it is the gateway's, which logs for the engine, too
    for action in parser._actions:
        if action not in gateway_actions:
            action.default = argparse.SUPPRESS


def _remove_flag(parser: argparse.ArgumentParser, name: str) -> None:
    """Remove an optional flag that takes no other name."""
    action: Any = parser._option_string_actions.pop(name, None)
    if action is not None:
        action.container._remove_action(action)


def make_engine_arguments(
    namespace: argparse.Namespace, depth: str | None = AUTO, configure: Configure = dict
) -> AsyncEngineArgs:
    """Make vLLM's arguments from the user's choices and the gateway's defaults.

    ``depth`` is the value of ``--depth``, for requests without their own. Raises EngineStartError
    if settings of the draft contradict each other, and what ``configure`` raises.
    """
    fields = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    fields.discard("log_level")
    choices = {name: value for name, value in vars(namespace).items() if name in fields}
    if getattr(namespace, "model_tag", None):
        choices["model"] = namespace.model_tag
    if choices.get("model"):
        _find_remote_config(choices)
    choices = name_speculation(choices)
    if Promise.TEXT in find_broken_promises():
        choices["speculative_config"] = None
    if not choices.get("model"):
        return make_demo_arguments(depth, configure, **choices)
    return _make_arguments(choices, depth=depth, configure=configure)


def _find_remote_config(choices: Mapping[str, Any]) -> None:
    """Download config.json of a model on the hub, because it may be a draft that names its target.

    A copy in the cache is enough: without a network, asking the hub takes 20 seconds. A failure is
    reported later, by the code that needs the model.
    """
    name = str(choices["model"])
    if Path(name).expanduser().exists() or not looks_like_hub_id(name):
        return
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    revision = choices.get("revision")
    with suppress(OSError, ValueError, HfHubHTTPError, HFValidationError):
        if try_to_load_from_cache(name, "config.json", revision=revision) is None:
            hf_hub_download(name, "config.json", revision=revision, etag_timeout=HUB_S)


def make_demo_arguments(
    depth: str | None = AUTO, configure: Configure = dict, **choices: Any
) -> AsyncEngineArgs:
    """Make arguments for the built-in demo: tiny target, EAGLE 3.1 draft, K = 3. Any field may be
    set.

    ``speculative_config=None`` switches speculation off. A mapping overrides values of the demo's,
    or replaces it if it names another method.
    """
    prepare_offline()
    speculation = choices.pop("speculative_config", {})
    if speculation is not None:
        is_demo_method = speculation.get("method", DEMO_METHOD) == DEMO_METHOD
        choices["speculative_config"] = (
            DEMO_SPECULATION | speculation if is_demo_method else speculation
        )
    if not current_platform.is_cpu():
        choices = _limit_gpu_memory(choices) | choices
    return _make_arguments(DEMO_DEFAULTS | choices, DEMO_CPU_DEFAULTS, 1, depth, configure)


def _limit_gpu_memory(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return a KV cache and a share of memory with which the demo starts beside other programs.

    Empty if the user has chosen a share, or if the memory of the GPUs is unknown.
    """
    gpus = list_gpus() or ()
    if names := choices.get("device_ids"):
        gpus = tuple(select_gpus(gpus, [str(name) for name in names]))
    workers = choices.get("tensor_parallel_size", 1) * choices.get("pipeline_parallel_size", 1)
    sizes = [(gpu.free, gpu.memory) for gpu in gpus[:workers] if gpu.free and gpu.memory]
    if "gpu_memory_utilization" in choices or not sizes:
        return {}
    free_bytes, memory = min(sizes)
    room = min(DEMO_GPU_KV_BYTES + DEMO_GPU_OTHER_BYTES, int(FREE_SHARE * free_bytes))
    cache = choices.get("kv_cache_memory_bytes") or room // 2
    # vLLM refuses to start if less than the share is free, also where the cache has a size.
    share = min(cache + room // 2, free_bytes) / memory
    return {"kv_cache_memory_bytes": cache, "gpu_memory_utilization": round(share, 4)}


def _make_arguments(
    choices: dict[str, Any],
    cpu_defaults: dict[str, Any] = CPU_DEFAULTS,
    threads: int | None = None,
    depth: str | None = AUTO,
    configure: Configure = dict,
) -> AsyncEngineArgs:
    defaults = {"worker_extension_cls": WORKER, "mm_processor_cache_gb": IMAGE_CACHE_GIB}
    choices = configure(defaults | _add_scheduler(choices))
    if current_platform.is_cpu():
        choices = _add_cpu_defaults(choices, cpu_defaults, threads)
    elif "scheduler_cls" in choices:
        choices = declare_graphs(choices, depth)
    return AsyncEngineArgs(**choices)


def _add_scheduler(choices: dict[str, Any]) -> dict[str, Any]:
    """Add the gateway's scheduler if there is speculation, unless the user has chosen another one
    or the installed vLLM differs in its parts."""
    speculation = choices.get("speculative_config")
    if not speculation or Promise.PLANNER in find_broken_promises():
        return choices
    return {"scheduler_cls": SCHEDULER} | choices


def declare_graphs(choices: dict[str, Any], depth: str | None) -> dict[str, Any]:
    """Declare the depths for which CUDA graphs are captured on a GPU. The user's choice stays.

    Without a table vLLM captures only K, which is enough if every request drafts K tokens. Where
    the draft's own K is less than vLLM's, both are depths.
    """
    speculation = choices.get("speculative_config") or {}
    max_depth = speculation.get("num_speculative_tokens")
    if not max_depth or choices["scheduler_cls"] not in OWN_SCHEDULERS:
        return choices
    draft_depth = read_draft_depth(choices.get("additional_config"), max_depth)
    fixed_depth = (
        draft_depth if depth is None else min(draft_depth, int(depth)) if depth != AUTO else None
    )
    depths = choose_depths(draft_depth, fixed_depth)
    if max_depth > draft_depth:
        depths = [*depths, max_depth]
    if depths == [max_depth]:
        return choices
    table = declare_depths(depths, choices.get("max_num_seqs"))
    declaration = {TABLE: table} | speculation
    sizes: dict[str, Any] = {}
    if len(depths) > 1 and TABLE not in speculation and not _sizes_graphs(choices):
        sizes["cudagraph_capture_sizes"] = choose_sizes(depths, choices.get("max_num_seqs"))
    return sizes | choices | {"speculative_config": declaration}


def _sizes_graphs(choices: dict[str, Any]) -> bool:
    """Return True if the user has chosen the sizes to capture."""
    names = ("cudagraph_capture_sizes", "max_cudagraph_capture_size")
    compilation = choices.get("compilation_config") or {}
    settings = compilation if isinstance(compilation, dict) else vars(compilation)
    return any(choices.get(name) or settings.get(name) for name in names)


def _add_cpu_defaults(
    choices: dict[str, Any], defaults: dict[str, Any], threads: int | None
) -> dict[str, Any]:
    workers = choices.get("tensor_parallel_size", 1) * choices.get("pipeline_parallel_size", 1)
    prepare_cpu(workers, threads)
    backend = {"distributed_executor_backend": "uni"} if workers == 1 else {}
    return defaults | backend | choices
