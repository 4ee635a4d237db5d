"""Text and tokens: messages to a prompt, tokens to events. Imports neither a server nor an engine.

``rendering`` gives messages and tools to a model's own chat template, in a bounded process, and
encodes the prompt. ``parsing`` turns the tokens of an answer into events: reasoning, content, tool
calls; they are the same however the tokens are cut into steps. ``grammars`` reads the grammars
that clients send as text. docs/package.md lists the names that another program may import.
"""
