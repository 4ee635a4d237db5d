from __future__ import annotations

from dataclasses import replace

import pytest

from eaglegate.engine.types import EngineRequest, Sampling, revise


def test_a_record_is_revised_as_dataclasses_replace_it():
    request = EngineRequest(id="a", prompt=(1, 2), sampling=Sampling(max_tokens=3), depth=2)
    assert revise(request, depth=0, lane="plain") == replace(request, depth=0, lane="plain")
    assert revise(request) == request
    with pytest.raises(TypeError):
        revise(request, length=1)
