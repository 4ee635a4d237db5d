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
from eaglegate.text.limited_child import ChildLost, LimitedChild

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
MAX_BYTES = 256 << 10
MAX_VERDICTS = 4096
ATTEMPTS = 2
RETRY_S = 1.0
CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""Signals that end a compiler that is out of memory or faulty, with the same input every time."""


class GrammarProbe(LimitedChild):
    """Probe whose ``check`` raises for a constraint that would stall the engine. It has one child,
    which tries one constraint at a time."""

    def __init__(
        self, tokenizer: str, trust_remote_code: bool = False, limit_s: float = LIMIT_S
    ) -> None:
        arguments = (tokenizer, str(trust_remote_code), str(limit_s))
        super().__init__((sys.executable, "-m", TRIAL, *arguments))
        self._limit_s = limit_s
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._turn = asyncio.Lock()
        self._is_useless = False

    def is_known(self, constraint: Constraint) -> bool:
        """Return True if ``check`` answers at once."""
        needs_no_trial = (
            constraint.kind in ("json_object", "choice") or _measure(constraint) > MAX_BYTES
        )
        return needs_no_trial or _hash(_encode(constraint)) in self._verdicts

    async def warm_up(self) -> None:
        """Start the child, whose imports would delay the first constrained request by seconds."""
        async with self._turn:
            with suppress(ChildLost, TimeoutError, OSError):  # ``check`` reports them
                await self._ensure_child()

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

    async def _get_verdict(self, constraint: Constraint) -> str:
        payload = _encode(constraint)
        digest = _hash(payload)
        if digest not in self._verdicts:
            async with self._turn:
                if digest not in self._verdicts:
                    self._verdicts[digest] = await self._try(payload)
                    if len(self._verdicts) > MAX_VERDICTS:
                        self._verdicts.popitem(last=False)
        return self._verdicts[digest]

    async def _try(self, payload: bytes) -> str:
        """Return a verdict. If the child is lost without one, ask another child once.

        Raises EngineFailed and EngineOverloaded, which are not remembered.
        """
        losses = []
        for _ in range(ATTEMPTS):
            try:
                answer = await self._try_once(payload)
            except ChildLost as error:
                log.warning("the process that checks grammars ended: %s", error)
                losses.append(error)
            else:
                return answer
        if all(map(_is_crash, losses)):
            return _describe_verdict("it crashed its compiler, or needed too much memory")
        raise EngineOverloaded(
            f"The process that checks schemas, patterns and grammars ended {ATTEMPTS} times "
            "without a verdict. Try again.",
            RETRY_S,
        )

    async def _try_once(self, payload: bytes) -> str:
        """Return a verdict from the current child. Raises ChildLost and EngineFailed."""
        try:
            is_ready = await self._ensure_child()
        except TimeoutError:
            raise EngineFailed("The grammar of the answer could not be checked in time.") from None
        except ChildLost as error:
            raise _StartFailed(error.status) from None
        if not is_ready:
            return (
                "The schema, pattern or grammar of the answer cannot be checked: the grammar "
                "compilers do not know the tokenizer of this model."
            )
        try:
            return _describe_verdict(str(await self._ask(payload, PATIENCE * self._limit_s)))
        except ChildLost as error:
            if error.status != -signal.SIGPROF:
                raise
            return _describe_verdict(f"it took more than {self._limit_s:.2g} s")

    async def _ensure_child(self) -> bool:
        """Return True if a child is ready, and False if none is possible for this model."""
        if self._is_useless or self._is_running:
            return not self._is_useless
        limit_s = await self._start()
        if limit_s is None:
            log.warning("structured output disabled: xgrammar has no vocabulary for this tokenizer")
            self._is_useless = True
            await self.aclose()
        else:
            self._limit_s = float(limit_s)
        return not self._is_useless


def _measure(constraint: Constraint) -> int:
    return len(constraint.value) + sum(map(len, constraint.choices))


def _encode(constraint: Constraint) -> bytes:
    return json.dumps([constraint.kind, constraint.value]).encode()


def _hash(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()


def _describe_verdict(reason: str) -> str:
    """Write the reason that follows "cannot be compiled into a grammar: "."""
    if reason == OK:
        return OK
    if reason.startswith(NO_GRAMMAR):
        return reason.removeprefix(NO_GRAMMAR).lstrip(": ").removesuffix(".") + "."
    return (
        f"it is too complex to be matched while tokens are made: {reason}. "
        "Use bounded repetition of simple parts."
    )


class _StartFailed(ChildLost):
    """The child ended before it was given a constraint."""


def _is_crash(error: ChildLost) -> bool:
    """Return True if the constraint can be the cause. Other signals come from outside."""
    if error.status is None or isinstance(error, _StartFailed):
        return False
    return error.status > 0 or -error.status in CRASHES
