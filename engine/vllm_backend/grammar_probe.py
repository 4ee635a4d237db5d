"""Tries constraints out before the engine meets them: some are small and never end.

A grammar is compiled, and then matched token after token, inside the engine's own steps, so one
that explodes stops everybody: a step of ``(.?){300}`` takes 0.05 s with a vocabulary of 2,048
tokens, and in proportion with more. Here a child process compiles it and walks some tokens along
it, within a time and a memory limit, and is killed when it passes them. Verdicts are remembered, so
a tool schema is tried once.

What counts is what everybody's tokens would wait, in CPU seconds of the grammar alone: on average,
and at worst. A bounded string is compiled for long and has a slow first step (with 151,000 tokens:
seconds, and 0.03 s), which is no harm: vLLM compiles beside its steps.

The child is this module run as a program: JSON lines in, JSON lines out. It uses xgrammar with the
model's vocabulary, which decides how hard a pattern is; what xgrammar does not know is left to
vLLM, whose other backend (llguidance) has limits of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import resource
import signal
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from engine.errors import EngineFailed, RequestRejected
from engine.types import Constraint

log = logging.getLogger(__name__)

LIMIT_S = 3.0
"""CPU seconds of compiling and walking, with a small vocabulary; usual schemas take 0.005 to 0.05.
"""
TOKENS_PER_S = 10_000
"""So many tokens of a vocabulary add a second: a bounded string takes 3 with 151,000."""
PATIENCE = 10.0
"""Seconds that may pass for each CPU second of the limit."""
START_S = 180.0
MEMORY_BYTES = 6 << 30
"""Address space of the child; imports alone reserve about half of it."""
MAX_BYTES = 256 << 10
STEPS = 400
WALK_S = 0.4
STEP_S = 0.02
"""Mean CPU seconds of a step; usual schemas take less than 0.001 with any vocabulary."""
STALL_S = 0.25
"""CPU seconds of the slowest step; usual schemas take up to 0.03 with 151,000 tokens."""
REMEMBERED = 4096
OK = "ok"


class GrammarProbe:
    """``check`` raises for a constraint that would hold up the engine. One child, one at a time."""

    def __init__(
        self, tokenizer: str, trust_remote_code: bool = False, limit_s: float = LIMIT_S
    ) -> None:
        given = (tokenizer, str(trust_remote_code), str(limit_s))
        self._command = (sys.executable, "-m", __name__, *given)
        self._limit_s = limit_s
        self._number = 0
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._turn = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None
        self._useless = False

    async def check(self, constraint: Constraint) -> None:
        """Raises RequestRejected."""
        size = len(constraint.value) + sum(map(len, constraint.choices))
        if size > MAX_BYTES:
            raise RequestRejected(
                f"The schema, pattern or grammar of an answer may have at most {MAX_BYTES} "
                f"characters; this one has {size}."
            )
        if constraint.kind in ("json_object", "choice"):
            return
        verdict = await self._verdict(constraint)
        if verdict != OK:
            raise RequestRejected(verdict)

    async def aclose(self) -> None:
        await self._kill()

    async def _verdict(self, constraint: Constraint) -> str:
        asked = json.dumps([constraint.kind, constraint.value]).encode()
        digest = hashlib.sha256(asked).digest()
        if digest not in self._verdicts:
            async with self._turn:
                if digest not in self._verdicts:
                    self._verdicts[digest] = await self._try(asked)
                    if len(self._verdicts) > REMEMBERED:
                        self._verdicts.popitem(last=False)
        return self._verdicts[digest]

    async def _try(self, asked: bytes) -> str:
        try:
            child = await self._running()
        except TimeoutError:
            raise EngineFailed("There was no time to try out what the answer must match.") from None
        if child is None:
            return OK
        answer = await self._ask(child, asked)
        if not answer:
            await self._kill()
        why = answer or _why_broken(child.returncode, self._limit_s)
        if why in (OK, "unknown"):
            return OK
        return (
            "The schema, pattern or grammar of the answer is too complex to be matched while "
            f"tokens are made: {why}. Use bounded repetition of simple parts."
        )

    async def _ask(self, child: asyncio.subprocess.Process, asked: bytes) -> str:
        """The child's verdict; empty when it broke or was too slow.

        What one that left had asked may be answered first: answers are numbered.
        """
        self._number += 1
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(TimeoutError, ConnectionError):
            child.stdin.write(b"%d %s\n" % (self._number, asked))
            async with asyncio.timeout(PATIENCE * self._limit_s):
                while answer := await child.stdout.readline():
                    number, verdict = json.loads(answer)
                    if number == self._number:
                        return str(verdict)
        return ""

    async def _running(self) -> asyncio.subprocess.Process | None:
        """The child, ready; None when there can be none for this model."""
        if self._useless or (self._child is not None and self._child.returncode is None):
            return self._child
        self._child = child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=MAX_BYTES,
        )
        assert child.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                ready = await child.stdout.readline()
        except BaseException:  # whoever waited has left: it is not to be found half ready
            await self._kill()
            raise
        if not ready:
            log.warning("constraints are not tried out: no xgrammar vocabulary for this tokenizer")
            self._useless = True
            await self._kill()
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


def _why_broken(status: int | None, limit_s: float) -> str:
    """SIGPROF is the child's own clock, SIGKILL ours."""
    if status in (-signal.SIGPROF, -signal.SIGKILL):
        return f"it took more than {limit_s:.2g} s"
    return "it needed too much memory"


