# Shorthand. The commands themselves are in README.md and .ci/.

.PHONY: test demo ci lint stubtest format coverage docs sanitize test-vllm-engine

test demo:
	@sed -n '/<!-- command: $@ -->/,/^```$$/p' README.md | sed '/^<!--/d; /^```/d' | sh -e

ci:
	bash .ci/run

lint:
	ruff check . && ruff format --check . && cython-lint kvfast_ext && mypy

# The type stubs against the compiled modules, which must be built.
stubtest:
	stubtest --allowlist .ci/stubtest-allow kvfast_ext.cython_backend._native kvfast_ext.cython_backend._store

# Every line and branch of the Python side, but for those that pyproject.toml or a comment names. What a test
# measures in bytes, and what runs for minutes in processes of its own, is left out: a tracer is in its way.
coverage:
	coverage erase
	coverage run -m pytest tests bench/test_plot.py --ignore tests/backend/test_memory.py --ignore tests/soak
	coverage combine -q
	coverage report --fail-under=100

docs:
	mkdocs build --strict

format:
	ruff check --fix . && ruff format .

sanitize:
	.ci/sanitize "$${TMPDIR:-/tmp}/kvfast-sanitize"
	.ci/sanitize-threads "$${TMPDIR:-/tmp}/kvfast-sanitize-threads"

# Real vLLM servers on the CPU, up to an hour on two cores: docs/vllm-engine.md. PYTHON is one that has vLLM.
test-vllm-engine:
	KVFAST_VLLM_ENGINE=1 "$${PYTHON:-python3}" -m pytest -W ignore -v tests/vllm/engine
