"""Combinations of a vLLM version and settings that are known to damage text or to lose a draft.

``list_advisories(describe(vllm_config, version))`` is all that a caller needs. Each row of
``ADVISORIES`` was confirmed by reading vLLM's sources: 0.27 to 0.33, the versions that its range
names. Imports nothing of the gateway or of vLLM, so that a plug-in of ``vllm serve`` can use it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

LOOKUPS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods without a draft model. At many steps they propose nothing."""
FIRST_ONLY = frozenset({"suffix", "medusa", "mlp_speculator", "custom_class"})
"""Methods that only the first model runner has."""
SYNCHRONOUS = FIRST_ONLY | {"ngram"}
"""Methods that vLLM schedules synchronously, 0.33 only on the first runner."""
BLOCK_METHODS = frozenset({"dflash", "dspark"})
GRAPHS = "FULL_AND_PIECEWISE"
"""vLLM's default mode of CUDA graphs."""
KEEP_DRAFT = frozenset({"draft.*", "*"})
"""Patterns of ``--sleep-preserve-parameter-names`` that keep a draft over sleep at level 2."""
Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Deployment:
    """The facts of an engine on which advisories depend."""

    version: Version
    """vLLM's series; 0.0 for a build without a release number."""
    method: str | None
    """None without speculation, ``unknown`` where only the method is."""
    second_runner: bool
    asynchronous: bool
    """True if the next step is scheduled before the last one has ended."""
    pipeline: int
    """Stages of pipeline parallelism."""
    recurrent: bool
    """True if some layers of the target keep a recurrent state beside attention."""
    aligned: bool
    """True if the prefix cache holds states of recurrent layers at block boundaries."""
    graphs: str
    """Name of vLLM's CUDAGraphMode."""
    padded: bool
    """True if the drafter runs before the step's tokens have reached the CPU."""
    draft_sampling: str
    forgets: bool
    """True if sleep at level 2 discards the draft's weights."""

    @property
    def has_draft_model(self) -> bool:
        return self.method not in LOOKUPS


@dataclass(frozen=True, slots=True)
class Advisory:
    """One known fault. ``str()`` is a sentence for operators."""

    name: str
    condition: str
    consequence: str
    remedy: str
    threads: tuple[int, ...]
    """Issues and pull requests of vllm-project/vllm."""
    applies: Callable[[Deployment], bool]
    since: Version = (0, 27)
    """First version that was read and has the fault."""
    until: Version | None = None
    """First version without it; None if 0.33 has it."""

    def covers(self, version: Version) -> bool:
        return self.since <= version and (self.until is None or version < self.until)

    def __str__(self) -> str:
        threads = ", ".join(f"vllm#{number}" for number in self.threads)
        return f"[{self.name}] {self.condition}: {self.consequence}; {self.remedy} ({threads})"


ADVISORIES = (
    Advisory(
        "pipeline-order",
        "drafts with pipeline parallelism and synchronous scheduling on the second model runner",
        "wrong text, because a step may begin before the last stage has returned the token that it "
        "follows, and reads token 0 instead",
        "leave --no-async-scheduling out, with n-gram drafts use vLLM 0.33, or split with "
        "--tensor-parallel-size",
        (52071, 52179),
        lambda d: d.second_runner and d.pipeline > 1 and not d.asynchronous,
    ),
    Advisory(
        "recurrent-counts",
        "drafts for a model with recurrent layers, with its prefix cache and asynchronous "
        "scheduling, on the first model runner",
        "repeated, dropped or garbled tokens, because a request may take over the accepted count "
        "of another one, and its state stays wrong",
        "use the second model runner, --no-async-scheduling or --no-enable-prefix-caching",
        (51571, 53912, 53919),
        lambda d: d.recurrent and d.aligned and d.asynchronous and not d.second_runner,
    ),
    Advisory(
        "recurrent-short-prompts",
        "drafts for a model with recurrent layers and full CUDA graphs, on the first model runner",
        "garbage after a prompt, or its last part, of num_speculative_tokens + 1 tokens: it runs "
        "in the graph of decode steps, which does not store its state",
        "use the second model runner, or cudagraph_mode PIECEWISE in --compilation-config",
        (53051, 49918, 53059),
        lambda d: d.recurrent and d.graphs.startswith("FULL") and not d.second_runner,
    ),
    Advisory(
        "recurrent-lookups",
        "n-gram or suffix drafts for a model with recurrent layers",
        "garbled text, because a step without a draft reads the state of an older token",
        "use vLLM 0.32 or later, or another method",
        (40875, 39273, 56531),
        lambda d: d.recurrent and d.method in LOOKUPS,
        until=(0, 32),
    ),
    Advisory(
        "shared-noise",
        "draft_sample_method probabilistic on the second model runner",
        "sampled text is not the target's distribution, because a rejected draft and its "
        "replacement share their noise",
        "use vLLM 0.29 or later, or draft_sample_method greedy",
        (54282, 47386),
        lambda d: d.second_runner and d.draft_sampling == "probabilistic" and d.has_draft_model,
        until=(0, 29),
    ),
    Advisory(
        "prompt-logprobs",
        "a draft model with piecewise CUDA graphs on the first model runner",
        "prompt_logprobs may be computed from the draft's hidden states, so that audits may raise "
        "false alarms; text is right",
        "use the second model runner, or disable_padded_drafter_batch in --speculative-config",
        (53488, 53520),
        lambda d: (
            "PIECEWISE" in d.graphs and d.padded and d.has_draft_model and not d.second_runner
        ),
    ),
    Advisory(
        "sleep-draft",
        "a draft model with --enable-sleep-mode",
        "after sleep at level 2 hardly any draft token is right, because reload_weights loads the "
        "target alone",
        "add --sleep-preserve-parameter-names 'draft.*' (vLLM 0.32 or later), or sleep at level 1",
        (52479, 52487),
        lambda d: d.forgets and d.has_draft_model,
    ),
)


