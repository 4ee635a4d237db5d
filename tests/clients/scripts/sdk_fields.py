"""Fields of requests in the Python SDK that is installed, as JSON on standard output.

python sdk_fields.py openai|anthropic
"""

import json
import sys
import typing
from importlib import import_module

import typing_extensions

APIS = {
    "anthropic": {
        "messages": (
            "anthropic.types.message_create_params",
            "anthropic.types.beta.message_create_params",
        ),
        "count_tokens": (
            "anthropic.types.message_count_tokens_params",
            "anthropic.types.beta.message_count_tokens_params",
        ),
    },
    "openai": {
        "chat": ("openai.types.chat.completion_create_params",),
        "completions": ("openai.types.completion_create_params",),
        "responses": ("openai.types.responses.response_create_params",),
    },
}  # fmt: skip


def parameters(module):
    """The whole requests of a module: of its own dictionaries those named for it."""
    return [
        kind
        for name, kind in vars(import_module(module)).items()
        if name.endswith(("ParamsBase", "ParamsStreaming", "ParamsNonStreaming", "TokensParams"))
        and typing_extensions.is_typeddict(kind)
        and not name.startswith("Parse")
    ]


def main(sdk):
    out = {}
    for api, modules in APIS[sdk].items():
        kinds = [kind for module in modules for kind in parameters(module)]
        out[api] = sorted({field for kind in kinds for field in typing.get_type_hints(kind)})
    return out


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
