"""The gateway on the scripted engine with the demo's own template, as a process of its own.

Says its URL when it is ready; ends when standard input does.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace

from eaglegate.server.store.base import Retention
from eaglegate.server.store.sql import SqlResponseStore
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests.server.conftest import DEMO, Lab, on_a_port

CONTEXT = 32_768


def main() -> None:
    lab = Lab(renderer=TemplateRenderer(ModelFiles.find(str(DEMO), None, None)))
    lab.says("one two three")
    pipeline = lab.gateway.pipeline
    lab.gateway.open(replace(pipeline, info=replace(pipeline.info, max_model_len=CONTEXT)))
    with tempfile.TemporaryDirectory() as folder:
        lab.gateway.store = SqlResponseStore(f"sqlite:///{folder}/responses.db", Retention(3600))
        with on_a_port(lab.app) as url:
            print(url, flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
