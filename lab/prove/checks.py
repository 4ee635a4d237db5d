"""The checks of ``eaglegate prove``: one function and one row of ``CHECKS`` each.

Every check takes the ``Trial`` and returns ``Evidence``. Thresholds are here, with their reasons.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from eaglegate.engine.errors import DraftRefused, EngineError, EngineFailed
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineRequest, Execution, Sampling, WorkerExecution
from eaglegate.lab.prove.blank_draft import make_blank_draft
from eaglegate.lab.prove.lane import (
    Progress,
    ProofAnswer,
    Speed,
    SpeedLoad,
    add_totals,
    divide,
    fix_depth,
    make_requests,
    measure_speed,
    run,
    run_all,
)
from eaglegate.lab.prove.sampling import score_samples
from eaglegate.lab.prove.texts import Kind, TextComparison, compare_texts
from eaglegate.lab.prove.trial import (
    TOP,
    Evidence,
    ProofOutcome,
    Trial,
    sample_seeded,
)

LEAST_ACCEPTANCE = 0.3
"""Smallest acceptance of first draft tokens. A pass of a draft and one more token to verify cost an
eighth to a third of a plain step, so a draft accepted less often pays at no depth. Trained EAGLE 3
drafts have 0.6 to 0.9 on chat; noise has 0.0.
"""
Z_FAILED, Z_UNSURE, Z_POWER = 5.0, 4.0, 8.0
"""Standard deviations. A normal variable exceeds 5 once in two million, and 4 once in 16,000."""
HOT, TOP_K = 2.0, TOP
"""Temperature high enough that there is much to choose from."""
LEAST_SPEED = 0.8
"""Smallest share of the speed without a draft. At worst the planner drafts nothing, which costs 4
to 12 %.
"""
LEAST_PLANNED = 0.85
"""Smallest share of the best fixed depth's total tokens per second that the planner may reach."""
MOST_TIES = 0.5
"""Share of texts with near ties above which ties hide more than they explain."""
EAGER = "NONE"


def grade(*, fails: bool, unsure: bool = False) -> ProofOutcome:
    if fails:
        return ProofOutcome.FAILED
    return ProofOutcome.UNSURE if unsure else ProofOutcome.PASSED


@dataclass(frozen=True, slots=True)
class Check:
    """Row of the report."""

    name: str
    question: str
    run: Callable[[Trial], Awaitable[Evidence]]
    measures_speed: bool = False


async def check_execution(trial: Trial) -> Evidence:
    execution = await trial.lane.describe_execution()
    if execution is None:
        return Evidence(
            ProofOutcome.UNSURE, "The workers of this engine do not report how they run."
        )
    outcome, verdict = judge_execution(execution)
    return Evidence(outcome, f"{describe_execution(execution)} {verdict}", asdict(execution))


def describe_execution(execution: Execution) -> str:
    worker = execution.workers[0]
    runner = "second" if worker.runner == 2 else "first"
    scheduling = "asynchronous" if execution.asynchronous else "synchronous"
    return (
        f"vLLM's {runner} model runner, {scheduling} scheduling, {execution.dtype}, attention by "
        f"{' and '.join(worker.attention) or 'an unknown backend'}."
    )


