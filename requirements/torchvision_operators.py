
# eaglegate adds what follows (scripts/install.py, Dockerfile). torchvision's build on PyPI is for
# CUDA, so that its operators do not load beside torch's build for CPUs. Then `import torchvision`
# fails, and `import transformers` with it, where the shape of `nms` is registered. vLLM needs only
# the transforms of images, which are Python: the operators are declared, and cannot be called.
if not _has_ops():
    _operators = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
