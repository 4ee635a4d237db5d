"""The gateway behind a proxy that serves it under a path of its own."""

from __future__ import annotations

import pytest

from tests.server.access.test_door import pages
from tests.server.conftest import make_app


@pytest.fixture
def under(lab):
    lab.configure(root_path="/team/llm")
    lab.app = make_app(lab, pages())
    return lab


@pytest.mark.parametrize("prefix", ["", "/team/llm"])
async def test_paths_work_with_the_prefix_and_without_it(under, prefix):
    under.says("x")
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    assert (await under.post(f"{prefix}/v1/chat/completions", body)).status == 200
    assert (await under.get(f"{prefix}/v1/models")).status == 200
    assert (await under.get(f"{prefix}/")).status == 200
    wrong = await under.post(f"{prefix}/v1/messages", {"model": 1})
    assert wrong.json["type"] == "error", "the error has the API's own shape"


async def test_the_document_names_the_prefix(under):
    assert (await under.get("/team/llm/openapi.json")).json["servers"] == [{"url": "/team/llm"}]


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["/metrics", "/admin/status", "/debug/speculation", ""])
async def test_the_prefix_opens_no_operator_path(under, path):
    under.admit("user")
    assert (await under.get(f"/team/llm{path}", key="user")).status == 403
    assert (await under.get(f"/team/llm/team/llm{path}", key="user")).status == 404


async def test_other_paths_that_begin_alike_are_left_alone(under):
    assert (await under.get("/team/llms/v1/models")).status == 404
