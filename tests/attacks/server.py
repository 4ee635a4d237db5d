"""The gateway on the scripted engine with the demo's own template, as a process of its own.

Says its URL when it is ready; ends when standard input does.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace

from engine.rendering import ModelFiles, TemplateRenderer
from server.store.sql import Retention, SqlResponseStore
from tests.server.conftest import DEMO, Lab, on_a_port

CONTEXT = 32_768


def main() -> None:
    lab = Lab(renderer=TemplateRenderer(ModelFiles.find(str(DEMO), None, None)))
    lab.says("one two three")
    path = lab.gateway.path
    lab.gateway.open(replace(path, info=replace(path.info, max_model_len=CONTEXT)))
    with tempfile.TemporaryDirectory() as folder:
        lab.gateway.store = SqlResponseStore(f"sqlite:///{folder}/responses.db", Retention(3600))
        with on_a_port(lab.app) as url:
            print(url, flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
