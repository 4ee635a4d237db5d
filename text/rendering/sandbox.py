"""Execution of chat templates, in this process if they are expected to be quick, else in a child.

A template that turns out to be slow is interrupted (``text/rendering/watchdog.py``): on the event
loop first, and runs in threads from then on; then in a thread, and runs in a child process.

The child limits its memory and CPU time. A job on its standard input is an 8-byte length followed
by JSON. So is an answer on its standard output: ``["text", ...]`` or ``["refused", why]``. If a job
takes too long, the kernel kills the process. A job that needs too much memory fails.
"""

from __future__ import annotations

import logging
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from eaglegate.text.rendering.encoding import RenderLimits
from eaglegate.text.rendering.template import (
    ChatTemplate,
    convert_messages,
    filter_variables,
    merge_developer,
)
from eaglegate.text.rendering.watchdog import (
    AT_ONCE_S,
    RENDER_S,
    RenderTooSlow,
    RenderWatchdog,
    Result,
)

log = logging.getLogger(__name__)

CPU_S = 5.0
"""CPU seconds for one prompt. The longest real conversation takes a tenth of this."""
MEMORY_BYTES = 1 << 30
MAX_CHARS = 32 << 20
"""Largest number of characters in a prompt: four times the largest request body."""


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """Input of one chat template, as plain data that can be sent to another process."""

    source: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    special_tokens: Mapping[str, Any]
    kwargs: Mapping[str, Any]
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @property
    def is_usual(self) -> bool:
        """True if every renderer of Hugging Face's templates gives the same prompt."""
        is_usual = (
            self.messages and not self.continue_final_message and "documents" not in self.kwargs
        )
        return bool(is_usual) and all(map(_is_usual, self.messages))

    @property
    def num_bytes(self) -> int:
        """Size of the conversation as JSON."""
        return len(orjson.dumps((self.messages, self.tools, self.kwargs)))

    @property
    def packed(self) -> bytes:
        return orjson.dumps({name: getattr(self, name) for name in self.__slots__})

    def write(self, template: ChatTemplate) -> str:
        """Write the prompt. Raises ValueError if the template raises."""
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("continuing the final message leaves no place for a new one")
        messages = template.arrange(self.messages, self.special_tokens)
        talk = convert_messages(messages, in_parts=template.content_in_parts)
        if not template.knows_developer:
            talk = merge_developer(talk)
        variables = {**self.special_tokens, **filter_variables(self.kwargs, template.variables)}
        if self.continue_final_message:
            return template.render_open(talk, self.tools, variables)
        return template.render(
            talk, self.tools, variables, add_generation_prompt=self.add_generation_prompt
        )


def _is_usual(message: Mapping[str, Any]) -> bool:
    """Return True if the message's content is text and all its calls are function calls."""
    content, calls = message.get("content"), message.get("tool_calls")
    if "task" in message or not (content is None or isinstance(content, str)):
        return False
    return not calls or all(
        call.get("type") == "function" and isinstance(call.get("function"), dict) for call in calls
    )


def read_message(stream: BinaryIO) -> bytes:
    """Read one message. Return b"" at the end of the stream, even within a message."""
    size = stream.read(8)
    if len(size) < 8:
        return b""
    message = stream.read(num_bytes := int.from_bytes(size, "big"))
    return message if len(message) == num_bytes else b""


def write_message(stream: BinaryIO, message: bytes) -> None:
    stream.write(len(message).to_bytes(8, "big"))
    stream.write(message)
    stream.flush()


def run_job(job: bytes) -> tuple[str, str]:
    try:
        template_input = TemplateInput(**orjson.loads(job))
        text = template_input.write(compile_template(template_input.source))
    except (MemoryError, OverflowError):
        return "refused", "it needed too much memory"
    except (ValueError, RecursionError) as error:
        return "refused", str(error)[:1000]
    if len(text) > MAX_CHARS:
        return "refused", f"it wrote more than {MAX_CHARS} characters"
    return "text", text


@lru_cache(maxsize=8)
def compile_template(source: str) -> ChatTemplate:
    return ChatTemplate(source)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # The gateway handles these signals, and needs this process until its requests have finished.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
    while job := read_message(sys.stdin.buffer):
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        answer = orjson.dumps(run_job(job))
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_message(sys.stdout.buffer, answer)


if __name__ == "__main__":
    main()


