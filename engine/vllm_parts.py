"""Contract with vLLM: every private part of vLLM that we use, as data, and its comparison with a
version of vLLM.

vLLM promises nothing about these parts. ``compare`` reads vLLM's source, without importing it, and
names each part that is missing or differs. A gateway does so at the start with a version that its
tests do not run on (``examine_installed``), and ``scripts/compat.py`` with one that is not
installed.

``PARTS`` has one line per part. Lines with a deeper indent continue the line above:

    Class.method(self request new?)  exactly these parameters: we override, replace or wrap it;
                                     one with a question mark may be missing
    Class.method(+ request_id)       at least these: we call it
    Class: name other                attributes of its instances
    module: name other               names in the module
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from eaglegate.engine.vllm_contract import describe_untested

MOST_LISTED = 3
"""Differences that a sentence lists."""


class Promise(StrEnum):
    """A promise of the gateway that rests on parts of vLLM."""

    SERVING = "serving"
    TEXT = "text"
    ACCOUNTS = "accounts"
    PLANNER = "planner"
    AUDITS = "audits"
    SEEDS = "seeds"
    EXCHANGE = "exchange of drafts"


SUBSTITUTES = {
    Promise.TEXT: "nothing is drafted",
    Promise.PLANNER: "vLLM's own scheduler runs: no depth is chosen or bound, and "
    "decode steps are not reported",
    Promise.AUDITS: "answers are not audited",
    Promise.SEEDS: "a seed's text may depend on the depth",
    Promise.EXCHANGE: "the draft cannot be exchanged while serving",
}
"""What happens without a promise. Promises that are not here cannot be switched off."""


class Area(StrEnum):
    """A part of the gateway that depends on vLLM's internals."""

    ENGINE = "engine"
    OUTPUTS = "outputs"
    INTAKE = "intake"
    STATISTICS = "statistics"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    SEEDS = "seeds"
    AUDITS = "audits"
    SWAP = "swap"
    PROCESS = "process"
    EXECUTION = "execution"


PROMISES = {
    Area.ENGINE: Promise.SERVING,
    Area.OUTPUTS: Promise.ACCOUNTS,
    Area.INTAKE: Promise.SERVING,
    Area.STATISTICS: Promise.ACCOUNTS,
    Area.SCHEDULER: Promise.PLANNER,
    Area.WORKER: Promise.TEXT,
    Area.SEEDS: Promise.SEEDS,
    Area.AUDITS: Promise.AUDITS,
    Area.SWAP: Promise.EXCHANGE,
    Area.PROCESS: Promise.SERVING,
    Area.EXECUTION: Promise.ACCOUNTS,
}
"""The promise that each area serves."""

