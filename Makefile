# The targets people use; `make help` lists them. One build setting everywhere
# (CGO_ENABLED=0, -trimpath): a second one would compile the world again.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath

BIN     := $(CURDIR)/bin
CACHE   := $(CURDIR)/.cache
TOOLS   := $(CACHE)/bin
# Modules with tests; the others (test/tools, test/lint) only pin programs.
MODULES := . test/bench
FUZZTIME ?= 10s
LINT       := $(TOOLS)/golangci-lint
ACTIONLINT := $(TOOLS)/actionlint

export FIRSTLIGHT_TOOLS ?= $(TOOLS)

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-zA-Z_-]+:.*## /{printf "  %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build every command into bin/
	@mkdir -p $(BIN)
	go build -ldflags '-s -w' -o $(BIN)/ ./cmd/...

.PHONY: image
image: build ## pack the programs into an OCI image: bin/image, or PUSH=REF
	go run ./deploy/image $(if $(PUSH),--push $(PUSH),--layout $(BIN)/image)

.PHONY: setup
setup: ## install the Debian packages that are missing (root)
	@test/setup/setup.sh

# What tests run against, at pinned versions: test/tools, test/cluster/kubeall.
# Not stamped with the commit: each one would link them anew.
KUBERNETES := v1.37.2
KUBERNETES_PARTS := etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl
KUBERNETES_LDFLAGS := -s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37 \
	-X k8s.io/component-base/version.gitTreeState=clean -X k8s.io/component-base/version.buildDate=2026-01-01T00:00:00Z

.PHONY: tools tools-containerd tools-kubernetes
tools: tools-containerd tools-kubernetes ## build what tests run against into .cache/bin

tools-containerd: ## only containerd, ctr, its runc shim and a registry
	@mkdir -p $(TOOLS)
	cd test/tools && go build -buildvcs=false -ldflags '-s -w -X github.com/containerd/containerd/v2/version.Version=v2.4.2' -o $(TOOLS)/ tool ./registry

tools-kubernetes: ## only Kubernetes, as one program (about 950 CPU seconds the first time)
	@mkdir -p $(TOOLS)
	cd test/cluster/kubeall && go build -buildvcs=false -ldflags '$(KUBERNETES_LDFLAGS)' -o $(TOOLS)/ .
	@for part in $(KUBERNETES_PARTS); do ln -sf kubeall $(TOOLS)/$$part; done

.PHONY: cluster
cluster: tools ## build bin/cluster: a test Kubernetes in seconds, see bin/cluster --help
	@mkdir -p $(BIN)
	go build -o $(BIN)/cluster ./test/cluster/cmd/cluster

.PHONY: quickstart
quickstart: setup ## lazy start and full pull of one image, side by side (root, a few minutes)
	@go run ./test/quickstart

.PHONY: quickstart-kubernetes
quickstart-kubernetes: setup ## the same on a real Kubernetes, built from Go modules
	@go run ./test/quickstart -kubernetes

# Peers' programs, of pinned modules. SOCI inflates with zlib, hence the only
# compiler of C: what "make test" covers needs none.
.PHONY: bench-peers
bench-peers:
	@test/setup/setup.sh peers
	@mkdir -p $(TOOLS)
	cd test/bench/peers/soci && CGO_ENABLED=1 go build -buildvcs=false -ldflags '-s -w' -o $(TOOLS)/ tool

.PHONY: bench
bench: setup build tools-containerd bench-peers ## start images by us and by peers, side by side (root); BENCH=quick: fewer times
	cd test/bench && go run . $(if $(filter quick,$(BENCH)),-runs 3)

.PHONY: test
test: setup tools build ## every test of every module, all set-up included (root)
	go run ./test/report $(MODULES)

.PHONY: lint
lint: $(LINT) $(ACTIONLINT) ## golangci-lint on every module, actionlint on the example workflow
	$(ACTIONLINT) deploy/ci/github-actions.yml
	@set -e; for module in $(MODULES) test/cluster/kubeall; do \
	  [ -f $$module/go.mod ] || continue; \
	  echo "lint $$module"; (cd $$module && $(LINT) run --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./...); \
	done

$(LINT): test/lint/go.mod
	@mkdir -p $(TOOLS)
	cd test/lint && go build -ldflags '-s -w' -o $(TOOLS)/ tool

$(ACTIONLINT): test/lint/actionlint/go.mod
	@mkdir -p $(TOOLS)
	cd test/lint/actionlint && go build -ldflags '-s -w' -o $(TOOLS)/ tool

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (10s) each
	@go run ./test/fuzz -time $(FUZZTIME)

.PHONY: clean
clean: ## remove what was built; downloaded and compiled things in .cache stay
	rm -rf $(BIN)

.PHONY: distclean
distclean: clean ## remove .cache too
	rm -rf $(CACHE)
