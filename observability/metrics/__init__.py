"""Every metric group, one class each. A new metric is a class and a row here, no call site."""

from observability.metrics.base import MetricGroup
from observability.metrics.engine import EngineState, Gpus, Process, Workers
from observability.metrics.requests import (
    IgnoredFields,
    InterruptedStreams,
    Latency,
    Queue,
    Refusals,
    Requests,
    ResponseStorage,
    StepLatency,
    Tokens,
    ToolCalls,
    UserSpeed,
)
from observability.metrics.speculation import (
    Acceptance,
    AcceptancePerPosition,
    AcceptancePerRequest,
    Balance,
    ByContext,
    ByDraft,
    ByPhase,
    ByTemplate,
    DecodeSteps,
    SpeculationNow,
    Unclaimed,
)

GROUPS: tuple[type[MetricGroup], ...] = (
    Requests,
    Refusals,
    IgnoredFields,
    Queue,
    InterruptedStreams,
    ResponseStorage,
    Latency,
    StepLatency,
    UserSpeed,
    Tokens,
    Acceptance,
    AcceptancePerPosition,
    AcceptancePerRequest,
    DecodeSteps,
    Balance,
    Unclaimed,
    SpeculationNow,
    ByContext,
    ByPhase,
    ByTemplate,
    ByDraft,
    ToolCalls,
    EngineState,
    Gpus,
    Workers,
    Process,
)