def judge_execution(execution: Execution) -> tuple[ProofOutcome, str]:
    """Judge if the engine runs as its arguments ask: compiled, with graphs, or eagerly."""
    modes = [name for name in (execution.compilation, execution.graphs) if name != EAGER]
    if not modes and execution.eager:
        return ProofOutcome.PASSED, "It runs eagerly, as its arguments and their defaults ask."
    if not modes:
        return ProofOutcome.FAILED, "It runs eagerly, and its arguments do not ask for that."
    for worker in execution.workers:
        if fault := find_fallback(execution, worker):
            return ProofOutcome.FAILED, fault
    steps = sum(execution.steps.values())
    if execution.graphs != EAGER and execution.steps.get(EAGER, 0) > steps / 2:
        eager_steps = execution.steps[EAGER]
        return ProofOutcome.FAILED, f"{eager_steps} of {steps} steps ran without a graph."
    lower_modes = {worker.graphs for worker in execution.workers} - {execution.graphs}
    if lower_modes:
        return (
            ProofOutcome.UNSURE,
            f"vLLM lowered the graph mode from {execution.graphs} to {lower_modes.pop()}; the "
            "speeds below show the cost.",
        )
    compiled, graphs = f"compiled ({execution.compilation})", f"{execution.graphs} graphs"
    if execution.compilation == EAGER:
        compiled = "not compiled"
    if execution.graphs == EAGER:
        graphs = "no graphs, none asked for"
    return ProofOutcome.PASSED, f"It runs {compiled}, with {graphs}, as asked."


def find_fallback(execution: Execution, worker: WorkerExecution) -> str:
    """Describe a worker's fallback to eager execution in a sentence; empty without one."""
    is_compiled = execution.compilation not in (EAGER, "STOCK_TORCH_COMPILE")
    if is_compiled and not worker.compiled_parts:
        return (
            f"It fell back to eager execution: {execution.compilation} was asked for, and 0 of "
            f"{worker.compilable_parts} parts of the model run compiled."
        )
    if execution.graphs == EAGER:
        return ""
    if worker.graphs == EAGER or not worker.captured:
        return (
            f"It fell back to eager execution: {execution.graphs} graphs were asked for, the "
            f"worker has {worker.graphs} and captured {worker.captured}."
        )
    return ""


NO_ACCOUNTS = Evidence(
    ProofOutcome.UNSURE,
    "This engine does not report its decode steps, because it has another scheduler.",
)


async def check_acceptance(trial: Trial) -> Evidence:
    if not trial.lane.info.reports_decode_steps:
        return NO_ACCOUNTS
    requests = trial.make_greedy("draft")
    totals = add_totals(await run_all(trial.lane, fix_depth(trial.depth, requests)))
    return judge_acceptance(totals, trial.depth)


def judge_acceptance(totals: Totals, depth: int) -> Evidence:
    steps = totals.verify_steps
    if not steps:
        return Evidence(ProofOutcome.FAILED, "No draft was verified at all.", {"verify_steps": 0})
    share = totals.accepted_at[0] / steps if totals.accepted_at else 0.0
    low, high = bound_share(share, steps)
    evidence = (
        f"The target accepts {share:.0%} of first draft tokens ({steps} steps at depth {depth}, "
        f"acceptance length {totals.acceptance_length:.2f}); a draft needs "
        f"{LEAST_ACCEPTANCE:.0%}."
    )
    numbers = {
        "verify_steps": steps,
        "first_accepted": round(share, 4),
        "interval": [round(low, 4), round(high, 4)],
        "acceptance_length": round(totals.acceptance_length or 0, 3),
        "per_position": [round(rate, 4) for rate in totals.acceptance_per_position],
    }
    outcome = grade(fails=high < LEAST_ACCEPTANCE, unsure=low < LEAST_ACCEPTANCE)
    return Evidence(outcome, evidence, numbers)


def bound_share(share: float, count: int, z: float = 3.0) -> tuple[float, float]:
    """Return Wilson's interval of a share observed ``count`` times."""
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    center, scale = share + z * z / (2 * count), 1 + z * z / count
    return (center - spread) / scale, (center + spread) / scale


async def check_greedy_text(trial: Trial) -> Evidence:
    requests = trial.make_greedy("greedy")
    return await compare_at_depths(trial, requests, trial.reference.greedy_answers)


async def check_seeded_text(trial: Trial) -> Evidence:
    def sample(number: int) -> Sampling:
        return sample_seeded(trial.size, number, None)

    requests = make_requests("seeded", trial.prompts, sample)
    return await compare_at_depths(trial, requests, trial.reference.seeded_answers)


async def compare_at_depths(
    trial: Trial, requests: Sequence[EngineRequest], reference: Sequence[ProofAnswer]
) -> Evidence:
    """Compare texts at depths 0, 1 and K in one batch, at K alone, and as served by default."""
    depths = sorted({0, 1, trial.depth})
    pairs: list[tuple[ProofAnswer, ProofAnswer]] = []
    for group in (
        [fix_depth(depth, requests) for depth in depths],
        [fix_depth(trial.depth, requests)],
        [requests],
    ):
        batch = [request for copies in group for request in copies]
        answers = await run_all(trial.lane, batch)
        pairs += zip([*reference] * len(group), answers, strict=True)
    comparison = compare_texts(pairs, trial.dtype, trial.noise)
    names = ", ".join(map(str, depths))
    return judge_texts(comparison, f"at depths {names} in one batch, {trial.depth} and by default")


def judge_texts(comparison: TextComparison, circumstances: str) -> Evidence:
    faults, unknowns = comparison.count(Kind.FAULT), comparison.count(Kind.UNKNOWN)
    ties = comparison.count(Kind.TIE)
    equal_count = comparison.answers - len(comparison.differences)
    evidence = (
        f"{equal_count} of {comparison.answers} texts {circumstances} equal those without a "
        f"draft; {ties} leave them at a near tie, {faults} by a fault ({comparison.tokens} tokens "
        "compared)."
    )
    for difference in comparison.differences:
        if difference.kind is Kind.FAULT:
            evidence += f" The first fault is in {difference}."
            break
    evidence += f" {unknowns} differences are unexplained." if unknowns else ""
    is_unsure = bool(unknowns) or ties > MOST_TIES * comparison.answers
    outcome = grade(fails=bool(faults), unsure=is_unsure)
    return Evidence(outcome, evidence, comparison.to_json())


async def check_sampled_text(trial: Trial) -> Evidence:
    if not trial.raw_logprobs:
        return Evidence(
            ProofOutcome.UNSURE,
            "--logprobs-mode reports log probabilities after sampling parameters, so the target's "
            "own distribution is unknown.",
        )
    sampling = Sampling(
        max_tokens=trial.size.sampled_tokens,
        temperature=HOT,
        top_k=TOP_K,
        logprobs=TOP_K,
        ignore_eos=True,
    )
    count = trial.size.samples
    prompts = [trial.openings[number % len(trial.openings)] for number in range(count)]
    requests = make_requests("sampled", prompts, lambda _: sampling)
    by_depth = {
        depth: await run_all(trial.lane, fix_depth(depth, requests)) for depth in (0, trial.depth)
    }
    return judge_samples(by_depth)


def judge_samples(by_depth: dict[int, list[ProofAnswer]]) -> Evidence:
    scores = {depth: score_samples(answers, HOT, TOP_K) for depth, answers in by_depth.items()}
    deviation = max(score.max_deviation for score in scores.values())
    power = min((score.power for score in scores.values()), key=abs)
    outsiders = sum(score.outside_top_k for score in scores.values())
    parts = [
        f"at depth {depth} {score.counts[0]} of {score.tokens} tokens are the likeliest, "
        f"{score.expected_counts[0]:.0f} expected (z {score.score.z:+.1f})"
        for depth, score in scores.items()
    ]
    evidence = (
        f"Temperature {HOT:g}, top-k {TOP_K}: {'; '.join(parts)}. Ignoring the temperature would "
        f"give z {power:+.0f}."
    )
    evidence += f" {outsiders} tokens are outside top-k." if outsiders else ""
    numbers = {f"depth {depth}": score.to_json() for depth, score in scores.items()}
    outcome = grade(
        fails=deviation > Z_FAILED or outsiders > 0,
        unsure=abs(power) < Z_POWER or deviation > Z_UNSURE,
    )
    return Evidence(outcome, evidence, numbers)


