# Routers and machines. Default: the reference engine on CPUs. For GPUs start from a vLLM image:
#   docker build -f deploy/images/runtime.Dockerfile --build-arg BASE=vllm/vllm-openai:TAG -t splitwise-runtime:0.1.0 .
ARG BASE=python:3.12-slim
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY runtime runtime
RUN pip install --no-cache-dir hatchling==1.33.0 \
 && pip wheel --no-deps --no-build-isolation -w /dist .

FROM ${BASE}
COPY deploy/images/requirements.txt /tmp/requirements.txt
COPY --from=build /dist /tmp/dist
# A vLLM image brings its own versions of what is shared; they go before ours there.
RUN if python3 -c 'import vllm' 2>/dev/null; \
    then python3 -m pip install --no-cache-dir --no-deps /tmp/dist/*.whl msgspec gguf uvloop; \
    else python3 -m pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt \
      && python3 -m pip install --no-cache-dir --no-deps /tmp/dist/*.whl; fi \
 && rm -rf /tmp/dist /tmp/requirements.txt \
 && (command -v python >/dev/null || ln -s "$(command -v python3)" /usr/local/bin/python) \
 && python -c 'import runtime.machine, runtime.router'
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT []
