"""Check of a constraint's cost in a child process, before the engine compiles it.

A grammar is compiled and then matched token by token inside the engine's own steps, so an expensive
one stalls every request. A step of ``(.?){300}`` takes 0.05 s with a vocabulary of 2,048 tokens,
and proportionally more with a larger one. Here a child process compiles the constraint and walks
some tokens along it, within a time and a memory limit, and is killed when it exceeds them. Verdicts
are remembered, so each tool schema is tried once.

The measure is the delay of every request's tokens in CPU seconds of the grammar alone, on average
and at worst. A bounded string takes long to compile and has a slow first step (with 151,000 tokens:
seconds, and 0.03 s). That does no harm, because vLLM compiles in parallel with its steps.

The child runs ``grammar_trial`` as a program: JSON lines in, JSON lines out. It compiles as vLLM
does, with the model's vocabulary, which determines the cost of a pattern. Constraints that no
compiler accepts, or that cannot be tried, are refused. A child that is lost without a verdict is
replaced.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import signal
import sys
from collections import OrderedDict
from contextlib import suppress

from eaglegate.engine.errors import EngineFailed, EngineOverloaded, RequestRejected
from eaglegate.engine.types import Constraint
from eaglegate.engine.vllm_backend.child_process import name_exit

log = logging.getLogger(__name__)

TRIAL = "eaglegate.engine.vllm_backend.grammar_trial"
"""The module that the child runs."""
OK = "ok"
NO_GRAMMAR = "it cannot be compiled"
"""Verdicts of the child. The second one is a prefix."""
LIMIT_S = 3.0
"""Limit on the CPU seconds of a trial with a small vocabulary. Usual schemas take 0.005 to 0.05."""
PATIENCE = 10.0
"""Wall-clock seconds allowed for each CPU second of the limit."""
START_S = 180.0
EXIT_S = 5.0
"""Longest time between a child's last output and its exit, in seconds."""
MAX_BYTES = 256 << 10
REMEMBERED = 4096
ATTEMPTS = 2
RETRY_S = 1.0
CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""Signals that end a compiler that is out of memory or faulty, with the same input every time.
"""


class GrammarProbe:
    """Probe whose ``check`` raises for a constraint that would stall the engine. It has one child,
    which tries one constraint at a time."""

    def __init__(
        self, tokenizer: str, trust_remote_code: bool = False, limit_s: float = LIMIT_S
    ) -> None:
        given = (tokenizer, str(trust_remote_code), str(limit_s))
        self._command = (sys.executable, "-m", TRIAL, *given)
        self._limit_s = limit_s
        self._number = 0
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._turn = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None
        self._useless = False

    def is_known(self, constraint: Constraint) -> bool:
        """Return True if ``check`` answers at once."""
        at_once = constraint.kind in ("json_object", "choice") or _measure(constraint) > MAX_BYTES
        return at_once or _hash(_encode(constraint)) in self._verdicts

    async def check(self, constraint: Constraint) -> None:
        """Check the cost of a constraint.

        Raises RequestRejected, or EngineOverloaded if there was no verdict and the check may be
        repeated.
        """
        size = _measure(constraint)
        if size > MAX_BYTES:
            raise RequestRejected(
                f"The schema, pattern or grammar of an answer may have at most {MAX_BYTES} "
                f"characters; this one has {size}."
            )
        if constraint.kind in ("json_object", "choice"):
            return
        verdict = await self._get_verdict(constraint)
        if verdict != OK:
            raise RequestRejected(verdict)

    async def aclose(self) -> None:
        await self._kill()

    async def _get_verdict(self, constraint: Constraint) -> str:
        asked = _encode(constraint)
        digest = _hash(asked)
        if digest not in self._verdicts:
            async with self._turn:
                if digest not in self._verdicts:
                    self._verdicts[digest] = await self._try(asked)
                    if len(self._verdicts) > REMEMBERED:
                        self._verdicts.popitem(last=False)
        return self._verdicts[digest]

    async def _try(self, asked: bytes) -> str:
        """Return a verdict. If the child is lost without one, ask another child once.

        Raises EngineFailed and EngineOverloaded, which are not remembered.
        """
        exits = []
        for _ in range(ATTEMPTS):
            try:
                answer = await self._try_once(asked)
            except _ChildLost as lost:
                log.warning("the process that checks grammars ended: %s", lost)
                exits.append(lost.status)
            else:
                return answer
        if all(map(_is_crash, exits)):
            return _describe_verdict("it crashed its compiler, or needed too much memory")
        raise EngineOverloaded(
            f"The process that checks schemas, patterns and grammars ended {ATTEMPTS} times "
            "without a verdict. Try again.",
            RETRY_S,
        )

    async def _try_once(self, asked: bytes) -> str:
        """Return a verdict from the current child. Raises _ChildLost and EngineFailed."""
        try:
            child = await self._ensure_child()
        except TimeoutError:
            raise EngineFailed("The grammar of the answer could not be checked in time.") from None
        if child is None:
            return (
                "The schema, pattern or grammar of the answer cannot be checked: the grammar "
                "compilers do not know the tokenizer of this model."
            )
        if answer := await self._ask(child, asked):
            return _describe_verdict(answer)
        status = await _wait_for_exit(child)
        await self._kill()
        if status == -signal.SIGPROF:
            return _describe_verdict(f"it took more than {self._limit_s:.2g} s")
        raise _ChildLost(status)

    async def _ask(self, child: asyncio.subprocess.Process, asked: bytes) -> str:
        """Return the child's verdict; empty if the child failed or was too slow.

        Answers are numbered, because the child may first answer for a caller that has left.
        """
        self._number += 1
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(TimeoutError, ConnectionError, json.JSONDecodeError):
            child.stdin.write(b"%d %s\n" % (self._number, asked))
            async with asyncio.timeout(PATIENCE * self._limit_s):
                while answer := await child.stdout.readline():
                    number, verdict = json.loads(answer)
                    if number == self._number:
                        return str(verdict)
        return ""

    async def _ensure_child(self) -> asyncio.subprocess.Process | None:
        """Return a ready child; None if no child is possible for this model."""
        if self._useless or (self._child is not None and self._child.returncode is None):
            return self._child
        self._child = child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=MAX_BYTES,
            start_new_session=True,
        )
        assert child.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                ready = await child.stdout.readline()
        except BaseException:  # the caller left: do not keep a half-started child
            await self._kill()
            raise
        if not ready:
            status = await child.wait()
            self._child = None
            if status <= 0:
                raise _ChildLost(status)
            log.warning("structured output disabled: xgrammar has no vocabulary for this tokenizer")
            self._useless = True
            return None
        self._limit_s = float(json.loads(ready))
        return child

    async def _kill(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def _wait_for_exit(child: asyncio.subprocess.Process) -> int | None:
    """Return the exit status of a child that closed its output; None if the child still runs.

    The status must be awaited before the child is signalled. ``Popen.send_signal`` reaps a child
    that has ended, and asyncio then reports 255 instead of its status.
    """
    assert child.stdout is not None
    if child.returncode is None and child.stdout.at_eof():
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_S):
                await child.wait()
    return child.returncode


def _measure(constraint: Constraint) -> int:
    return len(constraint.value) + sum(map(len, constraint.choices))


def _encode(constraint: Constraint) -> bytes:
    return json.dumps([constraint.kind, constraint.value]).encode()


def _hash(asked: bytes) -> bytes:
    return hashlib.sha256(asked).digest()


def _describe_verdict(why: str) -> str:
    """Write the reason that follows "cannot be compiled into a grammar: "."""
    if why == OK:
        return OK
    if why.startswith(NO_GRAMMAR):
        return why.removeprefix(NO_GRAMMAR).lstrip(": ").removesuffix(".") + "."
    return (
        f"it is too complex to be matched while tokens are made: {why}. "
        "Use bounded repetition of simple parts."
    )


class _ChildLost(Exception):
    """The child ended without a verdict. ``status`` is None if it was killed because it was too
    slow."""

    def __init__(self, status: int | None) -> None:
        super().__init__("no verdict in time" if status is None else name_exit(status))
        self.status = status


def _is_crash(status: int | None) -> bool:
    """Return True if a constraint can cause this status. Other signals come from outside."""
    return status is not None and (status > 0 or -status in CRASHES)
