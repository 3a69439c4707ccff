# Two commands: `make train` trains a team, `make test` tests the project. Both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTOS := $(wildcard protos/marless/rpc/v1/*.proto)

.PHONY: protos
protos:
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --grpc_python_out=. \
	  --mypy_out=. --mypy_grpc_out=. $(PROTOS)
