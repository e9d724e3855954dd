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
