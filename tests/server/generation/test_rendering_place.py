"""The place of rendering: on the event loop if a prompt is sure to be quick, else in a thread."""

from __future__ import annotations

import threading

import pytest

from eaglegate.server.generation.prompt import AT_ONCE_BYTES
from eaglegate.text.rendering.watchdog import RenderTooSlow


@pytest.mark.parametrize(("size", "at_once"), [(100, True), (AT_ONCE_BYTES, False)])
async def test_a_small_prompt_is_rendered_on_the_event_loop(lab, monkeypatch, size, at_once):
    lab.says("x")
    threads = []
    render = lab.renderer.render_chat

    def record(*args, **kwargs):
        threads.append(threading.current_thread())
        return render(*args, **kwargs)

    monkeypatch.setattr(lab.renderer, "render_chat", record)
    message = {"role": "user", "content": "hi"}
    assert (await lab.chat(messages=[message], user="u" * size)).status == 200
    assert [thread is threading.current_thread() for thread in threads] == [at_once]


async def test_a_prompt_that_is_slow_on_the_event_loop_is_rendered_in_a_thread(lab, monkeypatch):
    lab.says("x")
    threads = []
    render = lab.renderer.render_chat

    def refuse_at_once(*args, limits, **kwargs):
        threads.append(threading.current_thread())
        if limits.at_once:
            raise RenderTooSlow
        return render(*args, limits=limits, **kwargs)

    monkeypatch.setattr(lab.renderer, "render_chat", refuse_at_once)
    assert (await lab.chat(messages=[{"role": "user", "content": "hi"}])).status == 200
    first, second = threads
    assert first is threading.current_thread()
    assert second is not first
