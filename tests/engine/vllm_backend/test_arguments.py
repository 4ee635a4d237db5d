import argparse
from pathlib import Path

import pytest

from eaglegate.engine.gpus import GpuDevice
from eaglegate.engine.vllm_backend import arguments as arguments_module
from eaglegate.engine.vllm_backend.arguments import (
    DEMO,
    GIB,
    TABLE,
    EngineParser,
    add_engine_arguments,
    make_demo_arguments,
    make_engine_arguments,
)
from eaglegate.engine.vllm_backend.class_names import SCHEDULER, WORKER
from eaglegate.server.backends.in_process import InProcessBackend
from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.errors import ConfigError


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that the hub was asked for. It is away: without a network it takes 23 seconds."""
    names: list[str] = []

    def download(name: str, file: str, **_: object) -> str:
        names.append(name)
        raise OSError(f"{name}/{file}: the hub is away")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    return names


def parse(*argv: str) -> argparse.Namespace:
    parser = EngineParser(prog="eaglegate")
    add_engine_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1")
    return parser.parse_args(list(argv))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--max-num-seqs=32"], r"max_num_batched_tokens \(16\) must be greater than or equal to"),
        (["--max-num-seqs=8", "--enable-lora"], "Consider increasing max_num_batched_tokens"),
    ],
)
def test_a_configuration_that_vllm_refuses_is_one_sentence(argv: list[str], said: str) -> None:
    line = read_command_line("serve", ["--max-num-batched-tokens=16", *argv], lambda _: None)
    with pytest.raises(ConfigError, match=f"^vLLM refuses this configuration: .*{said}") as found:
        InProcessBackend(line, lambda _: None)
    assert "\n" not in str(found.value)


def test_an_empty_command_line_is_the_demo_with_its_draft() -> None:
    arguments = make_engine_arguments(parse())
    assert arguments.model == str(DEMO / "target")
    assert arguments.speculative_config == {
        "method": "eagle3",
        "model": str(DEMO / "eagle3_1"),
        "num_speculative_tokens": 3,
    }
    assert arguments.enforce_eager
    assert arguments.kv_cache_memory_bytes == GIB
    assert arguments.distributed_executor_backend == "uni"


def test_the_demo_with_wishes() -> None:
    arguments = make_engine_arguments(
        parse("--speculative-config.num_speculative_tokens", "5", "--dtype", "float32")
    )
    assert arguments.model == str(DEMO / "target")
    assert arguments.speculative_config["num_speculative_tokens"] == 5
    assert arguments.speculative_config["method"] == "eagle3"
    assert arguments.dtype == "float32"


def test_the_demo_without_speculation() -> None:
    arguments = make_demo_arguments(speculative_config=None)
    assert arguments.speculative_config is None
    assert arguments.scheduler_cls is None


def test_a_vllm_command_line_works_as_it_is() -> None:
    draft = '{"method": "eagle3", "model": "d", "num_speculative_tokens": 4}'
    arguments = make_engine_arguments(
        parse(
            "org/model", "-tp", "2", "--max_model_len", "8k", "--no-enable-prefix-caching",
            "--speculative-config", draft, "--served-model-name", "a", "b",
            "--reasoning-parser", "qwen3", "--gpu-memory-utilization", "0.8",
        )
    )  # fmt: skip
    assert (arguments.model, arguments.tensor_parallel_size) == ("org/model", 2)
    assert (arguments.max_model_len, arguments.enable_prefix_caching) == (8000, False)
    assert (arguments.served_model_name, arguments.reasoning_parser) == (["a", "b"], "qwen3")
    assert arguments.gpu_memory_utilization == 0.8
    assert (arguments.scheduler_cls, arguments.worker_extension_cls) == (SCHEDULER, WORKER)


def test_explicit_flags_are_kept_even_at_their_default_values() -> None:
    arguments = make_engine_arguments(
        parse(
            "m", "--no-enforce-eager", "--kv-cache-memory-bytes", "5G",
            "--distributed-executor-backend", "mp", "--scheduler-cls", "mine.Scheduler",
            "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}',
        )
    )  # fmt: skip
    assert not arguments.enforce_eager
    assert arguments.kv_cache_memory_bytes == 5 * GIB
    assert arguments.distributed_executor_backend == "mp"
    assert arguments.scheduler_cls == "mine.Scheduler"


def test_model_may_be_named_by_flag_or_in_a_file(tmp_path: Path) -> None:
    assert make_engine_arguments(parse("--model", "m")).model == "m"
    config = tmp_path / "serve.yaml"
    config.write_text("model: from-file\nmax-model-len: 99\n")
    arguments = make_engine_arguments(parse("--config", str(config)))
    assert (arguments.model, arguments.max_model_len) == ("from-file", 99)


def test_the_hub_is_asked_for_what_the_cache_lacks(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    make_engine_arguments(parse("org/model"))
    assert asked == ["org/model"]
    folder = tmp_path / "models--org--model"
    snapshot = folder / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("c0ffee")
    make_engine_arguments(parse("org/model"))
    assert asked == ["org/model"]


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--no-such-flag")
    assert "--no-such-flag" in capsys.readouterr().err


class Gpu:
    def is_cpu(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("depth", "declared"),
    [("auto", [0, 1, 3, 7]), ("3", [3]), ("7", None), ("9", None), (None, None)],
)
def test_only_depths_that_occur_get_graphs(
    depth: str | None, declared: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments_module, "current_platform", Gpu())
    draft = '{"method": "eagle3", "model": "d", "num_speculative_tokens": 7}'
    arguments = make_engine_arguments(parse("org/model", "--speculative-config", draft), depth)
    table = arguments.speculative_config.get(TABLE)
    assert (None if table is None else [each for *_, each in table]) == declared
    assert bool(arguments.cudagraph_capture_sizes) == (depth == "auto")


@pytest.mark.parametrize(
    ("free_gib", "argv", "cache_gib", "share"),
    [
        (79, (), 2, 0.05),
        (6, (), 2, 0.05),
        (2.5, (), 1, 0.025),
        (79, ("--kv-cache-memory-bytes", "6G"), 6, 0.1),
        (79, ("--gpu-memory-utilization", "0.5"), None, 0.5),
        (79, ("--device-ids", "1"), 1, 0.025),
        (None, (), None, 0.92),
    ],
)
def test_the_demo_leaves_a_gpu_to_others(
    free_gib: float | None,
    argv: tuple[str, ...],
    cache_gib: float | None,
    share: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM compares the share with free memory before it reads the size of the KV cache."""
    free = free_gib and int(free_gib * GIB)
    gpus = (GpuDevice("H100", 80 * GIB, free), GpuDevice("H100", 80 * GIB, int(2.5 * GIB)))
    monkeypatch.setattr(arguments_module, "current_platform", Gpu())
    monkeypatch.setattr(arguments_module, "list_gpus", lambda: gpus)
    arguments = make_engine_arguments(parse(*argv))
    assert arguments.kv_cache_memory_bytes == (cache_gib and cache_gib * GIB)
    assert arguments.gpu_memory_utilization == pytest.approx(share, abs=1e-4)
    assert free is None or arguments.gpu_memory_utilization * 80 * GIB < free