def main(tokenizer: str, trust_remote_code: bool, limit_s: float) -> None:
    """The child: says how long a trial may take, then answers one line for each line.

    A trial that takes longer is ended by the kernel: xgrammar looks at no clock.
    """
    from transformers import AutoTokenizer

    trial = Trial(AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=trust_remote_code))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    limit_s += trial.info.vocab_size / TOKENS_PER_S
    print(json.dumps(limit_s), flush=True)
    for line in sys.stdin:
        number, _, asked = line.partition(" ")
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        verdict = trial.verdict(*json.loads(asked))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([int(number), verdict]), flush=True)


class Trial:
    """Compiles and walks for the vocabulary of ``tokenizer``, as transformers loads it."""

    def __init__(self, tokenizer: Any) -> None:
        import numpy as np
        import xgrammar

        self._xgrammar = xgrammar
        self.info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
        self._compiler = xgrammar.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)
        self._cost = np.array([_cost(token) for token in self.info.decoded_vocab])

    def verdict(self, kind: str, value: str) -> str:
        try:
            compiled = self._compile(kind, value)
        except MemoryError:
            return "it needed too much memory"
        except Exception:  # whatever xgrammar raises, it is vLLM's to judge
            return "unknown"
        for short in (False, True):
            steps = self._walk(compiled, short)
            mean = sum(steps) / max(1, len(steps))
            if mean >= STEP_S or max(steps, default=0.0) >= STALL_S:
                return f"its tokens took {mean:.2g} s each, one {max(steps):.2g} s"
        return OK

    def _compile(self, kind: str, value: str) -> Any:
        match kind:
            case "regex":
                return self._compiler.compile_regex(value)
            case "grammar":
                return self._compiler.compile_grammar(value)
            case "structural_tag":
                return self._compiler.compile_structural_tag(value)
        return self._compiler.compile_json_schema(value)

    def _walk(self, compiled: Any, short: bool) -> list[float]:
        """Along the grammar as an engine would go; the CPU seconds of each step.

        By some allowed token each time, or by the shortest that goes on: neither white space, which
        JSON allows without end, nor what closes something if there is anything else.
        """
        matcher = self._xgrammar.GrammarMatcher(compiled)
        mask = self._xgrammar.allocate_token_bitmask(1, self.info.vocab_size)
        steps: list[float] = []
        while len(steps) < STEPS and sum(steps) < WALK_S:
            before = time.process_time()
            matcher.fill_next_token_bitmask(mask)
            spent = time.process_time() - before
            chosen = self._choice(mask, len(steps) + 1, short)
            before = time.process_time()
            if chosen is None or not matcher.accept_token(chosen):
                break
            steps.append(spent + time.process_time() - before)
        return steps

    def _choice(self, mask: Any, number: int, short: bool) -> int | None:
        import numpy as np

        bits = np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little")
        bits[self.info.stop_token_ids] = 0
        allowed = np.flatnonzero(bits[: self.info.vocab_size])
        if not len(allowed):
            return None
        at = self._cost[allowed].argmin() if short else number * 7919 % len(allowed)
        return int(allowed[at])


def _cost(token: bytes) -> float:
    if not token.strip():
        return 1000.0
    return len(token) + 0.5 * (token[:1] in (b"}", b"]", b'"'))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "True", float(sys.argv[3]))