PARTS: dict[Area, dict[str, str]] = {
    Area.ENGINE: {
        "v1/engine/async_llm.py": """
            AsyncLLM.generate(+ prompt sampling_params request_id lora_request trace_headers
                priority reasoning_ended)
            AsyncLLM.abort(+ request_id)
            AsyncLLM.from_vllm_config(+ vllm_config usage_context stat_loggers enable_log_requests
                disable_log_stats)
            AsyncLLM.add_lora(+ lora_request)
            AsyncLLM.shutdown(+ timeout)
            AsyncLLM: errored engine_core vllm_config
        """,
        "v1/engine/core_client.py": """
            AsyncMPClient.call_utility_async(+ method args)
        """,
        "outputs.py": """
            RequestOutput: outputs finished prompt_token_ids prompt_logprobs num_cached_tokens
            CompletionOutput: token_ids logprobs finish_reason
        """,
    },
    Area.OUTPUTS: {
        "v1/engine/output_processor.py": """
            OutputProcessor.__init__(self tokenizer log_stats stream_interval tracing_enabled
                admission_stats)
            OutputProcessor.add_request(self request prompt parent_req request_index queue)
            OutputProcessor.process_outputs(self engine_core_outputs engine_core_timestamp
                iteration_stats weight_version?)
            OutputProcessor.abort_requests(self request_ids internal)
            OutputProcessor.propagate_error(self e)
            OutputProcessor._finish_request(self req_state)
            OutputProcessor._update_stats_from_finished(self req_state finish_reason
                iteration_stats)
            OutputProcessor._update_stats_from_output(self req_state engine_core_output
                engine_core_timestamp iteration_stats)
            OutputProcessor.do_tracing(self engine_core_output req_state iteration_stats)
            OutputProcessor: request_states tokenizer log_stats stream_interval tracing_enabled
                admission_stats
            RequestState: is_prefilling logprobs_processor num_cached_tokens prompt_token_ids
                queue stats
        """,
        "envs.py": "enable_envs_cache()\ndisable_envs_cache()",
        "v1/engine/async_llm.py": """
            AsyncLLM.add_request(+ request_id prompt params lora_request trace_headers priority
                reasoning_ended)
            AsyncLLM.abort(+ request_id internal)
            AsyncLLM: output_handler output_processor renderer
        """,
        "renderers/base.py": """
            BaseRenderer.get_eos_token_id(self)
            BaseRenderer.get_mm_processor(self)
            BaseRenderer.mm_processor_cache(self)
            BaseRenderer.render_cmpl_async(+ prompts skip_mm_cache)
        """,
        "multimodal/cache/base.py": "BaseMultiModalProcessorCache.invalidate(self mm_hash)",
        "multimodal/media/image.py": "ImageMediaIO.load_bytes(self data)",
        "multimodal/processing/context.py": "BaseProcessingInfo.allowed_mm_limits(self)",
        "v1/engine/__init__.py": """
            EngineCoreOutput: request_id new_token_ids new_logprobs new_prompt_logprobs_tensors
                finish_reason events prefill_stats spec_decode_metrics mm_cache_miss_hashes
        """,
    },
    Area.INTAKE: {
        "v1/engine/core_client.py": """
            BackgroundResources.validate_alive(self frames)
            BackgroundResources: output_socket output_queue_task
            AsyncMPClient._ensure_output_queue_task(self)
            MPClient: decoder resources utility_results
            AsyncMPClient: outputs_queue
            _process_utility_output(output utility_results)
        """,
    },
    Area.STATISTICS: {
        "v1/metrics/loggers.py": """
            PrometheusStatLogger: record _counter_cls _gauge_cls _histogram_cls
        """,
        "v1/metrics/stats.py": """
            IterationStats: num_generation_tokens inter_token_latencies_iter
            SchedulerStats: cudagraph_stats
        """,
    },
    Area.SCHEDULER: {
        "v1/core/sched/scheduler.py": """
            Scheduler._update_after_schedule(self scheduler_output)
            Scheduler.update_draft_token_ids(self draft_token_ids)
            Scheduler.make_spec_decoding_stats(self spec_decoding_stats num_draft_tokens
                num_accepted_tokens num_invalid_spec_tokens request_id)
            Scheduler.update_from_output(self scheduler_output model_runner_output)
            Scheduler._preempt_request(self request timestamp drop_stale_output?)
            Scheduler._free_request(self request delay_free_blocks)
            Scheduler: num_spec_tokens requests vllm_config dynamic_sd_lookup max_num_running_reqs
                kv_cache_manager use_v2_model_runner running
        """,
        "v1/engine/core.py": """
            EngineCore: scheduler request_block_hasher
        """,
        "v1/core/block_pool.py": """
            BlockPool.evict_blocks(self block_ids)
            BlockPool: blocks
        """,
        "v1/core/sched/async_scheduler.py": """
            AsyncScheduler._update_after_schedule(self scheduler_output)
        """,
        "v1/core/sched/output.py": """
            SchedulerOutput: num_scheduled_tokens num_spec_tokens_to_schedule
                scheduled_encoder_inputs scheduled_spec_decode_tokens
        """,
        "v1/core/kv_cache_manager.py": """
            KVCacheManager: coordinator block_pool
            KVCacheManager.get_computed_blocks(self request max_cache_hit_length?)
            KVCacheManager.prefix_cache_lookup_enabled(self request)
        """,
        "v1/core/kv_cache_coordinator.py": """
            KVCacheCoordinator.cache_blocks(self request num_computed_tokens)
            KVCacheCoordinator.get_blocks(+ request_id)
            KVCacheCoordinator.find_longest_cache_hit(self block_hashes max_cache_hit_length)
            KVCacheCoordinator: eagle_group_ids
            HybridKVCacheCoordinator: attention_groups
            SpecGroup: use_eagle
            UnitaryKVCacheCoordinator: block_size kv_cache_spec
        """,
        "v1/request.py": """
            Request: _all_token_ids all_token_ids block_hashes is_prefill_chunk max_tokens
                mm_features num_computed_tokens num_output_tokens num_prompt_tokens num_tokens
                prompt_token_ids request_id sampling_params spec_token_ids
        """,
        "v1/outputs.py": """
            DraftTokenIds: req_ids draft_token_ids
        """,
        "config/compilation.py": """
            CUDAGraphMode.decode_mode(self)
            CUDAGraphMode.mixed_mode(self)
            CUDAGraphMode: FULL
            CompilationConfig: cudagraph_mode cudagraph_capture_sizes
        """,
        "config/vllm.py": "VllmConfig.use_v2_model_runner(self)",
        "config/speculative.py": """
            SpeculativeConfig: num_speculative_tokens num_speculative_tokens_per_batch_size
        """,
        "v1/metrics/stats.py": """
            RequestSpecDecodeMetrics: histogram num_draft_tokens per_step_drafted per_step_accepted
        """,
    },
    Area.WORKER: {
        "v1/worker/gpu_model_runner.py": """
            GPUModelRunner.propose_draft_token_ids(+ scheduler_output)
            GPUModelRunner._sample(self logits spec_decode_metadata)
            GPUModelRunner._calc_spec_decode_metadata(self num_draft_tokens
                cu_num_scheduled_tokens)
            GPUModelRunner: drafter input_batch use_async_scheduling device input_ids
            module: build_logitsprocs
        """,
        "v1/worker/gpu/model_runner.py": """
            GPUModelRunner.execute_model(+ scheduler_output)
            GPUModelRunner.prepare_inputs(+ scheduler_output)
            GPUModelRunner.sample_tokens(self grammar_output)
            GPUModelRunner.get_draft_model(self)
            GPUModelRunner: lora_state speculator req_states vllm_config device output_copy_stream
                main_stream
        """,
        "v1/worker/gpu/states.py": """
            RequestState.__init__(+ use_dense_all_token_ids)
            RequestState: total_len max_num_reqs
        """,
        "v1/worker/gpu/spec_decode/ngram/speculator.py": """
            NgramGPUSpeculator.__init__(self vllm_config device req_states)
            NgramGPUSpeculator.propose(+ input_batch attn_metadata slot_mappings last_hidden_states
                aux_hidden_states num_sampled num_rejected last_sampled next_prefill_tokens
                temperature seeds)
            NgramGPUSpeculator: scratch max_model_len
        """,
        "v1/worker/gpu/async_utils.py": """
            AsyncOutput: model_runner_output
            module: async_copy_to_np stream
        """,
        "v1/worker/gpu/input_batch.py": """
            InputBatch: cu_num_logits_np num_reqs req_ids idx_mapping_np query_start_loc_np
                num_computed_prefill_tokens_np
        """,
        "lora/model_manager.py": """
            LoRAModelManager.set_adapter_mapping(self mapping)
            LoRAModelManager: _last_mapping
        """,
        "lora/layers/utils.py": "LoRAMapping: index_mapping prompt_mapping",
        "v1/worker/gpu/lora_utils.py": """
            LoraState.make_lora_inputs(self req_ids idx_mapping num_scheduled_tokens)
        """,
        "v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py": """
            TargetDependentARSpeculator.propose(+ input_batch attn_metadata slot_mappings
                last_hidden_states aux_hidden_states num_sampled num_rejected last_sampled
                next_prefill_tokens temperature seeds dummy_run num_speculative_tokens)
        """,
        "v1/worker/gpu/spec_decode/speculator.py": "DraftModelSpeculator: draft_tokens",
        "v1/worker/gpu_input_batch.py": """
            InputBatch._make_sampling_metadata(self)
            InputBatch: generators num_reqs random_reqs sampling_metadata
            module: maybe_create_thinking_budget_state_holder
        """,
        "v1/spec_decode/llm_base_proposer.py": """
            SpecDecodeBaseProposer.propose(+ common_attn_metadata)
            SpecDecodeBaseProposer.load_model(+ target_model)
            SpecDecodeBaseProposer._update_positions_dependent_metadata(self positions
                common_attn_metadata batch_size input_batch_size block_size)
            SpecDecodeBaseProposer: uses_mrope max_model_len vllm_config
        """,
        "v1/sample/rejection_sampler.py": """
            RejectionSampler.apply_logits_processors(self logits sampling_metadata metadata)
            apply_sampling_constraints(+ logits)
            expand_batch_to_tokens(x cu_num_tokens num_tokens replace_from replace_to)
        """,
        "v1/spec_decode/metadata.py": """
            SpecDecodeMetadata: num_draft_tokens max_spec_len logits_indices bonus_logits_indices
                target_logits_indices
        """,
        "v1/sample/sampler.py": """
            Sampler.apply_logits_processors(self logits sampling_metadata predict_bonus_token)
        """,
        "v1/sample/logits_processor/__init__.py": """
            build_logitsprocs(vllm_config device is_pin_memory is_pooling_model custom_logitsprocs)
            module: BUILTIN_LOGITS_PROCESSORS
        """,
        "v1/sample/logits_processor/builtin.py": """
            process_dict_updates(req_entries batch_update new_state)
            MinTokensLogitsProcessor.add_request(params _ output_tok_ids)
            MinTokensLogitsProcessor: min_toks
            LogitBiasLogitsProcessor: biases
            MinPLogitsProcessor: min_p min_p_count
        """,
        "v1/engine/input_processor.py": """
            InputProcessor._validate_params(+ self params)
            InputProcessor: speculative_config vllm_config
        """,
        "v1/engine/async_llm.py": """
            AsyncLLM: input_processor
        """,
    },
    Area.SEEDS: {
        "v1/worker/gpu_model_runner.py": """
            GPUModelRunner._sample(self logits spec_decode_metadata)
            GPUModelRunner._bookkeeping_sync(+ scheduler_output)
            GPUModelRunner: positions query_start_loc
        """,
        "v1/sample/rejection_sampler.py": """
            rejection_sample(draft_token_ids num_draft_tokens max_spec_len cu_num_draft_tokens
                draft_probs target_logits bonus_token_ids sampling_metadata synthetic_mode
                synthetic_conditional_rates use_fp64_gumbel fly_window_size?
                fly_entropy_threshold? fly_entropy_top_k?)
        """,
        "v1/sample/ops/topk_topp_sampler.py": """
            TopKTopPSampler.forward_native(self logits generators k p)
            TopKTopPSampler: logprobs_mode
            apply_top_k_top_p(logits k p has_topp_only_rows?)
        """,
        "v1/sample/metadata.py": """
            SamplingMetadata: generators
        """,
        "v1/worker/gpu/spec_decode/rejection_sampler.py": """
            RejectionSampler._verify(self logits draft_logits draft_sampled pos cu_num_logits
                idx_mapping idx_mapping_np expanded_idx_mapping expanded_local_pos
                seq_lens_upper_bound_np verify_draft_sampled)
            RejectionSampler: sampler synthetic_conditional_rates watermark_key
        """,
        "v1/worker/gpu/sample/gumbel.py": """
            gumbel_sample(+ logits expanded_idx_mapping temperature seed pos apply_temperature
                is_drafting use_fp64)
        """,
        "v1/worker/gpu/sample/sampler.py": """
            Sampler: sampling_states use_fp64_gumbel
        """,
        "v1/worker/gpu/sample/states.py": """
            SamplingStates: seeds seeds_set temperature
        """,
        "utils/torch_utils.py": """
            async_tensor_h2d(+ data device dtype)
        """,
    },
    Area.AUDITS: {
        "v1/worker/gpu_model_runner.py": """
            GPUModelRunner._get_prompt_logprobs_dict(self hidden_states num_scheduled_tokens)
            GPUModelRunner: positions query_start_loc num_prompt_logprobs requests model
        """,
        "v1/worker/gpu/sample/prompt_logprob.py": """
            PromptLogprobsWorker.add_request(self req_id req_idx sampling_params)
            PromptLogprobsWorker.remove_request(self req_id)
            PromptLogprobsWorker.compute_prompt_logprobs(self logits_fn hidden_states input_batch
                all_token_ids num_computed_tokens prompt_lens)
            PromptLogprobsWorker: uses_prompt_logprobs
        """,
    },
    Area.SWAP: {
        "model_executor/model_loader/reload/layerwise.py": """
            initialize_layerwise_reload(model)
            finalize_layerwise_reload(+)
            get_layerwise_info(layer)
            _place_kernel_tensors(layer info)
        """,
        "v1/engine/core.py": """
            EngineCore: model_executor
        """,
    },
    Area.EXECUTION: {
        "v1/metrics/loggers.py": """
            StatLoggerBase.record(self scheduler_stats iteration_stats mm_cache_stats engine_idx)
            PrometheusStatLogger: spec_decoding_prom
            PerEngineStatLoggerAdapter: per_engine_stat_loggers
            StatLoggerManager: stat_loggers
        """,
        "v1/spec_decode/metrics.py": """
            SpecDecodingProm: spec_decoding_enabled counter_spec_decode_num_drafts
                counter_spec_decode_num_draft_tokens counter_spec_decode_num_accepted_tokens
        """,
        "compilation/cuda_graph.py": "CUDAGraphStat: runtime_mode",
        "compilation/counter.py": "CompilationCounter: num_cudagraph_captured",
        "v1/metrics/stats.py": "SchedulerStats: cudagraph_stats",
        "v1/worker/gpu_model_runner.py": "GPUModelRunner: attn_groups vllm_config",
        "v1/worker/gpu/model_runner.py": "GPUModelRunner: attn_groups vllm_config",
        "v1/worker/gpu/cudagraph_utils.py": "CudaGraphManager: cudagraph_mode",
        "v1/worker/utils.py": "AttentionGroup: backend",
        "v1/engine/async_llm.py": """
            AsyncLLM.collective_rpc(+ method args)
            AsyncLLM: logger_manager
        """,
    },
    Area.PROCESS: {
        "v1/engine/utils.py": """
            CoreEngineProcManager: processes
            module: get_mp_context
        """,
        "v1/engine/core.py": """
            EngineCoreProc.run_engine_core(+)
        """,
        "model_executor/models/registry.py": """
            module: _run_in_subprocess
        """,
        "v1/engine/coordinator.py": """
            module: get_mp_context
        """,
    },
}