def list_advisories(deployment: Deployment) -> tuple[Advisory, ...]:
    """Return the advisories for an engine; none without speculation or a known version."""
    rows = () if deployment.method is None else ADVISORIES
    return tuple(row for row in rows if row.covers(deployment.version) and row.applies(deployment))


def refuse_advisories(advisories: Iterable[Advisory], setting: str = "--strict-advisories") -> str:
    """Return the reason why ``setting`` prevents a start."""
    return f"{setting}: {'; '.join(map(str, advisories))}"


def describe(
    source: Any,
    version: str,
    *,
    recurrent: bool | None = None,
    second_runner: bool | None = None,
) -> Deployment:
    """Describe an engine by its configuration: vLLM's VllmConfig, its JSON, or engine arguments.

    What neither it nor the caller names is vLLM's default for a GPU.
    """
    read = partial(_read_setting, source)
    series = parse_version(version)
    method = read("speculative_config.method", "unknown")
    if second_runner is None:
        second_runner = read("vllm_config.use_v2_model_runner", _has_second_runner(read, series))
    # 0.32 decides by the method, 0.33 by the runner first.
    pipeline = read("parallel_config.pipeline_parallel_size", 1)
    padded = not read("speculative_config.disable_padded_drafter_batch", False)
    is_asynchronous = (second_runner and series >= (0, 33)) or (
        method not in SYNCHRONOUS and padded and (second_runner or pipeline == 1)
    )
    patterns = read("model_config.sleep_preserve_parameter_names", ())
    return Deployment(
        version=series,
        method=method if read("speculative_config", None) else None,
        second_runner=second_runner,
        asynchronous=read("scheduler_config.async_scheduling", is_asynchronous),
        pipeline=pipeline,
        recurrent=read("model_config.is_hybrid", False) if recurrent is None else recurrent,
        aligned=read("cache_config.enable_prefix_caching", True)
        and read("cache_config.mamba_cache_mode", "none") in ("none", "align"),
        graphs=_name_graphs(read),
        padded=padded,
        draft_sampling=read("speculative_config.draft_sample_method", "greedy"),
        forgets=read("model_config.enable_sleep_mode", False) and KEEP_DRAFT.isdisjoint(patterns),
    )


def _has_second_runner(read: Callable[..., Any], series: Version) -> bool:
    """Return vLLM's own choice of a model runner, where Triton works."""
    method = read("speculative_config.method", None)
    return (
        series >= (0, 29)
        and method not in FIRST_ONLY
        and (method in BLOCK_METHODS or not read("speculative_config.parallel_drafting", False))
        and not read("speculative_config.use_heterogeneous_vocab", False)
    )


def _name_graphs(read: Callable[..., Any]) -> str:
    """Return the name of the graph mode, which is an enum in vLLM and a number in JSON."""
    is_eager = read("model_config.enforce_eager", False)
    mode = read("compilation_config.cudagraph_mode", 0 if is_eager else GRAPHS)
    name = getattr(mode, "name", mode)
    return name.upper() if isinstance(name, str) else GRAPHS if name else "NONE"


def _read_setting(source: Any, path: str, default: Any) -> Any:
    """Return a setting by its place in a VllmConfig. Arguments have it at their top level."""
    for place in (path, path.partition(".")[2]):
        value = source
        for name in place.split("."):
            value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if value is not None:
            return value
    return default


def parse_version(version: str) -> Version:
    """Return the series of a release, such as ``0.32.1rc1``; 0.0 for ``0.1.dev493`` of a source
    build."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})\.\d", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
