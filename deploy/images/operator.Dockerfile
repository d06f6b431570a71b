# The operator: slim Python, locked wheels, ours on top. Build from the repository's root:
#   docker build -f deploy/images/operator.Dockerfile -t splitwise-operator:0.1.0 .
FROM python:3.12-slim AS build
WORKDIR /src
COPY deploy/images/requirements.txt ./
RUN python -m venv /app && /app/bin/pip install --no-cache-dir --require-hashes -r requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY runtime runtime
RUN pip install --no-cache-dir hatchling==1.33.0 \
 && pip wheel --no-deps --no-build-isolation -w /dist . \
 && /app/bin/pip install --no-cache-dir --no-deps /dist/*.whl \
 && /app/bin/pip uninstall -y pip

FROM python:3.12-slim
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python", "-P", "-m", "controlplane"]
CMD ["run"]