@dataclass(frozen=True, slots=True)
class PartDifference:
    """A part of vLLM that is not what the gateway was written for."""

    name: str
    """Dotted name in its module."""
    text: str
    """How it differs: ``is missing``, or its parameters."""

    def __str__(self) -> str:
        return f"{self.name} {self.text}"


Differences = Mapping[Area, Sequence[PartDifference]]


@dataclass(frozen=True, slots=True)
class Examination:
    """Comparison of an installed vLLM that the tests do not run on."""

    untested: str
    """The sentence that names the version."""
    differences: Differences

    @property
    def broken(self) -> frozenset[Promise]:
        """The promises that a difference affects."""
        return frozenset(PROMISES[area] for area in self.differences)

    @property
    def refusal(self) -> str | None:
        """The reason to refuse a start; None if all parts are equal."""
        if not self.differences:
            return None
        return f"{self.explain()}; --allow-untested-vllm starts without these promises"

    def explain(self) -> str:
        """Say what was compared, what differs, and what happens without the promises it affects."""
        names, files = count_parts()
        compared = f"{names} methods, functions and fields of {files} files were compared by name"
        if not self.differences:
            return f"{self.untested}: {compared}, and all are as expected"
        parts = [
            f"{difference} ({PROMISES[area].value})"
            for area, differences in self.differences.items()
            for difference in differences
        ]
        more = f" and {len(parts) - MOST_LISTED} more" if len(parts) > MOST_LISTED else ""
        substitutes = [
            f"{promise.value}: {SUBSTITUTES.get(promise, 'cannot be switched off, and may fail')}"
            for promise in Promise
            if promise in self.broken
        ]
        return (
            f"{self.untested}: {compared}, and {len(parts)} of them differ: "
            f"{', '.join(parts[:MOST_LISTED])}{more}. Without the promises that this affects: "
            f"{'; '.join(substitutes)}"
        )


