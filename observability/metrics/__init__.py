"""Every metric group, one class each. A new metric is a class and a row here, no call site."""

from observability.metrics.base import Group
from observability.metrics.engine import EngineState
from observability.metrics.gpu import Gpus
from observability.metrics.latency import Latency, StepLatency, UserSpeed
from observability.metrics.process import Process
from observability.metrics.requests import Admission, IgnoredFields, Queue, Requests, Store, Streams
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

GROUPS: tuple[type[Group], ...] = (
    Requests,
    Admission,
    IgnoredFields,
    Queue,
    Streams,
    Store,
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
