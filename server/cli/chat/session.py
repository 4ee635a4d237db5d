"""A conversation with an endpoint: many turns in a terminal, one turn in a pipe."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import FrameType
from typing import Any, TextIO

from eaglegate.server.cli.chat.answer import ChatAnswer
from eaglegate.server.cli.chat.endpoint import ChatEndpoint, EndpointFailed
from eaglegate.server.cli.harmless import make_harmless, make_line_harmless

Message = dict[str, Any]
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
HELP = """\
/system TEXT   set the system prompt; without TEXT, remove it
/model NAME    ask another model; without NAME, list them
/retry         ask the last question again
/reset         forget the conversation
/quit          end, like Ctrl-D
Ctrl-C stops an answer. A line that ends in \\ continues on the next line."""


@contextmanager
def _note_interrupts() -> Iterator[Callable[[], bool]]:
    """Provide a function that returns True once Ctrl-C was pressed.

    The HTTP client may swallow the exception that Ctrl-C raises.
    """
    pressed = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


class ChatConversation:
    """The messages so far, and the fields of every request."""

    def __init__(self, fields: Mapping[str, Any], system: str = "") -> None:
        self.fields, self.system = dict(fields), system
        self.messages: list[Message] = []

    def make_body(self) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {**self.fields, "messages": [*system, *self.messages]}

    def find_question(self) -> int | None:
        """Return the position of the user's last message, if any."""
        places = [at for at, message in enumerate(self.messages) if message["role"] == "user"]
        return places[-1] if places else None


class ChatOutput:
    """Writes answers and remarks. On a terminal, text from the endpoint is made harmless."""

    def __init__(self, answers: TextIO, remarks: TextIO, reasoning: bool) -> None:
        self._answers, self._remarks = answers, remarks
        self.on_terminal = answers.isatty()
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        self._dim = self.on_terminal and not plain
        self._reasoning = reasoning
        self._thinking = False
        self._at_line_start = True

    def write(self, is_reasoning: bool, text: str) -> None:
        """Write a piece of an answer. In a pipe, reasoning is omitted unless requested."""
        if is_reasoning and not self._reasoning:
            return
        if is_reasoning != self._thinking:
            self._switch(is_reasoning)
        self._put(make_harmless(text) if self.on_terminal else text)

    def _switch(self, is_reasoning: bool) -> None:
        self._thinking = is_reasoning
        if not is_reasoning:
            self._put("\n\n")
        if self._dim:
            self._put(DIM if is_reasoning else PLAIN, is_text=False)

    def end_answer(self) -> None:
        """End the line, and reset the colour of reasoning."""
        if self._thinking and self._dim:
            self._put(PLAIN, is_text=False)
        self._thinking = False
        if not self._at_line_start:
            self._put("\n")

    def _put(self, text: str, is_text: bool = True) -> None:
        self._answers.write(text)
        self._answers.flush()
        if is_text and text:
            self._at_line_start = text.endswith("\n")

    def write_line(self, text: str) -> None:
        """Write a whole line among the answers."""
        self._put(f"{make_line_harmless(text) if self.on_terminal else text}\n")

    def remark(self, text: str) -> None:
        """Write something that is not part of an answer: numbers, errors, help."""
        text = make_harmless(text)
        dim = self._dim and self._remarks.isatty()
        self._remarks.write(f"{DIM}{text}{PLAIN}\n" if dim else f"{text}\n")
        self._remarks.flush()


class ChatSession:
    """Asks questions and prints answers. ``read_line`` shows a prompt and raises EOFError at the
    end.
    """

    def __init__(
        self,
        endpoint: ChatEndpoint,
        conversation: ChatConversation,
        output: ChatOutput,
        read_line: Callable[[str], str] = input,
    ) -> None:
        self._endpoint, self._conversation, self._output = endpoint, conversation, output
        self._read_line = read_line

    def ask_once(self, question: str) -> int:
        """Take one turn, for pipes, and return the exit status. Tool calls are written as JSON
        lines.
        """
        self._conversation.messages.append({"role": "user", "content": question})
        try:
            answer = self._answer()
        except EndpointFailed as error:
            self._output.remark(f"eaglegate chat: {error}")
            return 1
        for call in answer.calls.values():
            self._output.write_line(json.dumps(call.to_message()["function"]))
        return 0

    def run(self) -> int:
        """Take turns until the user ends the session."""
        while True:
            try:
                text = self._read_message("> ")
            except EOFError:
                self._output.remark("")
                return 0
            except KeyboardInterrupt:
                self._output.remark("\nCtrl-D or /quit ends; /help lists the commands")
                continue
            if text.startswith("/"):
                if self._obey(text):
                    return 0
            elif text.strip():
                self._take_turn(text)

    def _read_message(self, prompt: str) -> str:
        lines = [self._read_line(prompt)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._read_line(". "))
        return "\n".join(lines)

    def _take_turn(self, text: str) -> None:
        """Ask one question and print its answer, asking the user for results of called tools."""
        messages = self._conversation.messages
        before = len(messages)
        messages.append({"role": "user", "content": text})
        try:
            while (answer := self._answer()).calls:
                self._read_results(answer)
        except EndpointFailed as error:
            del messages[before:]
            self._output.remark(str(error))
        except (KeyboardInterrupt, EOFError):
            self._output.end_answer()
            self._output.remark("[stopped]")
            _drop_unanswered(messages, before)

    def _answer(self) -> ChatAnswer:
        """Stream one answer into the output and the conversation, even if it is interrupted."""
        answer = ChatAnswer()
        try:
            with (
                _note_interrupts() as is_interrupted,
                closing(self._endpoint.stream(self._conversation.make_body())) as chunks,
            ):
                for chunk in chunks:
                    if is_interrupted():
                        raise KeyboardInterrupt
                    for is_reasoning, text in answer.add(chunk):
                        self._output.write(is_reasoning, text)
        except (KeyboardInterrupt, EndpointFailed):
            answer.calls.clear()
            if answer.content:
                self._conversation.messages.append(answer.to_message())
            self._output.end_answer()
            raise
        self._conversation.messages.append(answer.to_message())
        self._output.end_answer()
        if self._output.on_terminal:
            self._output.remark(f"[{answer.describe()}]")
        return answer

    def _read_results(self, answer: ChatAnswer) -> None:
        """Ask the user what each called tool returned."""
        for call in answer.calls.values():
            self._output.write_line(f"{call.name}({call.arguments})")
            result = self._read_message(f"result of {make_line_harmless(call.name)}> ")
            self._conversation.messages.append(
                {"role": "tool", "tool_call_id": call.id, "content": result}
            )

    def _obey(self, line: str) -> bool:
        """Run a command. Return True if it ends the session."""
        command, _, rest = line.partition(" ")
        conversation = self._conversation
        match command:
            case "/quit" | "/exit":
                return True
            case "/reset":
                conversation.messages.clear()
            case "/system":
                conversation.system = rest.strip()
            case "/model":
                self._choose_model(rest.strip())
            case "/retry":
                self._retry()
            case "/help":
                self._output.remark(HELP)
            case _:
                self._output.remark(f"there is no command {command}; /help lists them")
        return False

    def _choose_model(self, name: str) -> None:
        if name:
            self._conversation.fields["model"] = name
            return
        try:
            models = [model["id"] for model in self._endpoint.list_models()]
        except EndpointFailed as error:
            self._output.remark(str(error))
        else:
            self._output.remark("\n".join(models))

    def _retry(self) -> None:
        at = self._conversation.find_question()
        if at is None:
            self._output.remark("nothing was asked yet")
            return
        question = self._conversation.messages[at]["content"]
        del self._conversation.messages[at:]
        self._take_turn(question)


def _drop_unanswered(messages: list[Message], before: int) -> None:
    """Remove a turn without an answer, or with calls that lack results."""
    while len(messages) > before and (
        messages[-1]["role"] in ("user", "tool") or messages[-1].get("tool_calls")
    ):
        messages.pop()


def read_terminal_line() -> Callable[[str], str]:
    """Return ``input`` with line editing if available. Its history is kept only in memory."""
    try:
        import readline
    except ImportError:
        return input
    readline.set_auto_history(True)
    return input


def is_terminal(*streams: TextIO) -> bool:
    return all(stream.isatty() for stream in streams)


def make_output(reasoning: bool) -> ChatOutput:
    return ChatOutput(sys.stdout, sys.stderr, reasoning or sys.stdout.isatty())


def read_tools(text: str) -> Sequence[Any]:
    """Read tool definitions: a list, or a single one. Raises ValueError."""
    found = json.loads(text)
    tools = found if isinstance(found, list) else [found]
    if not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("tools are JSON objects")
    return [tool if "type" in tool else {"type": "function", "function": tool} for tool in tools]
