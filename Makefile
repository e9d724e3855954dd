# The targets people use. `make help` lists them.
export CGO_ENABLED := 0
GOFLAGS_BUILD := -trimpath
BIN := $(CURDIR)/bin
COMMANDS := $(notdir $(wildcard cmd/*))

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-zA-Z_-]+:.*## /{printf "  %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build every command into bin/
	@mkdir -p $(BIN)
	go build $(GOFLAGS_BUILD) -ldflags '-s -w' -o $(BIN)/ ./cmd/...

# What tests run against, at pinned versions: test/tools, test/cluster/kubeall.
TOOLS := $(CURDIR)/.cache/bin
KUBERNETES := v1.37.2
KUBERNETES_LDFLAGS := -s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37 \
	-X k8s.io/component-base/version.gitTreeState=clean -X k8s.io/component-base/version.buildDate=2026-01-01T00:00:00Z

.PHONY: tools tools-containerd tools-kubernetes
tools: tools-containerd tools-kubernetes ## build what tests run against into .cache/bin

tools-containerd: ## only containerd, ctr, its runc shim and a registry
	@mkdir -p $(TOOLS)
	cd test/tools && go build $(GOFLAGS_BUILD) -ldflags '-s -w -X github.com/containerd/containerd/v2/version.Version=v2.4.2' -o $(TOOLS)/ tool ./registry

tools-kubernetes: ## only Kubernetes, as one program (about 950 CPU seconds the first time)
	@mkdir -p $(TOOLS)
	cd test/cluster/kubeall && go build $(GOFLAGS_BUILD) -ldflags '$(KUBERNETES_LDFLAGS)' -o $(TOOLS)/ .