async def check_depth(trial: Trial) -> Evidence:
    """Check the drafted and delivered tokens of each step, with every depth in one batch."""
    if not trial.lane.info.reports_decode_steps:
        return NO_ACCOUNTS
    requests = trial.make_greedy("depth")[: max(2, len(trial.prompts) // 4)]
    depths = range(trial.depth + 1)
    answers = await run_all(
        trial.lane, [request for depth in depths for request in fix_depth(depth, requests)]
    )
    return judge_depths(answers, trial.depth)


def judge_depths(answers: Sequence[ProofAnswer], max_depth: int) -> Evidence:
    max_drafts = dict.fromkeys(range(max_depth + 1), 0)
    offenders: list[str] = []
    for answer in answers:
        depth = answer.request.depth or 0
        steps = answer.account.decode_steps
        max_drafts[depth] = max([max_drafts[depth], *(step.drafted for step in steps)])
        if any(step.drafted > depth or step.delivered > depth + 1 for step in steps):
            offenders.append(answer.request.id)
    shortfalls = [depth for depth, length in max_drafts.items() if length < depth]
    evidence = (
        f"{len(answers)} answers at depths 0 to {max_depth} in one batch; the deepest drafts were "
        f"{', '.join(f'{length} at {depth}' for depth, length in max_drafts.items())}."
    )
    numbers = {"deepest": max_drafts, "over": offenders[:10]}
    if offenders:
        first = offenders[0]
        evidence += f" {len(offenders)} answers have steps beyond their depth, first {first}."
    elif shortfalls:
        evidence += " Not every depth was reached."
    outcome = grade(fails=bool(offenders), unsure=bool(shortfalls))
    return Evidence(outcome, evidence, numbers)


async def check_accounts(trial: Trial) -> Evidence:
    """Compare accounts over mixed depths, limits, temperatures, seeds and clients that leave."""
    if not trial.lane.info.reports_decode_steps:
        return NO_ACCOUNTS
    lane, dice = trial.lane, random.Random(1)
    await _settle(trial)
    start_counts, start_unclaimed = lane.count_drafts(), lane.unclaimed
    jobs = [
        (make_mixed_request(trial, number, dice), dice.choice((0, 0, 0, 5)))
        for number in range(trial.size.mixed_requests)
    ]
    answers = await asyncio.gather(
        *(run(lane, request, leave_after=patience) for request, patience in jobs)
    )
    await _settle(trial)
    end_counts = lane.count_drafts()
    if start_counts is None or end_counts is None:
        return Evidence(ProofOutcome.UNSURE, "The engine keeps no counters (--disable-log-stats).")
    own_totals = add_totals(answers) + lane.unclaimed
    return judge_accounts(
        answers,
        subtract_counts(own_totals, start_unclaimed),
        subtract_counts(end_counts, start_counts),
    )


Counts = tuple[int, int, int]
"""Verify steps, draft tokens, and accepted tokens before any cut."""


def subtract_counts(end: Totals, start: Totals) -> Counts:
    pairs = zip(_count_all(end), _count_all(start), strict=True)
    steps, drafted, accepted = (a - b for a, b in pairs)
    return steps, drafted, accepted


def _count_all(totals: Totals) -> Counts:
    return totals.verify_steps, totals.proposed, totals.accepted + totals.cut


async def _settle(trial: Trial) -> None:
    """Run a request of one token. When it has ended, all earlier steps are counted."""
    request = EngineRequest(
        f"quiet-{time.perf_counter()}", trial.prompts[0], Sampling(max_tokens=1)
    )
    await run(trial.lane, request)


def make_mixed_request(trial: Trial, number: int, dice: random.Random) -> EngineRequest:
    sampling = Sampling(
        max_tokens=dice.randint(1, trial.size.tokens),
        temperature=dice.choice((0.0, 0.0, 0.7, 1.0)),
        top_k=dice.choice((0, 0, 20)),
        seed=dice.choice((None, number)),
        logprobs=dice.choice((None, None, 2)),
        presence_penalty=dice.choice((0.0, 0.0, 0.5)),
    )
    depth = dice.choice((None, *range(trial.depth + 1)))
    return EngineRequest(f"mixed-{number}", dice.choice(trial.prompts), sampling, depth=depth)


def judge_accounts(answers: Sequence[ProofAnswer], accounts: Counts, engine: Counts) -> Evidence:
    mismatches = [answer.request.id for answer in answers if answer.totals.imbalance]
    names = ("verify steps", "draft tokens", "accepted tokens")
    parts = [
        f"{name} {account} and {counter}"
        for name, account, counter in zip(names, accounts, engine, strict=True)
    ]
    evidence = (
        f"{len(answers)} mixed requests; by our accounts and by the engine's counters: "
        f"{', '.join(parts)}. {len(mismatches)} answers have tokens that no step explains."
    )
    numbers = {"ours": list(accounts), "engine": list(engine), "unexplained": mismatches[:10]}
    outcome = grade(fails=accounts != engine or bool(mismatches))
    return Evidence(outcome, evidence, numbers)


async def check_exchange(trial: Trial) -> Evidence:
    """Replace the draft by zeros while streams run, and restore it."""
    folder = trial.lane.draft_folder
    if folder is None:
        return Evidence(
            ProofOutcome.UNSURE, "This draft has no local folder of safetensors to be exchanged."
        )
    blank_draft = await asyncio.to_thread(make_blank_draft, folder, trial.folder / "blank-draft")
    requests = trial.make_greedy("exchange")
    greedy_requests = fix_depth(trial.depth, requests)
    first_answers = await run_all(trial.lane, greedy_requests)
    try:
        swap_answers, pause_s = await _exchange_while_running(trial, greedy_requests, blank_draft)
        blank_answers = await run_all(trial.lane, greedy_requests)
        back_s = await trial.lane.restore_draft()
    except (DraftRefused, EngineFailed) as error:
        return Evidence(ProofOutcome.FAILED, f"The draft was not exchanged: {error}")
    last_answers = await run_all(trial.lane, greedy_requests)
    answers = [*swap_answers, *blank_answers, *last_answers]
    reference = [*trial.reference.greedy_answers] * 3
    comparison = compare_texts(list(zip(reference, answers, strict=True)), trial.dtype)
    lengths = [
        add_totals(group).acceptance_length or 1.0
        for group in (first_answers, blank_answers, last_answers)
    ]
    return judge_exchange(comparison, lengths, max(pause_s, back_s))


async def _exchange_while_running(
    trial: Trial, requests: Sequence[EngineRequest], draft: Any
) -> tuple[list[ProofAnswer], float]:
    streams, _ = await _start_streams(trial, requests)
    try:
        pause_s = await trial.lane.exchange_draft(draft)
    finally:
        answers = await streams
    return answers, pause_s


async def _start_streams(
    trial: Trial, requests: Sequence[EngineRequest]
) -> tuple[asyncio.Task[list[ProofAnswer]], Progress]:
    """Start the requests, and wait until they have a quarter of their tokens, or have ended."""
    progress = Progress(threshold=len(requests) * trial.size.tokens // 4)
    streams = asyncio.create_task(run_all(trial.lane, requests, progress))
    signal = asyncio.create_task(progress.event.wait())
    await asyncio.wait({streams, signal}, return_when=asyncio.FIRST_COMPLETED)
    signal.cancel()
    return streams, progress


def judge_exchange(
    comparison: TextComparison, lengths: Sequence[float], pause_s: float
) -> Evidence:
    texts = judge_texts(comparison, "during, after and again after")
    draft_length, blank_length, restored_length = lengths
    evidence = (
        f"Acceptance length {draft_length:.2f} with the draft, {blank_length:.2f} with one of "
        f"zeros in its place, {restored_length:.2f} with the draft back; the engine paused for "
        f"{1000 * pause_s:.0f} ms at most. {texts.evidence}"
    )
    numbers = {
        "acceptance_lengths": [round(length, 3) for length in lengths],
        "pause_s": round(pause_s, 4),
        "texts": texts.numbers,
    }
    if abs(restored_length - draft_length) > 0.1 * draft_length:
        return Evidence(ProofOutcome.FAILED, evidence, numbers)
    if texts.outcome is ProofOutcome.PASSED and blank_length >= draft_length - 0.1:
        evidence += " The exchange made no difference to acceptance, so it may not have happened."
        return Evidence(ProofOutcome.UNSURE, evidence, numbers)
    return Evidence(texts.outcome, evidence, numbers)


async def check_speed(trial: Trial) -> Evidence:
    """Compare the engine's speed, as it serves by default, with its speed without a draft."""
    ratios: dict[int, Any] = {}
    speeds: dict[int, Any] = {}
    for load in trial.size.loads:
        await measure_speed(trial.lane, load, trial.prompts)
        if trial.baseline is not None:
            plain_rounds, draft_rounds = await _measure_in_turns(trial, load)
        else:
            plain_rounds = list(trial.reference.speeds[load.streams])
            draft_rounds = [
                await measure_speed(trial.lane, load, trial.prompts)
                for _ in range(trial.size.rounds)
            ]
        ratios[load.streams] = divide(draft_rounds, plain_rounds)
        speeds[load.streams] = {"draft": draft_rounds, "none": plain_rounds}
    return judge_speed(ratios, speeds)


async def _measure_in_turns(trial: Trial, load: SpeedLoad) -> tuple[list[Speed], list[Speed]]:
    assert trial.baseline is not None
    lanes = [trial.baseline, trial.lane]
    speeds: tuple[list[Speed], list[Speed]] = [], []
    for number in range(trial.size.rounds):
        for side in (0, 1) if number % 2 else (1, 0):
            speeds[side].append(await measure_speed(lanes[side], load, trial.prompts))
    return speeds


def judge_speed(ratios: dict[int, Any], speeds: dict[int, Any]) -> Evidence:
    level_ratios = [ratio for level in ratios.values() for ratio in level.values()]
    parts = [
        f"{streams} stream{'s' * (streams > 1)}: {level['per user']} per user, "
        f"{level['total']} in total"
        for streams, level in ratios.items()
    ]
    evidence = (
        f"Speed over that without a draft, median and range of {len(level_ratios[0].rounds)} "
        f"rounds: {'; '.join(parts)}. It must be at least {LEAST_SPEED:g}."
    )
    numbers = {
        str(streams): {"ratio": level, "tokens_per_s": _take_medians(speeds[streams])}
        for streams, level in ratios.items()
    }
    return Evidence(judge_ratios(level_ratios, LEAST_SPEED), evidence, numbers)


def _take_medians(sides: dict[str, list[Speed]]) -> dict[str, dict[str, float]]:
    return {
        side: {
            "per_user": round(median(speed.user for speed in rounds), 2),
            "total": round(median(speed.total for speed in rounds), 2),
        }
        for side, rounds in sides.items()
    }


def judge_ratios(ratios: Iterable[Any], bound: float) -> ProofOutcome:
    """Return FAILED if every round is below ``bound``, PASSED if no median is."""
    all_ratios = list(ratios)
    return grade(
        fails=any(max(ratio.rounds) < bound for ratio in all_ratios),
        unsure=any(ratio.median < bound for ratio in all_ratios),
    )


async def check_planner(trial: Trial) -> Evidence:
    if not trial.is_planned:
        return Evidence(ProofOutcome.UNSURE, "The arguments fix the depth, so nothing is planned.")
    depths = sorted({0, 1, (trial.depth + 1) // 2, trial.depth})
    results: dict[int, dict[str, list[Speed]]] = {}
    try:
        for load in (trial.size.loads[0], trial.size.loads[-1]):
            results[load.streams] = await _measure_depths(trial, load, depths)
    finally:
        await trial.lane.freeze_planning(None)
    return judge_planner(results)


async def _measure_depths(
    trial: Trial, load: SpeedLoad, depths: Sequence[int]
) -> dict[str, list[Speed]]:
    """Measure rounds in turns, by depth; ``auto`` is the planner's own choice."""
    speeds: dict[str, list[Speed]] = {name: [] for name in (*map(str, depths), "auto")}
    await trial.lane.freeze_planning(None)
    await measure_speed(trial.lane, load, trial.prompts)
    for _ in range(trial.size.rounds):
        for name, rounds in speeds.items():
            await trial.lane.freeze_planning(None if name == "auto" else int(name))
            rounds.append(await measure_speed(trial.lane, load, trial.prompts))
    return speeds


def judge_planner(results: dict[int, dict[str, list[Speed]]]) -> Evidence:
    ratios, parts, numbers = [], [], {}
    for streams, speeds in results.items():
        totals = {name: median(speed.total for speed in rounds) for name, rounds in speeds.items()}
        best_depth = max((name for name in totals if name != "auto"), key=totals.__getitem__)
        ratio = divide(speeds["auto"], speeds[best_depth])["total"]
        ratios.append(ratio)
        parts.append(f"{streams} stream{'s' * (streams > 1)}: {ratio} of depth {best_depth}")
        numbers[str(streams)] = {
            "tokens_per_s": {name: round(total, 2) for name, total in totals.items()},
            "best": best_depth,
            "auto_over_best": ratio,
        }
    evidence = (
        f"Tokens per second with planned depths over the best fixed depth, {'; '.join(parts)}. It "
        f"must be at least {LEAST_PLANNED:g}."
    )
    return Evidence(judge_ratios(ratios, LEAST_PLANNED), evidence, numbers)


async def check_continuation(trial: Trial) -> Evidence:
    """Kill the engine's processes while streams run."""
    requests = trial.make_greedy("killed")
    greedy_requests = fix_depth(trial.depth, requests)
    streams, progress = await _start_streams(trial, greedy_requests)
    is_running, token_count = not streams.done(), progress.tokens
    has_killed = trial.lane.kill()
    start = time.perf_counter()
    try:
        answers = await streams
    except EngineError as error:
        return Evidence(
            ProofOutcome.FAILED, f"A stream did not survive the loss of its engine: {error}"
        )
    took_s = time.perf_counter() - start
    if not is_running or not has_killed:
        return Evidence(ProofOutcome.UNSURE, "The engine could not be killed while streams ran.")
    pairs = list(zip(trial.reference.greedy_answers, answers, strict=True))
    texts = judge_texts(compare_texts(pairs, trial.dtype), "that continued in another engine")
    evidence = (
        f"The engine was killed when {len(answers)} streams had written {token_count} tokens; the "
        f"last of them ended {took_s:.1f} s later. {texts.evidence}"
    )
    return replace(texts, evidence=evidence, numbers={"ended_s": round(took_s, 2), **texts.numbers})


CHECKS: tuple[Check, ...] = (
    Check("greedy text", "Does the draft leave it unchanged?", check_greedy_text),
    Check("seeded text", "Does the draft leave it unchanged?", check_seeded_text),
    Check("acceptance", "Does the target accept enough drafts?", check_acceptance),
    Check("execution", "Does the engine run as its arguments ask?", check_execution),
    Check("sampled text", "Is it drawn from the target's distribution?", check_sampled_text),
    Check("depth per request", "Does every request keep to its depth?", check_depth),
    Check("accounts", "Do they equal the engine's own counters?", check_accounts),
    Check("speed", "Is it no slower than without a draft?", check_speed, measures_speed=True),
    Check("planner", "Does it keep up with fixed depths?", check_planner, measures_speed=True),
    Check("draft exchange", "Does an exchange leave texts unchanged?", check_exchange),
    Check("continuation", "Do streams survive the engine's death?", check_continuation),
)
"""All checks, those of most worth first, because a run may be cut short. The last ones disturb the
engine."""