SMALL_BYTES = 32 << 10
"""Largest conversation that is rendered in this process, by an operator's template."""
LARGE_BYTES = 1 << 20
"""Size of a conversation after which the child is ended, because it would keep the memory."""
PROCESSES = 2
PATIENCE_S = 30.0
POLL_S = 0.05
ATTEMPTS = 2
RETRY_S = 1.0
CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""Signals of a crash in the interpreter, which would repeat each time the template runs."""
ROOT = Path(__file__).parents[2]
TOO_LONG = f"the template took more than {CPU_S:g} s"


class RendererLost(RuntimeError):
    """The rendering process was lost more than once. The same request may succeed later."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TemplateRunner:
    """Thread-safe runner that renders at most ``PROCESSES`` prompts at a time in children."""

    def __init__(self) -> None:
        self._turns = threading.BoundedSemaphore(PROCESSES)
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._watchdog = RenderWatchdog()

    def write(
        self, template_input: TemplateInput, template: ChatTemplate | None, limits: RenderLimits
    ) -> str:
        """Write a prompt. ``template`` is the operator's, or None for a request's own template.

        Raises ValueError if the template raises, RenderingCancelled if the client has left, and
        RenderTooSlow if it has to run elsewhere than on the event loop.
        """
        if (
            template is not None
            and not template.is_suspect
            and template_input.num_bytes <= SMALL_BYTES
        ):
            with suppress(RenderTooSlow):
                return self.watch(template, partial(template_input.write, template), limits)
        if limits.at_once:
            raise RenderTooSlow
        job = template_input.packed
        while not self._turns.acquire(timeout=POLL_S):
            limits.check(0)
        try:
            return self._run_in_child(job, limits)
        finally:
            self._turns.release()

    def watch(
        self, template: ChatTemplate, render: Callable[[], Result], limits: RenderLimits
    ) -> Result:
        """Render in this process. Raises RenderTooSlow if the template is too slow for it, or for
        the event loop.
        """
        if limits.at_once and template.is_slow:
            raise RenderTooSlow
        try:
            return self._watchdog.run(render, AT_ONCE_S if limits.at_once else RENDER_S)
        except RenderTooSlow:
            _demote(template, limits.at_once)
            raise

    def close(self) -> None:
        with self._lock:
            idle_children, self._idle = self._idle, []
        for process in idle_children:
            _kill(process)

    def _run_in_child(self, job: bytes, limits: RenderLimits) -> str:
        """Render in a child process. A lost child may not be the template's fault, so retry once.

        Raises ValueError, RenderingCancelled and RendererLost.
        """
        for _ in range(ATTEMPTS):
            try:
                return self._run_once(job, limits)
            except _ChildLost as error:
                log.warning("a process rendering chat templates ended: %s", error)
                status = error.status
        if -status in CRASHES:
            raise ValueError("the template crashed the process that ran it")
        raise RendererLost(
            f"The process that renders chat templates ended {ATTEMPTS} times. Try again.", RETRY_S
        )

    def _run_once(self, job: bytes, limits: RenderLimits) -> str:
        process = self._take_process()
        is_reusable = False
        try:
            kind, text = _run(process, job, limits)
            is_reusable = len(job) + len(text) < LARGE_BYTES
        finally:
            if not is_reusable:
                _kill(process)
        if is_reusable:
            with self._lock:
                self._idle.append(process)
        if kind == "refused":
            raise ValueError(text)
        return text

    def _take_process(self) -> subprocess.Popen[bytes]:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _kill(process)
        return subprocess.Popen(
            (sys.executable, "-m", __name__),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _demote(template: ChatTemplate, was_at_once: bool) -> None:
    template.is_slow = True
    template.is_suspect |= not was_at_once
    limit_s, place = (
        (AT_ONCE_S, "thread") if was_at_once else (RENDER_S, "process, which is slower")
    )
    log.warning(
        "the chat template took more than %g s; from now on it runs in a separate %s",
        limit_s,
        place,
    )


def _run(process: subprocess.Popen[bytes], job: bytes, limits: RenderLimits) -> tuple[str, str]:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        write_message(process.stdin, job)  # type: ignore[arg-type]
    deadline = time.monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not selector.select(POLL_S):
            limits.check(0)
            if time.monotonic() > deadline:
                raise ValueError(TOO_LONG)
    answer = read_message(process.stdout)  # type: ignore[arg-type]
    if answer:
        kind, text = orjson.loads(answer)
        return kind, text
    status = process.wait()
    if status == -signal.SIGPROF:
        raise ValueError(TOO_LONG)
    raise _ChildLost(status)


class _ChildLost(Exception):
    """The child process ended without an answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}" if status >= 0 else signal.strsignal(-status))
        self.status = status


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
