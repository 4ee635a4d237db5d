"""Engines: token ids in, steps out. Knows no HTTP server and nothing of ``server``.

``base.py`` is the interface of an engine, ``types.py`` and ``events.py`` what goes through it,
``observer.py`` how it is watched. ``vllm_backend`` runs vLLM in this process, ``remote`` drives one
worker, ``fleet`` many; ``supervision`` carries requests over the loss of an engine and
``supervisor.py`` restarts the local one. ``speculation`` accounts for drafts, plans depth, inspects
and swaps drafts; ``rendering`` makes prompts without vLLM; ``preflight`` says what would stop a
start. Called by ``server.backends`` and ``server.generation``. A new engine is a module here and a
backend.
"""
