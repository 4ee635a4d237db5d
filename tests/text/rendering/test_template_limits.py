"""A model's own chat template is interrupted when it takes too long, and run apart from then on."""

from __future__ import annotations

import threading
import time

import pytest

from eaglegate.lab.training import __file__ as training
from eaglegate.text.rendering import sandbox, watchdog
from eaglegate.text.rendering.encoding import NO_LIMITS, RenderLimits
from eaglegate.text.rendering.sandbox import TemplateInput, TemplateRunner
from eaglegate.text.rendering.template import ChatTemplate
from eaglegate.text.rendering.watchdog import RenderTooSlow, RenderWatchdog
from tests.text.rendering.conversations import TEMPLATES

pytestmark = pytest.mark.thorough

AT_ONCE = RenderLimits(at_once=True)
ORDINARY = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
NESTED = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
RECURSIVE = (
    "{% macro f(n) %}{{ f(n + 1) if n < 60 }}{{ f(n + 1) if n < 60 }}{% endmacro %}{{ f(0) }}"
)
ONE_OPERATION = {
    "a power": "{{ 9 ** (9 ** 9) }}",
    "a power of variables": "{% set n = messages | length + 8 %}{{ n ** (n ** n) }}",
    "a long text": "{{ 'x' * 9999999999 }}",
    "a long text of variables": "{% set n = 99999 %}{{ 'x' * (n * n) }}",
    "a long list": "{% set n = 99999 %}{{ ([1] * (n * n)) | length }}",
    "a width": "{{ '%9999999999d' % 1 }}",
    "a width by variable": "{% set n = 99999 %}{{ '%*d' % (n * n, 1) }}",
    "a filter": "{{ 'x' | center(9999999999) }}",
    "a method": "{% set n = 99999 %}{{ 'x'.zfill(n * n) }}",
}


def write(runner: TemplateRunner, template: ChatTemplate, limits: RenderLimits = NO_LIMITS) -> str:
    talk = [{"role": "user", "content": "Hi"}]
    return runner.write(TemplateInput(template.source, talk, None, {}, {}), template, limits)


@pytest.fixture
def runner(monkeypatch):
    monkeypatch.setattr(watchdog, "POLL_S", 0.01)
    monkeypatch.setattr(sandbox, "RENDER_S", 0.1)
    monkeypatch.setattr(sandbox, "AT_ONCE_S", 0.05)
    made = TemplateRunner()
    yield made
    made.close()


@pytest.fixture
def in_child(monkeypatch):
    """The templates that ran in a child, which is not started."""
    ran = []

    def run(_self, job, _limits):
        ran.append(job)
        return "from a child"

    monkeypatch.setattr(TemplateRunner, "_run_in_child", run)
    return ran


@pytest.mark.parametrize("source", [NESTED, RECURSIVE], ids=["nested ranges", "a recursive macro"])
def test_a_template_without_an_end_is_interrupted_and_runs_apart_from_then_on(
    runner, in_child, source, caplog
):
    template = ChatTemplate(source)
    assert not template.is_suspect
    assert write(runner, template) == "from a child"
    assert "runs in a separate process" in caplog.text
    assert template.is_suspect
    write(runner, template)
    assert caplog.text.count("separate process") == 1
    assert len(in_child) == 2
    assert write(runner, ChatTemplate(ORDINARY)) == "user: Hi\n"


def test_a_slow_template_leaves_the_event_loop_and_runs_in_a_thread(runner, in_child, caplog):
    """It may be quick in a thread: only the loop's limit is so short."""
    template = ChatTemplate(NESTED)
    for _ in range(2):
        with pytest.raises(RenderTooSlow):
            write(runner, template, AT_ONCE)
    assert caplog.text.count("runs in a separate thread") == 1
    assert template.is_slow
    assert not template.is_suspect
    assert not in_child
    assert write(runner, template) == "from a child", "it is too slow for a thread as well"
    with pytest.raises(RenderTooSlow):
        write(runner, template, AT_ONCE)
    assert len(in_child) == 1
    assert write(runner, ChatTemplate(ORDINARY), AT_ONCE) == "user: Hi\n"


def test_nothing_waits_for_a_child_on_the_event_loop(runner, in_child):
    with pytest.raises(RenderTooSlow):
        write(runner, ChatTemplate("{{ messages[0].content | center(7) }}"), AT_ONCE)
    assert not in_child


@pytest.mark.parametrize("name", ONE_OPERATION)
def test_one_huge_operation_ends_at_once_in_either_process(runner, in_child, name):
    template = ChatTemplate(ONE_OPERATION[name])
    if template.is_suspect:
        assert write(runner, template) == "from a child"
    else:
        with pytest.raises(ValueError, match="too large"):
            write(runner, template)


def test_the_limits_of_the_child_hold_for_a_models_own_template(runner, monkeypatch):
    monkeypatch.setattr(sandbox, "PATIENCE_S", 60.0)
    for source in ("{{ 9 ** (9 ** 9) }}", "{{ 'x' | center(9999999999) }}"):
        with pytest.raises(ValueError, match=r"too large|too much memory|took more than"):
            write(runner, ChatTemplate(source))
    suspect = ChatTemplate("{{ messages[0].content | center(7) }}")
    assert suspect.is_suspect
    assert write(runner, suspect) == "   Hi  "


@pytest.mark.parametrize("source", [ORDINARY, *filter(None, TEMPLATES.values())])
def test_ordinary_templates_run_in_this_process(runner, in_child, source):
    assert not ChatTemplate(source).is_suspect


def test_the_templates_of_this_repository_run_in_this_process():
    from pathlib import Path

    root = Path(training).parents[2]
    for path in ("engine/demo/target/chat_template.jinja", "lab/training/chat_template.jinja"):
        assert not ChatTemplate((root / path).read_text()).is_suspect


@pytest.mark.parametrize(
    "source", ["{{ loop_index % 2 }}{{ 3 * 4 }}", "{{ '%s and %5d' % ('a', 7) }}", "{{ '-' * 40 }}"]
)
def test_small_products_are_made(runner, in_child, source):
    template = ChatTemplate("{% set loop_index = 3 %}" + source)
    assert write(runner, template) in ("112", "a and     7", "-" * 40)
    assert not in_child


def test_variables_of_a_suspect_template_are_found_without_running_it():
    template = ChatTemplate("{% if mood %}{{ 9 ** (9 ** 9) }}{% endif %}")
    assert "mood" in template.variables


def test_nothing_is_interrupted_behind_a_render():
    """Renders that end just as their time is up, in several threads."""
    dog, late, ended = RenderWatchdog(), [], []

    def work() -> None:
        for _ in range(20):
            until = time.monotonic() + 0.03
            try:
                dog.run(
                    lambda until=until: [None for _ in iter(time.monotonic, 0) if _stop(until)],
                    0.02,
                )
            except (RenderTooSlow, _Stop) as end:
                ended.append(end)
        late.append(sum(range(20_000)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(late) == 4
    assert len(ended) == 80


class _Stop(Exception):
    pass


def _stop(until: float) -> bool:
    if time.monotonic() > until:
        raise _Stop
    return False
