# Every task is one line that calls a script. `make help` lists them.
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)
.PHONY: help setup check test test-engines test-all prepare docs serve wheel versions sanitize ci

help:  ## List the tasks
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24
setup:  ## Create .venv with bitbench and the tools
	scripts/setup
check:  ## Check format, lint, types and import layers
	scripts/check
test:  ## Run the tests that need no engine
	scripts/test tests/unit tests/features tests/chain
prepare:  ## Create the engines and the model for the other tests, in BITBENCH_HOME
	.ci/prepare
test-engines:  ## Run what every submission runs, with real engines
	scripts/test
test-all:  ## Run every test at full length (hours)
	scripts/test --all
docs:  ## Build the documents into build/site
	scripts/docs
serve:  ## Show the documents while you write
	scripts/docs serve
wheel:  ## Build a wheel into dist and try it
	scripts/wheel
versions:  ## Test the oldest and the newest dependencies
	scripts/versions
sanitize:  ## Test the native part under AddressSanitizer and UBSan
	scripts/native-sanitize
ci:  ## Run everything on a clean checkout
	.ci/run
