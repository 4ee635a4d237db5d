"""Traffic of realistic sessions: applications with separate keys that come and go.

A phase lasts 5 to 60 seconds. Each client sends one request after another and leaves at the end of
the phase, so that every lane has the same batch. Answers have 20 to 200 tokens. Some applications
send one kind of request; others mix kinds that cannot be distinguished in a request.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Application:
    """One API key with one workload. ``kinds`` are its kinds of requests with their shares."""

    name: str
    workload: str
    kinds: dict[str, float]
    seeded_share: float = 0.0
    """Share of requests with a seed."""


APPLICATIONS = (
    Application("chat", "chat", {"chat": 0.8, "creative": 0.2}, 0.1),
    Application("agent", "agent", {"tools": 0.7, "chat": 0.3}, 0.3),
    Application("extraction", "structured", {"structured": 1.0}, 0.5),
    Application("evaluation", "batch", {"hostile": 1.0}, 1.0),
    Application("translation", "chat", {"hostile": 0.7, "creative": 0.3}),
    Application("edits", "chat", {"friendly": 1.0}),
    Application("mixture", "chat", {"friendly": 0.5, "hostile": 0.5}, 0.3),
    Application("documents", "chat", {"long": 1.0}),
)
TOKENS = 20, 200
STREAMS = 1, 1, 2, 4
"""Number of clients of one application in a steady phase."""
BURST = 16


@dataclass(frozen=True)
class SessionRequest:
    """One request of a client."""

    name: str
    application: Application
    kind: str
    tokens: int
    seed: int | None


@dataclass(frozen=True)
class SessionPhase:
    """Phase; ``clients`` names the application of each client.

    It ends after ``seconds``, or when every client has sent ``requests`` and all are served.
    """

    name: str
    number: int
    seconds: float
    clients: tuple[Application, ...]
    requests: int | None = None

    def send(self, client: int) -> Iterator[SessionRequest]:
        """Yield one client's requests, which are equal in every lane."""
        draw = random.Random(f"{self.number}/{client}")
        application = self.clients[client]
        kinds, shares = list(application.kinds), list(application.kinds.values())
        for number in itertools.count() if self.requests is None else range(self.requests):
            (kind,) = draw.choices(kinds, shares)
            seed = draw.randrange(1 << 30) if draw.random() < application.seeded_share else None
            name = f"{self.number}-{client}-{number}"
            yield SessionRequest(name, application, kind, draw.randint(*TOKENS), seed)


def make_sessions(seed: int, seconds: float) -> list[SessionPhase]:
    """Make steady phases of one application, mixtures, and bursts, ``seconds`` in total."""
    draw = random.Random(seed)
    phases: list[SessionPhase] = []
    while (remaining_s := seconds - sum(phase.seconds for phase in phases)) > 0:
        phase = _draw_phase(draw, len(phases))
        phases.append(replace(phase, seconds=min(phase.seconds, remaining_s)))
    return phases


def make_laps(streams: int, requests: int, laps: int = 8) -> list[SessionPhase]:
    """Make laps of ``requests`` friendly requests, alternating with hostile ones, under one key."""
    kinds = [{"friendly": 1.0}, {"hostile": 1.0}]
    return [
        SessionPhase(
            next(iter(kinds[lap % 2])),
            lap,
            math.inf,
            (Application("laps", "chat", kinds[lap % 2]),) * streams,
            requests // streams,
        )
        for lap in range(laps)
    ]


def _draw_phase(draw: random.Random, number: int) -> SessionPhase:
    shape = draw.choices(("steady", "mixed", "burst"), (0.45, 0.35, 0.2))[0]
    if shape == "steady":
        applications = [draw.choice(APPLICATIONS)]
        clients = applications * draw.choice(STREAMS)
        seconds = draw.uniform(5, 60)
    elif shape == "mixed":
        applications = draw.sample(APPLICATIONS, draw.randint(2, 4))
        clients = [application for application in applications for _ in range(draw.randint(1, 3))]
        seconds = draw.uniform(10, 60)
    else:
        applications = draw.sample(APPLICATIONS, draw.randint(1, 2))
        clients = [applications[i % len(applications)] for i in range(BURST)]
        seconds = draw.uniform(5, 20)
    name = f"{shape} {'+'.join(application.name for application in applications)} {len(clients)}"
    return SessionPhase(name, number, seconds, tuple(clients))