def examine_installed() -> Examination | None:
    """Compare the installed vLLM by its source; None if its version is tested."""
    untested = describe_untested()
    if untested is None:
        return None
    return Examination(untested, _compare_once(find_source()))


def find_broken_promises() -> frozenset[Promise]:
    """Return the promises that do not hold with the installed vLLM."""
    examination = examine_installed()
    return frozenset() if examination is None else examination.broken


def find_source() -> Path:
    """Return the folder of the installed vLLM's package without importing it."""
    spec = find_spec("vllm")
    return Path(spec.origin).parent if spec is not None and spec.origin else Path("vllm")


def count_parts() -> tuple[int, int]:
    """Return the numbers of names and of files in ``PARTS``."""
    names = sum(
        1 if "(" in part else len(part.partition(":")[2].split())
        for files in PARTS.values()
        for text in files.values()
        for part in split_parts(text)
    )
    return names, len({file for files in PARTS.values() for file in files})


def compare(source: Path) -> dict[Area, list[PartDifference]]:
    """Return the differences from ``PARTS`` for the vLLM whose package is the folder ``source``."""
    broken: dict[Area, list[PartDifference]] = {area: [] for area in PARTS}
    areas = [(file, area) for area, files in PARTS.items() for file in files]
    # File by file, so that one tree is in memory at a time: they have a hundred times their text.
    for file, group in groupby(sorted(areas), itemgetter(0)):
        module = _read_module(source / file)
        for _, area in group:
            for part in split_parts(PARTS[area][file]):
                broken[area].extend(module.find_differences(part))
    return {area: differences for area, differences in broken.items() if differences}


