# fedseed in a container, for CPUs. SIDE is "train" for a site (torch and transformers), "coordinator" for the coordinator:
#   docker build -t fedseed .
#   docker build --build-arg SIDE=coordinator -t fedseed-coordinator .
#   docker run --rm -v "$PWD/federation:/federation" fedseed run quickstart-ferret
# It works as user 1000, to whom the folder that is mounted must belong. examples/compose has a federation of such containers.
FROM python:3.11-slim AS built
ARG SIDE=train
# torch first, for CPUs: anything that depends on it would bring gigabytes of CUDA. For GPUs name another index and version
ARG TORCH=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH
RUN if [ "$SIDE" = train ]; then pip install --no-cache-dir --index-url "$TORCH_INDEX" "torch==$TORCH"; fi
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir ".[${SIDE},prometheus]"

FROM python:3.11-slim
RUN useradd --create-home --uid 1000 fedseed && install -d -o fedseed -g fedseed /federation \
    /home/fedseed/.cache /home/fedseed/.local /home/fedseed/.local/state
COPY --from=built /venv /venv
ENV PATH=/venv/bin:$PATH
USER fedseed
WORKDIR /federation
ENTRYPOINT ["fedseed"]
