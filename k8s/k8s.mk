# Images and manifests; included from the Makefile.

# Overlay under k8s/overlays, or a folder with a kustomization of your own.
OVERLAY ?= cpu
# Images are REGISTRY/NAME:TAG.
REGISTRY ?= localhost/vagen
TAG ?= 0.2.0
IMAGE ?= $(REGISTRY)/cpu:$(TAG)
# Of the steps: components/image.py reads it, an infra file or --image may name another.
VAGEN_IMAGE ?= $(shell sed -n 's/^VAGEN_IMAGE=//p' k8s/site/site.env)
VALIDATE_VENV := .venv-validate
VALIDATE_READY := $(VALIDATE_VENV)/.installed

.PHONY: images image-digests image-base image-cpu-local image-check image-try sbom manifests validate \
	manifest-checks deploy undeploy

$(VALIDATE_READY): constraints/validate.txt
	@test -x $(VALIDATE_VENV)/bin/python || $(PYTHON) -m venv $(VALIDATE_VENV)
	$(call install,$(VALIDATE_VENV),-r constraints/validate.txt)
	@touch $@

images: ## Build what OVERLAY needs (CONTAINER=, REGISTRY=, TAG=; PUSH=1 also pins the site)
	@images/overlay.sh $(OVERLAY) $(REGISTRY) $(TAG)

image-digests: ## Write today's digests of the base images to images/bases.env
	@images/digests.sh

image-base: ## Make a base image from Debian's packages, where no registry is reached (root)
	@images/base.sh

image-cpu-local: image-base ## Build the CPU image on that base: REGISTRY/cpu:TAG
	@BASE_IMAGE=localhost/debian-python:bookworm images/build.sh cpu $(IMAGE)

image-check: $(VERL_READY) ## Build the CPU image with packages of .venv-verl, and try it (Debian, root)
	@if test "$$(id -u)" = 0 && type mmdebstrap podman buildah runc >/dev/null 2>&1; then \
		images/check.sh $(VERL_VENV)/lib/python3*/site-packages; \
	else echo "image-check: needs root, mmdebstrap, podman, buildah and runc; no image was built"; fi

image-try: ## Check what is in IMAGE and run a small pipeline: no rights, no network
	@images/try.sh $(IMAGE)

sbom: ## Write what IMAGE consists of to build/sbom.json (CycloneDX; syft or cyclonedx-py)
	@images/sbom.sh $(IMAGE) build/sbom.json

manifests: ## Render OVERLAY to build/OVERLAY.yaml
	@mkdir -p build && kubectl kustomize k8s/overlays/$(OVERLAY) > build/$(OVERLAY).yaml
	@echo "build/$(OVERLAY).yaml: $$(grep -c '^kind:' build/$(OVERLAY).yaml) objects"

validate: manifest-checks $(READY) ## Check manifests and images without a cluster (CRDS=folder)
	@$(BIN)/python -m pytest tests/k8s tests/pipelines

manifest-checks: $(VALIDATE_READY) ## The first half of validate: schemas, queries, checkov
	@command -v kubectl >/dev/null || \
		{ echo "kubectl 1.27 or newer is needed: https://kubernetes.io/docs/tasks/tools/"; exit 2; }
	@k8s/validate/validate.sh $(CURDIR)/$(VALIDATE_VENV)/bin

deploy: ## Bring OVERLAY to the cluster of kubectl, and wait until it is ready (CONTEXT=)
	@k8s/deploy.sh deploy $(OVERLAY)

undeploy: ## Remove OVERLAY; volumes and namespaces stay unless DATA=delete (asks; YES=1)
	@k8s/deploy.sh undeploy $(OVERLAY)