_compare_once = cache(compare)


def split_parts(parts: str) -> Iterator[str]:
    """Yield the parts of one file in ``PARTS``, each on one line."""
    for part in textwrap.dedent(parts.strip("\n")).replace("\n ", " ").strip().splitlines():
        yield " ".join(part.split())


class ModuleSource:
    """The functions and attributes that a module's source defines."""

    def __init__(self, tree: ast.Module) -> None:
        self._functions: dict[str, list[str]] = {}
        self._classes: dict[str, ast.ClassDef] = {}
        self._names = {"module": set(_defined_names(tree.body))}
        for node in tree.body:
            self._add_function("", node)
            if isinstance(node, ast.ClassDef):
                self._classes[node.name] = node
                for member in node.body:
                    self._add_function(f"{node.name}.", member)

    def find_differences(self, part: str) -> Iterator[PartDifference]:
        """Yield the names in one line of ``PARTS`` that are missing or different in the source."""
        if "(" in part:
            name, _, wanted = part.removesuffix(")").partition("(")
            parameters = self._functions.get(name)
            if parameters is None:
                yield PartDifference(name, "is missing")
            elif not _fits(parameters, wanted.split()):
                yield PartDifference(name, f"takes ({' '.join(parameters)}), not ({wanted})")
            return
        owner, _, names = part.partition(":")
        known = self._list_names(owner)
        for name in names.split():
            if name not in known:
                yield PartDifference(f"{owner}.{name}", "is missing")

    def _list_names(self, owner: str) -> set[str]:
        """Return a class's names. Only those of the classes in ``PARTS`` are collected, since this
        walks all of their code."""
        node = self._classes.get(owner)
        if owner not in self._names and node is not None:
            self._names[owner] = {*_defined_names(node.body), *_assigned_names(node)}
        return self._names.get(owner, set())

    def _add_function(self, prefix: str, node: ast.stmt) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._functions.setdefault(prefix + node.name, _list_parameters(node.args))


