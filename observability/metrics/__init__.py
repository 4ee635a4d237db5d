"""Every metric group, one class each. A new metric is a class and a row here, no call site."""

from observability.metrics.base import MetricGroup
from observability.metrics.engine import EngineState
from observability.metrics.gpu import Gpus
from observability.metrics.latency import Latency, StepLatency, UserSpeed
from observability.metrics.process import Process
from observability.metrics.requests import (
    IgnoredFields,
    InterruptedStreams,
    Queue,
    Refusals,
    Requests,
    ResponseStorage,
)
from observability.metrics.slices import ByContext, ByPhase, ByTemplate
from observability.metrics.speculation import (
    Acceptance,
    AcceptancePerPosition,
    AcceptancePerRequest,
    Balance,
    DecodeSteps,
    SpeculationNow,
    Unclaimed,
)
from observability.metrics.tokens import Tokens
from observability.metrics.tools import ToolCalls
from observability.metrics.workers import Workers

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
    ToolCalls,
    EngineState,
    Gpus,
    Workers,
    Process,
)
