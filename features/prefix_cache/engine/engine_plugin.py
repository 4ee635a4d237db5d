"""The draft's cost per hit of the prefix cache, in the description of an engine."""

from __future__ import annotations

from dataclasses import replace

from vllm.config import VllmConfig

from eaglegate.engine.speculation.accounts.prefix_cost import find_prefix_cost
from eaglegate.engine.types import EngineInfo
from eaglegate.engine.vllm_backend.engine_plugin import EnginePlugin


class PrefixPlugin(EnginePlugin):
    """Describes the cost; nothing without a draft or a cache."""

    def describe(self, info: EngineInfo, config: VllmConfig) -> EngineInfo:
        draft, cache = config.speculative_config, config.cache_config
        if draft is None or not cache.enable_prefix_caching:
            return info
        target = config.model_config.hf_text_config.to_dict()
        names = ("disable_eagle_block_drop", "disable_lookahead_block_hashes")
        settings = {name: getattr(draft, name, False) for name in names}
        has_connector = config.kv_transfer_config is not None
        cost = find_prefix_cost(settings, target, cache.block_size, draft.method, has_connector)
        if cost is None:
            return info
        return replace(info, details={**info.details, "prefix cache": cost.explain()})


PLUGIN = PrefixPlugin()
