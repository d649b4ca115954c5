# trl-nlac in a container, for a CPU or for NVIDIA GPUs:
#
#     docker build --target cpu -t trl-nlac .
#     docker run --rm -v "$PWD/runs:/data/runs" trl-nlac train --config cpu
#
#     docker build --target cuda -t trl-nlac:cuda .
#     docker run --rm --gpus all -v "$PWD:/data" trl-nlac:cuda train --config run.yaml
#
# Models come from the Hub: add -v "$HOME/.cache/huggingface:/home/user/.cache/huggingface" to keep them.

FROM python:3.12-slim AS base
RUN apt-get update && apt-get install --yes --no-install-recommends g++ git && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home user && mkdir /data && chown user /data
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE NOTICE MANIFEST.in ./
COPY trl_nlac trl_nlac
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

FROM base AS cuda
# torch brings the CUDA libraries; DeepSpeed compiles its operators when they are first used, which needs a compiler.
RUN pip install ".[deepspeed,peft,report]"
USER user
WORKDIR /data
ENTRYPOINT ["trl-nlac"]
CMD ["--help"]

FROM base AS cpu
RUN pip install --index-url https://download.pytorch.org/whl/cpu torch==2.13.0 && pip install ".[peft,report]"
USER user
WORKDIR /data
ENTRYPOINT ["trl-nlac"]
CMD ["--help"]