def test_a_table_and_sizes_of_the_users_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments_module, "current_platform", Gpu())
    draft = '{"method": "eagle3", "model": "d", "num_speculative_tokens": 4, "%s": [[1, 9, 2]]}'
    given = parse("m", "--speculative-config", draft % TABLE, "--cudagraph-capture-sizes", "1", "2")
    arguments = make_engine_arguments(given)
    assert arguments.speculative_config[TABLE] == [[1, 9, 2]]
    assert arguments.cudagraph_capture_sizes == [1, 2]


@pytest.mark.parametrize("draft", [[], ["--speculative-config", "null"]])
def test_a_scheduler_without_a_draft_on_a_gpu(
    draft: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine without a draft has no depths to declare."""
    monkeypatch.setattr(arguments_module, "current_platform", Gpu())
    arguments = make_engine_arguments(parse("m", "--scheduler-cls", "a.b", *draft))
    assert arguments.speculative_config is None
    assert arguments.scheduler_cls == "a.b"


def test_the_names_on_a_worker_s_command_line_are_the_ones_that_are_looked_for() -> None:
    """``allow`` and the preflight of fields compare the name that was given."""
    from eaglegate import engine
    from eaglegate.engine.vllm_backend.scheduler import server_scheduler
    from eaglegate.engine.vllm_backend.worker import DepthWorker
    from tests.workers import OURS

    assert f"--worker-extension-cls={WORKER}" in OURS
    assert engine.DepthWorker is DepthWorker and engine.Scheduler is server_scheduler
    assert not hasattr(engine, "Nothing")
