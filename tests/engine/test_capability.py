"""Engines answer for themselves, and wrappers for the engines that they wrap."""

from __future__ import annotations

import pytest

from eaglegate.engine.base import DropsBlocks, SupportsDepth, SupportsKill
from eaglegate.engine.errors import EngineFailed
from eaglegate.engine.scripted import ScriptedEngine
from eaglegate.engine.wrapper import EngineWrapper
from tests.engine.supervision.mortal import Cradle, supervised, until


class Cached(ScriptedEngine, DropsBlocks):
    async def drop_blocks(self) -> int:
        return 1


class Guarded(EngineWrapper, SupportsKill):
    def kill(self) -> int:
        return 0


def test_an_engine_has_the_capabilities_among_its_bases() -> None:
    engine = Cached()
    assert engine.capability(DropsBlocks) is engine
    assert engine.capability(SupportsKill) is None


def test_a_method_of_the_same_name_is_no_capability() -> None:
    class Toy(ScriptedEngine):
        def kill(self) -> None: ...

    assert Toy().capability(SupportsKill) is None


def test_a_wrapper_passes_the_question_on() -> None:
    engine = Cached()
    wrapper = EngineWrapper(Guarded(engine))
    assert wrapper.capability(DropsBlocks) is engine
    assert isinstance(wrapper.capability(SupportsKill), Guarded)
    assert wrapper.capability(SupportsDepth) is None


async def test_a_supervisor_guards_some_and_passes_others_on() -> None:
    cradle = Cradle(start_hangs={1})
    engine, _ = supervised(cradle)
    assert engine.capability(DropsBlocks) is engine
    assert engine.capability(SupportsKill) is None
    await engine.start()
    with pytest.raises(EngineFailed, match="cannot drop"):
        await engine.drop_blocks()
    assert engine.capability(SupportsKill) is cradle.lives[0]
    cradle.lives[0].kill()
    await until(lambda: len(cradle.lives) == 2)
    assert engine.capability(SupportsKill) is None
    with pytest.raises(EngineFailed, match="restarted"):
        await engine.drop_blocks()
    cradle.lives[1].hangs.set()
    await engine.aclose()
