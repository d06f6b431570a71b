#!/bin/sh
# A kind cluster with the operator, for people with docker, kind, kubectl and helm. CI does not run this: it
# tests the same chart on a real API server instead (tests/api). The nodes have no GPUs, so use the reference
# engine and pools without gpu.
set -eu
cd "$(dirname "$0")/../.."
version=$(python3 -c 'import re; print(re.search(r"__version__ = \"(.*)\"", open("runtime/__init__.py").read())[1])')
for image in operator runtime; do
  docker build -f "deploy/images/$image.Dockerfile" -t "splitwise-$image:$version" .
done
kind get clusters | grep -qx splitwise || kind create cluster --name splitwise --config deploy/kind/cluster.yaml
for image in operator runtime; do
  kind load docker-image --name splitwise "splitwise-$image:$version"
done
helm upgrade --install splitwise charts/splitwise-operator -n splitwise-system --create-namespace --wait
kubectl get pods -n splitwise-system
