"""Text and tokens: messages to a prompt, tokens to events. Imports neither a server nor an engine.

``rendering`` renders messages and tools with the model's own chat template, in a bounded process,
and encodes the prompt. ``parsing`` turns the tokens of an answer into events: reasoning, content
and tool calls. The events do not depend on how the tokens were split into steps. ``grammars`` reads
the grammars that clients send as text. docs/package.md lists the names that another program may
import.
"""
