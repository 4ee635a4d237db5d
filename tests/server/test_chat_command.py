"""``eaglegate chat`` against a scripted endpoint: turns, tools, numbers, hostile text."""

from __future__ import annotations

import io
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from eaglegate.server.__main__ import main
from eaglegate.server.cli.chat.answer import ChatAnswer
from eaglegate.server.cli.chat.endpoint import ChatEndpoint, EndpointFailed
from eaglegate.server.cli.chat.session import ChatConversation, ChatOutput, ChatSession, read_tools
from eaglegate.server.cli.harmless import make_harmless, make_line_harmless

HOSTILE = "\x1b]0;owned\x07\x1b[2Jred\u202eevil\u2066 \x9b31m a\rb \U000e0041 👩\u200d🚀 é\n"
CALL = {"id": "c1", "function": {"name": "get_weather", "arguments": '{"city"'}}


class Script:
    """The endpoint's answers, one list of chunks a request, and the requests it got."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.owned_by = "nobody"


def say(*texts: str, finish: str = "stop", **more: Any) -> list[dict[str, Any]]:
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": {"content": text}}]} for text in texts]
    return [*chunks, {"choices": [{"delta": {}, "finish_reason": finish}], **more}]


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path != "/v1/models":
                return self.answer(404, {"error": {"message": "no such path"}})
            return self.answer(200, {"data": [{"id": "m1", "owned_by": script.owned_by}]})

        def do_POST(self) -> None:
            script.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            script.keys.append(self.headers.get("authorization"))
            answer = script.answers.pop(0)
            if isinstance(answer, tuple):
                return self.answer(*answer)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream; charset=utf-8")
            self.end_headers()
            for chunk in answer:
                self.wfile.write(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
            return None

        def answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield script
    server.shutdown()
    server.server_close()
    thread.join()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Desk:
    """A session whose user types these lines."""

    def __init__(self, script: Script, *lines: str | type[BaseException], **fields: Any) -> None:
        self.screen, self.prompts = Terminal(), []
        self._lines = [*lines, EOFError]
        self.endpoint = ChatEndpoint(script.url)
        self.talk = ChatConversation({"model": "m1", "stream": True, **fields})
        output = ChatOutput(self.screen, self.screen, reasoning=True)
        self.session = ChatSession(self.endpoint, self.talk, output, self._read)

    def _read(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = self._lines.pop(0)
        if not isinstance(line, str):
            raise line
        return line

    def run(self) -> str:
        assert self.session.run() == 0
        self.endpoint.close()
        return self.screen.getvalue()


def test_turns_build_on_each_other(script):
    script.answers = [say("Hel", "lo.", usage={"completion_tokens": 2}), say("Bye.")]
    text = Desk(script, "/system Be brief", "Hi\\", "there", "And now?").run()
    assert "Hello.\n" in text and "2 tokens" in text and "tokens/s" in text
    assert [m["content"] for m in script.asked[0]["messages"]] == ["Be brief", "Hi\nthere"]
    assert [m["role"] for m in script.asked[1]["messages"]] == [
        "system", "user", "assistant", "user",
    ]  # fmt: skip


def test_results_of_tools_come_from_the_user(script):
    called = [
        {"choices": [{"delta": {"tool_calls": [{"index": 0, **CALL}]}}]},
        {"choices": [{"delta": {"tool_calls": [
            {"index": 0, "function": {"arguments": ': "Oslo"}'}}
        ]}, "finish_reason": "tool_calls"}]},
    ]  # fmt: skip
    script.answers = [called, say("Rain.")]
    desk = Desk(script, "Weather?", "rain, 4 degrees")
    assert 'get_weather({"city": "Oslo"})' in desk.run()
    assert "result of get_weather> " in desk.prompts
    call, result = script.asked[1]["messages"][1:]
    assert call["tool_calls"][0]["function"]["arguments"] == '{"city": "Oslo"}'
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "rain, 4 degrees"}


def test_ctrl_c_stops_the_answer_and_not_the_session(script, monkeypatch):
    script.answers = [say("one ", "two ", "three "), say("Still here.")]
    desk = Desk(script, "Count", "Are you there?")
    write = ChatOutput.write

    def interrupt(self: ChatOutput, is_reasoning: bool, text: str) -> None:
        write(self, is_reasoning, text)
        if text == "two ":
            raise KeyboardInterrupt

    monkeypatch.setattr(ChatOutput, "write", interrupt)
    text = desk.run()
    assert "[stopped]" in text and "three" not in text and "Still here." in text
    assert script.asked[1]["messages"][1] == {"role": "assistant", "content": "one two "}


def test_ctrl_c_stops_the_answer_though_the_http_client_drops_it(script, monkeypatch):
    script.answers = [say("one ", "two ", "three ")]
    desk = Desk(script, "Count")
    write = ChatOutput.write

    def interrupt(self: ChatOutput, is_reasoning: bool, text: str) -> None:
        write(self, is_reasoning, text)
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ChatOutput, "write", interrupt)
    text = desk.run()
    assert "one" in text and "[stopped]" in text and "two" not in text


def test_ctrl_c_at_the_prompt_ends_nothing(script):
    assert "Ctrl-D or /quit ends" in Desk(script, KeyboardInterrupt, "/quit").run()


def test_a_failed_turn_is_forgotten(script):
    refusal = (429, {"error": {"message": "slow down\x1b[2J"}})
    script.answers = [refusal, say("Yes."), [{"error": {"message": "engine lost"}}], say("No.")]
    text = Desk(script, "One?", "Two?", "Three?", "Four?").run()
    assert "HTTP 429: slow down\\x1b[2J" in text and "broke off: engine lost" in text
    assert [m["content"] for m in script.asked[-1]["messages"]] == ["Two?", "Yes.", "Four?"]


def test_commands(script):
    script.answers = [say("a"), say("b")]
    lines = ("/model", "/retry", "Q", "/retry", "/reset", "/model m9", "/what", "/help")
    desk = Desk(script, *lines)
    text = desk.run()
    assert "m1" in text and "nothing was asked yet" in text and "no command /what" in text
    assert script.asked[0]["messages"] == script.asked[1]["messages"]
    assert desk.talk.messages == [] and desk.talk.fields["model"] == "m9"


def test_hostile_text_is_harmless_on_a_terminal_however_it_is_cut(script):
    script.answers = [say(*HOSTILE), say(HOSTILE)]
    cut, whole = Desk(script, "a").run(), Desk(script, "a").run()
    for text in (cut, whole):
        assert "\\x1b]0;owned\\x07\\x1b[2Jred\\u202eevil\\u2066 \\x9b31m ab" in text
        assert "👩\u200d🚀 é" in text
        assert not set(text) & {"\x07", "\x9b", "\u202e", "\u2066", "\r", "\U000e0041"}
        assert "\x1b[2J" not in text


@pytest.mark.parametrize("make", [make_harmless, make_line_harmless])
def test_every_control_but_tab_and_line_feed_is_spelled(make):
    every = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
    assert {c for c in make(every) if not c.isprintable()} <= {"\n", "\t"}
    assert make("plain, é, 漢字, עברית, 🇳🇴") == "plain, é, 漢字, עברית, 🇳🇴"
    assert make_line_harmless("a\nb\tc") == "a\\nb\\tc"


def chat(monkeypatch: pytest.MonkeyPatch, typed: str, *arguments: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    return main(["chat", *arguments])


def test_in_a_pipe_the_answer_is_exact_and_alone(script, monkeypatch, capsys):
    script.answers = [[{"choices": [{"delta": {"reasoning": "hm"}}]}, *say(HOSTILE)]]
    assert chat(monkeypatch, "hi\n", script.url) == 0
    assert capsys.readouterr() == (HOSTILE, "")
    assert script.asked[0]["model"] == "m1"
    assert script.asked[0]["messages"] == [{"role": "user", "content": "hi\n"}]
    assert "per_request_spec_decode_metrics" not in script.asked[0]


def test_options_reach_the_request(script, monkeypatch, tmp_path):
    script.answers, script.owned_by = [say("x")], "eaglegate"
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps({"name": "f", "parameters": {}}))
    given = (
        script.url + "/v1/", "Q", "--model", "m2", "--system", "S", "--temperature", "0.5",
        "--max-tokens", "9", "--seed", "3", "--depth", "0", "--set", "top_p=0.9",
        "--set", "user=me", "--tools", str(tools), "--key", "sesame",
    )  # fmt: skip
    assert chat(monkeypatch, "", *given) == 0
    (asked,) = script.asked
    expected = {
        "model": "m2", "temperature": 0.5, "max_tokens": 9, "seed": 3, "top_p": 0.9, "user": "me",
        "num_speculative_tokens": 0, "per_request_spec_decode_metrics": "summary",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}],
    }  # fmt: skip
    assert expected.items() <= asked.items()
    assert script.keys == ["Bearer sesame"]


def test_calls_in_a_pipe_are_lines_of_json(script, monkeypatch, capsys):
    message = {"message": {"content": None, "tool_calls": [CALL]}, "finish_reason": "tool_calls"}
    script.answers = [(200, {"choices": [message]})]
    assert chat(monkeypatch, "", script.url, "Q") == 0
    assert json.loads(capsys.readouterr().out) == CALL["function"]


def test_a_server_without_stream_options_is_asked_again(script, monkeypatch, capsys):
    refusal = (400, {"error": {"message": "unknown field stream_options"}})
    script.answers = [refusal, say("fine")]
    assert chat(monkeypatch, "", script.url, "Q") == 0
    assert capsys.readouterr().out == "fine\n"
    assert "stream_options" not in script.asked[1]


def test_failures_in_a_pipe_have_a_status(script, monkeypatch, capsys):
    script.answers = [(503, {"error": {"message": "not now"}})]
    assert chat(monkeypatch, "", script.url, "Q") == 1
    assert "HTTP 503: not now" in capsys.readouterr().err
    assert chat(monkeypatch, "", "http://127.0.0.1:9", "Q") == 1
    assert "does not answer" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        chat(monkeypatch, "", script.url, "Q", "--set", "=1")
    with pytest.raises(SystemExit):
        chat(monkeypatch, "", script.url, "Q", "--tools", "/nowhere.json")


def test_a_stream_of_something_else_is_an_error(script):
    script.answers = [["text"]]
    with pytest.raises(EndpointFailed, match="other than chunks"):
        list(ChatEndpoint(script.url).stream({}))


REPORTS = {
    "acceptance length 3.00 (30 of 45 drafted)": {
        "metrics": {"speculative_decoding": {
            "mean_acceptance_length": 3.0, "num_accepted_draft_tokens": 30, "num_draft_tokens": 45,
        }}
    },
    "7 of 9 drafted accepted": {"timings": {"draft_n": 9, "draft_n_accepted": 7}},
    "3 of 4 drafted accepted": {
        "usage": {"completion_tokens_details": {
            "accepted_prediction_tokens": 3, "rejected_prediction_tokens": 1,
        }}
    },
    "88.0 tokens/s": {"timings": {"predicted_per_second": 88.0}},
    "ended by length": {"choices": [{"delta": {}, "finish_reason": "length"}]},
}  # fmt: skip


@pytest.mark.parametrize("words", REPORTS)
def test_numbers_that_servers_report(words):
    answer = ChatAnswer()
    assert list(answer.add(REPORTS[words])) == []
    assert words in answer.describe()


def test_speed_is_tokens_after_the_first_by_their_time():
    times = iter([10.0, 10.5, 12.5])
    answer = ChatAnswer(clock=lambda: next(times))
    for chunk in say("a", "b", usage={"completion_tokens": 11}):
        list(answer.add(chunk))
    assert answer.describe() == "11 tokens, 2.50 s, first after 0.50 s, 5.0 tokens/s"


def test_an_answer_that_comes_at_once_has_no_speed_of_its_own():
    times = iter([10.0, 12.0, 12.0001])
    answer = ChatAnswer(clock=lambda: next(times))
    for chunk in say("a", "b", usage={"completion_tokens": 11}):
        list(answer.add(chunk))
    assert "5.5 tokens/s overall" in answer.describe()


def test_tools_are_read_as_the_api_has_them():
    full = {"type": "function", "function": {"name": "f"}}
    assert read_tools(json.dumps([full])) == [full]
    assert read_tools('{"name": "f"}') == [full]
    with pytest.raises(ValueError):
        read_tools("[1]")