def _read_module(file: Path) -> ModuleSource:
    """Parse a file of vLLM. A missing file defines nothing."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return ModuleSource(ast.parse(text))


def _fits(parameters: list[str], wanted: list[str]) -> bool:
    if wanted[:1] == ["+"]:
        return set(wanted[1:]) <= set(parameters)
    expected = [n.rstrip("?") for n in wanted if not n.endswith("?") or n[:-1] in parameters]
    return parameters == expected


def _list_parameters(given: ast.arguments) -> list[str]:
    """List parameter names in the order of ``inspect.signature``."""
    variable = [given.vararg.arg] if given.vararg else []
    keywords = [given.kwarg.arg] if given.kwarg else []
    plain = [one.arg for one in (*given.posonlyargs, *given.args)]
    return [*plain, *variable, *(one.arg for one in given.kwonlyargs), *keywords]


def _defined_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield names that statements of a module or class define, imports and annotations included."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.AnnAssign, ast.Assign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _assigned_names(owner: ast.ClassDef) -> Iterator[str]:
    """Yield the names that methods assign to ``self``."""
    for statement in _walk_statements(owner):
        for target in _list_targets(statement):
            for node in ast.walk(target):
                match node:
                    case ast.Attribute(ast.Name("self"), name, ast.Store()):
                        yield name


def _walk_statements(owner: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node. ``ast.walk`` also visits expressions, ten times as many
    nodes."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(owner, field, ()):
            yield child
            yield from _walk_statements(child)


def _list_targets(statement: ast.AST) -> Sequence[ast.expr]:
    match statement:
        case ast.Assign():
            return statement.targets
        case ast.AnnAssign() | ast.AugAssign() | ast.For():
            return [statement.target]
        case ast.With():
            return [item.optional_vars for item in statement.items if item.optional_vars]
    return ()
