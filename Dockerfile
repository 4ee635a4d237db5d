# Three images from one file:
#   docker build --target cpu     -t eaglegate:cpu .      # vLLM on the CPU with the demo model inside
#   docker build --target gateway -t eaglegate:gateway .  # in front of workers, without vLLM
#   docker build --target cuda    -t eaglegate:cuda .     # on vLLM's own image, for GPUs
# All run as user 10001, also with a read-only root file system and a tmpfs at /tmp. Give a digest
# (BASE_IMAGE=...@sha256:...) for builds that are the same years later. Without a Docker engine:
# scripts/image.
ARG BASE_IMAGE=docker.io/library/debian:bookworm-slim
# Of the tested versions, 0.32 and 0.33; see docs/upgrade.md.
ARG VLLM=0.32.0
ARG VLLM_IMAGE=docker.io/vllm/vllm-openai:v${VLLM}

FROM ${BASE_IMAGE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv
WORKDIR /build
COPY requirements/cpu.lock requirements/light.lock requirements/torch.lock \
    requirements/torchvision_operators.py ./

# The package itself, apart from what it needs, so that a change of a line is a small layer.
FROM builder AS package
RUN awk '/^[a-z]/ {kept = /^setuptools==/} kept' cpu.lock > setuptools.lock \
    && /opt/venv/bin/pip install --no-deps --require-hashes -r setuptools.lock
COPY . source
RUN /opt/venv/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist ./source \
    && /opt/venv/bin/pip install --no-deps --no-index --target /opt/eaglegate dist/*.whl

# What the locks pin, torch from where scripts/install.py takes it: where pip looks by itself, else
# from PyTorch's own index. pip goes when it is done.
FROM builder AS dependencies
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN (/opt/venv/bin/pip install --no-deps --require-hashes -r torch.lock \
    || /opt/venv/bin/pip install --no-deps --require-hashes --index-url "${TORCH_INDEX}" -r torch.lock) \
    && /opt/venv/bin/pip install --no-deps --require-hashes -r cpu.lock \
    && tee -a /opt/venv/lib/python3*/site-packages/torchvision/extension.py < torchvision_operators.py > /dev/null \
    && /opt/venv/bin/pip uninstall -y pip \
    && rm -rf /opt/venv/lib/python3*/site-packages/torch/include

FROM builder AS gateway-dependencies
RUN /opt/venv/bin/pip install --no-deps --require-hashes -r light.lock \
    && /opt/venv/bin/pip uninstall -y pip

FROM ${BASE_IMAGE} AS runtime
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libnuma1 python3 tini \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 eaglegate \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp eaglegate
COPY --from=package /opt/eaglegate /opt/eaglegate
ENV PATH=/opt/eaglegate/bin:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/eaglegate PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    HOME=/tmp TMPDIR=/tmp \
    EAGLEGATE_HOST=0.0.0.0 EAGLEGATE_PORT=8000 \
    VLLM_NO_USAGE_STATS=1 HF_HUB_DISABLE_TELEMETRY=1
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=6 \
    CMD ["python3", "-m", "eaglegate.server.cli.health"]
ENTRYPOINT ["tini", "--", "eaglegate"]
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG BASE_IMAGE
LABEL org.opencontainers.image.title="eaglegate" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"

FROM runtime AS cpu
COPY --from=dependencies /opt/venv /opt/venv
CMD ["serve"]
LABEL org.opencontainers.image.description="OpenAI-compatible gateway with EAGLE 3.1 speculative decoding; demo model on the CPU"

FROM runtime AS gateway
COPY --from=gateway-dependencies /opt/venv /opt/venv
CMD ["serve", "--help"]
LABEL org.opencontainers.image.description="OpenAI-compatible gateway for speculative decoding, in front of workers"

# The same package on vLLM's image, which has CUDA, torch and vLLM already. Only what that image lacks
# is added, from a lock; the install of the package fails if anything it needs is still missing.
FROM ${VLLM_IMAGE} AS cuda
USER 0
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 eaglegate \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp eaglegate
COPY requirements/cuda.lock /tmp/cuda.lock
COPY --from=package /build/dist /tmp/dist
RUN python3 -m venv --system-site-packages /opt/eaglegate \
    && /opt/eaglegate/bin/python3 -m pip install --no-cache-dir --no-deps --require-hashes -r /tmp/cuda.lock \
    && /opt/eaglegate/bin/python3 -m pip install --no-cache-dir --no-index /tmp/dist/*.whl \
    && rm -rf /tmp/cuda.lock /tmp/dist
ENV PATH=/opt/eaglegate/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    HOME=/tmp TMPDIR=/tmp HF_HOME=/models \
    EAGLEGATE_HOST=0.0.0.0 EAGLEGATE_PORT=8000 \
    VLLM_NO_USAGE_STATS=1 HF_HUB_DISABLE_TELEMETRY=1
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# A model of hundreds of gigabytes loads for long.
HEALTHCHECK --interval=10s --timeout=5s --start-period=3600s --retries=6 \
    CMD ["python3", "-m", "eaglegate.server.cli.health"]
ENTRYPOINT ["tini", "--", "eaglegate"]
CMD ["serve", "--help"]
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG VLLM_IMAGE
LABEL org.opencontainers.image.title="eaglegate" \
      org.opencontainers.image.description="OpenAI-compatible gateway with EAGLE 3.1 speculative decoding, for CUDA" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${VLLM_IMAGE}"
