"""Speculation depth chosen at every step: expected committed tokens over expected time.

``DepthPlanner`` (planner.py) is what a scheduler calls: plan a step, then report what came of it.
It asks ``SurvivalEstimator`` (survival.py) how likely each draft token is to be accepted and
``StepCostModel`` (cost.py) how long a step takes. Nothing here knows vLLM; ``benchmarks/regret.py``
runs the same planner against a simulated engine.
"""
