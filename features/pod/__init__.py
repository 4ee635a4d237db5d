"""eaglegate inside an unchanged ``vllm serve``: docs/pod.md.

``--scheduler-cls eaglegate.vllm.Scheduler`` is the one flag. vLLM loads ``general.py`` in each of
its processes as a plug-in of its own (``vllm.general_plugins``), which does nothing without that
flag. All of the work is in ``engine/``, because no gateway runs in a pod.
"""
